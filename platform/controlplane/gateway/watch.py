"""What becomes of an admitted request, told to metrics and to its call's span."""

from __future__ import annotations

import time

from controlplane.gateway.metrics import ADMISSION, E2E, FINISHED, OPEN, TTFT
from controlplane.gateway.spans import CallSpan
from inference.contracts import FinishEntry

CLIENT_GONE = "client_gone"


class Watch:
    """One request of a call that began at `started` (`perf_counter`), from its admission to its one end.

    A request that is answered from an earlier call is never admitted, and so not counted again.
    """

    def __init__(self, started: float, model: str, tier: str, span: CallSpan) -> None:
        self._started = started
        self._span = span
        self._sold = (model, tier)
        self._open = self._spoke = False

    def admitted(self) -> None:
        self._open = True
        ADMISSION.labels(*self._sold).observe(self._age_s())
        OPEN.labels(*self._sold).inc()

    def token(self) -> None:
        if self._open and not self._spoke:
            self._spoke = True
            TTFT.labels(*self._sold).observe(self._age_s())
            self._span.first_token(self._age_s())

    def finished(self, entry: FinishEntry) -> None:
        self._span.finished(entry)
        self._end(entry.reasons[0])

    def failed(self, code: str) -> None:
        self._span.fail(code)
        self._end(code)

    def gone(self) -> None:
        """Nobody waits any more. Changes nothing where it has ended."""
        if self._open:
            self._span.set({"error.type": CLIENT_GONE})
            self._end(CLIENT_GONE)

    def _end(self, reason: str) -> None:
        if self._open:
            self._open = False
            E2E.labels(*self._sold).observe(self._age_s())
            FINISHED.labels(*self._sold, reason).inc()
            OPEN.labels(*self._sold).dec()

    def _age_s(self) -> float:
        return time.perf_counter() - self._started
