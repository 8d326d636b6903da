"""The one table of what can be asked: the routes, and the OpenAPI document, are made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from octavo.server import responses_api, status_endpoints
from octavo.server.chat import chat_completions
from octavo.server.completions import completions
from octavo.server.embeddings import embeddings, score
from octavo.server.endpoints import Endpoint
from octavo.server.messages_api import count_tokens, messages
from octavo.server.replies import Exchange
from octavo.server.responses_api import MAX_EVENTS, MAX_PAGE
from octavo.server.state import ServerState
from octavo.server.systemone import systemone
from octavo.server.text_endpoints import apply_template, detokenize, tokenize
from octavo.text.shapes import ANY, OBJECT, Shape, integer, ref, text, word

Handler = Callable[[ServerState, Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path.

    ``endpoint`` says which fields its body has, None that it has none; ``reply`` what a 200 holds,
    None that it is no JSON; ``errors`` are statuses beside those that any request may get.
    ``public`` needs no key. ``inside`` shows what every tenant does, or changes what all share.
    """

    path: str
    handler: Handler
    method: str = "GET"
    endpoint: Endpoint | None = None
    reply: Shape | None
    query: Mapping[str, Shape] = field(default_factory=dict)
    errors: tuple[int, ...] = ()
    public: bool = False
    inside: bool = False


def _post(path: str, handler: Handler, *, endpoint: Endpoint, reply: Shape) -> Operation:
    errors = (404, 408, 413, 415, 429, 503, 504)
    return Operation(
        path=path, handler=handler, method="POST", endpoint=endpoint, reply=reply, errors=errors
    )


def _get(
    path: str, handler: Handler, reply: Shape | None, *, errors: tuple[int, ...] = ()
) -> Operation:
    return Operation(path=path, handler=handler, reply=reply, errors=errors)


_STORED = "/v1/responses/{response_id}"

OPERATIONS = (
    _post(
        "/v1/chat/completions", chat_completions, endpoint=Endpoint.CHAT,
        reply=ref("ChatCompletion"),
    ),
    _post("/v1/completions", completions, endpoint=Endpoint.COMPLETIONS, reply=ref("Completion")),
    _post("/v1/messages", messages, endpoint=Endpoint.MESSAGES, reply=ref("Message")),
    _post(
        "/v1/messages/count_tokens", count_tokens, endpoint=Endpoint.COUNT_TOKENS,
        reply=ref("MessageTokens"),
    ),
    _post(
        "/v1/responses", responses_api.create_response, endpoint=Endpoint.RESPONSES,
        reply=ref("Response"),
    ),
    _post(
        "/v1/responses/input_tokens", responses_api.count_input_tokens,
        endpoint=Endpoint.INPUT_TOKENS, reply=ref("InputTokens"),
    ),
    Operation(
        path=f"{_STORED}/cancel", handler=responses_api.cancel_response, method="POST",
        reply=ref("Response"), errors=(404,),
    ),
    Operation(
        path=f"{_STORED}/input_items", handler=responses_api.get_input_items,
        reply=ref("InputItems"),
        query={
            "limit": integer(1, MAX_PAGE), "order": word("asc", "desc"), "after": text(),
            "include": ANY,
        }, errors=(404,),
    ),
    Operation(
        path=_STORED, handler=responses_api.get_response, reply=ref("Response"),
        query={
            "stream": word("true", "false"), "starting_after": integer(-1, MAX_EVENTS),
            "include": ANY, "include_obfuscation": ANY,
        }, errors=(404,),
    ),
    Operation(
        path=_STORED, handler=responses_api.delete_response, method="DELETE",
        reply=ref("DeletedResponse"), errors=(404,),
    ), _post("/v1/embeddings", embeddings, endpoint=Endpoint.EMBEDDINGS, reply=ref("Embeddings")),
    _post("/v1/score", score, endpoint=Endpoint.SCORE, reply=ref("Scores")),
    _post("/v1/systemone", systemone, endpoint=Endpoint.SYSTEMONE, reply=ref("Judgements")),
    _get("/v1/models", status_endpoints.models, ref("Models")),
    _get("/v1/models/{name}", status_endpoints.model, ref("Model"), errors=(404,)),
    _post("/tokenize", tokenize, endpoint=Endpoint.TOKENIZE, reply=ref("Tokens")),
    _post("/detokenize", detokenize, endpoint=Endpoint.DETOKENIZE, reply=ref("Prompt")),
    _post(
        "/apply-template", apply_template, endpoint=Endpoint.APPLY_TEMPLATE, reply=ref("Prompt"),
    ),
    Operation(
        path="/reset_prefix_cache", handler=status_endpoints.reset_prefix_cache, method="POST",
        reply=OBJECT, errors=(503,), inside=True,
    ),
    Operation(path="/health", handler=status_endpoints.health, reply=ref("Health"), public=True),
    Operation(
        path="/ready", handler=status_endpoints.ready, reply=ref("Ready"), errors=(503,),
        public=True,
    ), _get("/version", status_endpoints.version, ref("Version")),
    _get("/metrics", status_endpoints.metrics, None),
    Operation(
        path="/debug/kv", handler=status_endpoints.debug_kv, reply=OBJECT, errors=(503,),
        inside=True,
    ),
    Operation(
        path="/debug/requests", handler=status_endpoints.debug_requests, reply=OBJECT,
        errors=(503,), inside=True,
    ),
    Operation(
        path="/debug/requests/{request_id}", handler=status_endpoints.debug_request, reply=OBJECT,
        errors=(404, 503), inside=True,
    ),
)  # fmt: skip
