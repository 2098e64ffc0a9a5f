"""A light streaming client: it must not be what a benchmark measures."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass(slots=True)
class Stream:
    """One call as the client saw it; times by the wall clock, in seconds."""

    request_id: str = ""
    sent_at: float = 0.0
    chunk_times: list[float] = field(default_factory=list)  # of chunks with text
    texts: dict[int, str] = field(default_factory=dict)  # by choice
    reasons: dict[int, str] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    ended_at: float = 0.0
    server_timing_ms: dict[str, float] = field(default_factory=dict)  # of the gateway, where it tells

    @property
    def ttft_ms(self) -> float:
        return 1000 * (self.chunk_times[0] - self.sent_at)

    @property
    def silences_s(self) -> list[float]:
        """What a client waited: for the first text, between texts, and for the end."""
        moments = [self.sent_at, *self.chunk_times, self.ended_at]
        return [late - early for early, late in itertools.pairwise(moments)]

    @property
    def gaps_ms(self) -> list[float]:
        return [1000 * (late - early) for early, late in zip(self.chunk_times, self.chunk_times[1:], strict=False)]


class CallFailed(RuntimeError):
    """The server answered with something else than a whole stream. `status` is that of a refusal."""

    def __init__(self, message: str, status: str = "") -> None:
        super().__init__(message)
        self.status = status


async def chat(base_url: str, api_key: str, body: dict[str, Any]) -> Stream:
    """One streamed chat completion over a connection of its own."""
    stream = Stream()
    reader, writer = await _connect(base_url)
    try:
        payload = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
        stream.sent_at = time.time()
        writer.write(_head("POST", base_url, "/chat/completions", api_key, len(payload)) + payload)
        stream.server_timing_ms = _server_timing(await _expect_ok(reader))
        async for data in _events(reader):
            if data == "[DONE]":
                stream.ended_at = time.time()
                return stream
            _take(stream, json.loads(data))
        raise CallFailed("the stream ended without [DONE]")
    finally:
        writer.close()


async def complete(base_url: str, api_key: str, body: dict[str, Any]) -> Stream:
    """The same without a stream: the whole text in one answer."""
    answer = Stream()
    reader, writer = await _connect(base_url)
    try:
        payload = json.dumps({**body, "stream": False}).encode()
        answer.sent_at = time.time()
        writer.write(_head("POST", base_url, "/chat/completions", api_key, len(payload)) + payload)
        await _expect_ok(reader)
        found = json.loads(await reader.read())
        answer.ended_at = time.time()
        answer.request_id, answer.usage = found["id"], found["usage"]
        for choice in found["choices"]:
            answer.texts[choice["index"]], answer.reasons[choice["index"]] = choice["message"]["content"], choice["finish_reason"]
        return answer
    except json.JSONDecodeError as error:
        raise CallFailed("the answer ended too soon") from error
    finally:
        writer.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(base_url: str, api_key: str, path: str) -> dict[str, Any]:
    """Raises OSError."""
    request = urllib.request.Request(base_url + path, headers={"Authorization": f"Bearer {api_key}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(json.load(answer))


def _take(stream: Stream, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        raise CallFailed(str(chunk["error"]))
    stream.request_id = chunk["id"]
    stream.usage = chunk.get("usage") or stream.usage
    for choice in chunk["choices"]:
        index, text = choice["index"], choice["delta"].get("content") or ""
        stream.texts[index] = stream.texts.get(index, "") + text
        if text:
            stream.chunk_times.append(time.time())
        if choice.get("finish_reason"):
            stream.reasons[index] = choice["finish_reason"]


async def _connect(base_url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(base_url)
    return await asyncio.open_connection(parts.hostname, parts.port or 80)


def _head(method: str, base_url: str, path: str, api_key: str, length: int) -> bytes:
    parts = urlsplit(base_url)
    lines = [
        f"{method} {parts.path}{path} HTTP/1.1",
        f"Host: {parts.netloc}",
        f"Authorization: Bearer {api_key}",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {length}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _expect_ok(reader: asyncio.StreamReader) -> dict[str, str]:
    """The headers, by lower-case name."""
    status = (await reader.readline()).decode().split(" ", 2)
    headers: dict[str, str] = {}
    while line := (await reader.readline()).decode().strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if len(status) < 2 or status[1] != "200":
        raise CallFailed(f"{' '.join(status).strip()}: {(await reader.read()).decode()[:300]}", "".join(status[1:2]))
    return headers


def _server_timing(headers: dict[str, str]) -> dict[str, float]:
    entries = (entry.partition(";dur=") for entry in headers.get("server-timing", "").split(", ") if entry)
    return {name: float(ms) for name, _, ms in entries}


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """The server writes an event as one chunk, so lines of the chunked encoding stand between events and are passed over."""
    while line := await reader.readline():
        if line.startswith(b"data: "):
            yield line[6:].decode().strip()
