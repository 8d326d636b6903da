"""Every error that Octavo raises on purpose.

    OctavoError
    ├── InvalidRequestError      400  the request can never work; names field, value and limit
    │   └── ContextLengthError   400  prompt (plus output) exceeds the model or the pool
    ├── ModelNotFoundError       404  unknown model name
    ├── ResponseNotFoundError    404  no such response is stored
    ├── RequestNotFoundError     404  no such request is in the engine
    ├── OverloadedError          429  a queue is full; retry after a while
    ├── UnavailableError         503  starting, draining or recovering; retry after a while
    ├── DeadlineExceededError    504  the request's deadline passed
    ├── EngineError              500  a fault inside the engine; the request is named
    ├── ModelFileError           exit a model file is malformed or unsupported
    ├── DownloadError            exit a model cannot be fetched
    └── ConfigError              exit an option, or this machine, cannot serve

Each class knows its HTTP status and its wire ``code``.
A message names the value, the limit and the remedy, and carries no path, address or repr
when it can reach a client. An ``AssertionError`` is never part of this tree: it means a bug in us.
"""

from __future__ import annotations


class OctavoError(Exception):
    """Base of all deliberate errors."""

    http_status = 500
    error_type = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequestError(OctavoError):
    """The request is wrong in itself. ``param`` names the field."""

    http_status = 400
    error_type = "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    """The prompt cannot fit the model's context or the KV pool."""

    code = "context_length_exceeded"


class ModelNotFoundError(OctavoError):
    """No such model is served or known."""

    http_status = 404
    error_type = "invalid_request_error"
    code = "model_not_found"


class ResponseNotFoundError(OctavoError):
    """No such response is stored, for this client."""

    http_status = 404
    error_type = "invalid_request_error"
    code = "response_not_found"


class RequestNotFoundError(OctavoError):
    """No such request is in the engine: it never was, or has ended."""

    http_status = 404
    error_type = "invalid_request_error"
    code = "request_not_found"


class OverloadedError(OctavoError):
    """A bounded queue is full; the client may retry after ``retry_after_s``."""

    http_status = 429
    error_type = "rate_limit_error"
    code = "overloaded"
    retry_after_s = 1


class UnavailableError(OctavoError):
    """The engine is starting, draining or recovering."""

    http_status = 503
    code = "unavailable"
    retry_after_s = 2


class DeadlineExceededError(OctavoError):
    """The request's deadline passed before it finished."""

    http_status = 504
    code = "deadline_exceeded"


class EngineError(OctavoError):
    """A step failed; the named request was dropped."""

    code = "engine_error"


class ModelFileError(OctavoError):
    """A model file is truncated, malformed or of an unsupported kind."""


class DownloadError(OctavoError):
    """A model could not be fetched, verified or stored."""


class ConfigError(OctavoError):
    """An option is impossible, or the machine cannot serve the model."""


def shown_number(value: float) -> str:
    """A client's number as it may appear in an error."""
    return "a number of many digits" if abs(value) >= 1 << 64 else f"{value}"
