"""Whatever is written, readers see positions 1..n once, and nothing of a zombie behind a take-over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.contracts import ErrorEntry, FinishEntry, StreamEntry, TakeoverEntry, TokenEntry
from inference.transcript import STREAM_LOST, EntryFilter, Gap


def token(position: int, epoch: int = 1) -> TokenEntry:
    return TokenEntry(epoch, 0, position, (100 + position,), chr(96 + position))


def finish(tokens: int) -> FinishEntry:
    return FinishEntry(1, ("stop",), 5, 0, tokens)


def cleaned(*entries: StreamEntry) -> list[object]:
    sieve = EntryFilter()
    return [clean for entry in entries if (clean := sieve.clean(entry)) is not None]


def test_repeats_are_dropped() -> None:
    assert cleaned(token(1), token(1), token(2), token(1), token(2)) == [token(1), token(2)]


def test_a_zombie_is_not_heard_behind_a_take_over() -> None:
    assert cleaned(token(1), TakeoverEntry(2), token(2), token(2, epoch=2)) == [token(1), token(2, epoch=2)]


def test_a_normal_hand_over_needs_no_take_over() -> None:
    assert cleaned(token(1), token(2, epoch=2)) == [token(1), token(2, epoch=2)]


def test_a_gap_is_told_and_never_becomes_text_with_a_hole() -> None:
    assert isinstance(cleaned(token(1), token(3))[-1], Gap)


def test_an_end_that_counts_more_tokens_than_were_heard_is_a_gap() -> None:
    assert isinstance(cleaned(token(1), finish(2))[-1], Gap)
    assert cleaned(token(1), token(2), finish(2))[-1] == finish(2)


def test_an_entry_behind_a_gap_counts_once_the_gap_is_filled() -> None:
    sieve = EntryFilter()
    assert isinstance(sieve.clean(token(3)), Gap)
    sieve.transcript.append(0, (101, 102))
    assert sieve.clean(token(3)) == token(3)


def test_an_entry_that_is_half_known_is_a_gap_for_its_text_cannot_be_cut() -> None:
    both = TokenEntry(1, 0, 2, (102, 103), "bc")
    assert isinstance(cleaned(token(1), token(2), both)[-1], Gap)


def test_a_repeat_that_differs_ends_the_stream() -> None:
    lost = cleaned(token(1), TokenEntry(2, 0, 1, (999,), "?"))[-1]
    assert isinstance(lost, ErrorEntry)
    assert lost.code == STREAM_LOST


def test_without_a_take_over_mark_the_higher_epoch_silences_the_lower() -> None:
    assert cleaned(token(1), token(2, epoch=2), token(3)) == [token(1), token(2, epoch=2)]


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 3)), max_size=60))
def test_whatever_comes_in_whatever_order_positions_are_answered_once_and_in_order(written: list[tuple[int, int]]) -> None:
    positions = [entry.position for entry in cleaned(*(token(*one) for one in written)) if isinstance(entry, TokenEntry)]
    assert positions == list(range(1, len(positions) + 1))


def test_choices_count_for_themselves() -> None:
    other = TokenEntry(1, 1, 1, (5,), "x")
    assert cleaned(token(1), other, token(2)) == [token(1), other, token(2)]
