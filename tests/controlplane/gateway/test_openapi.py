"""The published document says what the parser takes and what the gateway answers, no more and no less."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx2 as httpx
import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.metering.services import ingest_usage
from controlplane.errors import ApiError, InvalidRequest
from controlplane.gateway.json_body import Object
from controlplane.gateway.openapi import document
from controlplane.gateway.schema import CHAT_FIELDS, COMPLETION_FIELDS, chat_request, completion_request
from controlplane.gateway.tokenize import DETOKENIZE_FIELDS, TOKENIZE_FIELDS, detokenize_request, tokenize_request
from controlplane.urls import urlpatterns
from tests.controlplane.conftest import ScriptedWorker, Stage, chat, wait_for

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": document()["components"]})


BODIES: dict[str, tuple[Callable[[Object], object], dict[str, Any], Any]] = {
    "ChatCompletionRequest": (chat_request, BODY, CHAT_FIELDS),
    "CompletionRequest": (completion_request, {"model": "m", "prompt": "Hi"}, COMPLETION_FIELDS),
    "TokenizeRequest": (tokenize_request, {"model": "m", "prompt": "Hi"}, TOKENIZE_FIELDS),
    "DetokenizeRequest": (detokenize_request, {"model": "m", "tokens": [1]}, DETOKENIZE_FIELDS),
}
NEEDS: dict[str, dict[str, Any]] = {"stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}}
REQUEST = validator("ChatCompletionRequest")


def accepted(body: dict[str, Any], parse: Callable[[Object], object] = chat_request) -> bool:
    try:
        parse(body)
    except InvalidRequest:
        return False
    return True


def test_the_document_is_served_without_a_key(gateway: str) -> None:
    answer = httpx.get(f"{gateway}/v1/openapi.json")
    assert (answer.status_code, answer.json()) == (200, document())
    refused = httpx.post(f"{gateway}/v1/openapi.json")
    assert (refused.status_code, refused.json()["error"]["code"], refused.headers["allow"]) == (405, "method_not_allowed", "GET")


@pytest.mark.parametrize("kind", BODIES)
def test_every_field_of_the_parser_is_in_the_document_and_the_reverse(kind: str) -> None:
    parse, body, fields = BODIES[kind]
    described = document()["components"]["schemas"][kind]
    assert set(described["properties"]) == set(fields)
    for name in described["properties"]:
        with pytest.raises(ApiError) as caught:
            parse({**body, name: {"no": ["such", {}]}})
        assert "Unknown" not in caught.value.message, name
    assert not accepted({**body, "not_in_the_document": None}, parse)


def test_every_address_is_in_the_document_and_the_reverse() -> None:
    served = {
        re.sub("<.*?>", "{}", str(route.pattern)).removeprefix("v1") for route in urlpatterns if str(route.pattern)[:3] == "v1/"
    }
    assert {re.sub("{.*?}", "{}", path) for path in document()["paths"]} == served - {"/", "/{}"}


def borders(schema: dict[str, Any]) -> Iterator[Any]:
    """Values at, within and just beyond what the schema allows, and of every other type."""
    yield from (
        None,
        True,
        False,
        0,
        1,
        -1,
        0.5,
        10**400,
        "",
        "x",
        [],
        {},
        ["x"],
        [None],
        {"x": "x"},
        {"type": "text"},
        "none",
        *({key: 0.5} for key in ("0", "50256", "-1", "01", "1 ", "1\n", "\u0661", "9" * 10)),
        *({"1": value} for value in (-100, 100.5, "1", None)),
    )
    for limit in (schema.get("minimum"), schema.get("maximum")):
        if limit is not None:
            yield from (limit, limit - 1, limit + 1)
    for limit in (schema.get("minLength"), schema.get("maxLength")):
        if limit is not None:
            yield from ("x" * (limit + more) for more in (-1, 0, 1) if limit + more >= 0)
            yield from ("\x00", "a\nb", "\x7f", "é\U0001f600")
    for limit in (schema.get("maxItems"), schema.get("maxProperties")):
        if limit is not None:
            yield from (
                ["x"] * limit,
                ["x"] * (limit + 1),
                {str(i): "x" for i in range(limit)},
                {str(i): "x" for i in range(limit + 1)},
            )
    for inner in schema.get("anyOf", ()):
        yield from borders(inner)
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict) and "$ref" not in inner:
            yield from ([value] for value in borders(inner))
            yield from ({"k": value} for value in borders(inner))
    if "propertyNames" in schema:
        yield from ({value: "x"} for value in borders(schema["propertyNames"]) if isinstance(value, str))
    for name, inner in schema.get("properties", {}).items():
        yield from ({name: value} for value in borders(inner))


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, (_, _, fields) in BODIES.items() for name in fields])
def test_the_document_and_the_parser_draw_the_same_borders(kind: str, name: str) -> None:
    parse, plain, _ = BODIES[kind]
    document_allows = validator(kind)
    values = list(borders(document()["components"]["schemas"][kind]["properties"][name]))
    verdicts = set()
    for value in values:
        body = {**plain, **NEEDS.get(name, {}), name: value}
        if kind == "TokenizeRequest" and name == "messages":
            del body["prompt"]
        verdicts.add(accepted(body, parse))
        assert accepted(body, parse) == document_allows.is_valid(body), f"{name}: {str(value)[:80]}"
    assert verdicts == {True, False} or name == "messages"


PARTS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["type", "text", "extra"]), st.sampled_from(["text", "image_url", None, 5, "Hi"])
)
MESSAGES: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["role", "content", "name", "tool_calls", "refusal"]),
    st.sampled_from(["system", "developer", "user", "assistant", "tool", None, [], {}, "", 5, "Hi"]) | st.lists(PARTS, max_size=3),
)


@given(st.lists(MESSAGES, max_size=2))
def test_the_document_and_the_parser_agree_on_messages(messages: list[Any]) -> None:
    body = {**BODY, "messages": messages}
    assert accepted(body) == REQUEST.is_valid(body)


def test_answers_are_as_described(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    key = {"Authorization": f"Bearer {stage.acme.secret}"}
    body = {"model": "tiny", "messages": chat(), "metadata": {"run": "1"}}
    with httpx.Client(base_url=f"{gateway}/v1", headers=key) as client:
        made = client.post("/chat/completions", json=body).json()
        validator("ChatCompletion").validate(made)
        validator("ModelList").validate(client.get("/models").json())
        validator("Model").validate(client.get("/models/tiny").json())
        validator("Receipt").validate(client.get(f"/requests/{made['id']}").json())
        wait_for(lambda: ingest_usage(limit=10))
        rated = client.get(f"/requests/{made['id']}").json()
        assert rated["lines"]
        validator("Receipt").validate(rated)
        validator("Receipt").validate(client.post(f"/requests/{made['id']}/cancel").json())
        validator("Error").validate(client.get("/models/nope").json())


@pytest.mark.parametrize("usage", [True, False])
def test_events_are_as_described(gateway: str, stage: Stage, worker: ScriptedWorker, usage: bool) -> None:
    body = {"model": "tiny", "messages": chat(), "stream": True, "stream_options": {"include_usage": usage}}
    answer = httpx.post(f"{gateway}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {stage.acme.secret}"})
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events.pop() == "[DONE]"
    for event in events:
        validator("ChatCompletionChunk").validate(json.loads(event))
    assert len(events) >= 4


def test_a_field_that_the_document_lacks_would_be_noticed() -> None:
    """The comparison above can fail: a document without `seed`, or with another border, disagrees with the parser."""
    lacking = copy.deepcopy(document()["components"])
    del lacking["schemas"]["ChatCompletionRequest"]["properties"]["seed"]
    other = jsonschema_rs.Draft202012Validator({"$ref": "#/components/schemas/ChatCompletionRequest", "components": lacking})
    assert accepted({**BODY, "seed": 1}) != other.is_valid({**BODY, "seed": 1})
