"""``GET /openapi.json``: the tables of operations and fields as one OpenAPI 3.1 document."""

from __future__ import annotations

import re
from collections.abc import Sequence

from octavo import __version__
from octavo.server import reply_shapes
from octavo.server.endpoints import ANTHROPIC, TEXT, TOKENIZE, Endpoint
from octavo.server.fields import FIELDS, Field, Treatment
from octavo.server.operations import Operation
from octavo.text import shapes
from octavo.text.shapes import NULL, Shape, optional, ref, text

_Object = dict[str, object]
_STATUSES = {
    400: "the request is wrong; `param` names the field",
    401: "a valid API key is required",
    403: "the Host, or this key, is not allowed here",
    404: "no such model, response or request",
    408: "the body took too long to come",
    413: "the body is too large",
    415: "the body is no plain JSON",
    429: "a queue is full; retry later",
    431: "the request's head is too large",
    500: "the engine failed; the request was dropped",
    501: "a Transfer-Encoding other than chunked",
    503: "starting, recovering or shutting down; retry later",
    504: "the deadline passed",
}
_OF_ANY = (400, 401, 403, 431, 500, 501)
_RETRIED = (429, 503, 504)
_KEYS: _Object = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_REQUEST_ID: _Object = {"schema": text(1), "description": "yours, where you sent one"}
_IGNORED: _Object = {"schema": text(1), "description": "the fields that were ignored, by name"}
_RETRY_AFTER: _Object = {"schema": text(1), "description": "seconds"}
_STREAM = (
    "with `stream: true`: server-sent events, as the protocol has them; a failure is an event too"
)


def openapi_document(operations: Sequence[Operation]) -> _Object:
    """The document, as an object."""
    paths: dict[str, _Object] = {}
    for operation in operations:
        path = paths.setdefault(operation.path, {})
        path[operation.method.lower()] = _operation(operation)
    bodies = {_body_name(endpoint): _body(endpoint) for endpoint in Endpoint}
    schemas = {**shapes.COMPONENTS, **reply_shapes.COMPONENTS, **bodies}
    said = "A field that is not named here is refused."
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": __version__, "description": said},
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _KEYS},
    }


def _operation(operation: Operation) -> _Object:
    name = operation.handler.__name__.strip("_")
    found: _Object = {
        "operationId": name,
        "summary": (operation.handler.__doc__ or "").split("\n", maxsplit=1)[0],
        "responses": {"200": _answer(operation)} | {
            str(status): _error(operation, status)
            for status in sorted({*_OF_ANY, *operation.errors})
            if status != 401 or not operation.public
        },
    }  # fmt: skip
    if operation.public:
        found["security"] = []
    parameters = [
        {"name": part, "in": "path", "required": True, "schema": text(1)}
        for part in re.findall(r"{(\w+)}", operation.path)
    ]
    parameters += [
        {"name": key, "in": "query", "schema": shape} for key, shape in operation.query.items()
    ]
    if parameters:
        found["parameters"] = parameters
    if operation.endpoint is not None:
        schema = ref(_body_name(operation.endpoint))
        found["requestBody"] = {
            "required": True, "content": {"application/json": {"schema": schema}}
        }  # fmt: skip
    return found


def _answer(operation: Operation) -> _Object:
    headers = {"x-request-id": _REQUEST_ID}
    content: _Object = {"application/json": {"schema": operation.reply}}
    if operation.reply is None:
        content = {"text/plain": {"schema": text()}}
    if operation.endpoint is not None:
        headers["x-octavo-ignored"] = _IGNORED
    if operation.endpoint in ANTHROPIC:
        headers["request-id"] = _REQUEST_ID
    if operation.endpoint in TEXT or "stream" in operation.query:
        content["text/event-stream"] = {"schema": {**text(), "description": _STREAM}}
    return {"description": "done", "headers": headers, "content": content}


def _error(operation: Operation, status: int) -> _Object:
    headers = {"x-request-id": _REQUEST_ID}
    if status in _RETRIED:
        headers["retry-after"] = _RETRY_AFTER
    schema = ref("MessagesError" if operation.endpoint in ANTHROPIC else "Error")
    if operation.public and status == 503:
        # A probe reads the same words in both cases.
        schema = operation.reply or schema
    return {
        "description": _STATUSES[status],
        "headers": headers,
        "content": {"application/json": {"schema": schema}},
    }


def _body_name(endpoint: Endpoint) -> str:
    return "".join(part.capitalize() for part in endpoint.split("_")) + "Request"


def _body(endpoint: Endpoint) -> Shape:
    rows = [field for field in FIELDS if endpoint in field.endpoints]
    body: Shape = {
        "type": "object",
        "properties": {field.name: _property(field, endpoint) for field in rows},
        "required": [field.name for field in rows if endpoint in field.required],
        "additionalProperties": False,
    }
    if endpoint in TOKENIZE:
        given = {field.name: field.shape for field in rows if field.name in ("prompt", "messages")}
        body["oneOf"] = [
            {"required": [name], "properties": {**dict.fromkeys(given, NULL), name: shape}}
            for name, shape in given.items()
        ]
    return body


def _property(field: Field, endpoint: Endpoint) -> Shape:
    shape = field.shape if endpoint in field.required else optional(field.shape)
    said = "" if field.treatment is Treatment.HONOURED else f"{field.treatment}: "
    return {**shape, "description": said + field.note}
