"""Ctrl-C, SIGTERM and a closed terminal, as one exception that comes only where it may."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(BaseException):
    """Not an Exception: no handler on the way may swallow it."""


class Signals:
    def __init__(self) -> None:
        self.requests = 0
        self._held = False

    def install(self) -> None:
        self._read, self._write = os.pipe()
        for descriptor in (self._read, self._write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only wakes `wait`
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup: a closed terminal shall not stop it
                signal.signal(number, self._stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, *STOPPING})

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.requests += 1
        if not self._held:
            self._held = True
            raise StopRequested

    @contextmanager
    def held(self) -> Iterator[None]:
        """A stop waits until the end of the block: a child is started and known, or neither."""
        before, self._held = self._held, True
        seen = self.requests
        try:
            yield
        finally:
            self._held = before
        if self.requests > seen and not before:
            self._held = True
            raise StopRequested

    def wait(self, timeout_s: float) -> None:
        """Until a signal comes (a child's end too), or the time is over."""
        if select.select([self._read], [], [], timeout_s)[0]:
            os.read(self._read, 4096)
