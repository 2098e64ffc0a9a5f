"""A request's tokens as a reader has them: from position 1 without a gap, whatever was lost, repeated, or written by the dead.

A token is (request, choice, position); computed again it is the same token. That is checked, not believed: a repeat that differs
ends the stream, so text of two computations is never joined.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from inference.contracts import ErrorEntry, FinishEntry, Logprobs, StreamEntry, TakeoverEntry, TokenEntry, TokenLogprob

STREAM_LOST = "stream_interrupted"
DIFFERS = "The answer could not be continued as it was begun; repeat the request."


class Gap:
    """Tokens are missing before the entry at hand. The token log has them, or will have them in a second."""


class Transcript:
    """Tokens by choice, and their log-probabilities where they came with them."""

    def __init__(self) -> None:
        self._ids: defaultdict[int, list[int]] = defaultdict(list)
        self._logprobs: defaultdict[int, list[TokenLogprob]] = defaultdict(list)

    @property
    def count(self) -> int:
        return sum(map(len, self._ids.values()))

    @property
    def ids(self) -> tuple[tuple[int, ...], ...]:
        """Of choices 0 to the last that has any."""
        return tuple(tuple(self._ids[choice]) for choice in range(max(self._ids, default=-1) + 1))

    @property
    def logprobs(self) -> Logprobs:
        """Parallel to `ids`."""
        return tuple(tuple(self._logprobs[choice]) for choice in range(max(self._ids, default=-1) + 1))

    def told(self) -> Transcript:
        """Without what has no log-probabilities: who must tell them makes those tokens again."""
        transcript = Transcript()
        for choice, (ids, logprobs) in enumerate(zip(self.ids, self.logprobs, strict=True)):
            transcript.append(choice, ids[: len(logprobs)], logprobs)
        return transcript

    def length(self, choice: int) -> int:
        return len(self._ids[choice])

    def agrees(self, choice: int, position: int, ids: Sequence[int]) -> bool:
        """Whether what both have is the same."""
        mine = self._ids[choice][position - 1 : position - 1 + len(ids)]
        return mine == list(ids[: len(mine)])

    def append(self, choice: int, ids: Sequence[int], logprobs: Sequence[TokenLogprob] = ()) -> None:
        if len(self._logprobs[choice]) == len(self._ids[choice]):  # one that is missing leaves those behind it without a place
            self._logprobs[choice].extend(logprobs)
        self._ids[choice].extend(ids)


class EntryFilter:
    """Drops repeats and void entries: whoever has spoken with a higher epoch is the only one who is heard from then on.

    `clean` may be called again with an entry that was a `Gap`, once `transcript` has what was missing.
    """

    def __init__(self, known: Transcript | None = None) -> None:
        self.transcript = known or Transcript()
        self._epoch = 0

    def clean(self, entry: StreamEntry) -> TokenEntry | FinishEntry | ErrorEntry | Gap | None:
        if entry.epoch < self._epoch:
            return None
        self._epoch = entry.epoch
        if isinstance(entry, TokenEntry):
            return self._clean_token(entry)
        if isinstance(entry, FinishEntry) and entry.completion_tokens > self.transcript.count:
            return Gap()
        return None if isinstance(entry, TakeoverEntry) else entry

    def _clean_token(self, entry: TokenEntry) -> TokenEntry | ErrorEntry | Gap | None:
        known, last = self.transcript.length(entry.choice), entry.position + len(entry.ids) - 1
        if not self.transcript.agrees(entry.choice, entry.position, entry.ids):
            return ErrorEntry(entry.epoch, STREAM_LOST, DIFFERS)
        if last <= known:
            return None
        if entry.position != known + 1:
            return Gap()
        self.transcript.append(entry.choice, entry.ids, entry.logprobs)
        return entry
