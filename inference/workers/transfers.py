"""Copies hand-offs into the own pool on a thread of its own, so that the running batch is not held up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from inference.kvtransport.shm import ShmTransport, TransferFailed
from inference.requests.claims import HandOffTicket
from inference.workers.metrics import FALLBACKS, TRANSFER, TRANSFER_BYTES

log = logging.getLogger(__name__)


class Transfers:
    """`done` is called with an empty note, or with the code of what made the pages unusable."""

    def __init__(self, transport: ShmTransport) -> None:
        self._transport = transport
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="transfer")

    def start(self, handoff: HandOffTicket, *, targets: Sequence[int], skip: int, done: Callable[[str], None]) -> None:
        """Copies the pages from `skip` on (those before are in the own cache) into `targets`, which have one block a page."""
        self._pool.submit(self._run, handoff, list(targets), skip, done)

    def stop(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, handoff: HandOffTicket, targets: list[int], skip: int, done: Callable[[str], None]) -> None:
        try:
            with TRANSFER.time():
                note = self._pull(handoff, targets, skip)
        except Exception:
            log.exception("a transfer broke; the request is computed again")
            FALLBACKS.labels("transfer_broke").inc()
            done("transfer_broke")
        else:
            done(note)

    def _pull(self, handoff: HandOffTicket, targets: list[int], skip: int) -> str:
        try:
            copied = self._transport.pull(
                arena=handoff.arena,
                worker_epoch=handoff.worker_epoch,
                layout=handoff.layout,
                pages=handoff.pages[skip:],
                targets=targets[skip:],
            )
        except TransferFailed as failure:
            log.warning("hand-off from %s not usable: %s", handoff.worker, failure)
            FALLBACKS.labels(failure.code).inc()
            return failure.code
        TRANSFER_BYTES.inc(copied)
        return ""
