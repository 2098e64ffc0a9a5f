"""Bytes to a port and what comes back, as a hostile client does it: nothing is checked before it is sent."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any

MOST_CHARACTERS = 1_000
TELLTALE = re.compile(
    r'Traceback|File "|\.py\b|site-packages|Exception|django|psycopg|uvicorn|redis|valkey|postgres|celery|asyncio|SELECT '
)


@dataclass(frozen=True, slots=True)
class Reply:
    """`status` 0: the connection ended without an answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> dict[str, Any]:
        return dict(json.loads(self.body)["error"])


NOTHING = Reply(0, {}, b"")


async def send(port: int, wire: bytes, *, patience_s: float) -> Reply:
    """Raises TimeoutError where the answer does not end within the time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        async with asyncio.timeout(patience_s):
            writing = asyncio.create_task(_write(writer, wire))  # a refusal may come before all is written
            try:
                return await _read(reader)
            except (ConnectionError, asyncio.IncompleteReadError):
                return NOTHING
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
    finally:
        writer.transport.abort()


async def _write(writer: asyncio.StreamWriter, wire: bytes) -> None:
    try:
        writer.write(wire)
        await writer.drain()
    except ConnectionError:
        return


async def _read(reader: asyncio.StreamReader) -> Reply:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    status = int(first.split(" ")[1])
    if headers.get("transfer-encoding") == "chunked":
        return Reply(status, headers, await _chunks(reader))
    return Reply(status, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    return b"".join(parts)


def fault(reply: Reply, statuses: tuple[int, ...], *, secret: str) -> str:
    """Empty where the reply is one of those that are right, in the form that the API promises."""
    if reply.status not in statuses:
        return f"{reply.status} instead of {statuses}: {reply.body[:200]!r}"
    return "" if reply.status == 200 else refusal_fault(reply, secret=secret)


def refusal_fault(reply: Reply, *, secret: str) -> str:
    """A refusal is JSON with a stable code, and tells nothing but what the client did."""
    text = reply.body.decode(errors="replace")
    if reply.headers.get("content-type") != "application/json" or len(text) > MOST_CHARACTERS:
        return f"{reply.headers.get('content-type')} of {len(text)} characters: {text[:200]}"
    try:
        error = reply.error()
    except (ValueError, KeyError, TypeError):
        return f"no error in the form of the API: {text[:200]}"
    if set(error) != {"message", "type", "param", "code"} or not re.fullmatch("[a-z_]+", str(error["code"])):
        return f"not the form of an error: {error}"
    return leak(reply) or (f"tells the key: {text[:200]}" if secret[12:] in text else "")


def leak(reply: Reply) -> str:
    text = reply.body.decode(errors="replace")
    found = TELLTALE.search(text)
    return f"tells {found[0]!r}: {text[:200]}" if found else ""
