"""Copies hand-offs into the own pool on a thread of its own, so that the running batch is not held up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from inference.kvtransport.shm import ShmTransport, TransferFailed
from inference.requests.claims import HandOffTicket

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
            done(self._pull(handoff, targets, skip))
        except Exception:
            log.exception("a transfer broke; the request is computed again")
            done("transfer_broke")

    def _pull(self, handoff: HandOffTicket, targets: list[int], skip: int) -> str:
        try:
            self._transport.pull(
                arena=handoff.arena,
                worker_epoch=handoff.worker_epoch,
                layout=handoff.layout,
                pages=handoff.pages[skip:],
                targets=targets[skip:],
            )
        except TransferFailed as failure:
            log.warning("hand-off from %s not usable: %s", handoff.worker, failure)
            return failure.code
        return ""
