"""No secret in a log line, whatever a message or an exception said: known by its form, or because it was kept as one."""

from __future__ import annotations

import re

HIDDEN = "****"
LEAST = 8  # a shorter text stands in too many lines by chance

_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b(bk-[0-9A-Za-z]{0,8})[0-9A-Za-z-]+"), rf"\1{HIDDEN}"),  # API keys: what people may see is their beginning
    (re.compile(r"\b(bearer|basic)\s+[^\s\"',;]+", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"(://)[^/@\s\"']+@"), rf"\1{HIDDEN}@"),  # credentials of a URL
    (re.compile(r"\b((?:sk|rk|pk|whsec)_)[0-9A-Za-z_]+"), rf"\1{HIDDEN}"),  # Stripe's
    (
        re.compile(
            r"""(\b(?:password|passwd|secret(?:[_-]key)?|api[_-]?key|authorization)["']?\s*[=:]\s*["']?)(?!bearer|basic)[^\s"',;]+""",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
)

_known: set[str] = set()


def keep_secret(value: str) -> str:
    """From now on `value` itself stands in no line. Answers it."""
    if len(value) >= LEAST:
        _known.add(value)
    return value


def redacted(text: str) -> str:
    for value in list(_known):
        text = text.replace(value, HIDDEN)
    for form, shown in _FORMS:
        text = form.sub(shown, text)
    return text
