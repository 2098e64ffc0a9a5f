"""A child's log file: its last lines, its new errors, and a bound on its size."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

CAP_BYTES = 20 * 2**20
READ_AT_ONCE_BYTES = 64 * 2**10
ERRORS_AT_ONCE = 5
ERROR = re.compile(r"\b(ERROR|CRITICAL)\b")


class LogFile:
    def __init__(self, path: Path, *, cap_bytes: int = CAP_BYTES) -> None:
        self.path = path
        self.cap_bytes = cap_bytes
        self.read_to = self._size()

    def tail(self, lines: int) -> list[str]:
        try:
            return _text(self.path, max(0, self._size() - READ_AT_ONCE_BYTES)).splitlines()[-lines:]
        except FileNotFoundError:
            return []

    def new_errors(self) -> list[str]:
        """Lines since the last call that name an error; a few of them only, the file has the rest."""
        size = self._size()
        if size <= self.read_to:
            self.read_to = size
            return []
        text = _text(self.path, max(self.read_to, size - READ_AT_ONCE_BYTES))
        self.read_to = size
        return [line for line in text.splitlines() if ERROR.search(line)][:ERRORS_AT_ONCE]

    def rotate(self) -> bool:
        """The child goes on writing into the same open file: it is copied, then cut. Lines written between the two are lost."""
        if self._size() <= self.cap_bytes:
            return False
        shutil.copyfile(self.path, self.path.with_suffix(".log.1"))
        with self.path.open("r+b") as file:
            file.truncate(0)
        self.read_to = 0
        return True

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0


def _text(path: Path, start: int) -> str:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(READ_AT_ONCE_BYTES).decode(errors="replace")
