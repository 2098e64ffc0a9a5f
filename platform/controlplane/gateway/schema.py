"""The body of POST /v1/chat/completions: each parameter is understood, or refused by its name. Nothing is ignored in silence.

A null counts as absent, as the official clients send it so. A bool is not a number, NaN and infinity are not JSON, and text must be
text (no lone surrogate).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from controlplane.errors import InvalidJson, InvalidRequest, InvalidValue, MissingParameter, UnsupportedParameter
from controlplane.gateway import limits
from inference.text import ChatMessage

_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)  # cannot backtrack: linear on any input
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

Object = dict[str, Any]


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


def chat_request(body: bytes) -> ChatRequest:
    data = parse_object(body)
    _only_known(data)
    stream = _boolean(data, "stream")
    return ChatRequest(
        model=_model(data),
        messages=_messages(data),
        stream=stream,
        include_usage=_stream_options(data, stream),
        max_tokens=_max_tokens(data),
        temperature=_number(data, "temperature", 1.0, 0.0, 2.0),
        top_p=_number(data, "top_p", 1.0, 0.0, 1.0),
        top_k=_integer(data, "top_k", 0, limits.TOP_K) or 0,
        seed=_integer(data, "seed", -(1 << 63), (1 << 64) - 1),
        stop=_stop(data),
        ignore_eos=_boolean(data, "ignore_eos"),
        service_tier=_text(data, "service_tier", 40) or "auto",
        labels=_labels(data),
    )


# JSON


def parse_object(body: bytes) -> Object:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InvalidJson("The body is not UTF-8.") from error
    _check_depth(text)
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidJson(f"The body is not valid JSON{_place(error)}.") from error
    if not isinstance(data, dict):
        raise InvalidJson("The body must be a JSON object.")
    return data


def _place(error: Exception) -> str:
    return f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= limits.JSON_DEPTH:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        first = match[0][0]
        depth += (first in "[{") - (first in "]}")
        if depth > limits.JSON_DEPTH:
            raise InvalidJson(f"The body is nested deeper than {limits.JSON_DEPTH} levels.")


# Values


def _invalid(name: str, expected: str) -> InvalidValue:
    return InvalidValue(f"Invalid value for '{name}': expected {expected}.", param=name)


def _boolean(data: Object, name: str, param: str = "") -> bool:
    value = data.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _invalid(param or name, "true or false")
    return value


def _integer(data: Object, name: str, least: int, most: int) -> int | None:
    value = data.get(name)
    if value is None:
        return None
    if type(value) is not int or not least <= value <= most:
        raise _invalid(name, f"an integer from {least} to {most}")
    return value


def _number(data: Object, name: str, default: float, least: float, most: float) -> float:
    value = data.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not least <= value <= most or not math.isfinite(value):
        raise _invalid(name, f"a number from {least:g} to {most:g}")
    return float(value)


def _is_text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(data: Object, name: str, most: int) -> str | None:
    """A short label: no control characters, because it is stored and shown."""
    value = data.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not _is_text(value) or len(value) > most or _CONTROL.search(value):
        raise _invalid(name, f"a string of at most {most} characters, without control characters")
    return value


# Parameters


def _model(data: Object) -> str:
    if data.get("model") is None:
        raise MissingParameter("You must name a model.", param="model")
    return _text(data, "model", limits.MODEL_CHARACTERS) or ""


def _stream_options(data: Object, stream: bool) -> bool:
    options = data.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise _invalid("stream_options", "an object")
    if not stream:
        raise InvalidValue("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    for name, value in options.items():
        if name != "include_usage" and value not in (None, False):
            raise _unsupported("stream_options", name)
    return _boolean(options, "include_usage", "stream_options.include_usage")


def _max_tokens(data: Object) -> int | None:
    old = _integer(data, "max_tokens", 1, 1 << 31)
    new = _integer(data, "max_completion_tokens", 1, 1 << 31)
    if old is not None and new is not None and old != new:
        raise InvalidValue("'max_tokens' and 'max_completion_tokens' differ: send one of them.", param="max_tokens")
    return new if new is not None else old


def _stop(data: Object) -> tuple[str, ...]:
    value = data.get("stop")
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or len(strings) > limits.STOP_STRINGS:
        raise _invalid("stop", f"a string or a list of at most {limits.STOP_STRINGS} strings")
    for string in strings:
        if not _is_text(string) or not 1 <= len(string) <= limits.STOP_CHARACTERS or "\0" in string:  # PostgreSQL stores no NUL
            raise _invalid("stop", f"strings of 1 to {limits.STOP_CHARACTERS} characters, without NUL")
    return tuple(strings)


def _labels(data: Object) -> dict[str, str]:
    """What the client wants to find again: metadata, and its own user's name under the parameter's name."""
    labels = _metadata(data)
    for name in ("user", "safety_identifier"):
        value = _text(data, name, limits.USER_CHARACTERS)
        if value is not None:
            labels[name] = value
    return labels


def _metadata(data: Object) -> dict[str, str]:
    metadata = data.get("metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or len(metadata) > limits.METADATA_PAIRS:
        raise _invalid("metadata", f"an object of at most {limits.METADATA_PAIRS} strings")
    for key in metadata:
        if _text({"metadata": key}, "metadata", limits.METADATA_KEY_CHARACTERS) == "":
            raise _invalid("metadata", "keys that are not empty")
    labels = {f"metadata.{key}": value for key, value in metadata.items()}
    for name in labels:
        if _text(labels, name, limits.METADATA_VALUE_CHARACTERS) is None:
            raise _invalid("metadata", "values that are strings")
    return labels


# Messages


def _messages(data: Object) -> tuple[ChatMessage, ...]:
    messages = data.get("messages")
    if messages is None:
        raise MissingParameter("You must send messages.", param="messages")
    if not isinstance(messages, list) or not 1 <= len(messages) <= limits.MESSAGES:
        raise _invalid("messages", f"a list of 1 to {limits.MESSAGES} messages")
    parsed = tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages))
    if sum(len(message.content.encode()) for message in parsed) > limits.CONTENT_BYTES:
        raise _invalid("messages", f"at most {limits.CONTENT_BYTES} bytes of text")
    return parsed


def _message(message: Any, place: str) -> ChatMessage:
    if not isinstance(message, dict):
        raise _invalid(place, "an object")
    for name, value in message.items():
        if name not in ("role", "content") and value not in (None, [], ""):
            raise _unsupported(place, name)
    role = message.get("role")
    if role in ("tool", "function"):
        raise UnsupportedParameter(f"The role '{role}' is not supported yet.", param=f"{place}.role")
    if not isinstance(role, str) or role not in ROLES:
        raise _invalid(f"{place}.role", "one of system, developer, user, assistant")
    return ChatMessage(role=ROLES[role], content=_content(message.get("content"), f"{place}.content"))


def _content(content: Any, place: str) -> str:
    if isinstance(content, list):
        if not 1 <= len(content) <= limits.CONTENT_PARTS:
            raise _invalid(place, f"1 to {limits.CONTENT_PARTS} parts")
        content = "".join(_part(part, f"{place}[{index}]") for index, part in enumerate(content))
    if not isinstance(content, str) or not _is_text(content):
        raise _invalid(place, "a string or a list of text parts")
    return content


def _part(part: Any, place: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise _invalid(place, "an object with a type")
    if part["type"] != "text":
        raise UnsupportedParameter(f"Only content parts of type 'text' are supported ('{place}').", param=f"{place}.type")
    for name, value in part.items():
        if name not in ("type", "text") and value is not None:
            raise _unsupported(place, name)
    text = part.get("text")
    if not isinstance(text, str):
        raise _invalid(f"{place}.text", "a string")
    return text


# What is not supported is named


def _exactly(*allowed: object) -> Callable[[object], bool]:
    return lambda value: any(type(value) is type(one) and value == one for one in allowed)


def _zero(value: object) -> bool:
    return type(value) in (int, float) and value == 0


_UNDERSTOOD = {
    *("model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k"),
    *("seed", "stop", "ignore_eos", "user", "safety_identifier", "metadata", "service_tier"),
}
# A value that asks for nothing is no reason to refuse: clients send defaults.
_HARMLESS: dict[str, Callable[[object], bool]] = {
    "n": _exactly(1),
    "logprobs": _exactly(False),
    "frequency_penalty": _zero,
    "presence_penalty": _zero,
    "logit_bias": _exactly({}),
    "response_format": _exactly({"type": "text"}),
    "tools": _exactly([]),
    "tool_choice": _exactly("none", "auto"),
    "parallel_tool_calls": _exactly(True),
    "functions": _exactly([]),
    "function_call": _exactly("none", "auto"),
    "modalities": _exactly(["text"]),
    "store": _exactly(False),
}
_REFUSED = {
    *("top_logprobs", "reasoning_effort", "audio", "prediction", "web_search_options", "verbosity"),
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "moderation"),
}


def _only_known(data: Object) -> None:
    for name, value in data.items():
        if name in _UNDERSTOOD or (value is None and (name in _HARMLESS or name in _REFUSED)):
            continue
        if name in _HARMLESS:
            if not _HARMLESS[name](value):
                raise _unsupported_value(name)
        elif name in _REFUSED:
            raise _unsupported_value(name)
        else:
            raise _unknown(name)


def _unsupported_value(name: str) -> InvalidRequest:
    return UnsupportedParameter(f"'{name}' is not supported yet. Leave it out, or give its neutral value.", param=name)


def _unsupported(place: str, name: str) -> InvalidRequest:
    param = f"{place}.{_shown(name)}"
    return UnsupportedParameter(f"'{param}' is not supported.", param=param)


def _unknown(name: str) -> InvalidRequest:
    return UnsupportedParameter(f"Unknown parameter: '{_shown(name)}'.", param=_shown(name))


def _shown(name: str) -> str:
    """A client's own word, short and printable enough to be sent back."""
    return name[:64].encode("ascii", "backslashreplace").decode()
