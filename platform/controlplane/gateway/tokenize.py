"""POST /v1/tokenize and /v1/detokenize: what a prompt becomes, and back. Free of charge; they count as requests of the key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from controlplane.errors import InvalidValue
from controlplane.gateway import limits, threads
from controlplane.gateway.chat import render_chat
from controlplane.gateway.completions import encode
from controlplane.gateway.endpoint import Call
from controlplane.gateway.fields import Boolean, Field, Schema, TokenIds, check_ids
from controlplane.gateway.generate import take
from controlplane.gateway.json_body import Object
from controlplane.gateway.logprobs import token_text
from controlplane.gateway.messages import Messages
from controlplane.gateway.prompts import bounded_text
from controlplane.gateway.schema import MODEL, Fields, read_fields, required
from inference.text import ChatMessage, ModelText


class Text:
    """A string of a bounded number of UTF-8 bytes."""

    def read(self, value: Any, place: str) -> str:
        return bounded_text(value, place, limits.TOKENIZE_BYTES)

    def schema(self) -> Schema:
        return {"type": "string"}


TOKENIZE_FIELDS: Fields = {
    "model": MODEL,
    "prompt": Field(Text(), f"Text of at most {limits.TOKENIZE_BYTES} bytes."),
    "messages": Field(Messages(), "In place of `prompt`: a conversation, in the form that the model is given."),
    "add_special_tokens": Field(Boolean(), "Whether a prompt begins as the model's texts begin. Default: true."),
    "return_token_strs": Field(Boolean(), "Whether each token's text comes too."),
}
DETOKENIZE_FIELDS: Fields = {
    "model": MODEL,
    "tokens": Field(TokenIds(limits.PROMPT_IDS), "Token ids.", required=True),
}


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """Either a text or a conversation."""

    model: str
    prompt: str
    messages: tuple[ChatMessage, ...] | None
    add_special_tokens: bool
    return_token_strs: bool


@dataclass(frozen=True, slots=True)
class DetokenizeRequest:
    model: str
    tokens: tuple[int, ...]


def tokenize_request(body: Object) -> TokenizeRequest:
    """Raises InvalidRequest."""
    read = read_fields(body, TOKENIZE_FIELDS)
    model, messages = required(read, "model"), read.get("messages")
    if messages is None:
        required(read, "prompt")
    elif "prompt" in read:
        raise InvalidValue("Send 'prompt' or 'messages', not both.", param="messages")
    elif sum(len(message.content.encode()) for message in messages) > limits.TOKENIZE_BYTES:
        raise InvalidValue(f"Invalid value for 'messages': expected at most {limits.TOKENIZE_BYTES} bytes.", param="messages")
    return TokenizeRequest(
        model=model,
        prompt=read.get("prompt", ""),
        messages=messages,
        add_special_tokens=read.get("add_special_tokens", True),
        return_token_strs=read.get("return_token_strs", False),
    )


def detokenize_request(body: Object) -> DetokenizeRequest:
    """Raises InvalidRequest."""
    read = read_fields(body, DETOKENIZE_FIELDS)
    return DetokenizeRequest(model=required(read, "model"), tokens=required(read, "tokens"))


async def tokenize(call: Call, asked: TokenizeRequest) -> Object:
    """Raises ApiError."""
    served = await call.runtime.model(asked.model)
    text = await call.runtime.text(asked.model)
    async with _counted(call):
        if asked.messages is not None:
            ids = await render_chat(text, asked.messages)
        else:
            ids = await encode(text, asked.prompt, add_special_tokens=asked.add_special_tokens)
        strings = {"token_strs": await threads.text.run(_strings, text, ids)} if asked.return_token_strs else {}
    return {"count": len(ids), "max_model_len": min(served.context_length, text.context_length), "tokens": ids, **strings}


async def detokenize(call: Call, asked: DetokenizeRequest) -> Object:
    """Control tokens come back as they are written. Raises ApiError."""
    await call.runtime.model(asked.model)
    text = await call.runtime.text(asked.model)
    check_ids(asked.tokens, text.vocabulary_size, "tokens[{0}]")
    async with _counted(call):
        return {"prompt": await threads.text.run(_written, text, asked.tokens)}


def _strings(text: ModelText, ids: Sequence[int]) -> list[str]:
    return [token_text(text, token_id) for token_id in ids]


def _written(text: ModelText, ids: Sequence[int]) -> str:
    pieces = (text.token_bytes(token_id) or (text.literal(token_id) or "").encode() for token_id in ids)
    return b"".join(pieces).decode(errors="replace")


@asynccontextmanager
async def _counted(call: Call) -> AsyncIterator[None]:
    """A request of the key, with a place among those at once while it works, and no token."""
    await take(call, {call.id: 0})
    try:
        yield
    finally:
        call.runtime.background(call.runtime.limiter.release(call.caller, request_id=call.id, unused_tokens=0))
