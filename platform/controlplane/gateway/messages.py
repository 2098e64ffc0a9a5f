"""The messages of a chat request: roles, and contents as a string or as text parts."""

from __future__ import annotations

from typing import Any

from controlplane.errors import UnsupportedParameter
from controlplane.gateway import limits
from controlplane.gateway.fields import Schema, invalid, is_text, unsupported
from inference.text import ChatMessage

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
EMPTY: tuple[Any, ...] = (None, [], "")  # an answer that comes back as history carries these for what it does not use


class Messages:
    def read(self, value: Any, place: str) -> tuple[ChatMessage, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= limits.MESSAGES:
            raise invalid(place, f"a list of 1 to {limits.MESSAGES} messages")
        parsed = tuple(_message(message, f"{place}[{index}]") for index, message in enumerate(value))
        if sum(len(message.content.encode()) for message in parsed) > limits.CONTENT_BYTES:
            raise invalid(place, f"at most {limits.CONTENT_BYTES} bytes of text")
        return parsed

    def schema(self) -> Schema:
        return {"type": "array", "minItems": 1, "maxItems": limits.MESSAGES, "items": {"$ref": "#/components/schemas/Message"}}


def _message(message: Any, place: str) -> ChatMessage:
    if not isinstance(message, dict):
        raise invalid(place, "an object")
    for name, value in message.items():
        if name not in ("role", "content") and value not in EMPTY:
            raise unsupported(place, name)
    role = message.get("role")
    if role in ("tool", "function"):
        raise UnsupportedParameter(f"The role '{role}' is not supported yet.", param=f"{place}.role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{place}.role", f"one of {', '.join(ROLES)}")
    return ChatMessage(role=ROLES[role], content=_content(message.get("content"), f"{place}.content"))


def _content(content: Any, place: str) -> str:
    if isinstance(content, list):
        if not 1 <= len(content) <= limits.CONTENT_PARTS:
            raise invalid(place, f"1 to {limits.CONTENT_PARTS} parts")
        content = "".join(_part(part, f"{place}[{index}]") for index, part in enumerate(content))
    if not is_text(content):
        raise invalid(place, "a string or a list of text parts")
    return str(content)


def _part(part: Any, place: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise invalid(place, "an object with a type")
    if part["type"] != "text":
        raise UnsupportedParameter(f"Only content parts of type 'text' are supported ('{place}').", param=f"{place}.type")
    for name, value in part.items():
        if name not in ("type", "text") and value is not None:
            raise unsupported(place, name)
    text = part.get("text")
    if not isinstance(text, str):
        raise invalid(f"{place}.text", "a string")
    return text


def message_schema() -> Schema:
    part = {
        "type": "object",
        "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "additionalProperties": {"type": "null"},
    }
    parts = {"type": "array", "minItems": 1, "maxItems": limits.CONTENT_PARTS, "items": part}
    return {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": list(ROLES), "description": "`developer` is another name for `system`."},
            "content": {"anyOf": [{"type": "string"}, parts], "description": "Parts are joined without anything between them."},
        },
        "additionalProperties": {"enum": list(EMPTY), "description": "An answer may be sent back as history as it came."},
        "description": f"All messages together hold at most {limits.CONTENT_BYTES} bytes of text.",
    }
