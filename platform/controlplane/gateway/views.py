"""The addresses of the API. A view translates; what it calls decides."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse

from controlplane.catalog.models import ServedModel
from controlplane.errors import MethodNotAllowed, NotFound, error_response
from controlplane.fleet.selectors import readiness
from controlplane.gateway import limits
from controlplane.gateway.answer import MakeForm, events, whole
from controlplane.gateway.chat import chat_prompt
from controlplane.gateway.chat_answer import ChatForm
from controlplane.gateway.completion_answer import CompletionForm
from controlplane.gateway.completions import completion_prompts
from controlplane.gateway.endpoint import Call, endpoint, json_response, log, request_uuid
from controlplane.gateway.generate import Admitted
from controlplane.gateway.handler import EventStream
from controlplane.gateway.idempotency import admit_once
from controlplane.gateway.json_body import read_body
from controlplane.gateway.openapi import document
from controlplane.gateway.receipts import receipt
from controlplane.gateway.runtime import runtime
from controlplane.gateway.schema import Ask, chat_request, completion_request
from controlplane.gateway.threads import in_database
from controlplane.gateway.tokenize import detokenize, detokenize_request, tokenize, tokenize_request
from inference.kv import pool_reports
from inference.submit import CLIENT_ASKED, cancel


@endpoint("POST")
async def chat_completions(call: Call) -> HttpResponseBase:
    body, chat = await read_body(await call.json_body(), chat_request)
    admitted = await admit_once(call, body, chat, partial(chat_prompt, chat))
    return await _answer(admitted, chat, partial(ChatForm, include_usage=chat.include_usage))


@endpoint("POST")
async def completions(call: Call) -> HttpResponseBase:
    body, asked = await read_body(await call.json_body(), completion_request)
    admitted = await admit_once(call, body, asked, partial(completion_prompts, asked))
    form = partial(CompletionForm, echo=asked.echo, prompt_alternatives=asked.prompt_logprobs, include_usage=asked.include_usage)
    return await _answer(admitted, asked, form)


async def _answer(admitted: Admitted, ask: Ask, make_form: MakeForm) -> HttpResponseBase:
    if ask.stream:
        return EventStream(events(admitted, make_form, include_usage=ask.include_usage), release=admitted.close)
    return json_response(await whole(admitted, make_form))


@endpoint("POST")
async def tokenized(call: Call) -> HttpResponse:
    _, asked = await read_body(await call.json_body(), tokenize_request)
    return json_response(await tokenize(call, asked))


@endpoint("POST")
async def detokenized(call: Call) -> HttpResponse:
    _, asked = await read_body(await call.json_body(), detokenize_request)
    return json_response(await detokenize(call, asked))


@endpoint("GET")
async def models(call: Call) -> HttpResponse:
    catalogue = await call.runtime.catalogue.get(None, stale_allowed=False)
    return json_response({"object": "list", "data": [_model(model) for model in catalogue.models.values()]})


@endpoint("GET")
async def model(call: Call, name: str) -> HttpResponse:
    return json_response(_model(await call.runtime.model(name)))


def _model(found: ServedModel) -> dict[str, Any]:
    created = int(found.created_at.timestamp())
    return {
        "id": found.name,
        "object": "model",
        "created": created,
        "owned_by": "brigade",
        "context_length": found.context_length,
    }


@endpoint("GET")
async def request_receipt(call: Call, public_id: str) -> HttpResponse:
    return await _receipt(call, public_id)


@endpoint("POST")
async def request_cancel(call: Call, public_id: str) -> HttpResponse:
    """Stops what runs; what has ended stays as it is. Answers the receipt: its state may need a moment to become `cancelled`."""
    await call.body()  # nothing in it counts, but the connection can serve the next call
    request_id = request_uuid(public_id)
    if request_id is not None:
        await in_database(cancel, tenant_id=call.caller.tenant_id, request_id=request_id, reason=CLIENT_ASKED)
    return await _receipt(call, public_id)


async def _receipt(call: Call, public_id: str) -> HttpResponse:
    """Under the id that the client has: with the prefix of its kind of answer."""
    request_id = request_uuid(public_id)
    found = await in_database(receipt, tenant_id=call.caller.tenant_id, request_id=request_id) if request_id else None
    if found is None:
        raise NotFound("There is no such request.", param="id")
    return json_response({"id": public_id, **found})


@endpoint()
async def nothing_here(call: Call, rest: str = "") -> HttpResponse:
    raise NotFound("There is nothing at this address.")


async def openapi(request: HttpRequest) -> HttpResponse:
    """Without a key: it says nothing that the source does not."""
    if request.method != "GET":
        refusal = error_response(MethodNotAllowed("Only GET is allowed here."))
        refusal["Allow"] = "GET"
        return refusal
    return json_response(document())


async def healthz(request: HttpRequest) -> HttpResponse:
    """The process answers. Nothing else is asked."""
    return JsonResponse({"status": "ok"})


async def poolz(request: HttpRequest) -> HttpResponse:
    """Blocks of each worker's pool, for tests: names workers, so it is there with test hooks only."""
    if not settings.TEST_HOOKS:
        raise Http404
    return JsonResponse({"pools": [report.to_json() for report in await in_database(pool_reports)]})


async def readyz(request: HttpRequest) -> HttpResponse:
    """Whether a request would be served now; without a key, so it names no worker and no host."""
    try:
        ready, parts = readiness(await runtime().fleet.get(None, stale_allowed=False), heartbeat_s=limits.HEARTBEAT_S)
        silent_s = (await runtime().reader()).silent_s
        parts["streams"] = {"ready": silent_s <= limits.HEARTBEAT_S}
        ready = ready and parts["streams"]["ready"]
    except Exception as error:
        log.warning("not ready: %s: %s", type(error).__name__, error)
        ready, parts = False, {"database": {"ready": False}}
    return JsonResponse({"ready": ready, "parts": parts}, status=200 if ready else 503)
