"""A worker's memory of a request that it owns, and the sums that its end is billed by."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from inference.contracts import FinishReason, PrefillResult, RequestOutcome, TokenLogprob
from inference.engine.events import PhaseUsage
from inference.requests.claims import Claim
from inference.requests.models import State
from inference.requests.token_log import TokenRun


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a request ends other than by itself."""

    state: State
    code: str
    message: str


@dataclass(slots=True)
class Job:
    """One claimed request. `outputs` are all tokens of each choice that the client has or will have, forced ones included.

    `logprobs` are parallel to them where the request asks for them, else empty.
    """

    claim: Claim
    outputs: list[list[int]]
    logprobs: list[list[TokenLogprob]]
    claimed_at: float = field(default_factory=time.monotonic)
    ttft_ms: float | None = None
    spoke_at: float | None = None  # its newest token's time here; see metrics.py
    transfer_ms: float = 0.0
    waited_us: int = 0  # from the hand-off's publication to the end of its copy
    transfer_note: str = ""
    logged: dict[int, int] = field(default_factory=dict)  # tokens of each choice that the token log has

    @classmethod
    def of(cls, claim: Claim) -> Job:
        ttft_ms = claim.handoff.result.ttft_ms if claim.handoff else None
        forced, choices = claim.request.forced, range(claim.request.sampling.n)
        return cls(
            claim=claim,
            outputs=[list(forced[choice]) if choice < len(forced) else [] for choice in choices],
            logprobs=[list(claim.logprobs[choice]) if choice < len(claim.logprobs) else [] for choice in choices],
            ttft_ms=ttft_ms,
        )

    @property
    def id(self) -> str:
        return self.claim.request.request_id

    @property
    def uuid(self) -> uuid.UUID:
        return uuid.UUID(self.id)

    @property
    def epoch(self) -> int:
        return self.claim.owner.epoch

    def age_ms(self) -> float:
        """Since the request was created: the database's clock up to the claim, this process's monotonic one after it."""
        return self.claim.elapsed_ms + 1000 * (time.monotonic() - self.claimed_at)

    @property
    def overdue(self) -> bool:
        return time.monotonic() - self.claimed_at > self.claim.remaining_s

    @property
    def choices(self) -> int:
        return len(self.outputs)

    def token(self, choice: int, token_id: int, logprob: TokenLogprob | None) -> None:
        """The order counts: the pulse, which logs both, never sees a token without its log-probability."""
        if logprob is not None:
            self.logprobs[choice].append(logprob)
        self.outputs[choice].append(token_id)
        if self.ttft_ms is None:
            self.ttft_ms = self.age_ms()

    def unlogged(self) -> list[TokenRun]:
        """What the token log does not have yet."""
        rests = ((choice, self.logged.get(choice, 0), list(ids)) for choice, ids in enumerate(self.outputs))
        return [self._run(choice, known, ids) for choice, known, ids in rests if len(ids) > known]

    def _run(self, choice: int, known: int, ids: list[int]) -> TokenRun:
        tells = self.claim.request.sampling.tells_logprobs
        logprobs = tuple(self.logprobs[choice][known : len(ids)]) if tells else None
        return TokenRun(self.id, self.epoch, choice, known + 1, tuple(ids[known:]), logprobs)

    def prefill_result(self, usage: PhaseUsage) -> PrefillResult:
        return PrefillResult(
            outputs=tuple(tuple(ids) for ids in self.outputs),
            computed=usage.computed,
            cached=usage.cached,
            recomputed=usage.recomputed,
            kv_token_us=usage.kv_token_us,
            prefill_ms=usage.prefill_ms,
            ttft_ms=self.ttft_ms or 0.0,
            wait_ms=usage.queue_ms,
            offer_ms=self.claim.offer_ms,
            logprobs=tuple(map(tuple, self.logprobs)),
        )

    def outcome(self, usage: PhaseUsage, reasons: tuple[FinishReason, ...] = (), verdict: Verdict | None = None) -> RequestOutcome:
        """Both phases together. A copy of pages is no cache hit: computed and cached come from prefill's own look-up alone."""
        before = self.claim.handoff.result if self.claim.handoff else None
        waited = self.claim.handoff.tokens * self.waited_us if self.claim.handoff else 0
        first = before or usage
        return RequestOutcome(
            reasons=reasons,
            error_code=verdict.code if verdict else "",
            error_message=verdict.message if verdict else "",
            computed=first.computed,
            cached=first.cached,
            recomputed=usage.recomputed + (before.recomputed if before else 0),
            completion=sum(len(ids) for ids in self.outputs),
            kv_token_us=usage.kv_token_us + waited + (before.kv_token_us if before else 0),
            timing_ms=self._timing(usage, before),
        )

    def _timing(self, usage: PhaseUsage, before: PrefillResult | None) -> dict[str, Any]:
        timing: dict[str, Any] = {
            "offer": before.offer_ms if before else self.claim.offer_ms,
            "queue": self.claim.queue_ms + (before.wait_ms if before else usage.queue_ms),
            "prefill": before.prefill_ms if before else usage.prefill_ms,
            "transfer": self.transfer_ms,
            "ttft": self.ttft_ms,
            "decode": usage.decode_ms,
            "total": self.age_ms(),
        }
        rounded = {name: None if value is None else round(value, 3) for name, value in timing.items()}
        itl = dict(zip(("p50", "p95", "p99"), usage.itl_ms, strict=True))
        return {**rounded, "itl": itl, "transfer_note": self.transfer_note}
