"""Clients that go away, each in its own way, and what must be true of their requests afterwards."""

from __future__ import annotations

import ctypes
import json
import socket
import struct
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import redis

from inference.failpoints import VARIABLE, mark
from tests.flows.cast import database, rated, until
from tests.flows.conftest import Stack

Way = Literal["fin", "rst", "vanish"]
WAYS: tuple[Way, ...] = ("fin", "rst", "vanish")
PATIENCE_S = 30.0  # machines differ; nothing here is a timed test
SO_ATTACH_FILTER = 26
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # one instruction of a classic filter: take nothing


@dataclass
class Call:
    """A request over a socket of its own. `text` is what was read of the answer."""

    opened: ClassVar[list[socket.socket]] = []

    stack: Stack
    content: str
    max_tokens: int
    stream: bool = True
    text: str = ""
    chunks: int = 0
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    _id: uuid.UUID | None = None
    _raw: bytes = b""

    def __post_init__(self) -> None:
        address = urlsplit(self.stack.url)
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": self.content}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": self.stream,
            "ignore_eos": True,
            "metadata": {"call": self.name},
        }
        data = json.dumps(body).encode()
        head = [
            "POST /v1/chat/completions HTTP/1.1",
            "Host: x",
            f"Authorization: Bearer {self.stack.api_key}",
            f"Content-Length: {len(data)}",
        ]
        self.socket = socket.create_connection((address.hostname or "", address.port or 0), timeout=PATIENCE_S)
        self.opened.append(self.socket)
        self.socket.sendall("\r\n".join([*head, "", ""]).encode() + data)

    @property
    def id(self) -> uuid.UUID:
        """Waits for the request's row."""
        if self._id is None:
            self._id = until(lambda: _id_of(self.stack, self.name), lambda found: found is not None, PATIENCE_S)
        assert self._id is not None
        return self._id

    @property
    def public_id(self) -> str:
        return f"chatcmpl-{self.id.hex}"

    @classmethod
    def close_all(cls) -> None:
        while cls.opened:
            cls.opened.pop().close()

    def read(self, chunks: int) -> None:
        """Of a stream: waits for so many pieces of text more, or for its end."""
        wanted = self.chunks + chunks
        while self.chunks < wanted and (data := self.socket.recv(65536)):
            self._raw += data
            *lines, self._raw = self._raw.split(b"\n")
            for line in lines:
                self._line(line.strip())

    def error(self) -> str:
        """The code of the error event that the stream ends with."""
        while data := self.socket.recv(65536):
            self._raw += data
        errors = [json.loads(line[6:])["error"] for line in self._raw.splitlines() if line.startswith(b'data: {"error"')]
        assert len(errors) == 1, self._raw
        return str(errors[0]["code"])

    def _line(self, line: bytes) -> None:
        if not line.startswith(b"data: {"):
            return
        chunk = json.loads(line.removeprefix(b"data: "))
        assert "error" not in chunk, chunk
        for choice in chunk["choices"]:
            if piece := choice["delta"].get("content"):
                self.text += piece
                self.chunks += 1

    def leave(self, way: Way) -> None:
        if way == "fin":
            self.socket.shutdown(socket.SHUT_WR)
        elif way == "rst":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.socket.close()
        else:
            vanish(self.socket)


def vanish(connection: socket.socket) -> None:
    """From now on it takes no packet: it acknowledges nothing and answers no probe, like a host whose cable was pulled."""
    program = ctypes.create_string_buffer(DROP_ALL)
    connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


@contextmanager
def configured(stack: Stack, name: str, value: str) -> Iterator[None]:
    """A run-time setting, in effect everywhere when the block begins."""
    with database(stack) as connection:
        connection.execute(
            """INSERT INTO coordination_config (name, value, version, changed_at) VALUES (%s, %s, 1, now())
               ON CONFLICT (name) DO UPDATE SET value = excluded.value, version = coordination_config.version + 1""",
            [name, value],
        )
        time.sleep(1.5)
        try:
            yield
        finally:
            connection.execute("DELETE FROM coordination_config WHERE name = %s", [name])


@contextmanager
def armed(stack: Stack, *points: dict[str, Any]) -> Iterator[Callable[[int], bool]]:
    """Failpoints; yields a question: has the entry with this index acted?"""
    file = Path(stack.env[VARIABLE])
    run = uuid.uuid4().hex[:8]
    failpoints_write(file, run, points)
    try:
        yield lambda index: mark(file, run, index).exists()
    finally:
        failpoints_write(file, "none", ())


def failpoints_write(file: Path, run: str, points: Sequence[dict[str, Any]]) -> None:
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps({"run": run, "points": list(points)}))
    fresh.replace(file)


def states(stack: Stack, ids: Collection[uuid.UUID]) -> list[str]:
    with database(stack) as connection:
        return [state for (state,) in connection.execute("SELECT state FROM inference_request WHERE id = ANY(%s)", [list(ids)])]


def _id_of(stack: Stack, name: str) -> uuid.UUID | None:
    with database(stack) as connection:
        row = connection.execute("SELECT id FROM inference_request WHERE labels->>'metadata.call' = %s", [name]).fetchone()
        return row[0] if row else None


def wait_state(stack: Stack, calls: Sequence[Call], *wanted: str) -> None:
    ids = [call.id for call in calls]
    until(lambda: states(stack, ids), lambda found: len(found) == len(ids) and set(found) <= set(wanted), PATIENCE_S)


def held_nano_usd(stack: Stack) -> int:
    with database(stack) as connection:
        [held] = connection.execute("SELECT sum(held_nano_usd)::bigint FROM holds_account").fetchone() or (0,)
        return int(held)


def slots(stack: Stack) -> int:
    """Of the rate limiter: requests that it thinks are running."""
    with redis.Redis.from_url(stack.env.get("REDIS_URL") or stack.data.redis_url) as client:
        return sum(int(client.zcard(key)) for key in client.scan_iter("rate:*:running"))


def nothing_is_held(stack: Stack) -> None:
    """Neither blocks on any worker, nor money, nor a slot of the rate limiter."""
    with database(stack) as connection:

        def held() -> tuple[int, int, int]:
            [blocks] = connection.execute(
                """SELECT coalesce(sum((pool->>'held')::int + (pool->>'quarantined')::int), 0)
                     FROM coordination_worker WHERE state = 'ready'"""
            ).fetchone() or (0,)
            return blocks, held_nano_usd(stack), slots(stack)

        until(held, lambda found: found == (0, 0, 0), PATIENCE_S)


def billed_what_was_made(call: Call, *, ended: Collection[str] = ("cancelled",)) -> dict[str, Any]:
    """The receipt and the bill say the same, and not less than the client has read."""
    told = until(lambda: rated(call.stack, call.public_id), lambda found: found["state"] in ended, PATIENCE_S)
    billed = {line["meter"]: int(line["quantity"]) for line in told["lines"]}
    assert billed.get("decode", 0) == told["tokens"]["completion"] >= call.chunks
    assert [event["state"] for event in told["events"]].count(told["state"]) == 1
    return told
