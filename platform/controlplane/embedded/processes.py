"""Child processes that cannot outlive us, and what is left of those of an earlier life.

A server runs in the foreground as our own child, so that its death is seen at once. On Linux the kernel sends each child its
`death_signal` when the process that started it ends, also by `kill -9`.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from controlplane.embedded.errors import EmbeddedError, ServerFailed

PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 1, 8, 47, 2
CAP_DAC_OVERRIDE = 1
CAPABILITY_VERSION_3 = 0x20080522
SERVER_NAMES = ("postgres", "valkey-server")

libc = ctypes.CDLL(None, use_errno=True)


class CannotBecome(EmbeddedError):
    code = "cannot_change_user"


@dataclass(frozen=True, slots=True)
class Orphan:
    pid: int
    command: str


def wheel_folder(package: str) -> Path:
    """Where a wheel that carries binaries lies; its Python part is not imported (it makes folders and warns)."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ServerFailed(f"the package {package} is not installed: run `make install`")
    return Path(spec.origin).parent


def server_user() -> str | None:
    """PostgreSQL refuses to run as root. Nobody owns its files then; nothing is added to the machine's accounts."""
    return "nobody" if os.geteuid() == 0 else None


def spawn(
    argv: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    user: str | None = None,
    death_signal: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Starts a child in a session of its own (a Ctrl-C of the terminal is ours to hand on), with its output in `log`."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            return subprocess.Popen(
                [str(part) for part in argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(os.environ if env is None else env),
                cwd=cwd,
                start_new_session=True,
                preexec_fn=_before_exec(user, death_signal),
            )
        except subprocess.SubprocessError as error:
            raise CannotBecome(
                f"{Path(argv[0]).name} could not be started as user {user!r}: this container forbids root to change its user. "
                "Run as an ordinary user, or set DATABASE_URL to a server of your own."
            ) from error


def _before_exec(user: str | None, death_signal: signal.Signals) -> Callable[[], None]:
    account = pwd.getpwnam(user) if user else None
    parent = os.getpid()

    def prepare() -> None:
        os.umask(0o077)
        if account:
            _become(account)
        if sys.platform == "linux":
            _call(libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0))
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)

    return prepare


def _become(account: pwd.struct_passwd) -> None:
    """Another user, who still may pass folders that are closed to all but root.

    So the data folder and the virtual environment may lie in a home of mode 0700 and no permission is ever widened.
    """
    if sys.platform == "linux":
        _call(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([])
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
    if sys.platform == "linux":
        header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
        sets = (ctypes.c_uint32 * 6)(*[1 << CAP_DAC_OVERRIDE] * 3, 0, 0, 0)  # effective, permitted, inheritable
        _call(libc.capset(header, sets))
        _call(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0))


def _call(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def end(process: subprocess.Popen[bytes], first: signal.Signals, *, timeout_s: float) -> None:
    """Asks with `first`, then kills the child and all that it started."""
    if process.poll() is None:
        process.send_signal(first)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    kill_group(process.pid)


def kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def orphans(marker: str, names: Collection[str] = SERVER_NAMES) -> list[Orphan]:
    """Servers with these names that have `marker` (the socket folder's name) on their command line."""
    found = [Orphan(int(path.name), _command(path)) for path in Path("/proc").glob("[0-9]*")]
    return [orphan for orphan in found if marker in orphan.command and _program(orphan.command) in names]


def _command(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _program(command: str) -> str:
    return Path(command.split(maxsplit=1)[0].rstrip(":")).name if command.strip() else ""


def end_orphans(marker: str, *, names: Collection[str] = SERVER_NAMES, timeout_s: float = 10) -> int:
    """Stops what a killed supervisor left behind; a server that holds the data folder would refuse a second one."""
    first = orphans(marker, names)
    deadline = time.monotonic() + timeout_s
    asked = signal.SIGINT
    while left := orphans(marker, names):
        for orphan in left:
            _signal(orphan.pid, asked if time.monotonic() < deadline else signal.SIGKILL)
        time.sleep(0.1)
    return len(first)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
