"""What stands before every page of the console: its files, its database role, its headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.http.response import HttpResponseBase
from whitenoise.middleware import WhiteNoiseMiddleware  # type: ignore[import-untyped]

ROOT = "/console/"
# Alpine, which Unfold is built on, evaluates attributes of the page: hence 'unsafe-eval'. No inline script runs.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)

View = Callable[[HttpRequest], HttpResponseBase]


@contextmanager
def system_role() -> Iterator[None]:
    """Inside, this thread's default connection is that of `brigade_system`, which sees all tenants.

    So the console reads and writes through the same selectors and services as everybody else, and none of them can be given the
    wrong connection by mistake. Connections belong to threads: other requests are not touched.
    """
    ordinary = connections["default"]
    connections["default"] = connections["system"]
    try:
        yield
    finally:
        connections["default"] = ordinary


def as_operator(get_response: View) -> View:
    def middleware(request: HttpRequest) -> HttpResponseBase:
        if not request.path_info.startswith(ROOT):
            return get_response(request)
        if "%00" in request.META.get("QUERY_STRING", ""):  # PostgreSQL knows no NUL, and Django asks it all the same
            return HttpResponseBadRequest("A query may not contain NUL.")
        with system_role():
            response = get_response(request)
        response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        response.headers["Cache-Control"] = "no-store, private"
        return response

    return middleware


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]  # whitenoise has no types
    """Whitenoise with whole bodies: Django would read its file iterator in one piece anyway under ASGI, and warn."""

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponse:
        found = static_file.get_response(request.method, request.META)
        body = b""
        if found.file is not None:
            with found.file as file:
                body = file.read()
        response = HttpResponse(body, status=int(found.status))
        del response.headers["Content-Type"]
        for name, value in found.headers:
            response.headers[name] = value
        return response


def static_files(get_response: View) -> StaticFiles:
    return StaticFiles(get_response)
