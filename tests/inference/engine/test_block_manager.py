"""Who holds which block: exact ids, and random operations after each of which everything must be in order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from inference.contracts import PoolCounters
from inference.engine.block_manager import BlockManager
from inference.engine.prefix import chain_hashes, chain_root

ROOT = chain_root(scope_salt=b"s", model="m", revision="r")


def manager(blocks: int = 4) -> tuple[BlockManager, list[int]]:
    reused: list[int] = []
    return BlockManager(blocks, 16, on_reuse=reused.append), reused


def chain(*firsts: int) -> list[bytes]:
    """Digests of a chain of blocks, each filled with one number."""
    return chain_hashes(ROOT, [first for first in firsts for _ in range(16)], 16)


def publish_chain(one: BlockManager, digests: list[bytes], blocks: list[int]) -> list[int]:
    for index, digest in enumerate(digests):
        block = one.publish(digest, digests[index - 1] if index else None, blocks[index], 16 * (index + 1))
        assert block is not None
        blocks[index] = block
    return blocks


def test_blocks_are_given_in_order_and_announced_before_use() -> None:
    one, reused = manager()
    assert one.take(3) == [0, 1, 2]
    assert reused == [0, 1, 2]
    assert one.counters() == PoolCounters(free=1, cached=0, held=3, quarantined=0, total=4)


def test_too_many_blocks_at_once_change_nothing() -> None:
    one, reused = manager()
    assert one.take(5) is None
    assert reused == []
    assert one.available == 4


def test_a_looked_up_block_is_referred_to_at_once_and_cannot_be_evicted() -> None:
    one, _ = manager()
    one.release(publish_chain(one, chain(1), one.take(1) or []))
    assert one.lookup(chain(1, 2)) == [0]
    assert one.take(4) is None
    assert one.take(3) == [1, 2, 3]
    assert one.lookup(chain(1)) == [0]


def test_a_lookup_ends_at_the_first_gap() -> None:
    one, _ = manager()
    one.release(publish_chain(one, chain(1, 2), one.take(2) or []))
    assert one.lookup(chain(3, 2)) == []
    assert one.lookup(chain(1, 3)) == [0]


def test_leaves_leave_first_and_the_longest_unused_chain_before_others() -> None:
    one, reused = manager()
    one.release(publish_chain(one, chain(1, 2), one.take(2) or []))
    one.release(publish_chain(one, chain(3, 4), one.take(2) or []))
    one.release(one.lookup(chain(1, 2)))
    reused.clear()
    assert one.take(3) is not None
    assert reused == [3, 2, 1]
    assert one.lookup(chain(1)) == [0]


def test_whoever_computed_the_same_takes_over_the_first_block() -> None:
    one, _ = manager()
    first, second = one.take(1) or [], one.take(1) or []
    publish_chain(one, chain(1), first)
    assert publish_chain(one, chain(1), second) == [0]
    assert one.references(0) == 2
    assert one.counters().free == 3


def test_nothing_is_published_on_top_of_what_nobody_can_find() -> None:
    one, _ = manager()
    blocks = one.take(2) or []
    assert one.publish(chain(1, 2)[1], chain(1)[0], blocks[1], 32) is None
    assert one.lookup(chain(1, 2)) == []


def test_forgetting_a_block_forgets_what_was_built_on_it() -> None:
    one, _ = manager()
    blocks = publish_chain(one, chain(1, 2), one.take(2) or [])
    other = publish_chain(one, chain(1, 3), [*one.lookup(chain(1)), *(one.take(1) or [])])
    one.forget([chain(1)[0]])
    assert one.lookup(chain(1, 2)) == []
    assert one.check() == []
    one.release(blocks)
    one.release(other)
    assert one.counters() == PoolCounters(free=4, cached=0, held=0, quarantined=0, total=4)


def test_quarantined_blocks_are_nobodys_until_the_transfer_ends() -> None:
    one, _ = manager()
    one.quarantine("r", one.take(3) or [])
    assert one.take(2) is None
    assert one.counters() == PoolCounters(free=1, cached=0, held=0, quarantined=3, total=4)
    one.quarantine_end("another")
    assert one.counters().quarantined == 3
    one.quarantine_end("r")
    one.quarantine_end("r")
    assert one.counters() == PoolCounters(free=4, cached=0, held=0, quarantined=0, total=4)


def test_a_shared_block_cannot_be_quarantined() -> None:
    one, _ = manager()
    blocks = publish_chain(one, chain(1), one.take(1) or [])
    with pytest.raises(ValueError, match="shared"):
        one.quarantine("r", blocks)


def test_releasing_what_is_not_held_is_an_error() -> None:
    one, _ = manager()
    blocks = one.take(1) or []
    one.release(blocks)
    with pytest.raises(ValueError, match="not held"):
        one.release(blocks)


def test_changes_are_reported_once_and_net() -> None:
    one, _ = manager(2)
    one.release(publish_chain(one, chain(1, 2), one.take(2) or []))
    added = one.drain_cache_changes().added
    assert [(entry.digest, entry.block, entry.depth) for entry in added] == [(chain(1)[0], 0, 16), (chain(1, 2)[1], 1, 32)]
    taken = one.take(1) or []
    assert [entry.depth for entry in one.drain_cache_changes().removed] == [32]
    publish_chain(one, chain(1, 5), [*one.lookup(chain(1)), *taken])
    one.forget([chain(1, 5)[1]])
    changes = one.drain_cache_changes()
    assert (changes.added, changes.removed) == ((), ())


Held = tuple[list[int], list[int]]  # what fills each block, the blocks


class Machine(RuleBasedStateMachine):
    """Sequences over an alphabet of two, so that they share beginnings; a model of what must be findable is kept beside."""

    held: Bundle[Held] = Bundle("held")

    @initialize(blocks=st.integers(1, 12))
    def start(self, blocks: int) -> None:
        self.generation = [0] * blocks
        self.one = BlockManager(blocks, 16, on_reuse=self.overwrite)
        self.content: dict[int, list[int]] = {}
        self.found: dict[bytes, int] = {}

    def overwrite(self, block: int) -> None:
        assert self.one.references(block) == 0
        self.generation[block] += 1
        self.content.pop(block, None)

    @rule(target=held, fills=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def admit(self, fills: list[int]) -> Held | MultipleResults[Held]:
        blocks = self.one.lookup(chain(*fills))
        for index, block in enumerate(blocks):
            assert self.content[block] == fills[: index + 1]
        fresh = self.one.take(len(fills) - len(blocks))
        if fresh is None:
            self.one.release(blocks)
            return multiple()
        return (fills, blocks + fresh)

    @rule(target=held, sequence=consumes(held))
    def compute_and_publish(self, sequence: Held) -> Held:
        fills, blocks = sequence
        digests = chain(*fills)
        for index, digest in enumerate(digests):
            own = self.content.setdefault(blocks[index], fills[: index + 1])
            assert own == fills[: index + 1]
            block = self.one.publish(digest, digests[index - 1] if index else None, blocks[index], 16 * (index + 1))
            if block is None:
                break
            blocks[index] = block
        return (fills, blocks)

    @rule(sequence=consumes(held))
    def release(self, sequence: Held) -> None:
        self.one.release(sequence[1])

    @rule(sequence=held)
    def forget(self, sequence: Held) -> None:
        self.one.forget(chain(*sequence[0]))

    @rule(count=st.integers(0, 4), owner=st.sampled_from(["a", "b"]))
    def reserve_and_abort(self, count: int, owner: str) -> None:
        self.one.quarantine(owner, self.one.take(count) or [])

    @rule(owner=st.sampled_from(["a", "b", "c"]))
    def transfer_ends(self, owner: str) -> None:
        self.one.quarantine_end(owner)

    @rule()
    def changes_add_up_to_what_can_be_found(self) -> None:
        changes = self.one.drain_cache_changes()
        for entry in changes.removed:
            assert self.found.pop(entry.digest) == entry.block
        for entry in changes.added:
            assert entry.digest not in self.found
            self.found[entry.digest] = entry.block
        assert {digest: node.entry.block for digest, node in self.one._nodes.items()} == self.found

    @invariant()
    def everything_is_in_order(self) -> None:
        if hasattr(self, "one"):
            assert self.one.check() == []
            counters = self.one.counters()
            assert counters.free + counters.cached + counters.held + counters.quarantined == counters.total


TestRandomOperations = Machine.TestCase
TestRandomOperations.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
