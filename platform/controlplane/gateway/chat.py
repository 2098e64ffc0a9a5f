"""The prompt of POST /v1/chat/completions: messages in the model's own form."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.errors import InternalError, InvalidValue
from controlplane.gateway import limits, threads
from controlplane.gateway.generate import Rendered, may_fit
from controlplane.gateway.schema import ChatRequest
from inference.text import ChatMessage, ChatTemplateError, ModelText

CLIENT_FAULTS = ("chat_template_refused", "chat_role_unknown", "chat_template_missing")


async def chat_prompt(chat: ChatRequest, text: ModelText, context_length: int) -> list[Rendered]:
    """Raises InvalidValue, ContextLengthExceeded, InternalError."""
    may_fit(text, [message.content for message in chat.messages], context_length, "messages")
    return [Rendered("messages", tuple(await render_chat(text, chat.messages)))]


async def render_chat(text: ModelText, messages: Sequence[ChatMessage]) -> list[int]:
    """Raises InvalidValue where the template refuses these messages, or the model has none."""
    try:
        if sum(len(message.content) for message in messages) <= limits.TEXT_INLINE_BYTES:
            return text.render_chat(messages)
        return await threads.text.run(text.render_chat, messages)
    except ChatTemplateError as error:
        if error.code in CLIENT_FAULTS:
            raise InvalidValue(error.public, param="messages") from error
        raise InternalError(f"chat template of {text.name}: {error}") from error
