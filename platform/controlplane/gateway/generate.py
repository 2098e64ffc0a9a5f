"""From a parsed body to admitted requests: model, tier, tokens, limits, money, queue. Chat and completions come this way."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from controlplane.admission.limiter import RateState
from controlplane.admission.services import requests_admit
from controlplane.errors import ApiError, ContextLengthExceeded, InvalidValue, NoWorkers, Overloaded
from controlplane.gateway import limits
from controlplane.gateway.completion import Completion, Entry
from controlplane.gateway.endpoint import Call
from controlplane.gateway.fields import check_ids
from controlplane.gateway.merge import merged
from controlplane.gateway.runtime import Runtime
from controlplane.gateway.schema import Ask
from controlplane.gateway.threads import in_database
from controlplane.gateway.watch import Watch
from controlplane.idempotency.services import Claim
from controlplane.tenants.services import scope_salt_of
from inference.contracts import ClassPolicy, SamplingParams, Submission, TokenEntry
from inference.requests.models import new_request_id
from inference.text import ModelText, answer_text


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt's token ids, and the parameter that they come from."""

    place: str
    ids: tuple[int, ...]


Renderer = Callable[[ModelText, int], Awaitable[list[Rendered]]]  # (text, context length); raises ApiError


@dataclass(frozen=True, slots=True)
class Admitted:
    """The requests of one call, one for each prompt, and what the answer needs beside their entries."""

    completions: tuple[Completion, ...]
    prompts: tuple[tuple[int, ...], ...]
    sampling: SamplingParams
    text: ModelText
    model: str
    service_tier: str

    @property
    def choices(self) -> int:
        """Of all prompts together. Choice c of prompt p has the index p * n + c."""
        return len(self.completions) * self.sampling.n

    def entries(self) -> AsyncGenerator[tuple[int, Entry], None]:
        """(prompt's number, entry). Raises ApiError as soon as one request fails."""
        sources = [completion.entries() for completion in self.completions]
        told_first = self.sampling.prompt_logprobs is not None and self.sampling.n > 1
        return merged([_choice_0_first(source) for source in sources] if told_first else sources)

    def close(self) -> None:
        for completion in self.completions:
            completion.close()


async def _choice_0_first(source: AsyncGenerator[Entry, None]) -> AsyncGenerator[Entry, None]:
    """Its first token carries what all choices tell of the prompt."""
    waiting: list[Entry] | None = []
    async with aclosing(source) as entries:
        async for entry in entries:
            if waiting is not None and isinstance(entry, TokenEntry):
                waiting.append(entry)
                if entry.choice == 0:
                    for known in sorted(waiting, key=lambda one: one is not entry):
                        yield known
                    waiting = None
            else:
                yield entry


async def admit(call: Call, ask: Ask, render: Renderer, claim: Claim | None = None) -> Admitted:
    """All of the call's requests or none. The caller must close what comes. Raises ApiError; then nothing is queued or held.

    What a `claim` names outlives its client and this process.
    """
    call.lap("body")
    context_length, policy = await _offer(call.runtime, ask)
    text = await call.runtime.text(ask.model)
    _check_vocabulary(ask.sampling, text)
    room = min(context_length, text.context_length)
    call.lap("catalogue")
    prompts = await render(text, room)
    call.lap("render")
    sampling = [_sampling(ask, prompt, room) for prompt in prompts]
    _check_told(prompts, sampling)
    await _has_room(call.runtime, ask.model, len(prompts))
    gateway_id = None if claim else await call.runtime.lease.holder()
    submissions = [
        _submission(call, ask, policy, request_id, prompt, chosen, gateway_id)
        for request_id, prompt, chosen in zip(request_ids(call, len(prompts)), prompts, sampling, strict=True)
    ]
    completions = await _enter(call, submissions, text, claim)
    return Admitted(completions, tuple(prompt.ids for prompt in prompts), sampling[0], text, ask.model, policy.tier)


