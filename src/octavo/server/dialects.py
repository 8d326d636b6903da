"""What a protocol calls things: the shape of its errors, and its own names of fields.

Inside, a field has one name (that of Chat Completions); an error names it as the client wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from octavo.errors import InvalidRequestError, OctavoError

# Of the request that is being answered.
REQUEST_ID: ContextVar[str | None] = ContextVar("x-request-id", default=None)

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(
    message: str, *, error_type: str, param: str | None = None, code: str | None = None
) -> dict[str, object]:
    """OpenAI's error object; all four keys are always there."""
    return {"error": {"message": message, "type": error_type, "param": param, "code": code}}


def _openai_error(error: OctavoError, message: str, param: str | None) -> dict[str, object]:
    return error_body(message, error_type=error.error_type, param=param, code=error.code)


def _anthropic_error(error: OctavoError, message: str, param: str | None) -> dict[str, object]:
    """It has no key for the field at fault, so the message always names it."""
    if param is not None and param not in message:
        message = f"{param}: {message}"
    status = error.http_status
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    inner = {"type": kind, "message": message}
    return {"type": "error", "error": inner, "request_id": REQUEST_ID.get()}


class AsWrittenError(InvalidRequestError):
    """Names a field as the client wrote it, which may be another field's name inside."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One protocol.

    ``names`` maps our name of a field to the protocol's; an error about the prompt is one about
    the field ``prompt``.
    """

    body: Callable[[OctavoError, str, str | None], dict[str, object]]
    names: Mapping[str, str] = field(default_factory=dict)
    prompt: str = "prompt"

    def error(self, error: OctavoError) -> dict[str, object]:
        """The error's object, in the protocol's shape and with its names."""
        message, param = error.message, error.param
        if isinstance(error, AsWrittenError):
            return self.body(error, message, param)
        if param == "prompt":
            param = self.prompt
        for ours, theirs in self.names.items():
            if param is None or not re.match(rf"{ours}(?![a-z_])", param):
                continue
            param = theirs + param.removeprefix(ours)
            # A field is named at the start, or is told from a plain word by its underscore.
            place = rf"\b{ours}\b" if "_" in ours else rf"\A{ours}\b"
            message = re.sub(place, theirs, message)
        return self.body(error, message, param)

    def own_names(self, values: Mapping[str, object]) -> dict[str, object]:
        """A body with the fields that we call otherwise under our names."""
        ours = {theirs: name for name, theirs in self.names.items()}
        return {ours.get(name, name): value for name, value in values.items()}


OPENAI = Dialect(_openai_error)
ANTHROPIC = Dialect(_anthropic_error, {"stop": "stop_sequences"}, prompt="messages")
RESPONSES = Dialect(
    _openai_error, {"max_tokens": "max_output_tokens", "messages": "input"}, prompt="input"
)

# An engine's word about a prompt is one about the field that it came in.
_BY_PREFIX = {
    "/v1/messages": ANTHROPIC,
    "/v1/responses": RESPONSES,
    "/v1/chat/completions": Dialect(_openai_error, prompt="messages"),
    "/v1/embeddings": Dialect(_openai_error, prompt="input"),
    "/v1/score": Dialect(_openai_error, prompt="text_1"),
    "/v1/systemone": Dialect(_openai_error, {"messages": "state"}, prompt="state"),
}


def dialect_of(path: str) -> Dialect:
    """The dialect in which a path is answered."""
    for prefix, dialect in _BY_PREFIX.items():
        if path == prefix or path.startswith(f"{prefix}/"):
            return dialect
    return OPENAI
