"""A backend that answers at once: in front of it shows what a gateway takes by itself.

`python -m infra.bench.support.instant PORT`
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

_HEAD = {"id": "chatcmpl-instant", "created": int(time.time()), "model": "instant"}


def _word(index: int) -> str:
    """No two in a row are the same: a proxy may take repetition for a fault."""
    return f"word{index} "


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Any number of calls over one connection."""
    try:
        while (body := await _body(reader)) is not None:
            tokens = int(body.get("max_tokens") or 16)
            await (_stream if body.get("stream") else _whole)(writer, tokens)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _body(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    length = 0
    if not await reader.readline():
        return None
    while line := (await reader.readline()).strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return dict(json.loads(await reader.readexactly(length))) if length else {}


async def _whole(writer: asyncio.StreamWriter, tokens: int) -> None:
    message = {"role": "assistant", "content": "".join(map(_word, range(tokens)))}
    choice = {"index": 0, "message": message, "finish_reason": "length", "logprobs": None}
    data = json.dumps({**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _usage(tokens)}).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    await writer.drain()


async def _stream(writer: asyncio.StreamWriter, tokens: int) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for index in range(tokens):
        reason = "length" if index == tokens - 1 else None
        choice = {"index": 0, "delta": {"role": "assistant", "content": _word(index)}, "finish_reason": reason, "logprobs": None}
        await _event(writer, {**_HEAD, "object": "chat.completion.chunk", "choices": [choice]})
    await _event(writer, {**_HEAD, "object": "chat.completion.chunk", "choices": [], "usage": _usage(tokens)})
    writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    await writer.drain()


async def _event(writer: asyncio.StreamWriter, data: dict[str, Any]) -> None:
    writer.write(_chunk(b"data: " + json.dumps(data).encode() + b"\n\n"))
    await writer.drain()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}


async def _serve(port: int) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
