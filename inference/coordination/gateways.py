"""Gateway processes: who lives, by a lease of the database's time. A gateway's requests end with it, see `reaper.py`."""

from __future__ import annotations

import os
import socket
import uuid

from inference.database import execute, query


def gateway_register(*, lease_s: float) -> uuid.UUID:
    """A new identity. The row is there before a request names it."""
    gateway_id = uuid.uuid4()
    execute(
        """INSERT INTO coordination_gateway (id, host, pid, started_at, lease_until)
           VALUES (%s, %s, %s, clock_timestamp(), clock_timestamp() + make_interval(secs => %s))""",
        [gateway_id, socket.gethostname(), os.getpid(), lease_s],
    )
    return gateway_id


def gateway_renew(*, gateway_id: uuid.UUID, lease_s: float) -> bool:
    """False: the lease was over and somebody noticed; the requests of this identity are being cancelled."""
    changed = execute(
        "UPDATE coordination_gateway SET lease_until = clock_timestamp() + make_interval(secs => %s) WHERE id = %s",
        [lease_s, gateway_id],
    )
    return changed == 1


def gateway_leave(*, gateway_id: uuid.UUID) -> None:
    """A clean stop: what it left open need not wait for the end of the lease."""
    execute("DELETE FROM coordination_gateway WHERE id = %s", [gateway_id])


def gateway_died(*, pid: int) -> bool:
    """A supervisor saw the process end."""
    return execute("DELETE FROM coordination_gateway WHERE host = %s AND pid = %s", [socket.gethostname(), pid]) > 0


def gateways_expire() -> int:
    return execute("DELETE FROM coordination_gateway WHERE lease_until < clock_timestamp()")


def gateways_spare(*, lease_s: float) -> None:
    """While nobody watched (the database was away, or no reaper ran) a lease may have ended for no fault of its gateway."""
    execute(
        """UPDATE coordination_gateway SET lease_until = clock_timestamp() + make_interval(secs => %s)
            WHERE lease_until < clock_timestamp() + make_interval(secs => %s)""",
        [lease_s, lease_s],
    )


def requests_without_gateway(limit: int) -> list[tuple[uuid.UUID, uuid.UUID]]:
    """(tenant, request): open, not cancelled yet, and the gateway that waited for it is gone."""
    return [
        (tenant_id, request_id)
        for tenant_id, request_id in query(
            """SELECT r.tenant_id, r.id FROM inference_request r LEFT JOIN coordination_gateway g ON g.id = r.gateway_id
                WHERE r.finished_at IS NULL AND r.cancel_requested_at IS NULL AND r.gateway_id IS NOT NULL AND g.id IS NULL
                LIMIT %s""",
            [limit],
        )
    ]
