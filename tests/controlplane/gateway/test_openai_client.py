"""docs/api.md against the official client itself: what the client can say stands there, and is as it stands there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.resources.chat.completions import Completions as ChatCompletions
from openai.resources.completions import Completions
from openai.resources.models import Models

from controlplane.gateway.schema import CHAT_FIELDS, COMPLETION_FIELDS
from tests.controlplane.conftest import ScriptedWorker, chat, open_requests, request_rows, wait_for

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
SERVED = {"chat.completions": ChatCompletions, "completions": Completions, "models": Models}
VIEWS = ("with_raw_response", "with_streaming_response")  # other ways to the same calls


def rows(heading: str) -> dict[str, list[str]]:
    """A section's table, by its first column without backticks."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")]
    return {first.strip("`"): rest for first, *rest in cells}


CALLS, ABSENT = rows("Calls"), rows("Resources that are not there")
CHAT, COMPLETION = rows("Parameters of `chat.completions.create`"), rows("Parameters of `completions.create`")


def kind(table: dict[str, list[str]], here: str) -> list[str]:
    return [name for name, (found, *_) in table.items() if found == here]


@pytest.mark.parametrize(("table", "call"), [(CHAT, ChatCompletions.create), (COMPLETION, Completions.create)])
def test_every_parameter_of_the_client_stands_in_the_table(table: dict[str, list[str]], call: Any) -> None:
    assert set(table) == set(inspect.signature(call).parameters) - {"self"}
    assert {here for here, *_ in table.values()} == {"works", "400", "client's own"}


def test_every_call_of_the_client_stands_in_the_table() -> None:
    named = {
        f"{name}.{call}"
        for name, resource in SERVED.items()
        for call in dir(resource)
        if not call.startswith("_") and call not in VIEWS
    }
    assert set(CALLS) == named
    resources = {name for name, value in vars(OpenAI).items() if isinstance(value, cached_property)} - set(VIEWS)
    assert set(ABSENT) | {"chat", "completions", "models"} == resources


def test_the_table_and_the_parser_know_the_same() -> None:
    for table, fields in ((CHAT, CHAT_FIELDS), (COMPLETION, COMPLETION_FIELDS)):
        assert set(kind(table, "works")) | set(kind(table, "400")) <= set(fields)
        extra = set(re.findall("`([a-z_]+)`", PAGE.split("## More parameters")[1].split("\n## ")[0]))
        assert set(fields) - set(table) <= extra


WORKS: dict[str, Any] = {
    "model": "tiny",
    "messages": chat(),
    "prompt": "Hi",
    "echo": True,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "logit_bias": {"65": 1},
    "logprobs": True,
    "max_completion_tokens": 3,
    "max_tokens": 3,
    "metadata": {"a": "b"},
    "n": 2,
    "safety_identifier": "s",
    "seed": 5,
    "service_tier": "flex",
    "stop": ["x"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "top_logprobs": 1,
    "top_p": 0.5,
    "user": "u",
}
NEEDS: dict[str, dict[str, Any]] = {"stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}}
REFUSED: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "modalities": ["audio"],
    "moderation": {"model": "m"},
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_key": "x",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "high",
    "response_format": {"type": "json_object"},
    "store": True,
    "tool_choice": "required",
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "verbosity": "low",
    "web_search_options": {},
    "best_of": 2,
    "suffix": "x",
}


def call_with(client: OpenAI, table: dict[str, list[str]], **fields: Any) -> Any:
    if table is CHAT:
        return client.chat.completions.create(**{"model": "tiny", "messages": chat(), **fields})
    return client.completions.create(**{"model": "tiny", "prompt": "Hi", **fields})


@pytest.mark.parametrize(("table", "name"), [(table, name) for table in (CHAT, COMPLETION) for name in kind(table, "works")])
def test_what_the_table_says_works_is_accepted(
    client: OpenAI, worker: ScriptedWorker, table: dict[str, list[str]], name: str
) -> None:
    value = 1 if (name, table) == ("logprobs", COMPLETION) else WORKS[name]
    answer = call_with(client, table, **NEEDS.get(name, {}), **{name: value})
    chunks = list(answer) if isinstance(answer, openai.Stream) else [answer]
    assert {choice.finish_reason for chunk in chunks for choice in chunk.choices} - {None} == {"stop"}
    [row] = request_rows()
    assert row.choices == (2 if name == "n" else 1)
    if name in ("user", "safety_identifier"):
        assert row.labels == {name: value}
    wait_for(lambda: open_requests() == 0)


@pytest.mark.parametrize(("table", "name"), [(table, name) for table in (CHAT, COMPLETION) for name in kind(table, "400")])
def test_what_the_table_refuses_is_refused_by_name(client: OpenAI, table: dict[str, list[str]], name: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        call_with(client, table, **{name: REFUSED[name]})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", name)
    accepted = " or ".join(re.findall("`([^`]+)`", table[name][1]))
    advice = f"Leave it out, or send {accepted}." if accepted else "Leave it out."
    assert caught.value.body["message"] == f"'{name}' is not supported yet. {advice}"  # type: ignore[index]
    assert request_rows() == []


@pytest.mark.parametrize("name", ABSENT)
def test_what_is_not_there_is_404(client: OpenAI, name: str) -> None:
    path = ABSENT[name][0].strip("`")
    calls: list[Callable[[], object]] = [
        lambda: client.get(path, cast_to=object),
        lambda: client.post(path, cast_to=object, body={"model": "tiny"}),
    ]
    for call in calls:
        with pytest.raises(openai.NotFoundError) as caught:
            call()
        assert caught.value.code == "not_found"


def test_what_is_not_stored_cannot_be_asked_for(client: OpenAI) -> None:
    statuses = {}
    calls: dict[str, Callable[[], object]] = {
        "chat.completions.list": lambda: client.chat.completions.list(),
        "chat.completions.retrieve": lambda: client.chat.completions.retrieve("chatcmpl-1"),
        "chat.completions.update": lambda: client.chat.completions.update("chatcmpl-1", metadata={}),
        "chat.completions.delete": lambda: client.chat.completions.delete("chatcmpl-1"),
        "chat.completions.messages": lambda: client.chat.completions.messages.list("chatcmpl-1"),
        "models.delete": lambda: client.models.delete("tiny"),
    }
    for name, call in calls.items():
        with pytest.raises(openai.APIStatusError) as caught:
            call()
        statuses[name] = str(caught.value.status_code)
    assert statuses == {name: CALLS[name][0] for name in statuses}


def test_the_clients_helpers_over_create_work(client: OpenAI, worker: ScriptedWorker) -> None:
    with client.chat.completions.stream(model="tiny", messages=chat()) as stream:
        events = list(stream)
        assert stream.get_final_completion().choices[0].message.content == "Hello world"
    assert [event.delta for event in events if event.type == "content.delta"] == ["", "Hello", " world"]
    assert client.chat.completions.parse(model="tiny", messages=chat()).choices[0].message.content == "Hello world"
    wanted: Any = {"type": "json_object"}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.parse(model="tiny", messages=chat(), response_format=wanted)
    assert caught.value.param == "response_format"
