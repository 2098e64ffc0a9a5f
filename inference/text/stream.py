"""Tokens to visible text, one at a time: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol


class TokenBytes(Protocol):
    def token_bytes(self, token_id: int) -> bytes: ...


class TextStream:
    """What a client may see of a growing sequence of tokens.

    The concatenation of all `push` results and `flush` is the decoding of all tokens' bytes (invalid UTF-8 as U+FFFD), cut before
    the stop string that is complete first; of several that end at the same character the longest counts. The result does not depend
    on where the tokens' borders are. Control tokens show nothing. Each push costs time in proportion to its own bytes.
    """

    def __init__(self, text: TokenBytes, stop: tuple[str, ...] = ()) -> None:
        self._text = text
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matcher = _StopMatcher(stop) if any(stop) else None

    @property
    def stopped(self) -> bool:
        """A stop string is complete: nothing more will become visible."""
        return self._matcher is not None and self._matcher.stopped

    def push(self, token_id: int, *, may_stop: bool = True) -> str:
        """The text that this token made visible. Raises `UnknownTokenError` for an id outside the vocabulary.

        Without `may_stop` a stop string that this token completes is text like any other.
        """
        return self._show(self._characters.decode(self._text.token_bytes(token_id)), may_stop)

    def flush(self) -> str:
        """The rest, at the end of generation: an unfinished character as U+FFFD, and what was held back for a stop string."""
        shown = self._show(self._characters.decode(b"", final=True), may_stop=True)
        return shown if self._matcher is None else shown + self._matcher.release()

    def _show(self, text: str, may_stop: bool) -> str:
        return text if self._matcher is None else self._matcher.feed(text, may_stop)


class _StopMatcher:
    """An Aho-Corasick automaton over characters.

    A state is the longest end of the text so far that begins some stop string; exactly that much is held back, and no more.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match = [0]  # length of the longest stop string that ends in this state; 0: none
        for stop in stops:
            self._insert(stop)
        self._fail = self._failures()
        self._state = 0
        self._held = ""
        self.stopped = False

    def feed(self, text: str, may_stop: bool) -> str:
        if self.stopped or not text:
            return ""
        buffer = self._held + text
        for index, character in enumerate(text, len(self._held) + 1):
            self._state = self._step(character)
            if may_stop and self._match[self._state]:
                self.stopped, self._held = True, ""
                return buffer[: index - self._match[self._state]]
        visible = len(buffer) - self._depth[self._state]
        self._held = buffer[visible:]
        return buffer[:visible]

    def release(self) -> str:
        held, self._held, self._state = self._held, "", 0
        return held

    def _step(self, character: str) -> int:
        state = self._state
        while state and character not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(character, 0)

    def _insert(self, stop: str) -> None:
        state = 0
        for depth, character in enumerate(stop, 1):
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(depth)
                self._match.append(0)
            state = self._next[state][character]
        self._match[state] = len(stop)

    def _failures(self) -> list[int]:
        """For each state the longest proper end that is a state too, shallow states first; matches are inherited along it."""
        fail = [0] * len(self._next)
        queue = list(self._next[0].values())
        for state in queue:
            for character, child in self._next[state].items():
                fail[child] = self._follow(fail, fail[state], character)
                self._match[child] = self._match[child] or self._match[fail[child]]
                queue.append(child)
        return fail

    def _follow(self, fail: list[int], state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = fail[state]
        return self._next[state].get(character, 0)
