"""Who computes what in the next step. Plain Python over sequences and the block manager.

Order is by rank (priority, then arrival). A step is either one piece of a prompt that is alone, or every decoding request's next
token and then chunks of prompts, within `step_tokens` rows: the first in rank has its chunk, so that it is done at last; what is
left goes to the shortest of its class, so that a short prompt does not wait for a long one.

Blocks: a prompt gets all of its blocks when it is admitted, a decoding request one at a time. When there is none, the last in rank
of those at or behind the one in need gives up all of its blocks and computes again later (preemption). It comes back only with all
the blocks that it can ever need, so it asks for none again; and it is taken at most `MAX_PREEMPTIONS` times.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from inference.engine.block_manager import BlockManager
from inference.engine.config import EngineConfig
from inference.engine.sequence import Sequence, State

MAX_PREEMPTIONS = 2
SUB_CHUNK_US = 500_000  # a piece of a whole run should take no longer
MAX_BYPASSES = 8  # so often may smaller requests overtake one that does not fit now


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute KV of tokens [start, start + count) of the sequence; with the last pending token, the next one can be sampled."""

    sequence: Sequence
    start: int
    count: int

    @property
    def samples(self) -> bool:
        return self.start + self.count == len(self.sequence.tokens)

    @property
    def logits(self) -> int:
        """How many of its last rows are needed as logits."""
        return self.count if self.sequence.wants_prompt_logprobs else int(self.samples)


