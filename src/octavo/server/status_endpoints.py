"""What is told of the server itself: its models, whether it lives, and what it holds."""

from __future__ import annotations

import msgspec

from octavo import __version__
from octavo.errors import RequestNotFoundError
from octavo.server.kv_page import kv_page
from octavo.server.metrics import CONTENT_TYPE
from octavo.server.replies import Exchange, send_bytes, send_json, send_pieces
from octavo.server.state import ServerState


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


async def models(state: ServerState, http: Exchange) -> None:
    """The served models."""
    data = [_model_object(state, name) for name in state.model_names]
    await send_json(http.send, {"object": "list", "data": data})


async def model(state: ServerState, http: Exchange) -> None:
    """One served model."""
    name = state.check_model(http.scope["path_params"]["name"])
    await send_json(http.send, _model_object(state, name))


async def health(state: ServerState, http: Exchange) -> None:
    """Whether the server is alive."""
    await send_json(http.send, {"status": "alive"})


async def ready(state: ServerState, http: Exchange) -> None:
    """Whether it makes progress and takes work."""
    if state.client.ready and not state.draining:
        await send_json(http.send, {"status": "ready"})
        return
    why = "draining" if state.draining else "not ready"
    await send_json(http.send, {"status": why}, status=503, headers=((b"retry-after", b"2"),))


async def version(state: ServerState, http: Exchange) -> None:
    """The version of this server."""
    await send_json(http.send, {"version": __version__})


async def reset_prefix_cache(state: ServerState, http: Exchange) -> None:
    """Forget every cached prefix that nobody uses now."""
    await send_json(http.send, await state.client.control("reset_prefix_cache"))


async def metrics(state: ServerState, http: Exchange) -> None:
    """Counters and gauges, for Prometheus."""
    await send_bytes(http.send, state.metrics.render(), content_type=CONTENT_TYPE)


async def debug_kv(state: ServerState, http: Exchange) -> None:
    """Every block of the KV pool, and the ledger."""
    await send_pieces(http.send, kv_page(await state.client.control("kv")))


async def debug_request(state: ServerState, http: Exchange) -> None:
    """The request of one id of the engine's, or those of a client's id by the engine's."""
    rows, wanted = await _requests(state), http.scope["path_params"]["request_id"]
    named = {key: row for key, row in rows.items() if row["x_request_id"] == wanted}
    if not (found := rows.get(wanted, named)):
        message = "no such request is in the engine; /debug/requests lists those that are"
        raise RequestNotFoundError(message)
    await send_json(http.send, found)


async def debug_requests(state: ServerState, http: Exchange) -> None:
    """The requests in the engine by its ids: limits, and where each of the branches stands."""
    await send_json(http.send, await _requests(state))


async def _requests(state: ServerState) -> dict[str, dict[str, object]]:
    found = msgspec.convert(await state.client.control("requests"), dict[str, dict[str, object]])
    return {key: {"x_request_id": state.request_ids.get(key), **row} for key, row in found.items()}
