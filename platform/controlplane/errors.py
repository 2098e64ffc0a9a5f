"""Every error that a client of the API may see, and the one place that renders them.

`message` is public. `detail` is for the operator's log alone: it never leaves the process in an answer.
"""

from __future__ import annotations

import json
import logging
import math
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseNotFound, HttpResponseServerError

from controlplane.gateway.metrics import ERRORS

log = logging.getLogger("brigade.errors")


class ApiError(Exception):
    """`retry_after_s`: when a repetition may help; `should_retry` overrides what clients conclude from the status."""

    status = 500
    code = "internal_error"
    type = "server_error"
    should_retry: bool | None = None
    retry_after_s: float | None = None

    def __init__(self, message: str, *, param: str | None = None, detail: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.detail = detail
        self.retry_after_s = retry_after_s if retry_after_s is not None else self.retry_after_s

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        headers = {}
        if self.should_retry is not None:
            headers["x-should-retry"] = "true" if self.should_retry else "false"
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
            headers["retry-after-ms"] = str(max(1, math.ceil(self.retry_after_s * 1_000)))
        return headers


class InvalidRequest(ApiError):
    status, code, type = 400, "invalid_request", "invalid_request_error"


class InvalidJson(InvalidRequest):
    code = "invalid_json"


class InvalidValue(InvalidRequest):
    code = "invalid_value"


class MissingParameter(InvalidRequest):
    code = "missing_required_parameter"


class UnsupportedParameter(InvalidRequest):
    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class InvalidApiKey(ApiError):
    status, code, type = 401, "invalid_api_key", "authentication_error"


class OrganisationSuspended(ApiError):
    status, code, type = 403, "organisation_suspended", "permission_error"


class NotFound(InvalidRequest):
    status, code = 404, "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(InvalidRequest):
    status, code = 405, "method_not_allowed"


class BodyTooSlow(InvalidRequest):
    status, code = 408, "request_timeout"


class IdempotencyInProgress(InvalidRequest):
    status, code, retry_after_s = 409, "idempotency_in_progress", 1.0


class IdempotencyAnswerGone(InvalidRequest):
    status, code = 410, "idempotency_answer_gone"


class IdempotencyKeyReused(InvalidRequest):
    status, code = 422, "idempotency_key_reused"


class BodyTooLarge(InvalidRequest):
    status, code = 413, "request_too_large"


class UnsupportedMediaType(InvalidRequest):
    status, code = 415, "unsupported_media_type"


class HeadTooLarge(InvalidRequest):
    status, code = 431, "request_head_too_large"


class MalformedHttp(InvalidRequest):
    code = "malformed_http"


class RateLimitExceeded(ApiError):
    status, code, type = 429, "rate_limit_exceeded", "rate_limit_error"


class RequestAboveRateLimit(RateLimitExceeded):
    """Larger than the whole limit: it can never pass."""

    should_retry = False


class InsufficientQuota(ApiError):
    status, code, type, should_retry = 429, "insufficient_quota", "insufficient_quota", False


class InternalError(ApiError):
    def __init__(self, detail: str = "") -> None:
        super().__init__("The server had an error while processing your request.", detail=detail)


class Overloaded(ApiError):
    status, code, type, retry_after_s = 503, "overloaded", "server_error", 1.0


class NoWorkers(Overloaded):
    code, retry_after_s = "no_workers", 2.0


class RequestFailed(ApiError):
    """The engine or the reaper ended the request: its code and its public text."""

    def __init__(self, message: str, *, code: str, status: int = 500) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        if status == 400:
            self.type = "invalid_request_error"  # only the engine could tell


class FailedUnderKey(RequestFailed):
    """The end of an earlier call, told again: under its Idempotency-Key nothing else will come."""

    should_retry = False

    def __init__(self, message: str, *, code: str, status: int = 500) -> None:
        super().__init__(f"{message} Use a new Idempotency-Key to ask again.", code=code, status=status)


def error_response(error: ApiError) -> HttpResponse:
    if error.detail or error.status >= 500:
        log.log(logging.ERROR if error.status == 500 else logging.INFO, "%s %s", error.code, error.detail or error.message)
    ERRORS.labels(error.code, str(error.status)).inc()
    response = HttpResponse(json.dumps(error.body()), status=error.status, content_type="application/json")
    for name, value in error.headers().items():
        response[name] = value
    response._has_been_logged = True  # type: ignore[attr-defined]  # by us, with what is worth it
    return response


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler404."""
    if is_for_people(request.path):
        return HttpResponseNotFound("Not found.", content_type="text/plain")
    return error_response(NotFound("There is nothing at this address."))


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's handler500."""
    if is_for_people(request.path):
        return HttpResponseServerError("Internal error.", content_type="text/plain")
    return error_response(InternalError())


def is_for_people(path: str) -> bool:
    """The console and its files. Everywhere else clients are programs, and every answer is JSON."""
    return path == "/" or path.startswith(("/console/", "/static/"))
