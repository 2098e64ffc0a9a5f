"""A small process that outlives a killed supervisor for some seconds and leaves nothing of it behind.

Run as a script, without the rest of Brigade: `python -I -S guard.py FOLDER...`. On its standard input it reads `+GROUP` and
`-GROUP` (process groups that began and ended). When the input ends, whatever ended the supervisor: groups that are still there
get some seconds, then are killed, and the folders are removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

GRACE_S = 8.0
PROC = Path("/proc")


def main(folders: list[str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups = watch()
    if not PROC.is_dir():  # Linux: the kernel has told them
        signal_all(groups, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while alive(groups) and time.monotonic() < deadline:
        time.sleep(0.05)
    signal_all(groups, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def watch() -> set[int]:
    groups: set[int] = set()
    for line in sys.stdin:
        change = groups.add if line[0] == "+" else groups.discard
        change(int(line[1:]))
    return groups


def alive(groups: set[int]) -> bool:
    if PROC.is_dir():
        return any(group in groups for group in living_groups())
    return any(answers(group) for group in groups)


def living_groups() -> list[int]:
    """Zombies hold nothing: they do not count."""
    found = []
    for path in PROC.glob("[0-9]*/stat"):
        try:
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if state != "Z":
            found.append(int(group))
    return found


def answers(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_all(groups: set[int], number: int) -> None:
    for group in groups:
        try:
            os.killpg(group, number)
        except (ProcessLookupError, PermissionError):
            continue


if __name__ == "__main__":
    main(sys.argv[1:])
