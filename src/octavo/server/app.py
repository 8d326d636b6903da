"""The application: a route per path of the table of operations; the edge wraps them all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.api_keys import ADMIN_TENANT
from octavo.server.edge import Edge, RejectedError
from octavo.server.openapi import openapi_document
from octavo.server.operations import OPERATIONS, Operation
from octavo.server.replies import Exchange, encode_json, send_bytes
from octavo.server.state import ServerState
from octavo.text.shapes import OBJECT


@dataclass(frozen=True, slots=True)
class Resource:
    """The operations of one path by method, as an ASGI application."""

    state: ServerState
    operations: Mapping[str, Operation]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Key, method, then the handler."""
        any_one = next(iter(self.operations.values()))
        if not any_one.public:
            scope["octavo.tenant"] = tenant = self.state.api_keys.check(scope["headers"])
            if any_one.inside and self.state.api_keys.num_tenants > 1 and tenant != ADMIN_TENANT:
                raise RejectedError(
                    403, "this path is about all tenants; use a key of the tenant admin",
                    code="admin_key_required",
                )  # fmt: skip
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        operation = self.operations.get(method)
        if operation is None:
            takes = [*self.operations, *(["HEAD"] if "GET" in self.operations else [])]
            raise RejectedError(
                405, f"this path takes {' or '.join(self.operations)}", allow=takes,
                code="method_not_allowed",
            )  # fmt: skip
        await operation.handler(self.state, Exchange(scope, receive, send))


def build_app(state: ServerState, *, allowed_hosts: Iterable[str] = ()) -> ASGIApp:
    """The whole application."""
    paths: dict[str, dict[str, Operation]] = {}
    for operation in ALL_OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = operation
    router = Router(
        routes=[
            # A model's name may hold slashes.
            Route(path.replace("{name}", "{name:path}"), Resource(state, operations))
            for path, operations in paths.items()
        ],
        redirect_slashes=False,
        default=_not_found,
    )
    return Edge(router, allowed_hosts=allowed_hosts)


async def _not_found(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise RejectedError(404, "no such path", code="not_found")


async def _openapi(state: ServerState, http: Exchange) -> None:
    """This document."""
    await send_bytes(http.send, _document(), content_type=b"application/json")


ALL_OPERATIONS = (*OPERATIONS, Operation(path="/openapi.json", handler=_openapi, reply=OBJECT))


@cache
def _document() -> bytes:
    return encode_json(openapi_document(ALL_OPERATIONS))
