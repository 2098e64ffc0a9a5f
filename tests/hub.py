"""A hub on this machine that speaks the paths of Hugging Face's, for one model."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub(name: str, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Its address, and the paths that were fetched so far."""
    fetched: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._file(send=False)

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            fetched.append(path)
            files = sorted(folder.iterdir())
            if path == f"/api/models/{name}/revision/main":
                siblings = [{"rfilename": file.name} for file in files]
                self._answer(json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())
            elif path == f"/api/models/{name}/tree/{COMMIT}":
                entries = [{"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _etag(file)} for file in files]
                self._answer(json.dumps(entries).encode())
            else:
                self._file(send=True)

        def _file(self, *, send: bool) -> None:
            start = f"/{name}/resolve/{COMMIT}/"
            path = urlsplit(self.path).path
            file = folder / path.removeprefix(start)
            if not path.startswith(start) or not file.is_file():
                self._answer(b"{}", status=404, headers={"X-Error-Code": "RepoNotFound"})
                return
            self._answer(file.read_bytes(), headers={"ETag": f'"{_etag(file)}"', "X-Repo-Commit": COMMIT}, send=send)

        def _answer(self, body: bytes, *, status: int = 200, headers: dict[str, str] | None = None, send: bool = True) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            if send:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", fetched
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()