async def _offer(process: Runtime, ask: Ask) -> tuple[int, ClassPolicy]:
    model = await process.model(ask.model)
    tier = "default" if ask.service_tier == "auto" else ask.service_tier
    policy = await process.sold(lambda catalogue: catalogue.tiers.get(tier))
    if policy is None:
        offered = ", ".join(["auto", *sorted((await process.catalogue.get(None)).tiers)])
        raise InvalidValue(f"Invalid value for 'service_tier': offered are {offered}.", param="service_tier")
    return model.context_length, policy


def _check_vocabulary(sampling: SamplingParams, text: ModelText) -> None:
    check_ids([token_id for token_id, _ in sampling.logit_bias], text.vocabulary_size, "logit_bias.{1}")
    check_ids(sampling.stop_ids, text.vocabulary_size, "stop_token_ids[{0}]")


def _sampling(ask: Ask, prompt: Rendered, context_length: int) -> SamplingParams:
    max_tokens = _max_tokens(ask, prompt, context_length)
    if ask.sampling.min_tokens > max_tokens:
        raise InvalidValue(f"'min_tokens' is above 'max_tokens', which is {max_tokens}.", param="min_tokens")
    seed = secrets.randbits(64) if ask.seed is None else ask.seed % (1 << 64)
    return replace(ask.sampling, max_tokens=max_tokens, seed=seed)


def _check_told(prompts: Sequence[Rendered], sampling: Sequence[SamplingParams]) -> None:
    """An answer is built in memory, and each figure that is told with a token takes some hundred bytes of it."""
    values = sum(_told(len(prompt.ids), chosen) for prompt, chosen in zip(prompts, sampling, strict=True))
    if values > limits.LOGPROB_VALUES:
        raise InvalidValue(
            f"The answer would tell {values} log probabilities, tokens times alternatives; at most {limits.LOGPROB_VALUES} are told"
            " at once. Ask for fewer tokens, choices or alternatives.",
            param="logprobs",
        )


def _told(prompt_tokens: int, sampling: SamplingParams) -> int:
    output = 0 if sampling.logprobs is None else sampling.n * sampling.max_tokens * (1 + sampling.logprobs)
    return output + (0 if sampling.prompt_logprobs is None else prompt_tokens * (1 + sampling.prompt_logprobs))


def _max_tokens(ask: Ask, prompt: Rendered, context_length: int) -> int:
    prompt_tokens = len(prompt.ids)
    room = context_length - prompt_tokens
    wanted = ask.max_tokens if ask.max_tokens is not None else min(max(room, 1), ask.MAX_TOKENS)
    if wanted <= room:
        return wanted
    raise ContextLengthExceeded(
        f"This model's maximum context length is {context_length} tokens. However, you requested {prompt_tokens + wanted} tokens"
        f" ({prompt_tokens} in the {prompt.place}, {wanted} in the completion). Please reduce the length of one of them.",
        param=prompt.place if room < 1 else "max_tokens",
    )


def may_fit(text: ModelText, contents: Sequence[str], context_length: int, place: str) -> None:
    """Seconds of tokenising are not spent on what is too long anyway. Raises ContextLengthExceeded."""
    least = sum(map(text.least_tokens, contents))
    if least >= context_length:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context_length} tokens. However, your {place} has at least {least} tokens.",
            param=place,
        )


def has_places(process: Runtime, requests: int) -> None:
    """Raises Overloaded."""
    if process.open_requests + requests > limits.OPEN_REQUESTS:
        raise Overloaded("The server is busy. Try again in a moment.", detail=f"{process.open_requests} open requests")


async def _has_room(process: Runtime, model: str, requests: int) -> None:
    has_places(process, requests)
    fleet = await process.fleet.get(None)
    if not fleet.serves(model):
        fleet = await process.fleet.get(None, stale_allowed=False)  # a worker may have come since
    if not fleet.serves(model):
        raise NoWorkers("No worker serves this model at the moment. Try again in a moment.")
    if fleet.waiting + requests > limits.QUEUE_LENGTH:
        raise Overloaded("The queue is full. Try again in a moment.", detail=f"{fleet.waiting} requests wait")


