"""One choice's answer as it grows: what each token makes visible, and why the answer ends."""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

from inference.contracts import FinishReason, SamplingParams
from inference.text.stream import TextStream, TokenBytes


class EndingText(TokenBytes, Protocol):
    @property
    def eos_ids(self) -> frozenset[int]: ...


def answer_text(text: EndingText, sampling: SamplingParams, limit: int) -> AnswerText:
    return AnswerText(text, stop=sampling.stop, ends=end_ids(text, sampling), limit=limit, least=sampling.min_tokens)


def end_ids(text: EndingText, sampling: SamplingParams) -> frozenset[int]:
    """Tokens that end an answer: the request's own, and the model's unless they are to be ignored."""
    return frozenset(sampling.stop_ids) | (frozenset() if sampling.ignore_eos else text.eos_ids)


class AnswerText:
    """Everything depends on the tokens so far alone: whoever repeats them, engine or gateway, sees the same text and the same end.

    `limit` and `least` count tokens: before `least` of them neither a stop string nor an end token ends the answer.
    """

    def __init__(self, text: TokenBytes, *, stop: tuple[str, ...], ends: Set[int], limit: int, least: int = 0) -> None:
        self.count = 0
        self.finish_reason: FinishReason | None = None
        self._stream = TextStream(text, stop)
        self._ends = ends
        self._limit = limit
        self._least = least

    def accept(self, token_id: int) -> str:
        """The text that becomes visible: with the last token, for which `finish_reason` is set, all the rest."""
        self.count += 1
        may_end = self.count > self._least
        if may_end and token_id in self._ends:
            self.finish_reason = "stop"
            return self._stream.flush()
        text = self._stream.push(token_id, may_stop=may_end)
        if self._stream.stopped:
            self.finish_reason = "stop"
        elif self.count >= self._limit:
            self.finish_reason = "length"
        return text + self._stream.flush() if self.finish_reason else text
