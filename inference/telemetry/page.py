"""A process's operators' page: `GET /metrics` at an address of its own, never on a customer's port."""

from __future__ import annotations

import logging
import socket
import socketserver
import stat
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, disable_created_metrics, generate_latest

from inference.telemetry.address import Address

log = logging.getLogger(__name__)

CLIENT_S = 5.0  # a client that says or takes nothing for so long is let go

Render = Callable[[], bytes]

disable_created_metrics()  # type: ignore[no-untyped-call]  # a time of birth beside every counter would double the page


class PageUnavailable(RuntimeError):
    """The address cannot be listened at."""

    code = "metrics_address_unusable"


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_S
    server: _Page

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "The page is /metrics")
            return
        body = self.server.render()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE_LATEST)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "operator"  # a Unix socket's client has no address

    def log_message(self, *message: Any) -> None:
        log.debug(*message)


class _Page(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: Address, render: Render) -> None:
        self.render = render
        self.address_family = _family(address)
        where: Any = address.path or (address.host, address.port)
        super().__init__(where, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.warning("the metrics page was not delivered", exc_info=True)


def _family(address: Address) -> socket.AddressFamily:
    if address.path:
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in address.host else socket.AF_INET


def page_serve(address: Address, render: Render = generate_latest) -> Address:
    """Serves in a thread until the process ends. Answers the address, with the port that was got for 0. Raises PageUnavailable.

    A socket file that a dead process left is replaced.
    """
    try:
        _clear(address.path)
        page = _Page(address, render)
    except (OSError, OverflowError) as error:
        raise PageUnavailable(f"{address} cannot be used: {getattr(error, 'strerror', None) or error}") from error
    threading.Thread(target=page.serve_forever, name="metrics", daemon=True).start()
    return address if address.path else Address(address.host, page.server_address[1])


def _clear(path: str) -> None:
    """Only what is a socket: a wrong setting must not cost anybody a file."""
    if path and stat.S_ISSOCK(_mode(path)):
        Path(path).unlink(missing_ok=True)


def _mode(path: str) -> int:
    try:
        return Path(path).lstat().st_mode
    except FileNotFoundError:
        return 0
