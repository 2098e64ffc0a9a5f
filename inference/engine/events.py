"""What an engine tells its worker."""

from __future__ import annotations

from dataclasses import dataclass

from inference.contracts import FinishReason, TokenLogprob, Wire


@dataclass(frozen=True, slots=True)
class PhaseUsage(Wire):
    """What a request has used in this engine so far (cumulative: only the last one counts).

    computed + cached = prompt tokens, once the prompt is complete; both are 0 in the decode phase of a split request. `recomputed`
    is work that this or another engine had done before; it is never the tenant's. `completion` counts the tokens sampled here,
    the end-of-text token included. `kv_token_us` is the integral over time of the KV tokens held. `itl_ms` is p50, p95, p99.
    """

    computed: int = 0
    cached: int = 0
    recomputed: int = 0
    completion: int = 0
    kv_token_us: int = 0
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    itl_ms: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Token:
    """A new token and the text that it made visible. The last token of a choice carries the flushed rest and a reason."""

    request_id: str
    choice: int
    position: int
    token_id: int
    text: str
    finish_reason: FinishReason | None = None
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt's KV stands in `blocks` (the first `kv_tokens` entries), held until `release` or `resume`.

    `outputs[c]` are all tokens of choice c, the forced ones first. Where there is one choice, all but its newest have their KV
    entries; where there are several, the prompt alone has.
    """

    request_id: str
    kv_tokens: int
    blocks: tuple[int, ...]
    outputs: tuple[tuple[int, ...], ...]
    usage: PhaseUsage


@dataclass(frozen=True, slots=True)
class Finished:
    request_id: str
    reasons: tuple[FinishReason, ...]
    usage: PhaseUsage


@dataclass(frozen=True, slots=True)
class Failed:
    """This request ends here; others are not touched. `message` is public text."""

    request_id: str
    code: str
    message: str
    usage: PhaseUsage


EngineEvent = Token | Prefilled | Finished | Failed


@dataclass(frozen=True, slots=True)
class Reservation:
    """Blocks for the KV entries of a hand-off, in order. The first `cached_blocks` have their content already: copy the rest."""

    blocks: tuple[int, ...]
    cached_blocks: int
