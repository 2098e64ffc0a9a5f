"""A request while an engine has it: its choices, and of each the tokens, blocks, state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from inference.contracts import EngineRequest, FinishReason, TokenLogprob
from inference.engine.history import History
from inference.engine.prefix import chain_hash
from inference.engine.usage import UsageMeter
from inference.text import AnswerText, answer_text, end_ids


class EngineText(Protocol):
    """The part of `inference.text.ModelText` that an engine uses."""

    @property
    def eos_ids(self) -> frozenset[int]: ...
    def token_bytes(self, token_id: int) -> bytes: ...


class State(Enum):
    WAITING = "waiting"  # no blocks
    RUNNING = "running"  # blocks, takes part in steps
    HELD = "held"  # prefilled: blocks wait for the other side
    RESERVED = "reserved"  # blocks wait for a transfer
    ASIDE = "aside"  # no blocks: the prompt is still computed, by another choice
    ENDED = "ended"


_NOT_BEGUN = (State.ASIDE, State.WAITING)


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a request. `tokens` is the context: prompt, then outputs, the forced ones first.

    The first `kv_tokens` tokens have their KV entries in `blocks`; the rest, at least one, is pending.
    """

    request: EngineRequest
    arrival: int
    root: bytes  # of the digest chain
    block_tokens: int
    limit: int  # outputs, the forced ones included
    answer: AnswerText
    usage: UsageMeter
    history: History
    ends: frozenset[int]  # token ids that end it
    choice: int = 0
    state: State = State.WAITING
    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    kv_tokens: int = 0
    published: int = 0  # blocks
    publishing: bool = True  # False once a block before has left the cache's trees
    preemptions: int = 0
    bypassed: int = 0
    whole: bool = False  # a prompt that has the engine for itself
    fused: bool = False
    transfer_open: bool = False
    fresh: int = 0  # trailing blocks that a transfer writes
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=lambda: [None])  # of the first prompt tokens
    wants_prompt_logprobs: bool = False  # the rows that they need are still to be computed
    _digests: list[bytes] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def rank(self) -> tuple[int, int]:
        """Lower goes first."""
        return (self.request.priority, self.arrival)

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def outputs(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    @property
    def output_count(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.kv_tokens

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.answer.finish_reason

    @property
    def final_kv_tokens(self) -> int:
        """KV entries at the latest end: the last token needs none."""
        return self.prompt_tokens + (self.output_count if self.stops_after_prefill else self.limit - 1)

    @property
    def stops_after_prefill(self) -> bool:
        return self.request.phase == "prefill" and not self.fused

    def digests(self, count: int) -> list[bytes]:
        """Digests of the first `count` blocks, which must be full."""
        while len(self._digests) < count:
            start = len(self._digests) * self.block_tokens
            parent = self._digests[-1] if self._digests else self.root
            self._digests.append(chain_hash(parent, self.tokens[start : start + self.block_tokens]))
        return self._digests[:count]

    def accept(self, token_id: int) -> str:
        """Appends a token; returns what it made visible, and all the rest when it is the last one (`finish_reason` is set then)."""
        self.tokens.append(token_id)
        self.history.add(token_id)
        return self.answer.accept(token_id)


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """A request's choices. They share a prompt: the leader computes it, the others begin when it is there."""

    request: EngineRequest
    choices: list[Sequence]
    leader: Sequence = field(init=False)  # the first that is not ended by the tokens that it came with; else the first

    def __post_init__(self) -> None:
        self.leader = next((one for one in self.choices if one.finish_reason is None), self.choices[0])

    @property
    def finished(self) -> bool:
        return all(one.finish_reason for one in self.choices)

    @property
    def reasons(self) -> tuple[FinishReason, ...]:
        """Of a group that is finished."""
        return tuple(one.finish_reason for one in self.choices if one.finish_reason)

    @property
    def outputs(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(one.outputs) for one in self.choices)

    @property
    def handed_tokens(self) -> int:
        """KV entries of a hand-off: all but the newest token's. Of several choices what they share, the prompt, and no more."""
        return len(self.leader.tokens) - 1 if len(self.choices) == 1 else self.leader.prompt_tokens

    def heirs(self, sequence: Sequence) -> list[Sequence]:
        """Who takes its next token from a row of `sequence`: at the end of the prompt also the choices that have not begun."""
        if sequence.output_count:
            return [sequence]
        return [sequence, *(one for one in self.choices if one.state in _NOT_BEGUN and not one.output_count)]


def make_group(
    request: EngineRequest,
    text: EngineText,
    *,
    arrivals: Iterator[int],
    root: bytes,
    block_tokens: int,
    context_length: int,
    clock: Callable[[], int],
) -> SequenceGroup:
    """Forced tokens go through the answer unseen, so that the text at a position depends on the tokens up to it alone."""
    limit = min(request.sampling.max_tokens, context_length - len(request.prompt_ids))
    ends = end_ids(text, request.sampling)

    def choice(index: int) -> Sequence:
        sequence = Sequence(
            request=request,
            arrival=next(arrivals),
            root=root,
            block_tokens=block_tokens,
            limit=limit,
            answer=answer_text(text, request.sampling, limit),
            usage=UsageMeter(len(request.prompt_ids), 0, added_us=clock()),
            history=History.of(request.sampling, request.prompt_ids),
            ends=ends,
            choice=index,
            tokens=list(request.prompt_ids),
            state=State.ASIDE,
            fused=request.phase == "fused",
        )
        _recall(sequence, request.forced[index] if index < len(request.forced) else ())
        return sequence

    group = SequenceGroup(request, [choice(index) for index in range(request.sampling.n)])
    for one in group.choices:
        _share(one, group.leader)
    return group


def _recall(sequence: Sequence, forced: Iterable[int]) -> None:
    """What was made before, here or elsewhere."""
    for token_id in forced:
        if sequence.finish_reason is None:
            sequence.accept(token_id)
    asked = sequence.request.sampling.prompt_logprobs is not None
    sequence.wants_prompt_logprobs = asked and sequence.choice == 0 and not sequence.output_count


def _share(sequence: Sequence, leader: Sequence) -> None:
    """The prompt is the leader's to compute and to hold; in the decode phase it was computed before."""
    usage, prompt_tokens = sequence.usage, sequence.prompt_tokens
    usage.forced_tokens = sequence.output_count
    if sequence.request.phase == "decode":
        usage.high_water = prompt_tokens + max(0, sequence.output_count - 1)
    if sequence is not leader:
        usage.high_water, usage.shared = max(usage.high_water, prompt_tokens), prompt_tokens
