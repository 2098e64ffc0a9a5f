"""Why an engine does not take a request."""

from __future__ import annotations


class EngineRefusal(Exception):
    """The request can never run here, now or later. `code` is stable; `message` is public text."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
