"""POST /v1/chat/completions from a parsed body to an admitted request: model, tier, tokens, limits, money, queue."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import uuid
from dataclasses import dataclass
from functools import partial

from controlplane.admission.limiter import RateState
from controlplane.admission.services import request_admit
from controlplane.errors import ApiError, ContextLengthExceeded, InternalError, InvalidValue, NoWorkers, Overloaded
from controlplane.gateway import limits, threads
from controlplane.gateway.completion import Completion
from controlplane.gateway.endpoint import Call
from controlplane.gateway.runtime import Runtime
from controlplane.gateway.schema import ChatRequest
from controlplane.gateway.threads import in_database
from controlplane.tenants.services import scope_salt_of
from inference.contracts import ClassPolicy, SamplingParams, Submission
from inference.text import ChatTemplateError, ModelText, answer_text

CLIENT_FAULTS = ("chat_template_refused", "chat_role_unknown")


@dataclass(frozen=True, slots=True)
class Admitted:
    """What the answer needs beside its entries."""

    completion: Completion
    model: str
    service_tier: str
    fingerprint: str


async def admit(call: Call, chat: ChatRequest) -> Admitted:
    """The caller must close `completion`. Raises ApiError; then nothing is queued and nothing is held."""
    context_length, policy = await _offer(call.runtime, chat)
    text = await call.runtime.text(chat.model)
    room = min(context_length, text.context_length)
    _may_fit(text, chat, room)
    prompt_ids = await _render(text, chat)
    max_tokens = _max_tokens(chat, len(prompt_ids), room)
    await _has_room(call.runtime, chat.model)
    submission = _submission(call, chat, policy, prompt_ids, max_tokens, await call.runtime.lease.holder())
    completion = await _enter(call, submission, text)
    return Admitted(completion, chat.model, policy.tier, _fingerprint(text))


async def _offer(process: Runtime, chat: ChatRequest) -> tuple[int, ClassPolicy]:
    model = await process.model(chat.model)
    tier = "default" if chat.service_tier == "auto" else chat.service_tier
    policy = await process.sold(lambda catalogue: catalogue.tiers.get(tier))
    if policy is None:
        offered = ", ".join(["auto", *sorted((await process.catalogue.get(None)).tiers)])
        raise InvalidValue(f"Invalid value for 'service_tier': offered are {offered}.", param="service_tier")
    return model.context_length, policy


def _may_fit(text: ModelText, chat: ChatRequest, context_length: int) -> None:
    """Seconds of tokenising are not spent on what is too long anyway."""
    least = sum(text.least_tokens(message.content) for message in chat.messages)
    if least >= context_length:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context_length} tokens. However, your messages have at least {least} tokens.",
            param="messages",
        )


async def _render(text: ModelText, chat: ChatRequest) -> list[int]:
    try:
        if sum(len(message.content) for message in chat.messages) <= limits.TEXT_INLINE_BYTES:
            return text.render_chat(chat.messages)
        return await threads.text.run(text.render_chat, chat.messages)
    except ChatTemplateError as error:
        if error.code in CLIENT_FAULTS:
            raise InvalidValue(error.public, param="messages") from error
        raise InternalError(f"chat template of {chat.model}: {error}") from error


def _max_tokens(chat: ChatRequest, prompt_tokens: int, context_length: int) -> int:
    room = context_length - prompt_tokens
    wanted = chat.max_tokens if chat.max_tokens is not None else min(max(room, 1), limits.DEFAULT_MAX_TOKENS)
    if wanted <= room:
        return wanted
    raise ContextLengthExceeded(
        f"This model's maximum context length is {context_length} tokens. However, you requested {prompt_tokens + wanted} tokens"
        f" ({prompt_tokens} in the messages, {wanted} in the completion). Please reduce the length of the messages or completion.",
        param="messages" if room < 1 else "max_tokens",
    )


async def _has_room(process: Runtime, model: str) -> None:
    if process.open_requests >= limits.OPEN_REQUESTS:
        raise Overloaded("The server is busy. Try again in a moment.", detail=f"{process.open_requests} open requests")
    fleet = await process.fleet.get(None)
    if not fleet.serves(model):
        fleet = await process.fleet.get(None, stale_allowed=False)  # a worker may have come since
    if not fleet.serves(model):
        raise NoWorkers("No worker serves this model at the moment. Try again in a moment.")
    if fleet.waiting >= limits.QUEUE_LENGTH:
        raise Overloaded("The queue is full. Try again in a moment.", detail=f"{fleet.waiting} requests wait")


def _submission(
    call: Call, chat: ChatRequest, policy: ClassPolicy, prompt_ids: list[int], max_tokens: int, gateway_id: uuid.UUID
) -> Submission:
    key = call.caller
    return Submission(
        request_id=str(call.id),
        tenant_id=str(key.tenant_id),
        project_id=str(key.project_id),
        key_id=str(key.key_id),
        model=chat.model,
        prompt_ids=tuple(prompt_ids),
        sampling=SamplingParams(
            max_tokens=max_tokens,
            temperature=chat.temperature,
            top_p=max(chat.top_p, 1e-6),  # 0 means: the likeliest token alone
            top_k=chat.top_k,
            seed=secrets.randbits(64) if chat.seed is None else chat.seed % (1 << 64),
            stop=chat.stop,
            ignore_eos=chat.ignore_eos,
        ),
        policy=policy,
        scope_salt=scope_salt_of(key.tenant_id, key.scope_epoch),
        stream=chat.stream,
        labels=chat.labels,
        gateway_id=str(gateway_id),
    )


async def _enter(call: Call, submission: Submission, text: ModelText) -> Completion:
    """Rate limits, then money and the queue. The stream is listened to before the first entry can be written."""
    key, process = call.caller, call.runtime
    tokens = len(submission.prompt_ids) + submission.sampling.max_tokens
    tariff = await process.tariffs.get((submission.model, submission.policy.tier))
    call.rate = await _take(call, tokens)
    call.rate.check()
    process.open_requests += 1
    subscription = (await process.reader()).subscribe(submission.request_id)
    answer = partial(answer_text, text, submission.sampling, submission.sampling.max_tokens)
    completion = Completion(process, key, call.id, subscription, answer, unused_tokens=submission.sampling.max_tokens)
    admission = asyncio.create_task(in_database(request_admit, submission, tariff=tariff))
    try:
        await asyncio.shield(admission)
    except asyncio.CancelledError:
        process.background(_abandon(completion, admission))
        raise
    except Exception as error:
        _never_ran(completion, tokens, certain=isinstance(error, ApiError))
        raise
    return completion


async def _take(call: Call, tokens: int) -> RateState:
    """What was taken for a client that went meanwhile is given back."""
    limiter, key = call.runtime.limiter, call.caller
    taking = asyncio.create_task(limiter.take(key, request_id=call.id, tokens=tokens))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        call.runtime.background(_give_back(call, tokens, taking))
        raise


async def _give_back(call: Call, tokens: int, taking: asyncio.Task[RateState]) -> None:
    await taking
    await call.runtime.limiter.release(call.caller, request_id=call.id, unused_tokens=tokens)


async def _abandon(completion: Completion, admission: asyncio.Task[None]) -> None:
    """The client went while the transaction ran: only after it can the row be cancelled."""
    try:
        await admission
    finally:
        completion.close()


def _never_ran(completion: Completion, tokens: int, *, certain: bool) -> None:
    """Uncertain where the connection broke at the commit: then a row, if there is one, is cancelled."""
    completion.ended = certain
    completion.unused_tokens = tokens
    completion.close()


def _fingerprint(text: ModelText) -> str:
    return f"fp_{hashlib.sha256(f'{text.name}:{text.revision}'.encode()).hexdigest()[:10]}"


def completion_id(request_id: uuid.UUID) -> str:
    return f"chatcmpl-{request_id.hex}"
