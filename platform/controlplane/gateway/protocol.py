"""HTTP as the gateway takes it; `__main__.py` serves with it.

What comes before a request is whole is bounded in size and time, and is refused in the form of the API. No key can be asked for
yet, so this is all that stands between a stranger and our memory and descriptors.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from controlplane.errors import ApiError, BodyTooSlow, HeadTooLarge, MalformedHttp
from controlplane.gateway import limits
from controlplane.gateway.metrics import ERRORS


class GatewayProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._refusal: ApiError | None = None
        self._unused_bytes = 0  # received since the parser last made something whole of it
        self._late: asyncio.TimerHandle | None = None

    # Time: a connection on which nothing is answered must bring a request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unused_bytes += len(data)
        super().data_received(data)
        if self._unused_bytes > limits.HEAD_BYTES:
            self._refuse(_too_large())
        elif self._late is None and not self._answers():
            self._wait_for_head()

    def _wait_for_head(self) -> None:
        self._late = self.loop.call_later(limits.HEAD_READ_S, self._is_late)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _is_late(self) -> None:
        self._late = None
        if not self._answers():
            self._refuse(BodyTooSlow(f"The request did not arrive within {limits.HEAD_READ_S:g} seconds."))

    # Size: of a head, and of what a body may carry beside its bytes (chunk extensions, trailers)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > limits.HEAD_BYTES or len(self.headers) > limits.HEADERS:
            self._refusal = _too_large()
            raise self._refusal  # the parser stops, and `send_400_response` is called
        super().on_headers_complete()
        self._unused_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unused_bytes = 0
        super().on_message_complete()

    # Refusals

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or MalformedHttp("This is not a valid HTTP request."))

    def _refuse(self, error: ApiError) -> None:
        """Says why, unless an answer is on its way already: nothing may be mixed into it."""
        if not self.transport.is_closing():
            ERRORS.labels(error.code, str(error.status)).inc()
            if not self._writes():
                self.transport.write(_answer(error))
            self.transport.close()

    def _answers(self) -> bool:
        """A request is whole and its answer is not."""
        return self.cycle is not None and not self.cycle.response_complete

    def _writes(self) -> bool:
        return bool(self.pipeline) or (self._answers() and self.cycle.response_started)

    # Upgrades: there is nothing to upgrade to, so the request counts as it stands

    def _should_upgrade(self) -> bool:
        return False

    def _unsupported_upgrade_warning(self) -> None:
        return


def _too_large() -> HeadTooLarge:
    return HeadTooLarge(f"Address and headers may have {limits.HEAD_BYTES} bytes and {limits.HEADERS} headers.")


def _answer(error: ApiError) -> bytes:
    body = json.dumps(error.body()).encode()
    lines = [
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
