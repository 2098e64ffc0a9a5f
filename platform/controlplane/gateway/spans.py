"""A call of the API as a span, with OpenTelemetry's names for generative AI. No text of a caller is in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from django.http import HttpRequest, HttpResponseBase

from controlplane.errors import ApiError
from controlplane.gateway.handler import EventStream
from inference.contracts import FinishEntry, Submission
from inference.telemetry.tracing import Attributes, ServerSpan, span

OPERATIONS = {"chat_completions": "chat", "completions": "text_completion"}
PROVIDER = "brigade"


class CallSpan(ServerSpan):
    """Used as a context manager: the span ends with the block, or with the stream that answers the call."""

    def __init__(self, route: str, request: HttpRequest) -> None:
        super().__init__(f"{request.method} {route}", request.headers.get("traceparent", ""))
        self._began = time.perf_counter()
        self._operation = OPERATIONS.get(route, route)
        self._streams = False
        self._reasons: list[str] = []
        self._input = self._output = self._cached = 0
        self.set({"http.request.method": request.method or "", "http.route": route})

    def __enter__(self) -> CallSpan:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._streams:
            self.end()

    def admitted(self, submissions: Sequence[Submission]) -> None:
        if not self.recorded:
            return
        first = submissions[0]
        self.rename(f"{self._operation} {first.model}")
        self.set(
            {
                "gen_ai.operation.name": self._operation,
                "gen_ai.provider.name": PROVIDER,
                "gen_ai.request.model": first.model,
                "gen_ai.request.max_tokens": first.sampling.max_tokens,
                "gen_ai.request.temperature": first.sampling.temperature,
                "gen_ai.request.choice.count": first.sampling.n,
                "gen_ai.request.stream": first.stream,
                "openai.response.service_tier": first.policy.tier,
                "brigade.request.id": first.request_id,
            }
        )
        attributes: Attributes = {"brigade.request.id": first.request_id, "brigade.prompts": len(submissions)}
        span("admission", self.context, lasted_s=time.perf_counter() - self._began, attributes=attributes)

    def first_token(self, after_s: float) -> None:
        self.set({"gen_ai.response.time_to_first_chunk": after_s})

    def finished(self, entry: FinishEntry) -> None:
        """One of the call's requests is done."""
        self._reasons += entry.reasons
        self._input += entry.prompt_tokens
        self._cached += entry.cached_tokens
        self._output += entry.completion_tokens
        self.set(
            {
                "gen_ai.response.finish_reasons": tuple(self._reasons),
                "gen_ai.usage.input_tokens": self._input,
                "gen_ai.usage.cache_read.input_tokens": self._cached,
                "gen_ai.usage.output_tokens": self._output,
            }
        )

    def refused(self, error: ApiError) -> None:
        """A fault of the caller's is no failure of the span."""
        if error.status >= 500:
            self.fail(error.code)
        else:
            self.set({"error.type": error.code})

    def answered(self, response: HttpResponseBase) -> None:
        self.set({"http.response.status_code": response.status_code})
        if isinstance(response, EventStream):
            self._streams = True
            response.release = _both(response.release, self.end)


def _both(first: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        try:
            first()
        finally:
            then()

    return call
