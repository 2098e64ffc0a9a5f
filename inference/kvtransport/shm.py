"""Transport for workers of one host: copies straight from the source's arena into the own pool. No staging, no serialisation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash

from inference import failpoints
from inference.contracts import KVLayout, Page
from inference.kvtransport.arena import Arena, ArenaError

KEPT_OPEN = 8

PageNote = tuple[int, int]  # block, and its generation


class TransferFailed(RuntimeError):
    """The pages are not what the hand-off says; the reader computes them again. `code` says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def page_digest(page: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> str:
    return xxhash.xxh3_128_hexdigest(page.data)


def pages_note(arena: Arena, blocks: Sequence[int]) -> tuple[PageNote, ...]:
    """Which pages are meant: taken where the blocks are surely held, before anything can give them away."""
    return tuple((block, int(arena.generations[block])) for block in blocks)


def pages_describe(arena: Arena, notes: Sequence[PageNote]) -> tuple[Page, ...]:
    """What a hand-off says of its pages. A block that was given away since it was noted has another generation, and is refused."""
    return tuple(Page(block, generation, page_digest(arena.pages[block])) for block, generation in notes)


class ShmTransport:
    """Pulls pages from arenas in one folder. Not for several threads at a time."""

    def __init__(self, folder: Path, own: Arena) -> None:
        self._folder = folder
        self._own = own
        self._open: dict[tuple[str, int], Arena] = {}

    def pull(self, *, arena: str, worker_epoch: int, layout: KVLayout, pages: Sequence[Page], targets: Sequence[int]) -> int:
        """Copies `pages` into the own blocks `targets`, then verifies each. Answers the bytes copied. Raises TransferFailed."""
        if layout != self._own.layout:
            raise TransferFailed("layout_differs", f"{arena} holds {layout}, this worker {self._own.layout}")
        failpoints.reach("transfer.read")
        source = self._source(arena, worker_epoch, layout)
        for page, target in zip(pages, targets, strict=True):
            if not 0 <= page.index < source.blocks:
                raise TransferFailed("page_unknown", f"page {page.index} of {source.blocks}")
            failpoints.reach("transfer.page")
            np.copyto(self._own.pages[target], source.pages[page.index])
        if targets and failpoints.reach("transfer.verify") == "corrupt":
            self._own.pages[targets[0]][0] ^= np.uint8(0xFF)
        for page, target in zip(pages, targets, strict=True):
            # The order matters: only what is still unchanged AFTER the copy was whole during it.
            if int(source.generations[page.index]) != page.generation:
                raise TransferFailed("generation_passed", f"page {page.index} of {arena} was overwritten")
            if page_digest(self._own.pages[target]) != page.digest:
                raise TransferFailed("digest_differs", f"page {page.index} of {arena}")
        return len(pages) * layout.block_bytes

    def _source(self, name: str, worker_epoch: int, layout: KVLayout) -> Arena:
        known = self._open.get((name, worker_epoch))
        if known is not None:
            return known
        try:
            found = Arena.open(self._folder, name, layout, worker_epoch)
        except (OSError, ArenaError) as error:
            raise TransferFailed("source_gone", str(error)) from error
        while len(self._open) >= KEPT_OPEN:
            self._open.pop(next(iter(self._open)))
        self._open[name, worker_epoch] = found
        return found
