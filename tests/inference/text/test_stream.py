from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference.text import ModelText, TextStream, UnknownTokenError
from tests.conftest import Seconds


def shown(text: ModelText, ids: Sequence[int], stop: tuple[str, ...] = ()) -> list[str]:
    stream = TextStream(text, stop)
    return [*(stream.push(token) for token in ids), stream.flush()]


def cut(whole: str, stop: tuple[str, ...]) -> str:
    """Slow reference: the first end at which some stop string is complete; there, the longest."""
    for end in range(1, len(whole) + 1):
        complete = [len(text) for text in stop if text and whole[:end].endswith(text)]
        if complete:
            return whole[: end - max(complete)]
    return whole


def longest_beginning(whole: str, stop: tuple[str, ...]) -> int:
    return max((size for text in stop for size in range(len(text)) if whole.endswith(text[:size])), default=0)


few_bytes = st.sampled_from([*b"ab ", 0xED, 0x95, 0x9C, 0xF0, 0x9F, 0x98, 0x80, 0xC3, 0xFF, 256, 257, 258, 262, 289])
tiny_ids = st.lists(few_bytes | st.integers(0, 289), max_size=40)
stops = st.lists(st.text(st.sampled_from("ab 한\ufffd😀"), max_size=4), max_size=4).map(tuple)


@given(ids=tiny_ids, stop=stops)
@example(ids=list(b"abcabd"), stop=("abd",))
@example(ids=list(b"aaab"), stop=("aab", "ab"))
@settings(max_examples=1000, deadline=None)
def test_what_is_shown_is_the_whole_decoding_cut_at_the_first_stop(tiny: ModelText, ids: list[int], stop: tuple[str, ...]) -> None:
    whole = b"".join(map(tiny.token_bytes, ids)).decode(errors="replace")
    assert "".join(shown(tiny, ids, stop)) == cut(whole, stop)


@given(ids=st.lists(st.integers(0, 49_151), max_size=30), stop=st.lists(st.text(max_size=3), max_size=3).map(tuple))
@settings(max_examples=300, deadline=None)
def test_the_same_holds_for_a_real_vocabulary(smollm2: ModelText, ids: list[int], stop: tuple[str, ...]) -> None:
    assert "".join(shown(smollm2, ids, stop)) == cut(smollm2.decode(ids), stop)


@given(ids=st.lists(st.sampled_from(b"ab"), max_size=40), stop=stops.filter(any))
@settings(max_examples=500, deadline=None)
def test_no_more_is_held_back_than_begins_a_stop_string(tiny: ModelText, ids: list[int], stop: tuple[str, ...]) -> None:
    stream, visible = TextStream(tiny, stop), ""
    for count, token in enumerate(ids, 1):
        visible += stream.push(token)
        whole = bytes(ids[:count]).decode()
        expected = cut(whole, stop) if stream.stopped else whole[: len(whole) - longest_beginning(whole, stop)]
        assert visible == expected


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
@settings(max_examples=200, deadline=None)
def test_only_whole_characters_are_shown(tiny: ModelText, text: str) -> None:
    for part in shown(tiny, tiny.encode(text))[:-1]:
        assert "\ufffd" not in part or "\ufffd" in text


def test_a_hangul_syllable_is_shown_when_its_last_byte_is_there(tiny: ModelText) -> None:
    assert shown(tiny, list("한".encode())) == ["", "", "한", ""]


def test_an_emoji_of_several_code_points_loses_nothing(tiny: ModelText) -> None:
    family = "👩‍👩‍👧‍👦"
    assert "".join(shown(tiny, tiny.encode(family))) == family


def test_a_character_cut_off_by_the_end_is_one_replacement_character(tiny: ModelText) -> None:
    assert shown(tiny, list("한".encode())[:2]) == ["", "", "\ufffd"]


def test_a_control_token_between_two_bytes_of_a_character_shows_nothing(tiny: ModelText) -> None:
    first, *others = "한".encode()
    assert shown(tiny, [first, 257, *others, 256]) == ["", "", "", "한", "", ""]


def test_a_stop_string_over_token_borders_leaks_no_beginning(tiny: ModelText) -> None:
    stream = TextStream(tiny, ("STOP",))
    assert [stream.push(token) for token in b"xSTSTOPy"] == ["x", "", "", "ST", "", "", "", ""]
    assert stream.stopped
    assert stream.flush() == ""


def test_a_false_beginning_is_shown_when_it_is_over(tiny: ModelText) -> None:
    stream = TextStream(tiny, ("STOP",))
    assert [stream.push(token) for token in b"STO!"] == ["", "", "", "STO!"]
    assert not stream.stopped


def test_a_beginning_at_the_end_of_generation_is_shown(tiny: ModelText) -> None:
    assert shown(tiny, list(b"aSTO"), ("STOP",)) == ["a", "", "", "", "STO"]


def test_a_stop_string_in_the_middle_of_a_token_cuts_the_token(smollm2: ModelText) -> None:
    ids = smollm2.encode(" assistant")
    assert len(ids) < len(" assistant")
    assert "".join(shown(smollm2, ids, ("sis",))) == " as"


def test_the_first_of_several_stop_strings_wins_and_the_longest_of_equals(tiny: ModelText) -> None:
    assert "".join(shown(tiny, list(b"one two three"), ("three", "two"))) == "one "
    assert "".join(shown(tiny, list(b"xxaab"), ("ab", "aab"))) == "xx"


def test_a_stop_string_of_a_replacement_character_matches_at_flush(tiny: ModelText) -> None:
    stream = TextStream(tiny, ("\ufffd",))
    assert [stream.push(0x61), stream.push(0xED), stream.flush()] == ["a", "", ""]
    assert stream.stopped


def test_empty_stop_strings_match_nothing(tiny: ModelText) -> None:
    assert "".join(shown(tiny, list(b"abc"), ("",))) == "abc"
    assert "".join(shown(tiny, list(b"abc"), ("", "c"))) == "ab"


def test_an_unknown_id_is_refused_and_the_stream_goes_on(tiny: ModelText) -> None:
    stream = TextStream(tiny)
    with pytest.raises(UnknownTokenError):
        stream.push(290)
    assert stream.push(65) == "A"


def test_a_token_costs_the_same_late_as_early(smollm2: ModelText, seconds: Seconds) -> None:
    ids = smollm2.encode("The stop is near, the stopp is far. " * 50)
    few, many = ids[:400] * 5, ids[:400] * 50
    stop = ("STOP", "the end")
    ratio = seconds(lambda: shown(smollm2, many, stop)) / seconds(lambda: shown(smollm2, few, stop))
    assert ratio < 25  # ten times the tokens; quadratic work would show a hundred


def test_a_stop_string_that_nearly_matches_for_ever_costs_no_more_than_its_text(tiny: ModelText) -> None:
    stop = "a" * 5000 + "b"
    assert "".join(shown(tiny, [97] * 20_000, (stop,))) == "a" * 20_000
