"""The bodies of generating calls: each parameter is understood, or refused by its name. Nothing is ignored in silence.

CHAT_FIELDS and COMPLETION_FIELDS are the lists of what there is, and share what both understand: the parser reads by them, and the
published document (`openapi.py`) is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from controlplane.errors import InvalidValue, MissingParameter
from controlplane.gateway import limits
from controlplane.gateway.fields import (
    Boolean,
    Field,
    Integer,
    Label,
    Labels,
    LogitBias,
    Neutral,
    Number,
    OneOrMore,
    Schema,
    TokenIds,
    invalid,
    nullable,
    unknown,
    unsupported,
)
from controlplane.gateway.json_body import Object
from controlplane.gateway.messages import Messages
from controlplane.gateway.prompts import Prompt, Prompts
from inference.contracts import SamplingParams
from inference.text import ChatMessage

Fields = Mapping[str, Field[Any]]


@dataclass(frozen=True, slots=True)
class Ask:
    """What calls that generate have in common. `max_tokens` and `seed` are None where the client left them to us."""

    model: str
    stream: bool
    include_usage: bool
    max_tokens: int | None
    seed: int | None
    sampling: SamplingParams  # but for these two
    service_tier: str
    labels: dict[str, str]

    MAX_TOKENS: ClassVar[int] = limits.DEFAULT_MAX_TOKENS  # where the client names none and the context has room for them


@dataclass(frozen=True, slots=True)
class ChatRequest(Ask):
    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True)
class CompletionRequest(Ask):
    """`prompt_logprobs` is what the client asked for under this name: to echo a prompt with logprobs `sampling` asks for more."""

    prompts: tuple[Prompt, ...]
    echo: bool
    prompt_logprobs: int | None

    MAX_TOKENS: ClassVar[int] = limits.COMPLETION_MAX_TOKENS


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
_LOGPROBS = Integer(0, limits.LOGPROBS)
_PENALTY = Number(-2, 2)
_USER = Label(limits.USER_CHARACTERS)
_METADATA = Labels(limits.METADATA_PAIRS, Label(limits.METADATA_KEY_CHARACTERS, least=1), Label(limits.METADATA_VALUE_CHARACTERS))

MODEL: Field[str] = Field(Label(limits.MODEL_CHARACTERS), "The model's id, as `GET /v1/models` lists it.", required=True)

_SHARED: Fields = {
    "model": MODEL,
    "stream": Field(Boolean(), "Whether the answer comes as server-sent events."),
    "stream_options": Field(StreamOptions(), "Only together with `stream: true`."),
    "temperature": Field(Number(0, 2), "0 takes the likeliest token. Default: 1."),
    "top_p": Field(Number(0, 1), "Samples from the likeliest tokens that have this mass together. Default: 1."),
    "top_k": Field(Integer(0, limits.TOP_K), "Samples from so many of the likeliest tokens. 0, the default: from all."),
    "min_p": Field(Number(0, 1), "Samples from tokens with at least this share of the likeliest one's probability. Default: 0."),
    "frequency_penalty": Field(_PENALTY, "Taken from a token's logit for each time that the answer has it. Default: 0."),
    "presence_penalty": Field(_PENALTY, "Taken once from the logit of each token that the answer has. Default: 0."),
    "repetition_penalty": Field(Number(0.01, 2), "Divides the logits of what prompt and answer have. Default: 1."),
    "logit_bias": Field(LogitBias(limits.LOGIT_BIASES, limits.LOGIT_BIAS), "Token ids, and what is added to their logits."),
    "n": Field(Integer(1, limits.CHOICES), "Answers to each prompt; all are billed, the prompt once. Default: 1."),
    "seed": Field(Integer(-(1 << 63), (1 << 64) - 1), "Equal seeds give equal answers. Default: a random one."),
    "stop": Field(OneOrMore(limits.STOP_STRINGS, limits.STOP_CHARACTERS), "The answer ends before the first of these."),
    "stop_token_ids": Field(TokenIds(limits.STOP_IDS), "Tokens that end the answer, as the model's own end does."),
    "min_tokens": Field(Integer(0, 1 << 31), "Before so many tokens only `max_tokens` ends the answer. Default: 0."),
    "ignore_eos": Field(Boolean(), "Goes on after the model's own end, until `max_tokens`."),
    "prompt_logprobs": Field(_LOGPROBS, "Log probabilities of the prompt's tokens, with so many alternatives. Not with `stream`."),
    "user": Field(_USER, "Your name for your user. Comes back in the receipt."),
    "safety_identifier": Field(_USER, "As `user`."),
    "metadata": Field(_METADATA, "Comes back in the receipt."),
    "service_tier": Field(Label(40), "`auto`, `default`, `priority` or `flex`, or what else is offered. Default: `auto`."),
}


def _refused(**neutral: tuple[Any, ...]) -> Fields:
    about = "Not supported: only its neutral value is accepted."
    return {name: Field(Neutral(*values), about) for name, values in neutral.items()}


CHAT_FIELDS: Fields = {
    "messages": Field(Messages(), "The conversation so far.", required=True),
    **_SHARED,
    "max_tokens": Field(_TOKENS, f"Tokens of each answer. Default: {limits.DEFAULT_MAX_TOKENS}, or what the context leaves."),
    "max_completion_tokens": Field(_TOKENS, "The newer name of `max_tokens`. Where both are sent they must agree."),
    "logprobs": Field(Boolean(), "Whether each token comes with its log probability."),
    "top_logprobs": Field(_LOGPROBS, "So many alternatives to each token. Only together with `logprobs: true`."),
    **_refused(
        response_format=({"type": "text"},),
        tools=([],),
        tool_choice=("none", "auto"),
        parallel_tool_calls=(True,),
        functions=([],),
        function_call=("none", "auto"),
        modalities=(["text"],),
        store=(False,),
        reasoning_effort=(),
        audio=(),
        prediction=(),
        web_search_options=(),
        verbosity=(),
        prompt_cache_key=(),
        prompt_cache_retention=(),
        prompt_cache_options=(),
        moderation=(),
    ),
}

COMPLETION_FIELDS: Fields = {
    "prompt": Field(Prompts(), "A text or its token ids, or a list of these: each is answered for itself.", required=True),
    **_SHARED,
    "max_tokens": Field(_TOKENS, f"Tokens of each answer. Default: {limits.COMPLETION_MAX_TOKENS}."),
    "logprobs": Field(_LOGPROBS, "Log probabilities of the tokens, with so many alternatives."),
    "echo": Field(Boolean(), "Whether the prompt stands before each answer."),
    **_refused(suffix=("",), best_of=(1,)),
}


def chat_request(body: Object) -> ChatRequest:
    """Raises InvalidRequest."""
    read = read_fields(body, CHAT_FIELDS)
    messages = required(read, "messages")
    ask = _ask(read, max_tokens=_max_tokens(read), logprobs=_chat_logprobs(read))
    return ChatRequest(**ask, messages=messages)


def completion_request(body: Object) -> CompletionRequest:
    """Raises InvalidRequest."""
    read = read_fields(body, COMPLETION_FIELDS)
    prompts = required(read, "prompt")
    ask = _ask(read, max_tokens=read.get("max_tokens"), logprobs=read.get("logprobs"))
    sampling, echo = ask["sampling"], read.get("echo", False)
    if len(prompts) * sampling.n > limits.ANSWERS:
        raise InvalidValue(f"Invalid value for 'n': expected at most {limits.ANSWERS} answers to all prompts together.", param="n")
    if echo and sampling.logprobs is not None:
        shown = max(sampling.logprobs, sampling.prompt_logprobs or 0)
        ask["sampling"] = replace(sampling, prompt_logprobs=shown)
    return CompletionRequest(**ask, prompts=prompts, echo=echo, prompt_logprobs=read.get("prompt_logprobs"))


def _ask(read: Object, *, max_tokens: int | None, logprobs: int | None) -> dict[str, Any]:
    """What an `Ask` is made of."""
    stream = read.get("stream", False)
    if "stream_options" in read and not stream:
        raise InvalidValue("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    if "prompt_logprobs" in read and stream:
        raise InvalidValue("'prompt_logprobs' is not available when 'stream' is true.", param="prompt_logprobs")
    return {
        "model": required(read, "model"),
        "stream": stream,
        "include_usage": read.get("stream_options", False),
        "max_tokens": max_tokens,
        "seed": read.get("seed"),
        "sampling": _sampling(read, logprobs),
        "service_tier": read.get("service_tier") or "auto",
        "labels": _labels(read),
    }


def _sampling(read: Object, logprobs: int | None) -> SamplingParams:
    return SamplingParams(
        max_tokens=0,
        temperature=read.get("temperature", 1.0),
        top_p=max(read.get("top_p", 1.0), 1e-6),  # 0 means: the likeliest token alone
        top_k=read.get("top_k", 0),
        stop=read.get("stop", ()),
        ignore_eos=read.get("ignore_eos", False),
        stop_ids=read.get("stop_token_ids", ()),
        min_tokens=read.get("min_tokens", 0),
        min_p=read.get("min_p", 0.0),
        frequency_penalty=read.get("frequency_penalty", 0.0),
        presence_penalty=read.get("presence_penalty", 0.0),
        repetition_penalty=read.get("repetition_penalty", 1.0),
        logit_bias=read.get("logit_bias", ()),
        n=read.get("n", 1),
        logprobs=logprobs,
        prompt_logprobs=read.get("prompt_logprobs"),
    )


def read_fields(data: Object, fields: Fields) -> Object:
    """The values that are there, each checked."""
    for name in data:
        if name not in fields:
            raise unknown(name)
    return {name: fields[name].kind.read(value, name) for name, value in data.items() if value is not None}


def required(read: Object, name: str) -> Any:
    if name not in read:
        raise MissingParameter(f"You must send '{name}'.", param=name)
    return read[name]


def _max_tokens(read: Object) -> int | None:
    old, new = read.get("max_tokens"), read.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise InvalidValue("'max_tokens' and 'max_completion_tokens' differ: send one of them.", param="max_tokens")
    return new if new is not None else old


def _chat_logprobs(read: Object) -> int | None:
    wanted = read.get("logprobs", False)
    if "top_logprobs" in read and not wanted:
        raise InvalidValue("'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs")
    return read.get("top_logprobs", 0) if wanted else None


def _labels(read: Object) -> dict[str, str]:
    """What the client wants to find again: metadata, and its own user's name under the parameter's name."""
    labels = {f"metadata.{key}": value for key, value in read.get("metadata", {}).items()}
    return labels | {name: read[name] for name in ("user", "safety_identifier") if name in read}


def body_schema(fields: Fields) -> Schema:
    return {
        "type": "object",
        "required": [name for name, field in fields.items() if field.required],
        "properties": {name: field.schema() for name, field in fields.items()},
        "additionalProperties": False,
    }
