"""One line for an event on standard error, in UTC; whoever runs the process decides where it goes.

`text` is for people, `json` for machines: time, level, logger, message, which process, and which request it is about. In neither
is a secret, and nothing here logs what customers write.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from inference.telemetry.context import about, process
from inference.telemetry.redaction import redacted

MESSAGE_CHARACTERS = 8_192
TRACE_CHARACTERS = 32_768

FORMS = ("text", "json")


class TextFormatter(logging.Formatter):
    """One line, but for the trace of an exception: what a stranger sent cannot begin another."""

    converter = time.gmtime  # type: ignore[assignment] # the stub knows a bound method only

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = _shown(record.message, MESSAGE_CHARACTERS).replace("\r", "\\r").replace("\n", "\\n")
        return super().formatMessage(record)

    def formatException(self, *args: Any) -> str:  # noqa: N802
        return _shown(super().formatException(*args), TRACE_CHARACTERS)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": _shown(record.getMessage(), MESSAGE_CHARACTERS),
            **process(),
            **about(),
        }
        if record.exc_info:
            line["exception"] = _shown(self.formatException(record.exc_info), TRACE_CHARACTERS)
        return json.dumps(line, ensure_ascii=False)


def _shown(text: str, most: int) -> str:
    text = redacted(text)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


class QuietProbes(logging.Filter):
    """A probe that answers "not ready yet" is asked ten times a second during a start: an answer, no error."""

    def filter(self, record: logging.LogRecord) -> bool:
        request = getattr(record, "request", None)
        return getattr(request, "path", "") not in ("/readyz", "/healthz") or getattr(record, "status_code", 0) != 503


def logging_settings(level: str, form: str) -> dict[str, Any]:
    """`form` is one of FORMS."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "text": {
                "()": TextFormatter,
                "format": "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s",
                "datefmt": "%Y-%m-%dT%H:%M:%S",
            },
            "json": {"()": JsonFormatter},
        },
        "filters": {"probes": {"()": QuietProbes}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": form, "filters": ["probes"]}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {"django": {"handlers": [], "level": level, "propagate": True}},
    }
