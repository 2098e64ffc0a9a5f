"""What every address of /v1 has in common: who calls, how long it took, how errors look."""

from __future__ import annotations

import functools
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, cast

from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.http.request import HttpHeaders
from django.utils import timezone

from controlplane.admission.limiter import RateState
from controlplane.errors import (
    ApiError,
    InternalError,
    InvalidApiKey,
    MethodNotAllowed,
    OrganisationSuspended,
    Overloaded,
    UnsupportedMediaType,
    error_response,
)
from controlplane.gateway import limits
from controlplane.gateway.handler import ClientGone, GatewayRequest, Inbox
from controlplane.gateway.metrics import RESPONSES
from controlplane.gateway.runtime import Runtime, runtime
from controlplane.gateway.spans import CallSpan
from controlplane.gateway.threads import in_database
from controlplane.keys.services import USE_RESOLUTION, api_key_used
from controlplane.keys.tokens import PREFIX_LENGTH, key_parse
from controlplane.keys.verification import KeyRecord, record_matches
from inference.requests.models import new_request_id
from inference.telemetry.context import set_about

log = logging.getLogger("brigade.gateway")
P = ParamSpec("P")
_JSON = re.compile(r'application/json(\s*;\s*charset\s*=\s*"?utf-?8"?)?\s*', re.IGNORECASE)


class Call:
    """One API call. `rate` is set when the limiter has decided about it."""

    def __init__(self, request: HttpRequest, route: str) -> None:
        self.started = time.perf_counter()
        self.route = route
        self.id = new_request_id()
        self.span = CallSpan(route, request)
        set_about(request_id=str(self.id), trace_context=self.span.context)
        self.request = request
        self.runtime: Runtime = runtime()
        self.rate: RateState | None = None
        self.replayed = False  # the answer is that of an earlier call
        self.key: KeyRecord | None = None
        self.laps: list[tuple[str, float]] = []  # what took how long, ms
        self._lap_at = self.started

    def lap(self, name: str) -> None:
        """What was done since the last lap is called so."""
        now = time.perf_counter()
        self.laps.append((name, 1000 * (now - self._lap_at)))
        self._lap_at = now

    @property
    def caller(self) -> KeyRecord:
        assert self.key is not None, "the endpoint decorator authenticates"
        return self.key

    @property
    def inbox(self) -> Inbox:
        return cast(GatewayRequest, self.request).inbox

    def times_sent(self, header: str) -> int:
        """Django joins the values of headers with one name: a comma may be the client's own."""
        sent = cast(GatewayRequest, self.request).scope["headers"]
        return sum(name == header.lower().encode() for name, _ in sent)

    async def body(self) -> bytes:
        return await self.inbox.body(self.request.headers.get("Content-Length"))

    async def json_body(self) -> bytes:
        """Raises UnsupportedMediaType before a byte is read, then what `Inbox.body` raises."""
        _check_media_type(self.request.headers)
        return await self.body()

    async def authenticate(self) -> None:
        self.key = await authenticate(self.request.headers.get("Authorization", ""), self.runtime)
        set_about(tenant_id=str(self.key.tenant_id))
        last = self.key.last_used_at
        if last is None or timezone.now() - last > USE_RESOLUTION:
            self.runtime.background(in_database(api_key_used, tenant_id=self.key.tenant_id, key_id=self.key.key_id))

    async def headers(self) -> dict[str, str]:
        headers = {"x-request-id": f"req_{self.id.hex}", "openai-version": "2020-10-01"}
        headers["openai-processing-ms"] = str(round((time.perf_counter() - self.started) * 1_000))
        if self.replayed:
            headers["idempotency-replayed"] = "true"
        if settings.TEST_HOOKS:  # not for customers: what a check of limits or money takes tells about others
            headers["server-timing"] = ", ".join(f"{name};dur={ms:.2f}" for name, ms in self.laps)
        if self.key is not None:
            headers["openai-organization"] = str(self.key.tenant_id)
            headers.update(await self._rate_headers(self.key))
        return headers

    async def _rate_headers(self, key: KeyRecord) -> dict[str, str]:
        try:
            return (self.rate or await self.runtime.limiter.look(key)).headers()
        except ApiError:
            return {}  # the limiter cannot be asked: no figure is better than a wrong one


