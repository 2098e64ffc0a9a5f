"""Private folders, and the lock that makes one supervisor the only one of a data folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from pathlib import Path
from types import TracebackType

from controlplane.embedded.errors import AlreadyRunning, UnsafeFolder
from controlplane.embedded.paths import DataFolder


def private_folder(path: Path) -> Path:
    """Makes `path` with mode 0700, or checks that it is ours: its name can be guessed and its parent may be everybody's."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = path.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid():
        raise UnsafeFolder(f"{path} belongs to another user or is no folder. Remove it, or set another BRIGADE_DATA.")
    path.chmod(0o700)
    return path


def remove_folder(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


class FolderLock:
    """Held as long as the process lives: the kernel gives it back at any death."""

    def __init__(self, data: DataFolder) -> None:
        self.path = data.root / "lock"
        self.data = data

    def __enter__(self) -> FolderLock:
        self.data.make()
        self.file = self.path.open("a+")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(self._who()) from None
        self.file.truncate(0)
        self.file.write(f"{os.getpid()}\n")
        self.file.flush()
        return self

    def _who(self) -> str:
        self.file.seek(0)
        pid = self.file.read().strip() or "unknown"
        self.file.close()
        return (
            f"Brigade already runs on {self.data.root} (process {pid}). Stop it first, "
            "or start a second copy with another BRIGADE_DATA and PORT."
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.file.close()
