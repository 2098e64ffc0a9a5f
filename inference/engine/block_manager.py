"""Who holds which KV block. Plain integers and dictionaries: no tensor, no clock, no thread.

A block is in exactly one state:

    free         no content that counts
    held         at least one sequence refers to it
    cached       nobody refers to it, but its content has a digest and may be found again
    quarantined  nobody refers to it, but a transfer may still write into it

Published blocks form trees (digest -> parent's digest). Whoever refers to a published block refers to all blocks before it: a
sequence that computed what another had published takes over the other's block. So every cached block has cached descendants only,
and since sequences let go of their last block first, the block that is longest unused is always a leaf.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from inference.contracts import PoolCounters


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A published block; `depth` counts the tokens from the chain's beginning to the block's end."""

    digest: bytes
    block: int
    depth: int


@dataclass(frozen=True, slots=True)
class CacheChanges:
    """Net changes since the last drain. A digest in both was removed and came back in another block: apply `removed` first."""

    added: tuple[CacheEntry, ...]
    removed: tuple[CacheEntry, ...]


@dataclass(slots=True)
class _Node:
    entry: CacheEntry
    parent: bytes | None
    children: set[bytes] = field(default_factory=set)


class BlockManager:
    def __init__(self, blocks: int, block_tokens: int, on_reuse: Callable[[int], None] = lambda block: None) -> None:
        """`on_reuse(block)` is called before a block is given out for new content."""
        self.block_tokens = block_tokens
        self._on_reuse = on_reuse
        self._references = [0] * blocks
        self._free = deque(range(blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()  # longest unused first
        self._quarantined: dict[str, list[int]] = {}
        self._nodes: dict[bytes, _Node] = {}
        self._digests: dict[int, bytes] = {}
        self._added: dict[bytes, CacheEntry] = {}
        self._removed: dict[bytes, CacheEntry] = {}

    @property
    def total(self) -> int:
        return len(self._references)

    @property
    def available(self) -> int:
        """Blocks that `take` can give now: every cached block can be evicted (see above)."""
        return len(self._free) + len(self._cached)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def references(self, block: int) -> int:
        return self._references[block]

    # -- holding ---------------------------------------------------------------------------------------------------------------

    def lookup(self, digests: Sequence[bytes]) -> list[int]:
        """The blocks of the longest published beginning of the chain. They are referred to at once: the caller must release."""
        found: list[int] = []
        for digest in digests:
            node = self._nodes.get(digest)
            if node is None:
                break
            self._refer(node.entry.block)
            found.append(node.entry.block)
        return found

    def take(self, count: int) -> list[int] | None:
        """`count` blocks for new content, or None (and no change) when there are too few."""
        if count > self.available:
            return None
        return [self._take_one() for _ in range(count)]

    def release(self, blocks: Sequence[int]) -> None:
        """Lets go of a sequence's blocks, given in chain order."""
        for block in reversed(blocks):
            if self._drop(block):
                self._settle(block)

    def quarantine(self, owner: str, blocks: Sequence[int]) -> None:
        """Lets go of blocks that the transfer of `owner` may still write into: nobody gets them before `quarantine_end`."""
        for block in reversed(blocks):
            if block in self._digests or self._references[block] != 1:
                raise ValueError(f"block {block} is shared: no transfer may write into it")
            self._drop(block)
            self._quarantined.setdefault(owner, []).append(block)

    def quarantine_end(self, owner: str) -> None:
        self._free.extend(self._quarantined.pop(owner, ()))

    def in_quarantine(self, owner: str) -> bool:
        return owner in self._quarantined

    # -- publishing ------------------------------------------------------------------------------------------------------------

    def publish(self, digest: bytes, parent: bytes | None, block: int, depth: int) -> int | None:
        """Makes the computed, full `block` findable. `parent` is None for a chain's first block.

        Returns the block that holds this content from now on: `block`, or the one that was published before it, which the caller
        then refers to instead (and `block` is given back). None when the parent is not published.
        """
        if parent is not None and parent not in self._nodes:
            return None
        known = self._nodes.get(digest)
        if known is None:
            self._insert(CacheEntry(digest, block, depth), parent)
            return block
        if known.entry.block != block:
            self._refer(known.entry.block)
            self.release([block])
        return known.entry.block

    def forget(self, digests: Iterable[bytes]) -> None:
        """Nobody may find these blocks any more, nor what was built on them. Who holds them keeps them."""
        stack = [digest for digest in digests if digest in self._nodes]
        order: list[bytes] = []
        while stack:
            order.append(stack.pop())
            stack += self._nodes[order[-1]].children
        for digest in reversed(order):
            if digest in self._nodes:
                self._forget_one(digest)

    def drain_cache_changes(self) -> CacheChanges:
        changes = CacheChanges(tuple(self._added.values()), tuple(self._removed.values()))
        self._added, self._removed = {}, {}
        return changes

    # -- looking ---------------------------------------------------------------------------------------------------------------

    def counters(self) -> PoolCounters:
        quarantined = sum(map(len, self._quarantined.values()))
        held = sum(1 for count in self._references if count)
        return PoolCounters(
            free=len(self._free), cached=len(self._cached), held=held, quarantined=quarantined, total=len(self._references)
        )

    def check(self) -> list[str]:
        """Broken invariants, in words; empty when all is well."""
        return [*self._check_states(), *self._check_trees()]

    def _check_states(self) -> Iterable[str]:
        quarantined = [block for blocks in self._quarantined.values() for block in blocks]
        held = [block for block, count in enumerate(self._references) if count > 0]
        every = sorted([*self._free, *self._cached, *quarantined, *held])
        if every != list(range(self.total)):
            yield f"blocks are in no state or in two: {every}"
        if any(count < 0 for count in self._references):
            yield "a reference count is negative"
        if any(block in self._digests for block in (*self._free, *quarantined)):
            yield "a free or quarantined block is published"
        if any(block not in self._digests for block in self._cached):
            yield "a cached block has no digest"

    def _check_trees(self) -> Iterable[str]:
        if {node.entry.block: digest for digest, node in self._nodes.items()} != self._digests:
            yield "digests and blocks disagree"
        for digest, node in self._nodes.items():
            parent = self._nodes.get(node.parent) if node.parent is not None else None
            if node.parent is not None and (parent is None or digest not in parent.children):
                yield f"block {node.entry.block} hangs in the air"
            if parent is not None and self._references[node.entry.block] and not self._references[parent.entry.block]:
                yield f"block {node.entry.block} is held, but not the one before it"
        first = next(iter(self._cached), None)
        if first is not None and self._nodes[self._digests[first]].children:
            yield f"the next block to evict, {first}, is no leaf"

    # -- moving between states -------------------------------------------------------------------------------------------------

    def _refer(self, block: int) -> None:
        if not self._references[block]:
            del self._cached[block]
        self._references[block] += 1

    def _drop(self, block: int) -> bool:
        """True when this was the last reference."""
        if not self._references[block]:
            raise ValueError(f"block {block} is not held")
        self._references[block] -= 1
        return not self._references[block]

    def _settle(self, block: int) -> None:
        if block in self._digests:
            self._cached[block] = None
        else:
            self._free.append(block)

    def _take_one(self) -> int:
        if not self._free:
            self._forget_one(self._digests[next(iter(self._cached))])
        block = self._free.popleft()
        self._on_reuse(block)
        self._references[block] = 1
        return block

    def _insert(self, entry: CacheEntry, parent: bytes | None) -> None:
        self._nodes[entry.digest] = _Node(entry, parent)
        self._digests[entry.block] = entry.digest
        if parent is not None:
            self._nodes[parent].children.add(entry.digest)
        self._added[entry.digest] = entry

    def _forget_one(self, digest: bytes) -> None:
        node = self._nodes.pop(digest)
        if node.children:
            raise ValueError(f"block {node.entry.block} has descendants")
        if node.parent is not None:
            self._nodes[node.parent].children.discard(digest)
        block = node.entry.block
        del self._digests[block]
        if block in self._cached:
            del self._cached[block]
            self._free.append(block)
        if self._added.pop(digest, None) is None:
            self._removed[digest] = node.entry
