"""One line for an event on standard error, in UTC; whoever runs the process decides where it goes."""

from __future__ import annotations

import logging
import time
from typing import Any


class UtcFormatter(logging.Formatter):
    converter = time.gmtime  # type: ignore[assignment] # the stub knows a bound method only


class QuietProbes(logging.Filter):
    """A probe that answers "not ready yet" is asked ten times a second during a start: an answer, no error."""

    def filter(self, record: logging.LogRecord) -> bool:
        request = getattr(record, "request", None)
        return getattr(request, "path", "") not in ("/readyz", "/healthz") or getattr(record, "status_code", 0) != 503


def logging_settings(level: str) -> dict[str, Any]:
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": UtcFormatter,
                "format": "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s",
                "datefmt": "%Y-%m-%dT%H:%M:%S",
            }
        },
        "filters": {"probes": {"()": QuietProbes}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["probes"]}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {"django": {"handlers": [], "level": level, "propagate": True}},
    }
