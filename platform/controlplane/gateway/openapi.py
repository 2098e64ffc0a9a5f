"""What /v1 takes and gives, as an OpenAPI 3.1 document: bodies from the parameters' lists, refusals from the classes of errors."""

from __future__ import annotations

from typing import Any, get_args

from controlplane import errors
from controlplane.errors import ApiError
from controlplane.gateway import limits
from controlplane.gateway.completion import STATUS_OF_END
from controlplane.gateway.fields import Schema
from controlplane.gateway.idempotency import HEADER
from controlplane.gateway.messages import message_schema
from controlplane.gateway.receipts import NOT_RATED, TIMINGS_MS
from controlplane.gateway.schema import CHAT_FIELDS, COMPLETION_FIELDS, body_schema
from controlplane.gateway.tokenize import DETOKENIZE_FIELDS, TOKENIZE_FIELDS
from inference.contracts import CACHE_TIERS, FinishReason
from inference.requests.models import State

VERSION = "1.0.0"
CLIENT_GONE = 499  # nobody reads it
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TIME: Schema = {"type": "string", "format": "date-time"}
AMOUNT: Schema = {"type": "string", "pattern": "^-?[0-9]+$", "description": "An integer as a string: it may be large."}
NUMBER: Schema = {"type": "number"}
PROMPT: dict[str, Schema] = {"prompt_logprobs": {"$ref": "#/components/schemas/PromptLogprobs"}}
NAME_OR_NONE: Schema = {"type": ["string", "null"]}

ALWAYS = (
    *(errors.MalformedHttp, errors.HeadTooLarge, errors.BodyTooSlow),
    *(errors.InvalidApiKey, errors.OrganisationSuspended, errors.NotFound, errors.InternalError, errors.Overloaded),
)
OF_A_BODY = (
    *(errors.InvalidJson, errors.InvalidValue, errors.MissingParameter, errors.UnsupportedParameter, errors.ContextLengthExceeded),
    *(errors.ModelNotFound, errors.BodyTooLarge, errors.UnsupportedMediaType),
    *(errors.RateLimitExceeded, errors.InsufficientQuota, errors.NoWorkers),
)
OF_A_KEY = (errors.IdempotencyInProgress, errors.IdempotencyAnswerGone, errors.IdempotencyKeyReused)
KEY_HEADER = {
    "name": HEADER,
    "in": "header",
    "description": "The same key with the same body within 24 hours: the same answer, and no new bill.",
    "schema": {"type": "string", "minLength": 1, "maxLength": limits.IDEMPOTENCY_KEY_CHARACTERS, "pattern": "^[ -~]*$"},
}


def document() -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Brigade",
            "version": VERSION,
            "description": "LLM inference with a bill that can be checked line by line.",
        },
        "servers": [{"url": "/v1"}],
        "security": [{"key": []}],
        "paths": {
            "/chat/completions": {"post": _generating("createChatCompletion", "An answer to a conversation", "ChatCompletion")},
            "/completions": {"post": _generating("createCompletion", "What follows a text", "Completion")},
            "/tokenize": {"post": _posted("tokenize", "What a text or a conversation becomes.", "Tokenize", "Tokens")},
            "/detokenize": {"post": _posted("detokenize", "The text of token ids.", "Detokenize", "Prompt")},
            "/models": {"get": _plain("listModels", "The models on sale.", "ModelList")},
            "/models/{model}": {"get": _plain("getModel", "One model.", "Model", "model", errors.ModelNotFound)},
            "/requests/{id}": {"get": _plain("getReceipt", "What happened to a request, and what it cost.", "Receipt", "id")},
            "/requests/{id}/cancel": {"post": _plain("cancelRequest", "Stops what runs; answers the receipt.", "Receipt", "id")},
            "/openapi.json": {"get": {**_plain("getDocument", "This document.", "", ""), "security": []}},
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "An API key: bk-..."}},
            "headers": _headers(),
            "schemas": {**_requests(), **_answers(), "Error": _error()},
        },
    }


# Operations


def _generating(name: str, summary: str, answer: str) -> dict[str, Any]:
    """`answer` names the schemas of the request, the answer and its chunks."""
    answers = {
        "application/json": {"schema": _ref(answer)},
        "text/event-stream": {
            "schema": {
                "type": "string",
                "description": f"With `stream: true`. Events of one line `data: `, which hold a {answer}Chunk each, then"
                " `data: [DONE]`, after the usage is recorded. An Error in place of a chunk ends the stream. Lines that begin with"
                " a colon only keep the connection open.",
            }
        },
    }
    refused = [
        *_codes(*ALWAYS, *OF_A_BODY, *OF_A_KEY),
        *((status, code) for code, status in STATUS_OF_END.items() if status != CLIENT_GONE),
    ]
    return {
        "operationId": name,
        "summary": f"{summary}, whole or as a stream of events.",
        "description": f"The body has at most {limits.BODY_BYTES} bytes and {limits.JSON_DEPTH} levels, is UTF-8, is not"
        " compressed, and no name stands twice in one object. Null counts as absent.",
        "parameters": [KEY_HEADER],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(f"{answer}Request")}}},
        "responses": {"200": {"description": "The answer.", "headers": _header_refs(), "content": answers}, **_refusals(refused)},
    }


