"""Hostile and ordinary bodies, without a server: what the parser answers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from controlplane.errors import ApiError, InvalidJson
from controlplane.gateway import limits
from controlplane.gateway.json_body import parse_object, read_body
from controlplane.gateway.schema import ChatRequest, chat_request
from inference.contracts import SamplingParams
from tests.conftest import Seconds

HI = [{"role": "user", "content": "Hi"}]


def parse(**fields: Any) -> ChatRequest:
    return chat_request({"model": "m", "messages": HI, **fields})


def refusal(body: bytes) -> tuple[int, str, str | None]:
    with pytest.raises(ApiError) as caught:
        chat_request(parse_object(body))
    caught.value.message.encode()
    return caught.value.status, caught.value.code, caught.value.param


def refused(**fields: Any) -> tuple[int, str, str | None]:
    return refusal(json.dumps({"model": "m", "messages": HI, **fields}).encode())


def test_defaults_are_those_of_the_api() -> None:
    chat = parse()
    assert (chat.max_tokens, chat.seed, chat.sampling) == (None, None, SamplingParams(max_tokens=0))
    assert (chat.stream, chat.include_usage, chat.service_tier, chat.labels) == (False, False, "auto", {})


def test_nulls_count_as_absent() -> None:
    optional = (
        "stream stream_options max_tokens max_completion_tokens temperature top_p seed stop user metadata service_tier n logprobs"
        " top_logprobs frequency_penalty presence_penalty response_format tools tool_choice logit_bias parallel_tool_calls store"
    )
    assert parse(**dict.fromkeys(optional.split())) == parse()


def test_what_clients_send_as_defaults_is_accepted() -> None:
    harmless = {
        "n": 1,
        "logprobs": False,
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "none",
        "modalities": ["text"],
        "store": False,
    }
    assert parse(**harmless) == parse()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("tools", [{"type": "function"}]),
        ("tool_choice", {"type": "function"}),
        ("functions", [{}]),
        ("parallel_tool_calls", False),
        ("reasoning_effort", "low"),
        ("audio", {}),
        ("store", True),
        ("store", 0),
        ("best_of", 2),
        ("Model", "m"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(field: str, value: object) -> None:
    assert refused(**{field: value}) == (400, "unsupported_parameter", field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 5),
        ("model", "x" * 201),
        ("model", "a\x00b"),
        ("model", ["m"]),
        ("stream", 1),
        ("stream", "true"),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.0),
        ("max_tokens", True),
        ("max_tokens", "5"),
        ("max_tokens", 10**20),
        ("max_completion_tokens", 0),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", True),
        ("temperature", "1"),
        ("temperature", [1]),
        ("top_p", 1.5),
        ("top_p", {}),
        ("top_k", -1),
        ("top_k", 1.5),
        ("seed", 1.5),
        ("seed", False),
        ("seed", 1 << 64),
        ("stop", ""),
        ("stop", [""]),
        ("stop", ["a"] * 5),
        ("stop", ["x" * 257]),
        ("stop", [1]),
        ("stop", "\0"),
        ("stop", ["a\0b"]),
        ("stop", {"a": 1}),
        ("n", 0),
        ("n", 17),
        ("n", True),
        ("n", 1.0),
        ("n", 10**9),
        ("logprobs", 1),
        ("top_logprobs", 3),
        ("prompt_logprobs", 21),
        ("prompt_logprobs", -1),
        ("frequency_penalty", 2.1),
        ("presence_penalty", "1"),
        ("repetition_penalty", 0),
        ("min_p", 1.1),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"01": 1}),
        ("logit_bias", {"1": 100.5}),
        ("logit_bias", {"1": True}),
        ("logit_bias", {str(token): 1 for token in range(1_025)}),
        ("logit_bias", [[1, 1]]),
        ("stop_token_ids", 5),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [1.0]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [1] * 65),
        ("min_tokens", -1),
        ("user", 5),
        ("user", "x" * 257),
        ("user", "a\x00b"),
        ("metadata", []),
        ("metadata", {str(i): "x" for i in range(17)}),
        ("metadata", {"k" * 65: "x"}),
        ("metadata", {"": "x"}),
        ("metadata", {"\ud800": "x"}),
        ("service_tier", 5),
        ("messages", []),
        ("messages", {}),
        ("messages", "Hi"),
        ("messages", HI * 2_049),
        ("stream_options", {"include_usage": True}),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(field: str, value: object) -> None:
    status, code, param = refused(**{field: value})
    assert (status, code, re.split(r"[.\[]", param or "")[0]) == (400, "invalid_value", field)


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("Hi", "messages[0]"),
        (None, "messages[0]"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": "\ud800"}, "messages[0].content"),
        ({"role": "user", "content": ["Hi"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": "\udc00"}]}, "messages[0].content"),
        ({"role": "root", "content": "Hi"}, "messages[0].role"),
        ({"role": ["user"], "content": "Hi"}, "messages[0].role"),
        ({"content": "Hi"}, "messages[0].role"),
    ],
)
def test_a_broken_message_is_refused_with_its_place(value: object, param: str) -> None:
    assert refused(messages=[value]) == (400, "invalid_value", param)


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"role": "tool", "content": "5"}, "messages[0].role"),
        ({"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls"),
        ({"role": "user", "content": "Hi", "name": "ann"}, "messages[0].name"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]},
            "messages[0].content[0].type",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {}}]},
            "messages[0].content[0].cache_control",
        ),
    ],
)
def test_what_a_message_may_not_carry_yet_is_named(value: object, param: str) -> None:
    assert refused(messages=[value]) == (400, "unsupported_parameter", param)


def test_an_answer_of_the_official_client_can_be_sent_back_as_history() -> None:
    """It carries nulls and empty lists for everything that it does not use."""
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "Yes",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": None,
    }
    assert parse(messages=[*HI, answer]).messages[1].content == "Yes"


def test_text_parts_are_joined_and_developer_is_the_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat = parse(messages=[{"role": "developer", "content": parts}])
    assert (chat.messages[0].role, chat.messages[0].content) == ("system", "ab")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"model": "m", "messages": NaN}',
        b'{"temperature": Infinity}',
        b'{"seed": ' + b"9" * 5_000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"messages": ' + b"[" * 40 + b"]" * 40 + b"}",
        b'{"a": "\\"' * 20_000,
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    assert refusal(body)[:2] == (400, "invalid_json")


@pytest.mark.parametrize(
    "body",
    [
        lambda length: b"[" * length,
        lambda length: b'{"a":' * length,
        lambda length: b'{"a": "\\"' * length,
        lambda length: b'{"a": [' * 20 + b'"' + b'\\"[' * length,
        lambda length: b'{"a": [' + b"[], " * length + b"}",
        lambda length: b'{"seed": ' + b"9" * length + b"}",
        lambda length: b'{"messages": {' + b'"x": 1, ' * length + b'"y": 2}}',
    ],
    ids=["brackets", "objects", "quotes", "quotes and brackets", "siblings", "digits", "names"],
)
def test_what_is_built_to_be_slow_costs_in_line_with_its_length(body: Callable[[int], bytes], seconds: Seconds) -> None:
    short, long = body(15_000), body(300_000)
    assert refusal(long)[:2] == (400, "invalid_json")
    assert seconds(lambda: refusal(long)) < 100 * seconds(lambda: refusal(short))  # quadratic work would show four hundred


def test_a_number_beyond_a_float_is_refused() -> None:
    assert refusal(b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 1e400}')[1:] == (
        "invalid_value",
        "temperature",
    )


def test_brackets_inside_of_text_are_no_depth() -> None:
    assert parse(messages=[{"role": "user", "content": "[{" * 1_000}]).messages[0].content == "[{" * 1_000


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "a", "model": "b", "messages": [{"role": "user", "content": "Hi"}]}',
        b'{"model": "a", "messages": [{"role": "user", "content": "Hi", "content": "Ho"}]}',
        b'{"model": "a", "\\u006dodel": "a"}',
        b'{"messages": {' + b'"x": 1, ' * 200_000 + b'"y": 2}}',
    ],
)
def test_a_name_that_stands_twice_is_refused(body: bytes) -> None:
    """One of the two would be ignored in silence."""
    assert refusal(body)[:2] == (400, "invalid_json")


def test_too_much_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONTENT_BYTES", 10)
    assert parse(messages=[{"role": "user", "content": "x" * 10}])
    assert refused(messages=[{"role": "user", "content": "é" * 6}])[1:] == ("invalid_value", "messages")


def test_two_names_for_max_tokens_must_agree() -> None:
    assert parse(max_tokens=5, max_completion_tokens=5).max_tokens == 5
    assert refused(max_tokens=5, max_completion_tokens=6)[1:] == ("invalid_value", "max_tokens")


def test_an_unknown_name_comes_back_short_and_harmless() -> None:
    status, code, param = refused(**{"\u202e<script>" + "x" * 10_000: 1})
    assert (status, code) == (400, "unsupported_parameter")
    assert param
    assert param.isascii()
    assert len(param) < 200


def test_more_arrays_and_objects_than_anybody_needs_are_refused_before_they_are_built() -> None:
    with pytest.raises(InvalidJson, match="arrays and objects"):
        parse_object(b'{"prompt": [' + b"[]," * limits.JSON_NODES + b"[]]}")


def test_brackets_within_strings_do_not_count() -> None:
    text = "[{" * limits.JSON_NODES
    assert parse_object(json.dumps({"prompt": text}).encode()) == {"prompt": text}


@pytest.mark.parametrize(("size", "thread"), [(10, "MainThread"), (limits.JSON_INLINE_BYTES, "bodies")])
async def test_what_is_large_is_read_beside_the_loop(size: int, thread: str) -> None:
    body = json.dumps({"text": "x" * size}).encode()
    data, read_in = await read_body(body, lambda data: threading.current_thread().name)
    assert len(data["text"]) == size
    assert read_in.startswith(thread)


async def test_a_refusal_beside_the_loop_is_the_same_refusal() -> None:
    with pytest.raises(InvalidJson, match="not valid JSON"):
        await read_body(b"[" + b" " * limits.JSON_INLINE_BYTES, dict)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"9" * 5_000, "The body has an integer of more than 4300 digits."),
        (b"-" + b"1" * 4_301, "The body has an integer of more than 4300 digits."),
        (b"NaN", "The body is not valid JSON: NaN is no number."),
        (b"-Infinity", "The body is not valid JSON: -Infinity is no number."),
        (b"01", "The body is not valid JSON (line 1, column 11)."),
    ],
)
def test_what_is_wrong_with_a_number_is_said(value: bytes, message: str) -> None:
    with pytest.raises(InvalidJson) as refused:
        parse_object(b'{"seed": ' + value + b"}")
    assert refused.value.message == message
