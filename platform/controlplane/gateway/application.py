"""One process, two ways in: the lean one for the API and the probes, Django's ordinary one for all else (the console)."""

from __future__ import annotations

from typing import Any

from django.core.handlers.asgi import ASGIHandler

from controlplane.errors import is_for_people
from controlplane.gateway import runtime
from controlplane.gateway.handler import GatewayHandler, Receive, Send


class Application:
    def __init__(self) -> None:
        self.gateway = GatewayHandler()
        self.console = ASGIHandler()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            handler = self.console if is_for_people(scope["path"]) else self.gateway
            await handler(scope, receive, send)
        else:  # there are no websockets here
            await send({"type": "websocket.close", "code": 1000})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await runtime.runtime().warm_up()
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await runtime.close()
            await send({"type": "lifespan.shutdown.complete"})
            return
