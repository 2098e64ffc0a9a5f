"""One choice's answer as it grows: what each token makes visible, and why the answer ends."""

from __future__ import annotations

from collections.abc import Set

from inference.contracts import FinishReason
from inference.text.stream import TextStream, TokenBytes


class AnswerText:
    """Everything depends on the tokens so far alone: whoever repeats them, engine or gateway, sees the same text and the same end.

    `limit` counts tokens. `eos_ids` is empty where the end-of-text token does not end the answer.
    """

    def __init__(self, text: TokenBytes, *, stop: tuple[str, ...], eos_ids: Set[int], limit: int) -> None:
        self.count = 0
        self.finish_reason: FinishReason | None = None
        self._stream = TextStream(text, stop)
        self._eos_ids = eos_ids
        self._limit = limit

    def accept(self, token_id: int) -> str:
        """The text that becomes visible: with the last token, for which `finish_reason` is set, all the rest."""
        self.count += 1
        if token_id in self._eos_ids:
            self.finish_reason = "stop"
            return self._stream.flush()
        text = self._stream.push(token_id)
        if self._stream.stopped:
            self.finish_reason = "stop"
        elif self.count >= self._limit:
            self.finish_reason = "length"
        return text + self._stream.flush() if self.finish_reason else text
