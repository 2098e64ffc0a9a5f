"""The control plane's only door to inference: submit a request, cancel a request."""

from __future__ import annotations

import uuid

from inference.contracts import ErrorEntry, Submission
from inference.database import tenant_scope
from inference.requests.models import State
from inference.requests.transitions import request_cancel_flag, request_create, request_end_unowned
from inference.streams import StreamWriter, signal_cancel

CANCELLED = "request_cancelled"
CANCELLED_MESSAGE = "The request was cancelled."


def submit(submission: Submission) -> None:
    """Writes the queued row inside the caller's transaction; at its commit the dispatcher is told. The broker is not waited for."""
    request_create(submission)


def cancel(*, tenant_id: uuid.UUID, request_id: uuid.UUID) -> bool:
    """Stops a request within an engine step. False: unknown to this tenant, or ended already. May be called any number of times."""
    with tenant_scope(tenant_id):
        owner = request_cancel_flag(request_id=request_id)
        epoch = None
        if owner == "":
            epoch = request_end_unowned(request_id=request_id, state=State.CANCELLED, code=CANCELLED, message=CANCELLED_MESSAGE)
    if epoch is not None:
        StreamWriter.shared().write([(str(request_id), ErrorEntry(epoch, CANCELLED, CANCELLED_MESSAGE))])
    elif owner:
        signal_cancel(slot=owner, request_id=str(request_id))
    return owner is not None
