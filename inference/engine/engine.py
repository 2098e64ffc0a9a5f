"""The engine: add -> schedule -> run -> postprocess. One thread; only transfers into reserved blocks come from elsewhere."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import torch

from inference.contracts import EngineRequest, PoolCounters, TokenLogprob
from inference.engine.block_manager import BlockManager, CacheChanges
from inference.engine.config import EngineConfig
from inference.engine.errors import EngineRefusal
from inference.engine.events import EngineEvent, Failed, Finished, PhaseUsage, Prefilled, Reservation, Token
from inference.engine.models.base import LanguageModel
from inference.engine.prefix import chain_root
from inference.engine.refusals import refuse_unfit
from inference.engine.runner import Runner
from inference.engine.sampler import rows_valid, sample, token_logprob
from inference.engine.scheduler import Chunk, Scheduler
from inference.engine.sequence import EngineText, Sequence, SequenceGroup, State, make_group
from inference.engine.usage import phase_usage

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
        self._groups: dict[str, SequenceGroup] = {}
        self._arrivals = itertools.count()
        self._ready: list[EngineEvent] = []

    # -- taking and giving back ------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Queues a request. Raises `EngineRefusal`."""
        group = self._make(request)
        if group.finished:  # its owner died between the last token and the end
            self._meter_prompt(group.leader)
            self._ready.append(Finished(request.request_id, group.reasons, self._usage(group)))
            return
        self._groups[request.request_id] = group
        self._scheduler.add(group.leader)

    def reserve(self, request: EngineRequest) -> Reservation | None:
        """Blocks for the KV entries of a hand-off (`SequenceGroup.handed_tokens`); None: no room now, nothing is kept.

        Leading blocks that the prefix cache has need no copy. Then `admit`, `recompute` or `abort`. Raises `EngineRefusal`.
        """
        group = self._make(request)
        if group.finished or not any(group.outputs):
            raise EngineRefusal("hand_off_invalid", "There is nothing to decode.")
        if self._manager.in_quarantine(request.request_id):
            return None  # an earlier transfer of this request has not ended; one id stands for one transfer
        sequence, kv_tokens = group.leader, group.handed_tokens
        found = self._manager.lookup(sequence.digests(kv_tokens // self.config.block_tokens))
        copied = self._manager.blocks_for(kv_tokens)
        behind = self._manager.blocks_for(len(sequence.tokens)) if len(sequence.tokens) > kv_tokens + 1 else 0  # a chunk's
        needed = max(copied, behind) - len(found)
        fresh = self._manager.take(needed) if self._scheduler.slots > 0 else None
        if fresh is None:
            self._manager.release(found)
            return None
        sequence.state, sequence.blocks, sequence.published = State.RESERVED, found + fresh, len(found)
        sequence.fresh, sequence.transfer_open = len(fresh), bool(fresh)
        sequence.usage.hold(kv_tokens, self._clock_us())
        self._groups[request.request_id] = group
        self._scheduler.reserved += 1
        return Reservation(tuple(sequence.blocks[:copied]), len(found))

    def admit(self, request_id: str) -> bool:
        """The reservation's pages are copied and verified: decode. False when the request is gone."""
        group = self._in_state(request_id, State.RESERVED)
        if group is None:
            return False
        sequence = group.leader
        self._scheduler.reserved -= 1
        sequence.transfer_open, sequence.kv_tokens = False, min(group.handed_tokens, len(sequence.tokens) - 1)
        sequence.usage.arrived(self._clock_us())
        self._publish(sequence)
        self._scheduler.run(sequence)
        self._follow(group)
        return True

    def recompute(self, request_id: str) -> bool:
        """The pages did not come, or not whole: drop them and compute. False when the request is gone."""
        group = self._in_state(request_id, State.RESERVED)
        if group is None:
            return False
        self._let_go(group.leader)
        self._scheduler.add(group.leader)
        return True

    def transfer_ended(self, request_id: str) -> None:
        """Nothing writes into the reservation's blocks any more. Any id, any number of times."""
        self._manager.quarantine_end(request_id)
        group = self._in_state(request_id, State.RESERVED)
        if group is not None:
            group.leader.transfer_open = False

    def resume(self, request_id: str) -> bool:
        """A prefilled request goes on here. False when it is gone. Raises `EngineRefusal` when it never fits: it stays held."""
        group = self._in_state(request_id, State.HELD)
        if group is None:
            return False
        if self._manager.blocks_for(group.leader.prompt_tokens + group.leader.limit - 1) > self._manager.total:
            raise EngineRefusal("kv_pool_too_small", _TOO_SMALL)
        for sequence in group.choices:
            sequence.fused = True
        self._scheduler.run(group.leader)
        self._retire_finished(group)
        self._follow(group)
        return True

    def release(self, request_id: str) -> PhaseUsage | None:
        """The other side has the prefilled request's pages. Returns the usage up to now; None when the request is gone."""
        group = self._in_state(request_id, State.HELD)
        return None if group is None else self._drop(group)

    def abort(self, request_id: str) -> PhaseUsage | None:
        """Ends a request in any state. Blocks that a transfer may still write into wait for `transfer_ended`. None: unknown id."""
        group = self._groups.get(request_id)
        return None if group is None else self._drop(group)

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
        for sequence in self._sequences():
            for block in sequence.blocks:
                held[block] = held.get(block, 0) + 1
        problems += [
            f"block {block}: {self._manager.references(block)} references, {held.get(block, 0)} holders"
            for block in range(self._manager.total)
            if self._manager.references(block) != held.get(block, 0)
        ]
        reserved = sum(sequence.state is State.RESERVED for sequence in self._sequences())
        if reserved != self._scheduler.reserved:
            problems.append(f"{reserved} reservations, counted as {self._scheduler.reserved}")
        return problems

    def drain_cache_changes(self) -> CacheChanges:
        return self._manager.drain_cache_changes()

    def _sequences(self) -> Iterator[Sequence]:
        return (sequence for group in self._groups.values() for sequence in group.choices)

    # -- postprocess -----------------------------------------------------------------------------------------------------------

    def _postprocess(self, plan: list[Chunk], logits: torch.Tensor) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        valid = rows_valid(logits)
        end = 0
        for chunk in plan:
            start, end = end, end + chunk.logits
            rows = logits[start:end]
            if chunk.sequence.state is State.ENDED:
                continue  # a choice of a request that failed in this step
            if not all(valid[start:end]):
                events.append(self._fail(chunk.sequence))
                continue
            self._note_prompt(chunk, rows)
            self._computed(chunk)
            if chunk.samples:
                events += self._emit(chunk.sequence, rows[-1])
        return events

    def _note_prompt(self, chunk: Chunk, rows: torch.Tensor) -> None:
        """Log-probabilities of the prompt's tokens: row i is what token i + 1 was predicted by."""
        sequence, top = chunk.sequence, chunk.sequence.request.sampling.prompt_logprobs
        if not sequence.wants_prompt_logprobs or top is None:
            return
        for row, following in zip(rows, range(chunk.start + 1, sequence.prompt_tokens), strict=False):
            if following == len(sequence.prompt_logprobs):  # not noted before a preemption
                sequence.prompt_logprobs.append(token_logprob(row, sequence.tokens[following], top))

    def _computed(self, chunk: Chunk) -> None:
        sequence = chunk.sequence
        sequence.usage.ran(chunk.start, chunk.start + chunk.count)
        sequence.kv_tokens += chunk.count
        sequence.usage.hold(sequence.kv_tokens, self._clock_us())
        self._publish(sequence)
        if sequence.kv_tokens >= sequence.prompt_tokens and not sequence.stops_after_prefill:
            self._follow(self._groups[sequence.request_id])

    def _emit(self, sequence: Sequence, row: torch.Tensor) -> list[EngineEvent]:
        group = self._groups[sequence.request_id]
        events: list[EngineEvent] = [self._next_token(one, row) for one in group.heirs(sequence)]
        if group.finished:
            return [*events, Finished(sequence.request_id, group.reasons, self._drop(group))]
        if sequence.stops_after_prefill:
            return [*events, self._hold(group)]
        self._retire_finished(group)
        return events

    def _next_token(self, sequence: Sequence, row: torch.Tensor) -> Token:
        sampling, position = sequence.request.sampling, sequence.output_count + 1
        token_id = sample(row, sampling, choice=sequence.choice, position=position, history=sequence.history, ends=sequence.ends)
        logprob = self._logprob(sequence, row, token_id)
        text = sequence.accept(token_id)
        sequence.usage.emitted(self._clock_us())
        return Token(sequence.request_id, sequence.choice, position, token_id, text, sequence.finish_reason, logprob)

    def _logprob(self, sequence: Sequence, row: torch.Tensor, token_id: int) -> TokenLogprob | None:
        """The prompt's go with the first token, so that who has the one has the other."""
        sampling = sequence.request.sampling
        if not sampling.tells_logprobs:
            return None
        logprob = token_logprob(row, token_id, sampling.logprobs or 0)
        if not sequence.wants_prompt_logprobs:
            return logprob
        sequence.wants_prompt_logprobs = False
        return logprob._replace(prompt=tuple(sequence.prompt_logprobs))

    def _hold(self, group: SequenceGroup) -> Prefilled:
        sequence, kv_tokens = group.leader, group.handed_tokens
        self._scheduler.remove(sequence)
        sequence.state = State.HELD
        blocks = tuple(sequence.blocks[: self._manager.blocks_for(kv_tokens)])
        return Prefilled(sequence.request_id, kv_tokens, blocks, group.outputs, self._usage(group))

    def _follow(self, group: SequenceGroup) -> None:
        """The prompt is there: the other choices find it in the cache."""
        for sequence in group.choices:
            if sequence.state is State.ASIDE and sequence.finish_reason is None and sequence is not group.leader:
                self._scheduler.add(sequence)

    def _retire_finished(self, group: SequenceGroup) -> None:
        for sequence in group.choices:
            if sequence.finish_reason is not None:
                self._retire(sequence)

    def _fail(self, sequence: Sequence) -> Failed:
        """The model gave no numbers. What this request computed is not trusted: nobody may find it in the cache."""
        self._manager.forget(sequence.digests(sequence.published))
        usage = self._drop(self._groups[sequence.request_id])
        return Failed(sequence.request_id, "model_output_invalid", "The model produced invalid output.", usage)

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

    def _make(self, request: EngineRequest) -> SequenceGroup:
        if request.request_id in self._groups:
            raise EngineRefusal("duplicate_request", "A request with this id is running.")
        refuse_unfit(request, context_length=self.model.context_length, vocabulary_size=self.model.vocabulary_size)
        layout = self.model.layout
        group = make_group(
            request,
            self._text,
            arrivals=self._arrivals,
            root=chain_root(scope_salt=request.scope_salt, model=layout.model, revision=layout.revision),
            block_tokens=self.config.block_tokens,
            context_length=self.model.context_length,
            clock=self._clock_us,
        )
        longest = max(max(one.final_kv_tokens, len(one.tokens) - 1) for one in group.choices)
        if self._manager.blocks_for(longest) > self._manager.total:
            raise EngineRefusal("kv_pool_too_small", _TOO_SMALL)
        return group

    def _meter_prompt(self, sequence: Sequence) -> None:
        """Of a request that has nothing left to compute: who computed its prompt died with the count, so it is made here again."""
        blocks = self._manager.lookup(sequence.digests((sequence.prompt_tokens - 1) // self.config.block_tokens))
        self._manager.release(blocks)
        found = len(blocks) * self.config.block_tokens
        sequence.usage.found(found)
        sequence.usage.ran(found, sequence.prompt_tokens)

    def _usage(self, group: SequenceGroup) -> PhaseUsage:
        return phase_usage([one.usage for one in group.choices], self._clock_us())

    def _drop(self, group: SequenceGroup) -> PhaseUsage:
        usage = self._usage(group)
        for sequence in group.choices:
            self._retire(sequence)
        del self._groups[group.request.request_id]
        return usage

    def _retire(self, sequence: Sequence) -> None:
        self._let_go(sequence)
        self._scheduler.remove(sequence)
        sequence.state = State.ENDED

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

    def _in_state(self, request_id: str, state: State) -> SequenceGroup | None:
        group = self._groups.get(request_id)
        return group if group is not None and group.leader.state is state else None

    def _account(self) -> None:
        """The scheduler has no clock: whom it preempted holds nothing from now on."""
        now_us = self._clock_us()
        for sequence in self._scheduler.waiting:
            sequence.usage.hold(0, now_us)

    def _reuse(self, block: int) -> None:
        self._raise_generation(block)
        self._runner.wipe(block)
