"""The listening socket. Its options pass to every accepted connection: a client that vanished without a packet is noticed."""

from __future__ import annotations

import socket
import sys


def bound_socket(host: str, port: int, *, client_timeout_s: int) -> socket.socket:
    """Not listening yet: nobody shall wait in its queue before the process can answer."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    notice_half_open(bound, client_timeout_s)
    bound.bind((host, port))
    return bound


def notice_half_open(listener: socket.socket, timeout_s: int) -> None:
    """A peer that acknowledges nothing for so long is gone: no data (of a stream), no keep-alive probe (while a call waits).

    Probes begin after a third of the time and come every sixth. Elsewhere than on Linux the system's own times hold.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform != "linux":
        return
    idle_s, interval_s = max(1, timeout_s // 3), max(1, timeout_s // 6)
    for option, value in (
        (socket.TCP_KEEPIDLE, idle_s),
        (socket.TCP_KEEPINTVL, interval_s),
        (socket.TCP_KEEPCNT, max(1, (timeout_s - idle_s) // interval_s)),
        (socket.TCP_USER_TIMEOUT, timeout_s * 1_000),
    ):
        listener.setsockopt(socket.IPPROTO_TCP, option, value)
