"""The gateway's process: `python -m controlplane.gateway`. Any number may run, on ports of their own behind a balancer."""

from __future__ import annotations

import argparse
import asyncio
import socket

import uvicorn

from controlplane.asgi import application

LAST_WORD_S = 1.0  # of the grace: streams that have not ended say so, instead of breaking off


class Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Nothing new; streams go on for the grace; what is open then ends with an error entry and is cancelled."""
        from controlplane.gateway.runtime import runtime

        grace_s = self.config.timeout_graceful_shutdown or 0
        asyncio.get_running_loop().call_later(max(0.0, grace_s - LAST_WORD_S), runtime().interrupt)
        await super().shutdown(sockets)


def main() -> None:
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

    from controlplane.gateway.protocol import GatewayProtocol
    from controlplane.gateway.sockets import bound_socket
    from inference.telemetry.process import telemetry_start

    parser = argparse.ArgumentParser(prog="python -m controlplane.gateway", description=__doc__)
    parser.add_argument("--host", default=settings.BIND)
    parser.add_argument("--port", type=int, default=settings.PORT)
    parser.add_argument("--grace", type=int, default=30, help="seconds that streams have to end after SIGTERM")
    options = parser.parse_args()
    try:
        telemetry_start("gateway")
    except ImproperlyConfigured as error:
        parser.exit(2, f"{error}\n")
    config = uvicorn.Config(
        application,
        http=GatewayProtocol,
        server_header=False,
        log_level="warning",
        access_log=False,
        log_config=None,  # its lines go the way of all others
        timeout_graceful_shutdown=options.grace,
    )
    Server(config).run(sockets=[bound_socket(options.host, options.port, client_timeout_s=settings.CLIENT_TIMEOUT_S)])


if __name__ == "__main__":
    main()
