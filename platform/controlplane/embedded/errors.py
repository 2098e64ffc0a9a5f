"""What a person who starts Brigade can be told. The message says what to do."""

from __future__ import annotations


class EmbeddedError(Exception):
    code = "embedded_error"


class AlreadyRunning(EmbeddedError):
    code = "already_running"


class PortInUse(EmbeddedError):
    code = "port_in_use"


class UnsafeFolder(EmbeddedError):
    code = "unsafe_folder"


class ServerFailed(EmbeddedError):
    code = "server_failed"


class StepFailed(EmbeddedError):
    code = "step_failed"


class ChildFailed(EmbeddedError):
    code = "child_failed"


class NotReady(EmbeddedError):
    code = "not_ready"
