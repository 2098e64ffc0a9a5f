"""The engine: add -> schedule -> run -> postprocess. One thread; only transfers into reserved blocks come from elsewhere."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable

import torch

from inference.contracts import EngineRequest, PoolCounters
from inference.engine.block_manager import BlockManager, CacheChanges
from inference.engine.config import EngineConfig
from inference.engine.errors import EngineRefusal
from inference.engine.events import EngineEvent, Failed, Finished, PhaseUsage, Prefilled, Reservation, Token
from inference.engine.models.base import LanguageModel
from inference.engine.prefix import chain_root
from inference.engine.runner import Runner
from inference.engine.sampler import rows_valid, sample
from inference.engine.scheduler import Chunk, Scheduler
from inference.engine.sequence import EngineText, Sequence, State, make_sequence

_TOO_SMALL = "The request needs more KV memory than this engine has."


def _now_us() -> int:
    return time.monotonic_ns() // 1000


class Engine:
    def __init__(
        self,
        model: LanguageModel,
        text: EngineText,
        pool: torch.Tensor,
        config: EngineConfig,
        *,
        raise_generation: Callable[[int], None] = lambda block: None,
        clock_us: Callable[[], int] = _now_us,
    ) -> None:
        """`pool`: see `pool_shape`. `raise_generation(block)` is called before a block is overwritten with other content."""
        if (config.blocks, config.block_tokens) != (pool.shape[0], model.layout.block_tokens):
            raise ValueError("the pool, the model's layout and the configuration disagree about blocks")
        self.model = model
        self.config = config
        self._text = text
        self._runner = Runner(model, pool)
        self._raise_generation = raise_generation
        self._clock_us = clock_us
        self._manager = BlockManager(config.blocks, config.block_tokens, on_reuse=self._reuse)
        self._scheduler = Scheduler(config, self._manager)
        self._sequences: dict[str, Sequence] = {}
        self._arrivals = itertools.count()
        self._ready: list[EngineEvent] = []

    # -- taking and giving back ------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Queues a request. Raises `EngineRefusal`."""
        sequence = self._make(request)
        if sequence.finish_reason is not None:  # its owner died between the last token and the end
            self._meter_prompt(sequence)
            self._ready.append(Finished(request.request_id, (sequence.finish_reason,), sequence.usage.read(self._clock_us())))
            return
        self._sequences[request.request_id] = sequence
        self._scheduler.add(sequence)

    def reserve(self, request: EngineRequest) -> Reservation | None:
        """Blocks for all KV entries of a hand-off (len(prompt) + len(forced[0]) - 1); None: no room now, nothing is kept.

        Leading blocks that the prefix cache has need no copy. Then `admit`, `recompute` or `abort`. Raises `EngineRefusal`.
        """
        sequence = self._make(request)
        if sequence.finish_reason is not None or not sequence.output_count:
            raise EngineRefusal("hand_off_invalid", "There is nothing to decode.")
        if self._manager.in_quarantine(request.request_id):
            return None  # an earlier transfer of this request has not ended; one id stands for one transfer
        kv_tokens = len(sequence.tokens) - 1
        found = self._manager.lookup(sequence.digests(kv_tokens // self.config.block_tokens))
        needed = self._manager.blocks_for(kv_tokens) - len(found)
        fresh = self._manager.take(needed) if self._scheduler.slots > 0 else None
        if fresh is None:
            self._manager.release(found)
            return None
        sequence.state, sequence.blocks, sequence.published = State.RESERVED, found + fresh, len(found)
        sequence.fresh, sequence.transfer_open = len(fresh), bool(fresh)
        sequence.usage.hold(kv_tokens, self._clock_us())
        self._sequences[request.request_id] = sequence
        self._scheduler.reserved += 1
        return Reservation(tuple(sequence.blocks), len(found))

    def admit(self, request_id: str) -> bool:
        """The reservation's pages are copied and verified: decode. False when the request is gone."""
        sequence = self._in_state(request_id, State.RESERVED)
        if sequence is None:
            return False
        self._scheduler.reserved -= 1
        sequence.transfer_open, sequence.kv_tokens = False, len(sequence.tokens) - 1
        sequence.usage.arrived(self._clock_us())
        self._publish(sequence)
        self._scheduler.run(sequence)
        return True

    def recompute(self, request_id: str) -> bool:
        """The pages did not come, or not whole: drop them and compute. False when the request is gone."""
        sequence = self._in_state(request_id, State.RESERVED)
        if sequence is None:
            return False
        self._let_go(sequence)
        self._scheduler.add(sequence)
        return True

    def transfer_ended(self, request_id: str) -> None:
        """Nothing writes into the reservation's blocks any more. Any id, any number of times."""
        self._manager.quarantine_end(request_id)
        sequence = self._in_state(request_id, State.RESERVED)
        if sequence is not None:
            sequence.transfer_open = False

    def resume(self, request_id: str) -> bool:
        """A prefilled request goes on here. False when it is gone. Raises `EngineRefusal` when it never fits: it stays held."""
        sequence = self._in_state(request_id, State.HELD)
        if sequence is None:
            return False
        if self._manager.blocks_for(sequence.prompt_tokens + sequence.limit - 1) > self._manager.total:
            raise EngineRefusal("kv_pool_too_small", _TOO_SMALL)
        sequence.fused = True
        self._scheduler.run(sequence)
        return True

    def release(self, request_id: str) -> PhaseUsage | None:
        """The other side has the prefilled request's pages. Returns the usage up to now; None when the request is gone."""
        sequence = self._in_state(request_id, State.HELD)
        return None if sequence is None else self._drop(sequence)

    def abort(self, request_id: str) -> PhaseUsage | None:
        """Ends a request in any state. Blocks that a transfer may still write into wait for `transfer_ended`. None: unknown id."""
        sequence = self._sequences.get(request_id)
        return None if sequence is None else self._drop(sequence)

    # -- the step --------------------------------------------------------------------------------------------------------------

    def step(self) -> list[EngineEvent]:
        """Runs one batch. Returns at once, with what is ready, when there is nothing to compute."""
        events, self._ready = self._ready, []
        plan = self._scheduler.schedule()
        self._account()
        if not plan:
            return events
        now_us = self._clock_us()
        for chunk in plan:
            chunk.sequence.usage.start(now_us)
        logits = self._runner.run(plan)
        self._scheduler.took(plan, self._clock_us() - now_us)
        return events + self._postprocess(plan, logits)

    @property
    def has_work(self) -> bool:
        """`step` would compute or return something, now or when blocks become free."""
        return bool(self._ready or self._scheduler.running or self._scheduler.waiting)

    @property
    def prefilling(self) -> bool:
        """The next step may compute a piece of a prompt."""
        return bool(self._scheduler.waiting) or any(sequence.pending > 1 for sequence in self._scheduler.running)

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self._scheduler.waiting)

    def room_for(self, tokens: int) -> bool:
        """Could a request with this many KV entries start now, behind those that wait?"""
        waiting = sum(self._manager.blocks_for(len(sequence.tokens)) for sequence in self._scheduler.waiting)
        free = self._manager.available - waiting - self.running
        return self._scheduler.slots - self.waiting > 0 and self._manager.blocks_for(tokens) <= free

    def counters(self) -> PoolCounters:
        return self._manager.counters()

    def check(self) -> list[str]:
        """Broken invariants, in words; empty when all is well."""
        problems = self._manager.check()
        held: dict[int, int] = {}
        for sequence in self._sequences.values():
            for block in sequence.blocks:
                held[block] = held.get(block, 0) + 1
        problems += [
            f"block {block}: {self._manager.references(block)} references, {held.get(block, 0)} holders"
            for block in range(self._manager.total)
            if self._manager.references(block) != held.get(block, 0)
        ]
        reserved = sum(sequence.state is State.RESERVED for sequence in self._sequences.values())
        if reserved != self._scheduler.reserved:
            problems.append(f"{reserved} reservations, counted as {self._scheduler.reserved}")
        return problems

    def drain_cache_changes(self) -> CacheChanges:
        return self._manager.drain_cache_changes()

    # -- postprocess -----------------------------------------------------------------------------------------------------------

    def _postprocess(self, plan: list[Chunk], logits: torch.Tensor) -> list[EngineEvent]:
        rows = iter(zip(logits, rows_valid(logits), strict=True))
        events: list[EngineEvent] = []
        for chunk in plan:
            row = next(rows) if chunk.samples else None
            if row is not None and not row[1]:
                events.append(self._fail(chunk.sequence))
                continue
            self._computed(chunk)
            if row is not None:
                events += self._emit(chunk.sequence, row[0])
        return events

    def _computed(self, chunk: Chunk) -> None:
        sequence = chunk.sequence
        sequence.usage.ran(chunk.start, chunk.start + chunk.count)
        sequence.kv_tokens += chunk.count
        sequence.usage.hold(sequence.kv_tokens, self._clock_us())
        self._publish(sequence)

    def _emit(self, sequence: Sequence, row: torch.Tensor) -> list[EngineEvent]:
        position = sequence.output_count + 1
        token_id = sample(row, sequence.request.sampling, choice=sequence.choice, position=position)
        text = sequence.accept(token_id)
        sequence.usage.emitted(self._clock_us())
        token = Token(sequence.request_id, sequence.choice, position, token_id, text, sequence.finish_reason)
        if sequence.finish_reason is not None:
            return [token, Finished(sequence.request_id, (sequence.finish_reason,), self._drop(sequence))]
        return [token, self._hold(sequence)] if sequence.stops_after_prefill else [token]

    def _hold(self, sequence: Sequence) -> Prefilled:
        self._scheduler.remove(sequence)
        sequence.state = State.HELD
        usage = sequence.usage.read(self._clock_us())
        return Prefilled(sequence.request_id, sequence.kv_tokens, tuple(sequence.blocks), (tuple(sequence.outputs),), usage)

    def _fail(self, sequence: Sequence) -> Failed:
        """The model gave no numbers. What this request computed is not trusted: nobody may find it in the cache."""
        self._manager.forget(sequence.digests(sequence.published))
        return Failed(sequence.request_id, "model_output_invalid", "The model produced invalid output.", self._drop(sequence))

    def _publish(self, sequence: Sequence) -> None:
        """Makes the blocks that have become full findable; another's block with the same content takes the place of our own."""
        for index in range(sequence.published, sequence.kv_tokens // self.config.block_tokens if sequence.publishing else 0):
            digests = sequence.digests(index + 1)
            depth = (index + 1) * self.config.block_tokens
            block = self._manager.publish(digests[index], digests[index - 1] if index else None, sequence.blocks[index], depth)
            if block is None:
                sequence.publishing = False
                return
            sequence.blocks[index], sequence.published = block, index + 1

    # -- beginnings and ends ---------------------------------------------------------------------------------------------------

    def _make(self, request: EngineRequest) -> Sequence:
        self._refuse_unfit(request)
        layout = self.model.layout
        sequence = make_sequence(
            request,
            self._text,
            arrival=next(self._arrivals),
            root=chain_root(scope_salt=request.scope_salt, model=layout.model, revision=layout.revision),
            block_tokens=self.config.block_tokens,
            context_length=self.model.context_length,
            clock=self._clock_us,
        )
        if self._manager.blocks_for(max(sequence.final_kv_tokens, len(sequence.tokens) - 1)) > self._manager.total:
            raise EngineRefusal("kv_pool_too_small", _TOO_SMALL)
        return sequence

    def _refuse_unfit(self, request: EngineRequest) -> None:
        if request.request_id in self._sequences:
            raise EngineRefusal("duplicate_request", "A request with this id is running.")
        if not request.prompt_ids:
            raise EngineRefusal("prompt_empty", "The prompt has no tokens.")
        if len(request.forced) != 1:
            raise EngineRefusal("choices_unsupported", "Only one choice is supported.")
        if len(request.prompt_ids) >= self.model.context_length:
            raise EngineRefusal("context_length_exceeded", "The prompt leaves no room for an answer.")
        if any(not 0 <= token_id < self.model.vocabulary_size for token_id in (*request.prompt_ids, *request.forced[0])):
            raise EngineRefusal("token_id_invalid", "A token id is outside the vocabulary.")
        sampling = request.sampling
        temperature_fits = math.isfinite(sampling.temperature) and sampling.temperature >= 0
        if sampling.max_tokens < 1 or not temperature_fits or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
            raise EngineRefusal("sampling_invalid", "A sampling parameter is out of range.")

    def _meter_prompt(self, sequence: Sequence) -> None:
        """Of a request that has nothing left to compute: who computed its prompt died with the count, so it is made here again."""
        blocks = self._manager.lookup(sequence.digests((sequence.prompt_tokens - 1) // self.config.block_tokens))
        self._manager.release(blocks)
        found = len(blocks) * self.config.block_tokens
        sequence.usage.found(found)
        sequence.usage.ran(found, sequence.prompt_tokens)

    def _drop(self, sequence: Sequence) -> PhaseUsage:
        usage = sequence.usage.read(self._clock_us())
        self._let_go(sequence)
        self._scheduler.remove(sequence)
        del self._sequences[sequence.request_id]
        return usage

    def _let_go(self, sequence: Sequence) -> None:
        """Gives all blocks back; those that a transfer may write into go into quarantine."""
        blocks, kept = sequence.blocks, len(sequence.blocks)
        if sequence.state is State.RESERVED:
            self._scheduler.reserved -= 1
            if sequence.transfer_open:
                kept -= sequence.fresh
                self._manager.quarantine(sequence.request_id, blocks[kept:])
        self._manager.release(blocks[:kept])
        sequence.blocks, sequence.kv_tokens, sequence.published = [], 0, 0
        sequence.transfer_open = False
        sequence.usage.hold(0, self._clock_us())

    def _in_state(self, request_id: str, state: State) -> Sequence | None:
        sequence = self._sequences.get(request_id)
        return sequence if sequence is not None and sequence.state is state else None

    def _account(self) -> None:
        """The scheduler has no clock: whom it preempted holds nothing from now on."""
        now_us = self._clock_us()
        for sequence in self._scheduler.waiting:
            sequence.usage.hold(0, now_us)

    def _reuse(self, block: int) -> None:
        self._raise_generation(block)
        self._runner.wipe(block)
