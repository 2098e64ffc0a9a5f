"""What crosses a process: frozen values that the control plane, the dispatcher and the engines exchange.

Imports nothing but the standard library, so that every room may import it. `to_json` and `from_json` are the only wire form; there
is no pickle anywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

Role = Literal["prefill", "decode"]
Path = Literal["split", "fused"]
PathPolicy = Literal["auto", "split", "fused"]
FinishReason = Literal["stop", "length"]
CacheTier = Literal["device", "host", "disk", "remote"]
Phase = Literal["prefill", "decode", "fused"]

BLOCK_TOKENS = 16  # tokens of an engine block
EXTENT_TOKENS = 64  # tokens of an extent, the unit that the KV directory knows

CACHE_TIERS: tuple[CacheTier, ...] = ("device", "host", "disk", "remote")


class Wire:
    """JSON form of a flat frozen dataclass. Unknown keys are ignored, so that a rolling restart may mix versions."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        names = {entry.name for entry in dataclasses.fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: _tupled(value) for name, value in data.items() if name in names})


def _tupled(value: Any) -> Any:
    return tuple(_tupled(item) for item in value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class SamplingParams(Wire):
    """How tokens are chosen. `seed` is always set by the gateway, so that a re-computed token is the same token."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all of the vocabulary
    seed: int = 0  # unsigned 64 bits
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    stop_ids: tuple[int, ...] = ()  # token ids that end a choice, as the end-of-text token does
    min_tokens: int = 0  # before so many tokens nothing ends a choice but its limit
    min_p: float = 0.0  # candidates have at least this share of the likeliest one's probability
    frequency_penalty: float = 0.0  # taken from a token's logit for each time that the choice has it
    presence_penalty: float = 0.0  # taken once
    repetition_penalty: float = 1.0  # divides the logit of what prompt or choice have (multiplies a negative one)
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added to its logit)
    n: int = 1  # choices
    logprobs: int | None = None  # alternatives that are told with each token; 0: the token's own alone; None: nothing
    prompt_logprobs: int | None = None  # the same for the prompt's tokens

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def tells_logprobs(self) -> bool:
        """Each token comes with a `TokenLogprob`."""
        return self.logprobs is not None or self.prompt_logprobs is not None

    @property
    def penalised(self) -> bool:
        """Earlier tokens change what comes."""
        return bool(self.frequency_penalty or self.presence_penalty) or self.repetition_penalty != 1.0

    @property
    def adjusts(self) -> bool:
        """Logits are changed before a token is taken."""
        return self.penalised or bool(self.logit_bias)


class TokenLogprob(NamedTuple):
    """Natural logarithms under the model's own distribution: before bias, penalties and temperature. Always finite.

    `top` are the likeliest (token id, logarithm), best first. The first token of choice 0 carries those of the prompt, where they
    are asked for: one per prompt token, None for the first, which nothing predicts.
    """

    value: float
    top: tuple[tuple[int, float], ...] = ()
    prompt: tuple[TokenLogprob | None, ...] = ()

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> TokenLogprob:
        value, top, prompt = data
        return cls(value, _tupled(top), tuple(entry and cls.from_json(entry) for entry in prompt))


Logprobs = tuple[tuple[TokenLogprob, ...], ...]  # by choice; parallel to its tokens, or empty where nobody asked


def logprobs_from_json(data: Sequence[Sequence[Any]]) -> Logprobs:
    return tuple(tuple(TokenLogprob.from_json(entry) for entry in choice) for choice in data)


@dataclass(frozen=True, slots=True)
class ClassPolicy(Wire):
    """A service tier, frozen at admission: it travels with the request, and a later change of the catalogue does not touch it."""

    tier: str = "default"
    priority: int = 100  # lower is served first
    deadline_s: float = 600.0
    path: PathPolicy = "auto"


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as the control plane hands it over; everything in it is checked already.

    `prompt_ids` are token ids, at least one. `scope_salt` (32 bytes) separates tenants in every prefix cache.
    """

    request_id: str  # canonical UUID
    tenant_id: str
    project_id: str
    key_id: str
    model: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    policy: ClassPolicy
    scope_salt: bytes
    stream: bool
    labels: dict[str, str] = field(default_factory=dict)
    gateway_id: str | None = None  # canonical UUID of the gateway process that waits for it
    trace_context: str = ""  # W3C traceparent of the call; empty: not traced


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What an engine needs to run a request.

    `forced[c]` are the tokens of choice c that the client already has (take-over after a death) or that the other phase made
    (hand-off): they are part of the context and are not emitted again; the first new token has position len(forced[c]) + 1.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    scope_salt: bytes
    phase: Phase
    tenant_id: str = ""
    forced: tuple[tuple[int, ...], ...] = ()
    priority: int = 100


@dataclass(frozen=True, slots=True)
class TokenEntry(Wire):
    """Stream entry: new tokens of one choice. Positions count from 1. `text` is what these tokens made visible (may be empty).

    `finish_reason` comes with a choice's last token; `logprobs` are one per token where they are asked for.
    """

    epoch: int
    choice: int
    position: int  # of ids[0]
    ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    kind: Literal["token"] = "token"

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        logprobs = tuple(TokenLogprob.from_json(entry) for entry in data.get("logprobs", ()))
        return super(TokenEntry, cls).from_json({**data, "logprobs": logprobs})


@dataclass(frozen=True, slots=True)
class TakeoverEntry(Wire):
    """Stream entry: from here on entries of epochs below `epoch` are void."""

    epoch: int
    kind: Literal["takeover"] = "takeover"


@dataclass(frozen=True, slots=True)
class FinishEntry(Wire):
    """Stream entry, the last one: written after the usage rows are committed. One reason per choice."""

    epoch: int
    reasons: tuple[FinishReason, ...]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    kind: Literal["finish"] = "finish"


@dataclass(frozen=True, slots=True)
class ErrorEntry(Wire):
    """Stream entry, the last one: the request failed, expired or was cancelled. `message` is public text."""

    epoch: int
    code: str
    message: str
    kind: Literal["error"] = "error"


StreamEntry = TokenEntry | TakeoverEntry | FinishEntry | ErrorEntry

_ENTRY_KINDS: dict[str, type[TokenEntry] | type[TakeoverEntry] | type[FinishEntry] | type[ErrorEntry]] = {
    "token": TokenEntry,
    "takeover": TakeoverEntry,
    "finish": FinishEntry,
    "error": ErrorEntry,
}


def stream_entry_from_json(data: dict[str, Any]) -> StreamEntry:
    return _ENTRY_KINDS[data["kind"]].from_json(data)


@dataclass(frozen=True, slots=True)
class Page:
    """One KV page of a hand-off: its index in the source's arena, the generation it had, the xxh3-128 digest of its bytes."""

    index: int
    generation: int
    digest: str  # 32 hex digits


@dataclass(frozen=True, slots=True)
class PrefillResult(Wire):
    """What prefill did, carried by the hand-off so that whoever finishes a request can write all meters.

    `outputs[c]` are the tokens of choice c so far. computed + cached = prompt tokens. `kv_token_us`: tokens x us held.
    """

    outputs: tuple[tuple[int, ...], ...]
    computed: int
    cached: int
    recomputed: int
    kv_token_us: int
    prefill_ms: float
    ttft_ms: float
    wait_ms: float = 0.0  # in the worker, before its engine began
    offer_ms: float = 0.0  # from the request's creation to the offer that was claimed
    logprobs: Logprobs = ()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return super(PrefillResult, cls).from_json({**data, "logprobs": logprobs_from_json(data.get("logprobs", ()))})


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """How a request ended and what it used, over all its phases. Tokens; `kv_token_us`: KV tokens x microseconds held."""

    reasons: tuple[FinishReason, ...] = ()
    error_code: str = ""
    error_message: str = ""  # public text
    computed: int = 0
    cached: int = 0
    recomputed: int = 0  # the operator's cost, never billed
    completion: int = 0
    kv_token_us: int = 0
    timing_ms: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KVLayout(Wire):
    """Shape of a KV block, `[layer][k|v][head][token][dim]`, and what must be equal on both sides before bytes are copied."""

    model: str
    revision: str
    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    dtype: str  # "float32" | "bfloat16"

    @property
    def block_bytes(self) -> int:
        return self.layers * 2 * self.kv_heads * self.block_tokens * self.head_dim * (4 if self.dtype == "float32" else 2)


@dataclass(frozen=True, slots=True)
class PoolCounters(Wire):
    """Blocks of one worker's pool. free + cached + held + quarantined = total at all times."""

    free: int
    cached: int
    held: int
    quarantined: int
    total: int
