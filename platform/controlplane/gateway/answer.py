"""The two forms of an answer: one JSON object, or server-sent events. The constant parts of a chunk are encoded once."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from typing import Any

from controlplane.errors import ApiError, InternalError
from controlplane.gateway.chat import Admitted, completion_id
from controlplane.gateway.endpoint import log
from inference.contracts import FinishEntry, TokenEntry

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def usage_body(finish: FinishEntry) -> dict[str, Any]:
    return {
        "prompt_tokens": finish.prompt_tokens,
        "completion_tokens": finish.completion_tokens,
        "total_tokens": finish.prompt_tokens + finish.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": finish.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _head(admitted: Admitted, kind: str) -> dict[str, Any]:
    return {
        "id": completion_id(admitted.completion.request_id),
        "object": kind,
        "created": int(time.time()),
        "model": admitted.model,
        "service_tier": admitted.service_tier,
        "system_fingerprint": admitted.fingerprint,
    }


class Chunks:
    """Encodes the chunks of one stream. With `include_usage` every chunk but the usage chunk says `usage: null`."""

    def __init__(self, admitted: Admitted, *, include_usage: bool) -> None:
        head = _dumps(_head(admitted, "chat.completion.chunk"))[:-1]
        usage = ',"usage":null' if include_usage else ""
        self._before = f'data: {head},"choices":[{{"index":0,"delta":'
        self._between = ',"logprobs":null,"finish_reason":'
        self._after = f"}}]{usage}}}\n\n"
        self._open = f'{self._before}{{"content":'
        self._close = f"}}{self._between}null{self._after}"
        self._usage = f'data: {head},"choices":[],"usage":'

    def role(self) -> bytes:
        delta = '{"role":"assistant","content":"","refusal":null}'
        return f"{self._before}{delta}{self._between}null{self._after}".encode()

    def text(self, text: str) -> bytes:
        return f"{self._open}{json.dumps(text)}{self._close}".encode()

    def finish(self, reason: str) -> bytes:
        return f'{self._before}{{}}{self._between}"{reason}"{self._after}'.encode()

    def usage(self, finish: FinishEntry) -> bytes:
        return f"{self._usage}{_dumps(usage_body(finish))}}}\n\n".encode()


async def events(admitted: Admitted, *, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """`[DONE]` comes after the usage rows are committed; an error is an event of its own, and then the stream ends."""
    chunks = Chunks(admitted, include_usage=include_usage)
    try:
        yield chunks.role()
        async for entry in admitted.completion.entries():
            if isinstance(entry, TokenEntry):
                if entry.text:
                    yield chunks.text(entry.text)
            elif isinstance(entry, FinishEntry):
                yield _last(chunks, entry, include_usage=include_usage)
            else:
                yield KEEP_ALIVE
    except ApiError as error:
        yield _error_event(error)
    except Exception:
        log.exception("unexpected error in the stream of %s", admitted.completion.request_id)
        yield _error_event(InternalError())
    finally:
        admitted.completion.close()


def _last(chunks: Chunks, entry: FinishEntry, *, include_usage: bool) -> bytes:
    usage = chunks.usage(entry) if include_usage else b""
    return chunks.finish(entry.reasons[0]) + usage + DONE


def _error_event(error: ApiError) -> bytes:
    return f"data: {_dumps(error.body())}\n\n".encode()


async def whole(admitted: Admitted) -> dict[str, Any]:
    """Raises ApiError. A cancelled caller cancels the request."""
    parts: list[str] = []
    try:
        async for entry in admitted.completion.entries():
            if isinstance(entry, TokenEntry):
                parts.append(entry.text)
            elif isinstance(entry, FinishEntry):
                return _object(admitted, "".join(parts), entry)
    finally:
        admitted.completion.close()
    raise InternalError("the entries ended without a finish")


def _object(admitted: Admitted, text: str, finish: FinishEntry) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish.reasons[0]}
    return {**_head(admitted, "chat.completion"), "choices": [choice], "usage": usage_body(finish)}
