"""The routes. Handlers are plain coroutines over ASGI; the edge wraps them all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo import __version__
from octavo.api_keys import ADMIN_TENANT
from octavo.server.chat import chat_completions
from octavo.server.completions import completions
from octavo.server.edge import Edge, RejectedError
from octavo.server.embeddings import embeddings, score
from octavo.server.kv_page import kv_page
from octavo.server.messages_api import count_tokens, messages
from octavo.server.metrics import CONTENT_TYPE
from octavo.server.replies import Exchange, send_bytes, send_json, send_pieces
from octavo.server.responses_api import (
    cancel_response,
    count_input_tokens,
    create_response,
    delete_response,
    get_input_items,
    get_response,
)
from octavo.server.state import ServerState
from octavo.server.systemone import systemone
from octavo.server.text_endpoints import apply_template, detokenize, tokenize

Handler = Callable[[ServerState, Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Handlers of one path by method, as an ASGI application. ``public`` ones need no key.

    ``inside`` ones show what every tenant does: where there are several, only ``admin`` may look.
    """

    state: ServerState
    handlers: Mapping[str, Handler]
    public: bool = False
    inside: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Key, method, then the handler."""
        if not self.public:
            scope["octavo.tenant"] = tenant = self.state.api_keys.check(scope["headers"])
            if self.inside and self.state.api_keys.num_tenants > 1 and tenant != ADMIN_TENANT:
                raise RejectedError(
                    403, "this path shows all tenants; use a key of the tenant admin",
                    code="admin_key_required",
                )  # fmt: skip
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        handler = self.handlers.get(method)
        if handler is None:
            takes = " or ".join(self.handlers)
            raise RejectedError(405, f"this path takes {takes}", code="method_not_allowed")
        await handler(self.state, Exchange(scope, receive, send))


def build_app(state: ServerState, *, allowed_hosts: Iterable[str] = ()) -> ASGIApp:
    """The whole application."""

    def get(path: str, handler: Handler, *, public: bool = False) -> Route:
        return Route(path, Endpoint(state, {"GET": handler}, public))

    def inside(path: str, handler: Handler) -> Route:
        return Route(path, Endpoint(state, {"GET": handler}, inside=True))

    def post(path: str, handler: Handler) -> Route:
        return Route(path, Endpoint(state, {"POST": handler}))

    stored = Endpoint(state, {"GET": get_response, "DELETE": delete_response})
    router = Router(
        routes=[
            post("/v1/chat/completions", chat_completions),
            post("/v1/completions", completions),
            post("/v1/messages", messages),
            post("/v1/messages/count_tokens", count_tokens),
            post("/v1/responses", create_response),
            post("/v1/responses/input_tokens", count_input_tokens),
            post("/v1/responses/{response_id}/cancel", cancel_response),
            get("/v1/responses/{response_id}/input_items", get_input_items),
            Route("/v1/responses/{response_id}", stored),
            post("/v1/embeddings", embeddings),
            post("/v1/score", score),
            post("/v1/systemone", systemone),
            get("/v1/models", _models),
            get("/v1/models/{name:path}", _model),
            post("/tokenize", tokenize),
            post("/detokenize", detokenize),
            post("/apply-template", apply_template),
            post("/reset_prefix_cache", _reset_prefix_cache),
            get("/health", _health, public=True),
            get("/ready", _ready, public=True),
            get("/version", _version),
            get("/metrics", _metrics),
            inside("/debug/kv", _debug_kv),
            inside("/debug/requests", _debug_requests),
        ],
        redirect_slashes=False,
        default=_not_found,
    )
    return Edge(router, allowed_hosts=allowed_hosts)


async def _not_found(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise RejectedError(404, "no such path", code="not_found")


def _model_object(state: ServerState, name: str) -> dict[str, object]:
    welcome = state.client.welcome
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "octavo",
        "root": state.model_names[0],
        "max_model_len": welcome.max_model_len if welcome is not None else None,
        "generation_config": state.generation_config,
    }


async def _models(state: ServerState, http: Exchange) -> None:
    data = [_model_object(state, name) for name in state.model_names]
    await send_json(http.send, {"object": "list", "data": data})


async def _model(state: ServerState, http: Exchange) -> None:
    name = state.check_model(http.scope["path_params"]["name"])
    await send_json(http.send, _model_object(state, name))


async def _health(state: ServerState, http: Exchange) -> None:
    await send_json(http.send, {"status": "alive"})


async def _ready(state: ServerState, http: Exchange) -> None:
    if state.draining:
        await send_json(http.send, {"status": "draining"}, status=503, headers=_RETRY)
    elif not state.client.ready:
        await send_json(http.send, {"status": "not ready"}, status=503, headers=_RETRY)
    else:
        await send_json(http.send, {"status": "ready"})


_RETRY = ((b"retry-after", b"2"),)


async def _version(state: ServerState, http: Exchange) -> None:
    await send_json(http.send, {"version": __version__})


async def _reset_prefix_cache(state: ServerState, http: Exchange) -> None:
    await send_json(http.send, await state.client.control("reset_prefix_cache"))


async def _metrics(state: ServerState, http: Exchange) -> None:
    await send_bytes(http.send, state.metrics.render(), content_type=CONTENT_TYPE)


async def _debug_kv(state: ServerState, http: Exchange) -> None:
    await send_pieces(http.send, kv_page(await state.client.control("kv")))


async def _debug_requests(state: ServerState, http: Exchange) -> None:
    await send_json(http.send, await state.client.control("requests"))