class Scheduler:
    def __init__(self, config: EngineConfig, manager: BlockManager) -> None:
        self.config = config
        self.manager = manager
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.reserved = 0
        self.sub_chunk = config.sub_chunk_tokens

    def add(self, sequence: Sequence) -> None:
        sequence.state = State.WAITING
        self.waiting.append(sequence)
        self.waiting.sort(key=_rank)

    def run(self, sequence: Sequence) -> None:
        """For a sequence that has its blocks already."""
        sequence.state = State.RUNNING
        self.running.append(sequence)
        self.running.sort(key=_rank)

    def remove(self, sequence: Sequence) -> None:
        for queue in (self.waiting, self.running):
            if sequence in queue:
                queue.remove(sequence)

    @property
    def slots(self) -> int:
        return self.config.max_running - len(self.running) - self.reserved

    def schedule(self) -> list[Chunk]:
        whole = self._whole()
        if whole is not None:
            return [Chunk(whole, whole.kv_tokens, min(whole.pending, self.sub_chunk))]
        self._admit_waiting()
        decodes = list(self._decodes())
        return decodes + list(self._prefills(self.config.step_tokens - len(decodes)))

    # -- the prompt that is alone ----------------------------------------------------------------------------------------------

    def _whole(self) -> Sequence | None:
        """A prompt that has the engine for itself takes large pieces: nobody waits. When another comes it is one of two."""
        everybody = self.running + self.waiting
        for sequence in everybody:
            sequence.whole = False
        if len(everybody) != 1:
            return None
        self._admit_waiting()
        alone = next((sequence for sequence in self.running if sequence.pending > 1), None)
        if alone is not None:
            alone.whole = True
        return alone

    def took(self, plan: list[Chunk], duration_us: int) -> None:
        """Fits the pieces of a whole run to this machine and to the context that they read."""
        if not plan or not plan[0].sequence.whole:
            return
        if duration_us > SUB_CHUNK_US:
            self.sub_chunk = max(1, self.sub_chunk // 2)
        elif duration_us < SUB_CHUNK_US // 4:
            self.sub_chunk = min(self.config.sub_chunk_tokens, self.sub_chunk * 2)

    # -- admission -------------------------------------------------------------------------------------------------------------

    def _admit_waiting(self) -> None:
        held_back: list[Sequence] = []
        for sequence in list(self.waiting):
            if self._demand_before(sequence) >= self.config.step_tokens or any(one.bypassed >= MAX_BYPASSES for one in held_back):
                return
            if not (self._admit(sequence) or (self._make_room(sequence) and self._admit(sequence))):
                held_back.append(sequence)
                continue
            for one in held_back:
                one.bypassed += 1

    def _demand_before(self, sequence: Sequence) -> int:
        """Rows that running requests which go first would take of the next step: blocks are not taken long before their turn."""
        prompts = [*(one for one in self.running if one.pending > 1), sequence]
        before = itertools.takewhile(lambda one: one is not sequence, _turns(prompts))
        return sum(min(one.pending, self.config.chunk_tokens) for one in before)

    def _admit(self, sequence: Sequence) -> bool:
        """Looks the prompt up and takes the blocks that are missing; all or nothing."""
        if self.slots <= 0:
            return False
        blocks = self._look_up(sequence)
        fresh = self.manager.take(self._needed(sequence) - len(blocks)) if self._leaves_headroom(sequence, blocks) else None
        if fresh is None:
            self.manager.release(blocks)
            return False
        found = len(blocks) * self.config.block_tokens
        sequence.blocks, sequence.kv_tokens, sequence.published = blocks + fresh, found, len(blocks)
        sequence.publishing, sequence.bypassed = True, 0
        sequence.usage.found(found)
        self.waiting.remove(sequence)
        self.run(sequence)
        return True

    def _look_up(self, sequence: Sequence) -> list[int]:
        """Not past the prompt's last token but one: somebody has to compute what the first new token is sampled from.

        Who wants the prompt's log-probabilities needs every row of it.
        """
        if sequence.wants_prompt_logprobs:
            return []
        return self.manager.lookup(sequence.digests((sequence.prompt_tokens - 1) // self.config.block_tokens))

    def _needed(self, sequence: Sequence) -> int:
        tokens = sequence.final_kv_tokens if sequence.preemptions else len(sequence.tokens)
        return self.manager.blocks_for(tokens)

    def _leaves_headroom(self, sequence: Sequence, found: list[int]) -> bool:
        """A block for each running request stays free, or the next steps would preempt whom this one lets in."""
        missing = self._needed(sequence) - len(found)
        return missing + len(self.running) <= self.manager.available or (not self.running and missing <= self.manager.available)

    def _make_room(self, sequence: Sequence) -> bool:
        """Preempts less important requests, if that is enough; a class benefits strictly, arrival alone takes nobody's place."""
        victims = [one for one in self._victims() if one.request.priority > sequence.request.priority]
        blocks = self.manager.available + sum(len(one.blocks) for one in victims)
        if not victims or blocks < self._needed(sequence) + len(self.running) - len(victims):
            return False
        for victim in victims:
            self._preempt(victim)
            if self.slots > 0 and self._needed(sequence) + len(self.running) <= self.manager.available:
                break
        return self.slots > 0

    # -- shares of a step ------------------------------------------------------------------------------------------------------

    def _decodes(self) -> Iterator[Chunk]:
        for sequence in list(self.running):
            if sequence.state is State.RUNNING and sequence.pending == 1 and self._has_block(sequence):
                yield Chunk(sequence, sequence.kv_tokens, 1)

    def _prefills(self, budget: int) -> Iterator[Chunk]:
        for sequence in _turns([one for one in self.running if one.pending > 1]):
            if budget > 0:
                count = min(sequence.pending, self.config.chunk_tokens, budget)
                budget -= count
                yield Chunk(sequence, sequence.kv_tokens, count)

    def _has_block(self, sequence: Sequence) -> bool:
        """Makes sure of the block for the next entry. May preempt, last of all the sequence itself."""
        while len(sequence.blocks) * self.config.block_tokens <= sequence.kv_tokens:
            block = self.manager.take(1)
            if block is not None:
                sequence.blocks += block
                continue
            victim = next((one for one in self._victims() if one.rank >= sequence.rank), None)
            if victim is None:
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    # -- preemption ------------------------------------------------------------------------------------------------------------

    def _victims(self) -> list[Sequence]:
        """Who may be preempted, the least important first."""
        return [sequence for sequence in reversed(self.running) if sequence.preemptions < MAX_PREEMPTIONS]

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.manager.release(sequence.blocks)
        sequence.blocks, sequence.kv_tokens, sequence.published = [], 0, 0
        sequence.preemptions += 1
        sequence.whole = False
        self.add(sequence)


def _turns(prompts: list[Sequence]) -> list[Sequence]:
    """The first in rank, then by class and by what is left to compute."""
    ranked = sorted(prompts, key=_rank)
    return ranked[:1] + sorted(ranked[1:], key=lambda one: (one.request.priority, one.pending, one.arrival))


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank
