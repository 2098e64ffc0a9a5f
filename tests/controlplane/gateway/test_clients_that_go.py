"""Clients that go at the worst moment leave nothing behind: no open request, no slot of their limit, no running generation."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import time
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis import Redis

from controlplane.admission.limiter import Limiter, RateState
from controlplane.gateway import threads
from inference.requests.models import FINAL, State
from tests.controlplane.conftest import ScriptedWorker, Stage, chat, open_requests, request_rows, wait_for

CHAT = ("chat/completions", {"messages": chat(), "stream": True, "max_tokens": 1})


def post(gateway: str, stage: Stage, times: int = 1, sent: tuple[str, dict[str, Any]] = CHAT) -> socket.socket:
    """Sends the same request `times` times over one connection and reads nothing."""
    parts, (path, asked) = urlsplit(gateway), sent
    body = json.dumps({"model": "tiny", **asked}).encode()
    lines = [
        f"POST /v1/{path} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {stage.acme.secret}",
        f"Content-Length: {len(body)}",
    ]
    head = "".join(f"{line}\r\n" for line in [*lines, ""])
    connection = socket.create_connection((parts.hostname or "", parts.port or 0))
    connection.sendall((head.encode() + body) * times)
    return connection


def reset(connection: socket.socket) -> None:
    """Ends it with RST instead of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def slots(redis_url: str, stage: Stage) -> int:
    with Redis.from_url(redis_url) as client:
        return int(client.zcard(f"rate:{{{stage.acme.key.id}}}:running"))


def test_pipelined_requests_of_clients_that_reset_are_all_closed(
    gateway: str, stage: Stage, worker: ScriptedWorker, redis_url: str
) -> None:
    chance = random.Random(1)
    for _ in range(25):
        connection = post(gateway, stage, times=5)
        time.sleep(chance.random() * 0.05)
        reset(connection)
    wait_for(lambda: open_requests() == 0)
    wait_for(lambda: slots(redis_url, stage) == 0)


@pytest.mark.parametrize("sent", [CHAT, ("tokenize", {"prompt": "Hi"}), ("detokenize", {"tokens": [72]})])
def test_a_client_that_goes_while_its_slot_is_taken_gives_it_back(
    gateway: str, stage: Stage, redis_url: str, monkeypatch: pytest.MonkeyPatch, sent: tuple[str, dict[str, Any]]
) -> None:
    taken: list[RateState] = []
    take = Limiter.take

    async def slow(self: Limiter, *args: Any, **more: Any) -> RateState:
        taken.append(await take(self, *args, **more))
        await asyncio.sleep(1)
        return taken[-1]

    monkeypatch.setattr(Limiter, "take", slow)
    connection = post(gateway, stage, sent=sent)
    wait_for(lambda: taken)
    assert slots(redis_url, stage) == 1
    reset(connection)
    wait_for(lambda: slots(redis_url, stage) == 0)
    assert request_rows() == []


def test_a_storm_of_cancels_is_carried_out_although_the_database_refuses_at_first(
    gateway: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = [post(gateway, stage) for _ in range(40)]
    wait_for(lambda: len(request_rows()) == 40)
    with monkeypatch.context() as busy:
        busy.setattr(threads.database, "most", 0)  # every call is refused as overload
        for connection in connections:
            reset(connection)
        time.sleep(0.5)
        assert {row.state for row in request_rows()} == {State.QUEUED}
    wait_for(lambda: all(row.state in FINAL for row in request_rows()))
