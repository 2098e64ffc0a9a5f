"""A request while an engine has it: tokens, blocks, state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from inference.contracts import EngineRequest, FinishReason
from inference.engine.prefix import chain_hash
from inference.engine.usage import UsageMeter
from inference.text import AnswerText


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
        return self.answer.accept(token_id)


def make_sequence(
    request: EngineRequest,
    text: EngineText,
    *,
    arrival: int,
    root: bytes,
    block_tokens: int,
    context_length: int,
    clock: Callable[[], int],
) -> Sequence:
    """Forced tokens go through the answer unseen, so that the text at a position depends on the tokens up to it alone."""
    prompt_tokens, forced = len(request.prompt_ids), request.forced[0]
    usage = UsageMeter(prompt_tokens, len(forced), added_us=clock())
    if request.phase == "decode":
        usage.high_water = prompt_tokens + max(0, len(forced) - 1)
    sampling = request.sampling
    limit = min(sampling.max_tokens, context_length - prompt_tokens)
    eos_ids = frozenset[int]() if sampling.ignore_eos else text.eos_ids
    sequence = Sequence(
        request=request,
        arrival=arrival,
        root=root,
        block_tokens=block_tokens,
        limit=limit,
        answer=AnswerText(text, stop=sampling.stop, eos_ids=eos_ids, limit=limit),
        usage=usage,
        tokens=list(request.prompt_ids),
        fused=request.phase == "fused",
    )
    for token_id in forced:
        if sequence.finish_reason is None:
            sequence.accept(token_id)
    return sequence
