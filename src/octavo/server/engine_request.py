"""From token ids and parameters to the engine's request: what every protocol ends with."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.errors import InvalidRequestError
from octavo.server.sampling_fields import fit_max_tokens
from octavo.server.state import ServerState
from octavo.server.typed_body import TypedBody

MAX_SALT_CHARS = 256


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


def _truncated(body: TypedBody, token_ids: Sequence[int]) -> Sequence[int]:
    """The last ``truncate_prompt_tokens`` of the prompt."""
    kept = body.integer("truncate_prompt_tokens")
    if kept is None:
        return token_ids
    if kept < 1:
        raise InvalidRequestError(
            "truncate_prompt_tokens must be 1 or more", param="truncate_prompt_tokens"
        )
    return token_ids[-kept:]


def _salt(body: TypedBody) -> str:
    """Prompts of another salt share no cached prefix with this one."""
    salt = body.string("cache_salt")
    if salt is not None and not 0 < len(salt) <= MAX_SALT_CHARS:
        raise InvalidRequestError(
            f"cache_salt must have 1 to {MAX_SALT_CHARS} characters", param="cache_salt"
        )
    return salt or ""
