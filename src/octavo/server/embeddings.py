"""``POST /v1/embeddings`` and ``POST /v1/score``: what the served model makes of a text.

Both read the final hidden state of a text's last token (``frontend.readings``); a score is the
cosine of two of them.
"""

from __future__ import annotations

import base64
import sys
import time
import uuid
from array import array
from dataclasses import dataclass

from octavo.core.probe import Probe
from octavo.core.request import Request
from octavo.errors import InvalidRequestError
from octavo.frontend.readings import similarity
from octavo.server.call import Call, read_body, read_call
from octavo.server.endpoints import Endpoint
from octavo.server.engine_request import probe_request
from octavo.server.probing import Answer, run_probes
from octavo.server.prompts import MAX_PROMPTS, read_prompts
from octavo.server.replies import Exchange, ignored_header, send_json
from octavo.server.state import ServerState
from octavo.server.typed_body import TypedBody
from octavo.text.members import wrong

_HIDDEN = Probe(hidden=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Embeddings(Call):
    as_base64: bool
    dimensions: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Score(Call):
    """The requests are first all of ``text_1`` (``num_first``), then all of ``text_2``."""

    num_first: int


async def embeddings(state: ServerState, http: Exchange) -> None:
    """A unit vector for each input."""
    call = await read_call(state, http, _parse_embeddings)
    answer = await run_probes(state, http, call)
    if answer is None:
        return
    dimensions = call.dimensions
    vectors = [reading.embedding(dimensions) for reading in answer.readings]
    if dimensions is not None and len(vectors[0]) < dimensions:
        most = len(vectors[0])
        raise wrong("dimensions", f"is {dimensions}; the limit is {most}, what the model's have")
    data = [
        {"object": "embedding", "index": index, "embedding": _shown(vector, call.as_base64)}
        for index, vector in enumerate(vectors)
    ]
    body = {"object": "list", "data": data, "model": call.model, "usage": _usage(answer)}
    await send_json(http.send, body, headers=ignored_header(call.ignored))


async def score(state: ServerState, http: Exchange) -> None:
    """The similarity of each text to another, or of pairs."""
    call = await read_call(state, http, _parse_score)
    answer = await run_probes(state, http, call)
    if answer is None:
        return
    vectors = [reading.embedding() for reading in answer.readings]
    first, second = vectors[: call.num_first], vectors[call.num_first :]
    first = first * len(second) if len(first) == 1 else first
    data = [
        {"index": index, "object": "score", "score": similarity(*pair)}
        for index, pair in enumerate(zip(first, second, strict=True))
    ]
    body = {
        "id": f"score-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": call.model,
        "data": data,
        "usage": _usage(answer),
    }
    await send_json(http.send, body, headers=ignored_header(call.ignored))


def _parse_embeddings(state: ServerState, values: dict[str, object]) -> _Embeddings:
    body, model, ignored = read_body(state, values, Endpoint.EMBEDDINGS)
    return _Embeddings(
        requests=_requests(state, body, "input"),
        model=model,
        ignored=ignored,
        as_base64=body.raw("encoding_format") == "base64",
        dimensions=body.integer("dimensions"),
    )


def _parse_score(state: ServerState, values: dict[str, object]) -> _Score:
    body, model, ignored = read_body(state, values, Endpoint.SCORE)
    first, second = (_requests(state, body, name) for name in ("text_1", "text_2"))
    if len(first) not in (1, len(second)):
        raise wrong(
            "text_1",
            f"has {len(first)} entries and text_2 {len(second)}; send one text_1 for all, "
            "or as many as text_2",
        )
    if (count := len(first) + len(second)) > MAX_PROMPTS:
        raise InvalidRequestError(
            f"text_1 and text_2 have {count} entries; the limit is {MAX_PROMPTS}", param="text_2"
        )
    return _Score(
        requests=[*first, *second],
        model=model,
        ignored=ignored,
        num_first=len(first),
    )


def _requests(state: ServerState, body: TypedBody, name: str) -> list[Request]:
    """A probe for each text (or list of token ids) of a field."""
    prompts = read_prompts(body, vocab_size=state.tokenizer.vocab_size, name=name)
    ids = [state.tokenizer.encode(item) if isinstance(item, str) else item for item in prompts]
    return [probe_request(state, body, one, probe=_HIDDEN, name=name) for one in ids]


def _shown(vector: array[float], as_base64: bool) -> list[float] | str:
    """Base64 is of little-endian float32 values."""
    if not as_base64:
        return vector.tolist()
    if sys.byteorder == "big":
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()


def _usage(answer: Answer) -> dict[str, object]:
    """Nothing is generated."""
    usage = answer.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
