"""The lean way in for /v1 and the probes: no session, no cookie, no CSRF, no body before the caller is known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from io import BytesIO
from typing import Any, cast

from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpResponse, HttpResponseBase
from django.urls import set_script_prefix

from controlplane.errors import BodyTooLarge, BodyTooSlow
from controlplane.gateway import limits

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

log = logging.getLogger("brigade.gateway")


class ClientGone(Exception):
    """The connection ended before the answer did."""


class Inbox:
    """What the client sends: first the body, when a view asks for it, then nothing but the news that the client is gone."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._body_read = asyncio.Event()

    @property
    def body_was_read(self) -> bool:
        return self._body_read.is_set()

    async def body(self, declared: str | None) -> bytes:
        """Raises BodyTooLarge before it has kept more than the limit, BodyTooSlow, ClientGone."""
        if declared is not None and declared.isdecimal() and int(declared[:20]) > limits.BODY_BYTES:
            raise _too_large()
        try:
            async with asyncio.timeout(limits.BODY_READ_S):
                return await self._read()
        except TimeoutError as error:
            raise BodyTooSlow(f"The body did not arrive within {limits.BODY_READ_S:g} seconds.") from error

    async def _read(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limits.BODY_BYTES:
                raise _too_large()
            if not message.get("more_body", False):
                self._body_read.set()
                return b"".join(parts)

    async def gone(self) -> None:
        """Returns when the client is gone. Waits for the body first, so that the two do not take each other's messages."""
        await self._body_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {limits.BODY_BYTES} bytes.")


class EventStream(HttpResponseBase):
    """Server-sent events. The generator is closed when the client is gone, wherever it stands.

    `release` is called in every case, also where the client was gone before the first event: a generator that never began runs none
    of its clean-up.
    """

    streaming = True

    def __init__(self, events: AsyncGenerator[bytes, None], release: Callable[[], None]) -> None:
        super().__init__(content_type="text/event-stream; charset=utf-8")
        self.events = events
        self.release = release
        self["Cache-Control"] = "no-cache"
        self["X-Accel-Buffering"] = "no"


class GatewayRequest(ASGIRequest):
    inbox: Inbox


class GatewayHandler(ASGIHandler):
    """Django's requests and URLs without middleware, and without the signals whose receivers would cost a thread hop each."""

    request_class = GatewayRequest

    def load_middleware(self, is_async: bool = True) -> None:
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        self._middleware_chain = convert_exception_to_response(self._get_response_async)  # type: ignore[attr-defined]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        inbox = Inbox(receive)
        answer = asyncio.create_task(self._answer(scope, inbox, send))
        gone = asyncio.create_task(inbox.gone())
        try:
            await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, answer):
                task.cancel()
            results = await asyncio.gather(answer, gone, return_exceptions=True)
        if isinstance(results[0], Exception) and not isinstance(results[0], ClientGone):
            raise results[0]

    async def _answer(self, scope: Any, inbox: Inbox, send: Send) -> None:
        set_script_prefix("/")
        request, response = self.create_request(scope, BytesIO())
        if request is not None:
            cast(GatewayRequest, request).inbox = inbox
            response = await self.get_response_async(request)
        assert response is not None
        try:
            await self.send_response(response, _bounded(send))
        finally:
            if isinstance(response, EventStream):
                response.release()

    async def send_response(self, response: HttpResponseBase, send: Any) -> None:
        if not isinstance(response, EventStream):
            response["Content-Length"] = str(len(cast(HttpResponse, response).content))
            await super().send_response(response, send)
            return
        headers = [(name.lower().encode("ascii"), value.encode("latin1")) for name, value in response.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(response.events) as events:
            async for part in events:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _bounded(send: Send) -> Send:
    """A client that takes nothing for too long is treated as gone: the server's buffer is full and stays so."""

    async def bounded(message: Message) -> None:
        try:
            async with asyncio.timeout(limits.SEND_S):
                await send(message)
        except TimeoutError as error:
            log.info("a client took no byte for %s s", limits.SEND_S)
            raise ClientGone from error

    return bounded
