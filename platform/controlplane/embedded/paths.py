"""What lies where in the data folder."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

BASE = Path(__file__).resolve().parents[3]  # where manage.py is


@dataclass(frozen=True, slots=True)
class DataFolder:
    root: Path

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def sockets(self) -> Path:
        """Short, whatever the data folder is called: a socket's path may have 107 bytes at most."""
        name = hashlib.sha256(str(self.root.resolve()).encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"brigade-{os.getuid()}-{name}"

    @property
    def database_url(self) -> str:
        return f"postgresql://postgres@/brigade?host={quote(str(self.sockets), safe='')}"

    @property
    def valkey_socket(self) -> Path:
        return self.sockets / "valkey.sock"

    def metrics_socket(self, process: str) -> Path:
        return self.sockets / f"metrics-{process}.sock"

    @property
    def redis_url(self) -> str:
        return f"unix://{self.valkey_socket}?db=0"

    @property
    def broker_url(self) -> str:
        return f"redis+socket://{self.valkey_socket}?virtual_host=1"

    @property
    def arena_name(self) -> str:
        """Folder of the workers' KV arenas inside shared memory."""
        return self.sockets.name

    @property
    def arenas(self) -> tuple[Path, Path]:
        """Where they may lie: shared memory, or here where that is too small."""
        return Path("/dev/shm") / self.arena_name, self.root / "arenas"

    @property
    def port_file(self) -> Path:
        """Names the port of the copy that runs on this folder, for commands in another terminal."""
        return self.sockets / "port"

    def running_port(self) -> int | None:
        try:
            return int(self.port_file.read_text())
        except (OSError, ValueError):
            return None

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def make(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def secret_key(self) -> str:
        """Made at the first start, so that a newcomer needs no configuration. Without a data folder: one for this process only."""
        path = self.root / "secret.key"
        if not self.root.exists():
            return secrets.token_hex(32)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return path.read_text().strip()
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        return path.read_text().strip()


def data_folder() -> DataFolder:
    """BRIGADE_DATA, from the current directory if relative; unset: `.data` beside manage.py, wherever the command is given."""
    return DataFolder(Path(os.environ.get("BRIGADE_DATA", "").strip() or BASE / ".data").absolute())
