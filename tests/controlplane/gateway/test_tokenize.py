"""POST /v1/tokenize and /v1/detokenize: the ids that a request would have, for nothing."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest

from billing.holds.models import HoldAccount
from controlplane.gateway import threads
from controlplane.keys.models import ApiKey
from inference.requests.models import RequestBody
from tests.controlplane.conftest import ScriptedWorker, Stage, chat, request_rows

BOS, EOS = 256, 257


def post(gateway: str, stage: Stage, path: str, **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {stage.acme.secret}"}
    return httpx.post(f"{gateway}/v1/{path}", json={"model": "tiny", **body}, headers=headers)


def test_a_text_becomes_the_ids_that_a_completion_gets(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    text = "a€<|bos|>"
    told = post(gateway, stage, "tokenize", prompt=text, return_token_strs=True).json()
    assert post(gateway, stage, "completions", prompt=text).status_code == 200
    assert told["tokens"] == RequestBody.objects.get().prompt_ids
    assert (told["count"], told["max_model_len"]) == (len(told["tokens"]), 2_048)
    assert BOS not in told["tokens"]
    assert told["token_strs"][0] == "a"
    assert len(told["token_strs"]) == told["count"]


def test_a_conversation_becomes_the_ids_that_a_chat_gets(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    told = post(gateway, stage, "tokenize", messages=chat("Hi")).json()
    assert post(gateway, stage, "chat/completions", messages=chat("Hi")).status_code == 200
    assert told["tokens"] == RequestBody.objects.get().prompt_ids
    assert set(told) == {"count", "max_model_len", "tokens"}
    back = post(gateway, stage, "detokenize", tokens=told["tokens"]).json()
    assert back == {"prompt": "<|bos|>user: Hi\nassistant: "}


@pytest.mark.parametrize("text", ["", "Hi", "김치 🍜 é", "a\0b", "x" * 9_000])
def test_there_and_back_is_the_same_text(gateway: str, stage: Stage, text: str) -> None:
    for special in (True, False):
        tokens = post(gateway, stage, "tokenize", prompt=text, add_special_tokens=special).json()["tokens"]
        assert post(gateway, stage, "detokenize", tokens=tokens).json() == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("tokenize", {}, 400, "prompt"),
        ("tokenize", {"prompt": "a", "messages": chat()}, 400, "messages"),
        ("tokenize", {"prompt": ["a"]}, 400, "prompt"),
        ("tokenize", {"prompt": "a", "temperature": 1}, 400, "temperature"),
        ("tokenize", {"prompt": "a", "model": "nope"}, 404, "model"),
        ("detokenize", {}, 400, "tokens"),
        ("detokenize", {"tokens": [1, 290]}, 400, "tokens[1]"),
        ("detokenize", {"tokens": [1, -1]}, 400, "tokens[1]"),
    ],
)
def test_what_is_wrong_is_named(gateway: str, stage: Stage, path: str, body: dict[str, Any], status: int, param: str) -> None:
    answer = post(gateway, stage, path, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize(("path", "body"), [("tokenize", {"prompt": "a"}), ("detokenize", {"tokens": [97]})])
def test_it_needs_a_key_counts_as_a_request_and_costs_nothing(gateway: str, stage: Stage, path: str, body: dict[str, Any]) -> None:
    assert httpx.post(f"{gateway}/v1/{path}", json={"model": "tiny", **body}).status_code == 401
    ApiKey.objects.filter(id=stage.acme.key.id).update(requests_per_minute=2)
    answers = [post(gateway, stage, path, **body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-tokens"] for answer in answers] == ["10000000"] * 3
    assert request_rows() == []
    assert HoldAccount.objects.get(tenant_id=stage.acme.organisation.id).held_nano_usd == 0


def test_long_texts_wait_for_a_bounded_number_of_threads(gateway: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.text, "most", 0)
    answer = post(gateway, stage, "tokenize", prompt="x" * 10_000)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
