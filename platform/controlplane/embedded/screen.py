"""What the person who typed `make serve` sees. A closed terminal is no error: writing stops, the rest goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Screen:
    def __init__(self) -> None:
        self.line_is_open = False

    def say(self, text: str = "") -> None:
        self._write(("\n" if self.line_is_open else "") + text + "\n")
        self.line_is_open = False

    @contextmanager
    def step(self, title: str, result: str = "") -> Iterator[None]:
        """One line for a step, ended by `result` and the time it took.

        What is said in between goes below; then the title is said again, with its result.
        """
        began = time.monotonic()
        self._write(f"  {title:<46}")
        self.line_is_open = True
        try:
            yield
        except BaseException:
            self._end(title, "failed")
            raise
        self._end(title, f"{result:<6}{time.monotonic() - began:6.1f} s")

    def _end(self, title: str, result: str) -> None:
        self._write((result if self.line_is_open else f"  {title:<46}{result}") + "\n")
        self.line_is_open = False

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except (OSError, ValueError):
            return


_screen = Screen()
say, step = _screen.say, _screen.step
