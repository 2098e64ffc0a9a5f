"""How an answer goes out: one JSON object, or server-sent events. What is in them is the business of a `Form`."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any, Protocol

from controlplane.errors import ApiError, InternalError
from controlplane.gateway.completion import Entry
from controlplane.gateway.endpoint import log
from controlplane.gateway.generate import Admitted
from inference.contracts import FinishEntry, FinishReason, TokenEntry
from inference.text import ModelText

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

Object = dict[str, Any]


class Form(Protocol):
    """One answer in the making: chat, or completion. `index` is a choice's, over all prompts."""

    def opening(self) -> bytes:
        """What a stream begins with, before the first token."""

    def tokens(self, index: int, entry: TokenEntry) -> bytes:
        """Empty where the tokens show nothing."""

    def finish(self, index: int, reason: FinishReason) -> bytes:
        """A choice's last chunk."""

    def usage(self, usage: Object) -> bytes:
        """The chunk behind all others."""

    def add(self, index: int, entry: TokenEntry) -> None:
        """The same for an answer that is not streamed: kept for `whole`."""

    def whole(self, reasons: dict[int, FinishReason], usage: Object) -> Object: ...


MakeForm = Callable[[Admitted], Form]


class Progress:
    """Which choices have ended, and what was used."""

    def __init__(self, admitted: Admitted) -> None:
        self._n = admitted.sampling.n
        self.reasons: dict[int, FinishReason] = {}
        self.finishes: list[FinishEntry] = []

    def index(self, prompt: int, entry: TokenEntry) -> int:
        return prompt * self._n + entry.choice

    def ended(self, prompt: int, entry: Entry) -> list[tuple[int, FinishReason]]:
        """The choices that end with this entry, each once."""
        if isinstance(entry, FinishEntry):
            self.finishes.append(entry)
            found = [(prompt * self._n + choice, reason) for choice, reason in enumerate(entry.reasons)]
        elif isinstance(entry, TokenEntry) and entry.finish_reason:
            found = [(self.index(prompt, entry), entry.finish_reason)]
        else:
            return []
        fresh = [(index, reason) for index, reason in found if index not in self.reasons]
        self.reasons.update(fresh)
        return fresh

    def usage(self) -> Object:
        """The sum over all prompts."""
        prompt = sum(finish.prompt_tokens for finish in self.finishes)
        completion = sum(finish.completion_tokens for finish in self.finishes)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(finish.cached_tokens for finish in self.finishes), "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


async def events(admitted: Admitted, make_form: MakeForm, *, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """`[DONE]` comes after the usage rows are committed; an error is an event of its own, and then the stream ends."""
    try:
        form, progress = make_form(admitted), Progress(admitted)
        if opening := form.opening():
            yield opening
        async with aclosing(admitted.entries()) as entries:
            async for prompt, entry in entries:
                if part := b"".join(_parts(form, progress, prompt, entry)):
                    yield part
        yield (form.usage(progress.usage()) if include_usage else b"") + DONE
    except ApiError as error:
        yield event(error.body())
    except Exception:
        log.exception("unexpected error in the stream of %s", admitted.completions[0].request_id)
        yield event(InternalError().body())
    finally:
        admitted.close()


def _parts(form: Form, progress: Progress, prompt: int, entry: Entry) -> Iterable[bytes]:
    if entry == "silence":
        yield KEEP_ALIVE
        return
    if isinstance(entry, TokenEntry):
        yield form.tokens(progress.index(prompt, entry), entry)
    for index, reason in progress.ended(prompt, entry):
        yield form.finish(index, reason)


async def whole(admitted: Admitted, make_form: MakeForm) -> Object:
    """Raises ApiError. A cancelled caller cancels the request."""
    try:
        form, progress = make_form(admitted), Progress(admitted)
        async with aclosing(admitted.entries()) as entries:
            async for prompt, entry in entries:
                if isinstance(entry, TokenEntry):
                    form.add(progress.index(prompt, entry), entry)
                progress.ended(prompt, entry)
        if len(progress.finishes) != len(admitted.completions):
            raise InternalError("the entries ended without a finish")
        return form.whole(progress.reasons, progress.usage())
    finally:
        admitted.close()


# What forms are made of


def dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def event(body: Object) -> bytes:
    return f"data: {dumps(body)}\n\n".encode()


def head(admitted: Admitted, kind: str, prefix: str) -> Object:
    """The same whenever it is made: an answer that is asked for again is the same answer."""
    first = admitted.completions[0].request_id
    return {
        "id": f"{prefix}-{first.hex}",
        "object": kind,
        "created": created_at(first),
        "model": admitted.model,
        "service_tier": admitted.service_tier,
        "system_fingerprint": fingerprint(admitted.text),
    }


def fingerprint(text: ModelText) -> str:
    return f"fp_{hashlib.sha256(f'{text.name}:{text.revision}'.encode()).hexdigest()[:10]}"


def created_at(request_id: uuid.UUID) -> int:
    """Unix seconds: a UUID of version 7 begins with its milliseconds."""
    return (request_id.int >> 80) // 1_000
