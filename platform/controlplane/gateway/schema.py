"""The body of POST /v1/chat/completions: each parameter is understood, or refused by its name. Nothing is ignored in silence.

FIELDS is the one list of what there is: the parser reads by it, and the published document (`openapi.py`) is made of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controlplane.errors import InvalidValue, MissingParameter
from controlplane.gateway import limits
from controlplane.gateway.fields import (
    Boolean,
    Field,
    Integer,
    Label,
    Labels,
    Neutral,
    Number,
    OneOrMore,
    Schema,
    invalid,
    nullable,
    unknown,
    unsupported,
)
from controlplane.gateway.json_body import Object, parse_object
from controlplane.gateway.messages import Messages, message_schema
from inference.text import ChatMessage


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`max_tokens` and `seed` are None where the client left them to us."""

    model: str
    messages: tuple[ChatMessage, ...]
    stream: bool
    include_usage: bool
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    service_tier: str
    labels: dict[str, str]


class StreamOptions:
    """Reads whether usage is wanted."""

    def read(self, value: Any, place: str) -> bool:
        if not isinstance(value, dict):
            raise invalid(place, "an object")
        for name, inner in value.items():
            if name != "include_usage" and inner is not None and inner is not False:
                raise unsupported(place, name)
        wanted = value.get("include_usage")
        return wanted is not None and Boolean().read(wanted, f"{place}.include_usage")

    def schema(self) -> Schema:
        return {
            "type": "object",
            "properties": {"include_usage": nullable(Boolean().schema())},
            "additionalProperties": {"enum": [None, False]},
        }


_TOKENS = Integer(1, 1 << 31)
_USER = Label(limits.USER_CHARACTERS)
_METADATA = Labels(limits.METADATA_PAIRS, Label(limits.METADATA_KEY_CHARACTERS, least=1), Label(limits.METADATA_VALUE_CHARACTERS))
_NOT_YET = "Not supported yet: only its neutral value is accepted."

FIELDS: dict[str, Field[Any]] = {
    "model": Field(Label(limits.MODEL_CHARACTERS), "The model's id, as `GET /v1/models` lists it.", required=True),
    "messages": Field(Messages(), "The conversation so far.", required=True),
    "stream": Field(Boolean(), "Whether the answer comes as server-sent events."),
    "stream_options": Field(StreamOptions(), "Only together with `stream: true`."),
    "max_tokens": Field(_TOKENS, f"Tokens of the answer. Default: {limits.DEFAULT_MAX_TOKENS}, or what the context leaves."),
    "max_completion_tokens": Field(_TOKENS, "The newer name of `max_tokens`. Where both are sent they must agree."),
    "temperature": Field(Number(0, 2), "0 takes the likeliest token. Default: 1."),
    "top_p": Field(Number(0, 1), "Samples from the likeliest tokens that have this mass together. Default: 1."),
    "top_k": Field(Integer(0, limits.TOP_K), "Samples from so many of the likeliest tokens. 0, the default: from all."),
    "seed": Field(Integer(-(1 << 63), (1 << 64) - 1), "Equal seeds give equal answers. Default: a random one."),
    "stop": Field(OneOrMore(limits.STOP_STRINGS, limits.STOP_CHARACTERS), "The answer ends before the first of these."),
    "ignore_eos": Field(Boolean(), "Goes on after the model's own end, until `max_tokens`."),
    "user": Field(_USER, "Your name for your user. Comes back in the receipt."),
    "safety_identifier": Field(_USER, "As `user`."),
    "metadata": Field(_METADATA, "Comes back in the receipt."),
    "service_tier": Field(Label(40), "`auto`, `default`, `priority` or `flex`, or what else is offered. Default: `auto`."),
    **{
        name: Field(Neutral(*neutral), _NOT_YET)
        for name, neutral in {
            "n": (1,),
            "logprobs": (False,),
            "top_logprobs": (),
            "frequency_penalty": (0.0,),
            "presence_penalty": (0.0,),
            "logit_bias": ({},),
            "response_format": ({"type": "text"},),
            "tools": ([],),
            "tool_choice": ("none", "auto"),
            "parallel_tool_calls": (True,),
            "functions": ([],),
            "function_call": ("none", "auto"),
            "modalities": (["text"],),
            "store": (False,),
            "reasoning_effort": (),
            "audio": (),
            "prediction": (),
            "web_search_options": (),
            "verbosity": (),
            "prompt_cache_key": (),
            "prompt_cache_retention": (),
            "prompt_cache_options": (),
            "moderation": (),
        }.items()
    },
}


def chat_request(body: bytes) -> ChatRequest:
    """Raises InvalidRequest."""
    read = _read(parse_object(body))
    stream = read.get("stream", False)
    if "stream_options" in read and not stream:
        raise InvalidValue("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    return ChatRequest(
        model=_required(read, "model"),
        messages=_required(read, "messages"),
        stream=stream,
        include_usage=read.get("stream_options", False),
        max_tokens=_max_tokens(read),
        temperature=read.get("temperature", 1.0),
        top_p=read.get("top_p", 1.0),
        top_k=read.get("top_k", 0),
        seed=read.get("seed"),
        stop=read.get("stop", ()),
        ignore_eos=read.get("ignore_eos", False),
        service_tier=read.get("service_tier") or "auto",
        labels=_labels(read),
    )


def _read(data: Object) -> Object:
    """The values that are there, each checked."""
    for name in data:
        if name not in FIELDS:
            raise unknown(name)
    return {name: FIELDS[name].kind.read(value, name) for name, value in data.items() if value is not None}


def _required(read: Object, name: str) -> Any:
    if name not in read:
        raise MissingParameter(f"You must send '{name}'.", param=name)
    return read[name]


def _max_tokens(read: Object) -> int | None:
    old, new = read.get("max_tokens"), read.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise InvalidValue("'max_tokens' and 'max_completion_tokens' differ: send one of them.", param="max_tokens")
    return new if new is not None else old


def _labels(read: Object) -> dict[str, str]:
    """What the client wants to find again: metadata, and its own user's name under the parameter's name."""
    labels = {f"metadata.{key}": value for key, value in read.get("metadata", {}).items()}
    return labels | {name: read[name] for name in ("user", "safety_identifier") if name in read}


def schemas() -> dict[str, Schema]:
    """The components of the published document that describe this body."""
    body = {
        "type": "object",
        "required": [name for name, field in FIELDS.items() if field.required],
        "properties": {name: field.schema() for name, field in FIELDS.items()},
        "additionalProperties": False,
    }
    return {"ChatCompletionRequest": body, "Message": message_schema()}
