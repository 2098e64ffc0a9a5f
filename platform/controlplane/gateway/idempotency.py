"""`Idempotency-Key`: a call that was made before gets the answer of its first time. See `controlplane/idempotency/README.md`."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from functools import partial

from controlplane.errors import (
    FailedUnderKey,
    IdempotencyAnswerGone,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    InvalidValue,
    RequestFailed,
)
from controlplane.gateway import limits
from controlplane.gateway.completion import Completion
from controlplane.gateway.endpoint import Call
from controlplane.gateway.generate import Admitted, Renderer, admit, has_places, request_ids, take
from controlplane.gateway.json_body import Object
from controlplane.gateway.schema import Ask
from controlplane.gateway.threads import in_database
from controlplane.gateway.watch import Watch
from controlplane.idempotency.selectors import Known, key_find
from controlplane.idempotency.services import Claim
from inference.text import answer_text

HEADER = "Idempotency-Key"
_PRINTABLE = re.compile(f"[\\x20-\\x7e]{{1,{limits.IDEMPOTENCY_KEY_CHARACTERS}}}")


async def admit_once(call: Call, body: Object, ask: Ask, render: Renderer) -> Admitted:
    """As `admit`; with a key that was used before, the requests of that time. Raises ApiError."""
    claim = _claim(call, body)
    if claim is None:
        return await admit(call, ask, render)
    known = await _find(call, claim)
    if known is not None:
        return await _join(call, ask, known)
    try:
        return await admit(call, ask, render, claim)
    except IdempotencyInProgress:
        known = await _find(call, claim)
        if known is None:
            raise
        return await _join(call, ask, known)


def _claim(call: Call, body: Object) -> Claim | None:
    key = call.request.headers.get(HEADER)
    if key is None:
        return None
    if call.times_sent(HEADER) > 1:
        raise InvalidValue(f"Send the header '{HEADER}' once.", param=HEADER)
    if not _PRINTABLE.fullmatch(key):
        expected = f"1 to {limits.IDEMPOTENCY_KEY_CHARACTERS} printable ASCII characters"
        raise InvalidValue(f"Invalid value for the header '{HEADER}': expected {expected}.", param=HEADER)
    canonical = json.dumps([call.request.path, body], sort_keys=True, separators=(",", ":"))
    return Claim(key, hashlib.sha256(canonical.encode()).digest())


async def _find(call: Call, claim: Claim) -> Known | None:
    """Raises IdempotencyKeyReused, IdempotencyAnswerGone. None: the call makes requests of its own."""
    key = call.caller
    known = await in_database(key_find, tenant_id=key.tenant_id, project_id=key.project_id, key=claim.key)
    if known is None:
        return None
    if known.body_hash != claim.body_hash:
        raise IdempotencyKeyReused("This Idempotency-Key was used with another body in the last 24 hours.", param=HEADER)
    if known.begun_anew:
        return None
    if any(request.prompt_ids is None for request in known.requests):
        raise IdempotencyAnswerGone(
            "This call was answered before, and its answer is deleted already. Use a new Idempotency-Key to ask again.",
            param=HEADER,
        )
    return known


async def _join(call: Call, ask: Ask, known: Known) -> Admitted:
    """Counts as requests, but takes no tokens: nothing is generated anew."""
    process, key = call.runtime, call.caller
    text, reader = await process.text(ask.model), await process.reader()
    places = request_ids(call, len(known.requests))
    has_places(process, len(places))
    await take(call, dict.fromkeys(places, 0))
    call.replayed = True
    sampling = [replace(ask.sampling, max_tokens=request.max_tokens) for request in known.requests]
    completions = tuple(
        Completion(
            process,
            key,
            request.id,
            reader.subscribe(str(request.id)),
            partial(answer_text, text, chosen, chosen.max_tokens),
            Watch(call.started, ask.model, request.service_tier, call.span),  # tells nothing: this call admits no request
            unused_tokens=0,
            left="leave",
            failure=FailedUnderKey if known.ended_without_answer else RequestFailed,
            place_id=place_id,
        )
        for request, chosen, place_id in zip(known.requests, sampling, places, strict=True)
    )
    process.open_requests += len(completions)
    prompts = tuple(request.prompt_ids or () for request in known.requests)
    return Admitted(completions, prompts, sampling[0], text, ask.model, known.requests[0].service_tier)
