"""From token ids and parameters to the engine's request: what every protocol ends with."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.probe import Probe
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.errors import ContextLengthError
from octavo.server.sampling_fields import fit_max_tokens
from octavo.server.state import ServerState
from octavo.server.typed_body import TypedBody


def engine_request(
    state: ServerState,
    body: TypedBody,
    token_ids: Sequence[int],
    *,
    sampling: SamplingParams,
    default_tokens: int | None = None,
) -> Request:
    """The request for one prompt; without ``max_tokens`` and a default the context bounds it.

    Raises:
        OctavoError: it does not fit, or a field of the body is out of its range.
    """
    token_ids = _truncated(body, token_ids)
    sampling = fit_max_tokens(
        sampling,
        num_prompt_tokens=len(token_ids),
        limits=state.token_limits(),
        default=default_tokens,
    )
    return Request(
        request_id="",
        prompt_token_ids=tuple(token_ids),
        sampling=sampling,
        eos_token_ids=state.eos_token_ids,
        domain=_salt(body),
    )


def probe_request(
    state: ServerState, body: TypedBody, token_ids: Sequence[int], *, probe: Probe, name: str
) -> Request:
    """The request that reads ``probe`` off after one prompt, which came in the field ``name``.

    Raises:
        OctavoError: it does not fit, or a field of the body is out of its range.
    """
    token_ids = _truncated(body, token_ids)
    longest = probe.sampling.max_tokens or 0
    limit_name, limit = state.token_limits().tightest
    if (needed := len(token_ids) + longest) > limit:
        rest = f"the longest label has {longest}" if probe.labels else "one must be left"
        raise ContextLengthError(
            f"{name} has {len(token_ids)} tokens and {rest}, together {needed}, but {limit_name} "
            f"is {limit} tokens; shorten it",
            param=name,
        )
    return Request(
        request_id="",
        prompt_token_ids=tuple(token_ids),
        sampling=probe.sampling,
        domain=_salt(body),
        probe=probe,
    )


def _truncated(body: TypedBody, token_ids: Sequence[int]) -> Sequence[int]:
    """The last ``truncate_prompt_tokens`` of the prompt."""
    kept = body.integer("truncate_prompt_tokens")
    return token_ids if kept is None else token_ids[-kept:]


def _salt(body: TypedBody) -> str:
    """Prompts of another salt share no cached prefix with this one."""
    return body.string("cache_salt") or ""