def _plain(name: str, summary: str, answer: str, parameter: str = "", *refusals: type[ApiError]) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref(answer) if answer else {"type": "object"}}}
    parameters = [{"name": parameter, "in": "path", "required": True, "schema": TEXT}] if parameter else []
    return {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": {"200": {"description": summary, "content": content}, **_refusals(_codes(*ALWAYS, *refusals))},
    }


def _posted(name: str, summary: str, request: str, answer: str) -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": _ref(f"{request}Request")}}}
    return {**_plain(name, summary, answer, "", *OF_A_BODY), "requestBody": body}


def _codes(*kinds: type[ApiError]) -> list[tuple[int, str]]:
    return [(kind.status, kind.code) for kind in kinds]


def _refusals(refused: list[tuple[int, str]]) -> dict[str, Any]:
    """By status, with the codes that a client may meet there."""
    codes: dict[int, dict[str, None]] = {}
    for status, code in refused:
        codes.setdefault(status, {})[code] = None
    return {
        str(status): {
            "description": f"Refused: {', '.join(f'`{code}`' for code in named)}.",
            "content": {"application/json": {"schema": _ref("Error")}},
        }
        for status, named in sorted(codes.items())
    }


# Components


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _record(**fields: Schema) -> Schema:
    """An object that has all of these names and no other."""
    return {"type": "object", "required": list(fields), "properties": fields, "additionalProperties": False}


def _optional(record: Schema, *names: str) -> Schema:
    return {**record, "required": [name for name in record["required"] if name not in names]}


def _has(name: str, kind: str) -> Schema:
    return {"required": [name], "properties": {name: {"type": kind}}}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(found: Schema) -> Schema:
    return {"anyOf": [found, {"type": "null"}]}


def _error() -> Schema:
    return _record(error=_record(message=TEXT, type=TEXT, param=NAME_OR_NONE, code=TEXT))


def _headers() -> dict[str, Any]:
    about = {
        "x-request-id": "Name it when you ask for help.",
        "idempotency-replayed": "`true` where the answer is that of an earlier call.",
        "openai-processing-ms": "Time until the answer began.",
        "x-ratelimit-limit-requests": "Requests per minute.",
        "x-ratelimit-limit-tokens": "Tokens per minute, prompt and `max_tokens` together.",
        "x-ratelimit-remaining-requests": "What is left of them.",
        "x-ratelimit-remaining-tokens": "What is left of them.",
        "x-ratelimit-reset-requests": "When all are there again, as 120ms, 1.5s or 6m0s.",
        "x-ratelimit-reset-tokens": "When all are there again.",
    }
    return {name: {"description": text, "schema": TEXT} for name, text in about.items()}


def _header_refs() -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in _headers()}


def _requests() -> dict[str, Schema]:
    return {
        "ChatCompletionRequest": body_schema(CHAT_FIELDS),
        "CompletionRequest": body_schema(COMPLETION_FIELDS),
        "TokenizeRequest": {**body_schema(TOKENIZE_FIELDS), "oneOf": [_has("prompt", "string"), _has("messages", "array")]},
        "DetokenizeRequest": body_schema(DETOKENIZE_FIELDS),
        "Message": message_schema(),
    }


def _answers() -> dict[str, Schema]:
    return {
        "ChatCompletion": _optional(
            _completion("chat.completion", _choice(_chat_logprobs(), message=_message()), usage=_ref("Usage"), **PROMPT), *PROMPT
        ),
        "ChatCompletionChunk": _chunk("chat.completion.chunk", _choice(_chat_logprobs(), delta=_delta())),
        "Completion": _completion(
            "text_completion",
            _optional(_choice(_completion_logprobs(), text=TEXT, **PROMPT), *PROMPT),
            usage=_ref("Usage"),
            brigade=_brigade(),
        ),
        "CompletionChunk": _optional(
            _chunk("text_completion", _choice(_completion_logprobs(), text=TEXT), brigade=_brigade()), "brigade"
        ),
        "PromptLogprobs": _list(_or_null({"type": "object", "additionalProperties": _ranked()})),
        "Usage": _usage(),
        "Tokens": _optional(_record(count=COUNT, max_model_len=COUNT, tokens=_list(COUNT), token_strs=_list(TEXT)), "token_strs"),
        "Prompt": _record(prompt=TEXT),
        "Model": _model(),
        "ModelList": _record(object={"const": "list"}, data=_list(_ref("Model"))),
        "Receipt": _receipt(),
    }


