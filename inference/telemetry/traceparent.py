"""W3C Trace Context, the header `traceparent`: version-trace-span-flags."""

from __future__ import annotations

import re

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_LENGTH = 55
_MOST = 512  # of what a later version may have added


def traceparent_read(header: str) -> str:
    """As this version writes it; empty where the header is none. What a later version added is dropped, as the standard says."""
    found = _FORM.fullmatch(header.strip()) if len(header) <= _MOST else None
    if found is None:
        return ""
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not trace.strip("0") or not span.strip("0"):
        return ""
    return f"00-{trace}-{span}-{int(flags, 16) & 1:02x}"


def trace_id_of(traceparent: str) -> str:
    return traceparent[3:35] if len(traceparent) == _LENGTH else ""
