"""Where a process shows its operators' page: `PORT`, `HOST:PORT` or `unix:/PATH`."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = "127.0.0.1"
SOCKET_PATH_BYTES = 107


@dataclass(frozen=True, slots=True)
class Address:
    """TCP, or with a `path` a socket in the file system."""

    host: str = LOOPBACK
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises ValueError. A port without a host is this machine's own: a page is shown to others only where somebody says so."""
        if text.startswith("unix:"):
            return cls(path=_path(text.removeprefix("unix:")))
        host, _, port = text.rpartition(":")
        if not port.isdecimal() or int(port[:6]) > 65535:
            raise ValueError(f"{text!r} is neither PORT, HOST:PORT nor unix:/PATH")
        return cls(host=host.strip("[]") or LOOPBACK, port=int(port))

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Where the page is, for people."""
        return str(self) if self.path else f"http://{self}/metrics"


def _path(path: str) -> str:
    if not path.startswith("/") or len(path.encode()) > SOCKET_PATH_BYTES:
        raise ValueError(f"unix:{path} is no absolute path of at most {SOCKET_PATH_BYTES} bytes")
    return path