def _completion(kind: str, choice: Schema, **more: Schema) -> Schema:
    """`service_tier` is the tier that is served and billed."""
    return _record(
        id=TEXT,
        object={"const": kind},
        created=COUNT,
        model=TEXT,
        service_tier=TEXT,
        system_fingerprint=TEXT,
        choices=_list(choice),
        **more,
    )


def _choice(logprobs: Schema, **content: Schema) -> Schema:
    reasons = {"enum": list(get_args(FinishReason))}
    return _record(index=COUNT, **content, logprobs=_or_null(logprobs), finish_reason=reasons)


def _message() -> Schema:
    return _record(
        role={"const": "assistant"}, content=TEXT, refusal={"type": "null"}, annotations={"type": "array", "maxItems": 0}
    )


def _delta() -> Schema:
    return {**_record(role={"const": "assistant"}, content=TEXT, refusal={"type": "null"}), "required": []}


def _chunk(kind: str, choice: Schema, **more: Schema) -> Schema:
    """`usage` is there, mostly as null, where `include_usage` asks for it."""
    choice["properties"]["finish_reason"] = {"enum": [*get_args(FinishReason), None]}
    return _optional(_completion(kind, choice, usage=_or_null(_ref("Usage")), **more), "usage")


def _chat_logprobs() -> Schema:
    token = {"token": TEXT, "logprob": NUMBER, "bytes": _or_null(_list({"type": "integer", "minimum": 0, "maximum": 255}))}
    content = _record(**token, top_logprobs=_list(_record(**token)))
    return _record(content=_list(content), refusal={"type": "null"})


def _completion_logprobs() -> Schema:
    return _record(
        tokens=_list(TEXT),
        token_logprobs=_list({"type": ["number", "null"]}),
        top_logprobs=_list(_or_null({"type": "object", "additionalProperties": NUMBER})),
        text_offset=_list(COUNT),
    )


def _ranked() -> Schema:
    return _record(logprob=NUMBER, rank={"type": ["integer", "null"]}, decoded_token=TEXT)


def _brigade() -> Schema:
    return {**_record(requests=_list(TEXT)), "description": "The request of each prompt, in order: each has its receipt."}


def _usage() -> Schema:
    prompt = _record(cached_tokens=COUNT, audio_tokens=COUNT)
    kinds = ("reasoning_tokens", "audio_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens")
    return _record(
        prompt_tokens=COUNT,
        completion_tokens=COUNT,
        total_tokens=COUNT,
        prompt_tokens_details=prompt,
        completion_tokens_details=_record(**dict.fromkeys(kinds, COUNT)),
    )


def _model() -> Schema:
    return _record(id=TEXT, object={"const": "model"}, created=COUNT, owned_by=TEXT, context_length=COUNT)


def _receipt() -> Schema:
    milliseconds: Schema = {"type": ["number", "null"]}
    itl = _record(**dict.fromkeys(("p50", "p95", "p99"), milliseconds))
    return _record(
        id=TEXT,
        object={"const": "request.receipt"},
        state={"enum": list(State.values)},
        path={"enum": ["split", "fused", None]},
        path_reason=TEXT,
        attempt=COUNT,
        model=TEXT,
        service_tier=TEXT,
        created_at=TIME,
        finished_at=_or_null(TIME),
        cancel_requested_at=_or_null(TIME),
        choices=COUNT,
        finish_reasons=_list(TEXT),
        error=_or_null(_record(code=TEXT, message=TEXT)),
        labels={"type": "object", "additionalProperties": TEXT},
        timing_ms=_record(**dict.fromkeys(TIMINGS_MS, milliseconds), itl=itl),
        workers=_record(prefill=NAME_OR_NONE, decode=NAME_OR_NONE),
        tokens=_record(prompt=COUNT, computed=COUNT, cached=_record(**dict.fromkeys(CACHE_TIERS, COUNT)), completion=COUNT),
        events=_list(_event()),
        billing_state={"enum": ["running", NOT_RATED, "rated"]},
        lines=_or_null(_list(_line())),
        total_nano_usd=_or_null(AMOUNT),
        not_charged=_list(_record(what=TEXT, quantity=AMOUNT)),
    )


def _event() -> Schema:
    event = _record(state={"enum": list(State.values)}, at=TIME, epoch=COUNT, worker=NAME_OR_NONE, detail=TEXT)
    event["required"].remove("detail")
    return event


def _line() -> Schema:
    line = _record(
        meter=TEXT,
        cache_tier=NAME_OR_NONE,
        quantity=AMOUNT,
        unit=TEXT,
        price_book=COUNT,
        unit_price_nano_usd=AMOUNT,
        unit_quantity=AMOUNT,
        carry_in=AMOUNT,
        amount_nano_usd=AMOUNT,
    )
    return {**line, "description": "amount = (quantity * unit price + carry in) div unit quantity."}