def request_ids(call: Call, count: int) -> list[uuid.UUID]:
    """The first has the call's own."""
    return [call.id, *(new_request_id() for _ in range(count - 1))]


def _submission(
    call: Call,
    ask: Ask,
    policy: ClassPolicy,
    request_id: uuid.UUID,
    prompt: Rendered,
    sampling: SamplingParams,
    gateway_id: uuid.UUID | None,
) -> Submission:
    key = call.caller
    return Submission(
        request_id=str(request_id),
        tenant_id=str(key.tenant_id),
        project_id=str(key.project_id),
        key_id=str(key.key_id),
        model=ask.model,
        prompt_ids=prompt.ids,
        sampling=sampling,
        policy=policy,
        scope_salt=scope_salt_of(key.tenant_id, key.scope_epoch),
        stream=ask.stream,
        labels=ask.labels,
        gateway_id=None if gateway_id is None else str(gateway_id),
        trace_context=call.span.context,
    )


async def _enter(call: Call, submissions: list[Submission], text: ModelText, claim: Claim | None) -> tuple[Completion, ...]:
    """Rate limits, then money and the queue. The streams are listened to before the first entry can be written."""
    tariff = await call.runtime.tariffs.get((submissions[0].model, submissions[0].policy.tier))
    reader = await call.runtime.reader()
    tokens = {uuid.UUID(submission.request_id): _tokens(submission) for submission in submissions}
    await take(call, tokens)
    call.lap("limits")
    completions = tuple(
        Completion(
            call.runtime,
            call.caller,
            uuid.UUID(submission.request_id),
            reader.subscribe(submission.request_id),
            partial(answer_text, text, submission.sampling, submission.sampling.max_tokens),
            Watch(call.started, submission.model, submission.policy.tier, call.span),
            unused_tokens=submission.sampling.n * submission.sampling.max_tokens,
            left="follow" if claim else "cancel",
        )
        for submission in submissions
    )
    call.runtime.open_requests += len(completions)
    admission = asyncio.create_task(in_database(requests_admit, submissions, tariff=tariff, claim=claim))
    try:
        await asyncio.shield(admission)
    except asyncio.CancelledError:
        call.runtime.background(_abandon(completions, admission))
        raise
    except Exception as error:
        for completion in completions:
            _never_ran(completion, tokens[completion.request_id], certain=isinstance(error, ApiError))
        raise
    for completion in completions:
        completion.watch.admitted()
    call.span.admitted(submissions)
    call.lap("transaction")
    return completions


def _tokens(submission: Submission) -> int:
    """What the request takes from the limit of tokens: the prompt once, and the longest answers."""
    return len(submission.prompt_ids) + submission.sampling.n * submission.sampling.max_tokens


async def take(call: Call, tokens: dict[uuid.UUID, int]) -> None:
    """A place and tokens for each, all or none. Raises what the limits say. What was taken for a client that went comes back."""
    limiter, key = call.runtime.limiter, call.caller
    taking = asyncio.create_task(limiter.take(key, request_ids=list(tokens), tokens=sum(tokens.values())))
    try:
        call.rate = await asyncio.shield(taking)
    except asyncio.CancelledError:
        call.runtime.background(_give_back(call, tokens, taking))
        raise
    call.rate.check()


async def _give_back(call: Call, tokens: dict[uuid.UUID, int], taking: asyncio.Task[RateState]) -> None:
    await taking
    for request_id, unused_tokens in tokens.items():
        await call.runtime.limiter.release(call.caller, request_id=request_id, unused_tokens=unused_tokens)


async def _abandon(completions: Sequence[Completion], admission: asyncio.Task[None]) -> None:
    """The client went while the transaction ran: only after it can the rows be cancelled."""
    try:
        await admission
    finally:
        for completion in completions:
            completion.close()


def _never_ran(completion: Completion, tokens: int, *, certain: bool) -> None:
    """Uncertain where the connection broke at the commit: then a row, if there is one, is cancelled."""
    completion.ended = certain
    completion.unused_tokens = tokens
    completion.close()
