"""Tokenise, render chats, detokenise a stream. Loads no torch and no framework. See README.md."""

from inference.text.answer import AnswerText, answer_text, end_ids
from inference.text.chat import ChatMessage
from inference.text.errors import ChatTemplateError, ModelFetchError, ModelFolderError, TextError, UnknownTokenError
from inference.text.folders import open_text
from inference.text.model_text import ModelText
from inference.text.revision import model_digest, model_revision
from inference.text.stream import TextStream

__all__ = [
    "AnswerText",
    "ChatMessage",
    "ChatTemplateError",
    "ModelFetchError",
    "ModelFolderError",
    "ModelText",
    "TextError",
    "TextStream",
    "UnknownTokenError",
    "answer_text",
    "end_ids",
    "model_digest",
    "model_revision",
    "open_text",
]
