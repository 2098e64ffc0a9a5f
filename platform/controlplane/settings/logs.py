"""One line for an event on standard error, in UTC; whoever runs the process decides where it goes."""

from __future__ import annotations

import logging
import time
from typing import Any


class UtcFormatter(logging.Formatter):
    converter = time.gmtime  # type: ignore[assignment] # the stub knows a bound method only


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
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {"django": {"handlers": [], "level": level, "propagate": True}},
    }
