"""Clients that vanish without a packet are noticed by the kernel, on every accepted connection."""

from __future__ import annotations

import socket
import sys

import pytest

from controlplane.gateway.sockets import bound_socket
from tests.flows.leaving import vanish

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems keep their own times")


@pytest.mark.parametrize("sending", [True, False])
def test_a_peer_that_acknowledges_nothing_is_gone(sending: bool) -> None:
    with bound_socket("127.0.0.1", 0, client_timeout_s=3) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as accepted:
            accepted.settimeout(30)
            vanish(client)
            if sending:
                accepted.sendall(b"data: {}\n\n")
            with pytest.raises(OSError, match="timed out") as gone:
                accepted.recv(1)
            assert not isinstance(gone.value, TimeoutError) or gone.value.errno is not None  # the kernel's word, not ours


def test_an_idle_peer_that_lives_is_kept() -> None:
    with bound_socket("127.0.0.1", 0, client_timeout_s=3) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as accepted:
            accepted.settimeout(5)
            with pytest.raises(TimeoutError):
                accepted.recv(1)
            client.sendall(b"x")
            assert accepted.recv(1) == b"x"
