"""What the flow tests share: the official client, the oracle, and a look behind the curtain."""

from __future__ import annotations

import functools
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx2 as httpx
import openai
import psycopg
import torch

from inference.contracts import SamplingParams
from inference.engine.loading import load_model
from inference.engine.models.base import LanguageModel
from inference.engine.reference import reference
from inference.text import ChatMessage, ModelText, open_text
from inference.text.model_files import ensure_oracle
from tests.flows.conftest import Stack

PATIENCE_S = 30.0  # until we give up; nothing is meant to take so long

T = TypeVar("T")


def client(stack: Stack, *, api_key: str | None = None) -> openai.OpenAI:
    """Keeps no connection: what nobody closes would be found as a leak by the next garbage collection, in whatever test that is."""
    once = openai.DefaultHttpxClient(limits=httpx.Limits(max_keepalive_connections=0))
    return openai.OpenAI(base_url=stack.base_url, api_key=api_key or stack.api_key, max_retries=0, timeout=60, http_client=once)


def say(content: str) -> list[Any]:
    return [{"role": "user", "content": content}]


@functools.cache
def tiny() -> tuple[LanguageModel, ModelText]:
    with tempfile.TemporaryDirectory() as folder:
        path = ensure_oracle("tiny", Path(folder))
        return load_model(path), open_text(path)


@functools.cache
def expected(content: str, max_tokens: int, *, ignore_eos: bool = False) -> str:
    """The text that the tiny model must answer, greedily: no batch, no cache, no pages."""
    _, text = tiny()
    ids = expected_ids(content, max_tokens, ignore_eos=ignore_eos)
    return text.decode([token_id for token_id in ids if token_id not in text.eos_ids])


@functools.cache
def expected_ids(content: str, max_tokens: int, *, ignore_eos: bool) -> list[int]:
    model, text = tiny()
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=ignore_eos)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with more, threads that wait for each other take the cores of the copy under test
    try:
        return reference(model, text.render_chat([ChatMessage("user", content)]), sampling, eos_ids=text.eos_ids)
    finally:
        torch.set_num_threads(threads)


def ask(stack: Stack, content: str, max_tokens: int = 24, **more: Any) -> Any:
    return client(stack).chat.completions.create(
        model="tiny", messages=say(content), max_tokens=max_tokens, temperature=more.pop("temperature", 0), **more
    )


def stream(stack: Stack, content: str, max_tokens: int = 24, **more: Any) -> Iterator[Any]:
    """Asks with the first `next`; closed early, it hangs up."""
    with ask(stack, content, max_tokens, stream=True, stream_options={"include_usage": True}, **more) as chunks:
        yield from chunks


def text_of(chunks: Iterator[Any]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def receipt(stack: Stack, request_id: str) -> dict[str, Any]:
    return cast(dict[str, Any], client(stack).get(f"/requests/{request_id}", cast_to=dict))


def rated(stack: Stack, request_id: str) -> dict[str, Any]:
    return until(lambda: receipt(stack, request_id), lambda found: found["lines"] is not None)


def until(read: Callable[[], T], good: Callable[[T], bool], patience_s: float = PATIENCE_S) -> T:
    deadline = time.monotonic() + patience_s
    while not good(found := read()):
        assert time.monotonic() < deadline, f"still {found}"
        time.sleep(0.05)
    return found


def database(stack: Stack) -> psycopg.Connection[Any]:
    return psycopg.connect(stack.env.get("DATABASE_URL") or stack.data.database_url, autocommit=True)


def pools(stack: Stack) -> list[dict[str, int]]:
    with database(stack) as connection:
        return [pool for (pool,) in connection.execute("SELECT pool FROM coordination_worker WHERE state = 'ready'")]


def wait_until_idle(stack: Stack) -> None:
    """No block is held anywhere once nothing runs: on the prefill side too."""
    until(lambda: pools(stack), lambda found: all(pool["held"] == pool["quarantined"] == 0 for pool in found))


def kill_worker(stack: Stack, slot: str) -> None:
    with database(stack) as connection:
        row = connection.execute("SELECT pid FROM coordination_worker WHERE slot = %s", [slot]).fetchone()
    assert row is not None
    os.kill(row[0], signal.SIGKILL)


def wait_until_ready(stack: Stack, patience_s: float = 40.0) -> None:
    """Also where the gateway itself is on its way back."""

    def status() -> int:
        try:
            return stack.get("/readyz")[0]
        except (OSError, HTTPException):
            return 0

    until(status, lambda found: found == 200, patience_s)