DjangoView = Callable[..., Coroutine[Any, Any, HttpResponseBase]]
View = Callable[Concatenate[Call, P], Awaitable[HttpResponseBase]]


def endpoint(method: str = "") -> Callable[[View[P]], DjangoView]:
    """Makes a Django view of a function that takes a Call with a known caller. Without `method` it answers to all."""

    def decorate(view: View[P]) -> DjangoView:
        @functools.wraps(view)
        async def wrapped(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            call = Call(request, view.__name__)
            with call.span:
                return await _answer(call, method, functools.partial(view, call, *args, **kwargs))

        wrapped.csrf_exempt = True  # type: ignore[attr-defined]  # no cookie opens this way
        return wrapped

    return decorate


async def _answer(call: Call, method: str, view: Callable[[], Awaitable[HttpResponseBase]]) -> HttpResponseBase:
    try:
        await call.authenticate()
        call.lap("key")
        if method and call.request.method != method:
            raise MethodNotAllowed(f"Only {method} is allowed here.")
        response = await view()
    except ClientGone:
        return JsonResponse({}, status=499)  # nobody reads it
    except ApiError as error:
        response = _refusal(call, error)
    except (OperationalError, InterfaceError) as error:
        response = _refusal(call, Overloaded("The server is busy. Try again in a moment.", detail=f"database: {error}"))
    except Exception:
        log.exception("unexpected error in request %s", call.id)
        response = _refusal(call, InternalError())
    RESPONSES.labels(call.route, str(response.status_code)).inc()
    call.span.answered(response)
    return await _finished(call, response, method)


def _refusal(call: Call, error: ApiError) -> HttpResponse:
    call.span.refused(error)
    return error_response(error)


async def _finished(call: Call, response: HttpResponseBase, method: str) -> HttpResponseBase:
    for name, value in (await call.headers()).items():
        response[name] = value
    if response.status_code == 405:
        response["Allow"] = method
    if method == "POST" and not call.inbox.body_was_read:
        response["Connection"] = "close"  # what may still come is not wanted
    return response


def _check_media_type(headers: HttpHeaders) -> None:
    """JSON in UTF-8, as it is; a client that names no type means it."""
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("The body must not be compressed: 'Content-Encoding' is not supported.")
    if not _JSON.fullmatch(headers.get("Content-Type") or "application/json"):
        raise UnsupportedMediaType("The body must be JSON in UTF-8: send 'Content-Type: application/json'.")


async def authenticate(header: str, process: Runtime) -> KeyRecord:
    """Raises InvalidApiKey, OrganisationSuspended. Of what the caller sent nothing comes back but a well-formed key's prefix."""
    scheme, _, presented = header.partition(" ")
    if not header:
        raise InvalidApiKey("You did not send an API key: use the header 'Authorization: Bearer YOUR_KEY'.")
    parsed = key_parse(presented.strip()) if len(header) <= limits.AUTHORIZATION_CHARACTERS and scheme.lower() == "bearer" else None
    if parsed is None:
        raise InvalidApiKey("The API key is malformed: mistyped or cut off? Keys look like bk-****.")
    record = await process.keys.get(parsed.key_id)
    masked = f"{presented.strip()[:PREFIX_LENGTH]}****"
    if record is None or not record_matches(record, parsed):
        raise InvalidApiKey(f"Incorrect API key provided: {masked}.")
    return _usable(record, masked)


def _usable(record: KeyRecord, masked: str) -> KeyRecord:
    refusal = record.refusal(timezone.now())
    if refusal == "suspended":
        raise OrganisationSuspended("Your organisation is suspended.")
    if refusal is not None:
        raise InvalidApiKey(f"The API key {masked} is {refusal}.")
    return record


def request_uuid(text: str) -> uuid.UUID | None:
    """From `chatcmpl-<32 hex digits>` or `cmpl-<32 hex digits>`."""
    prefix, _, digits = text.partition("-")
    if prefix not in ("chatcmpl", "cmpl") or len(digits) != 32 or not set(digits) <= set("0123456789abcdef"):
        return None
    return uuid.UUID(hex=digits)


def json_response(data: Any) -> JsonResponse:
    return JsonResponse(data, json_dumps_params={"separators": (",", ":")})
