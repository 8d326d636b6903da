"""From request fields to ``SamplingParams``: model defaults first, then what the client says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from octavo.core.sampling_params import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
    validate_sampling_params,
)
from octavo.errors import ContextLengthError, InvalidRequestError
from octavo.server.endpoints import Endpoint
from octavo.server.request_shapes import LOGPROBS_INCLUDE, MAX_INCLUDE
from octavo.server.structured import read_grammar
from octavo.server.typed_body import TypedBody, check_length, finite_number
from octavo.text.members import wrong

COMPLETIONS_MAX_TOKENS = 16
_Value = TypeVar("_Value")
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "length_penalty",
)


def sampling_from_body(
    body: TypedBody, endpoint: Endpoint, *, defaults: SamplingParams, vocab_size: int
) -> SamplingParams:
    """Read and validate every sampling field; ``max_tokens`` stays None when not given.

    Raises:
        InvalidRequestError: naming the first bad field.
    """
    search = body.boolean("use_beam_search")
    if search:
        # A beam search draws nothing: what the model recommends for drawing says nothing here.
        defaults = SamplingParams(temperature=0.0)
    numbers: dict[str, Any] = {
        name: value for name in _NUMBERS if (value := body.number(name)) is not None
    }
    params = replace(
        defaults,
        **numbers,
        n=_or_else(body.integer("n"), 1),
        best_of=body.integer("best_of"),
        use_beam_search=search,
        # Its type is checked with its value.
        early_stopping=cast("bool", _or_else(body.raw("early_stopping"), False)),
        max_tokens=_max_tokens(body),
        min_tokens=_or_else(body.integer("min_tokens"), 0),
        top_k=_top_k(body, defaults),
        seed=body.integer("seed"),
        logit_bias=_logit_bias(body),
        ignore_eos=body.boolean("ignore_eos"),
        stop=body.strings("stop", at_most=MAX_STOP_STRINGS),
        stop_token_ids=body.integers("stop_token_ids", at_most=MAX_STOP_TOKEN_IDS),
        include_stop_str_in_output=body.boolean("include_stop_str_in_output"),
        skip_special_tokens=body.boolean_or("skip_special_tokens", True),
        grammar=read_grammar(body),
        logprobs=_LOGPROBS[endpoint](body) if endpoint in _LOGPROBS else None,
        prompt_logprobs=body.integer("prompt_logprobs"),
        allowed_token_ids=_allowed(body),
        bad_words=body.strings("bad_words", at_most=MAX_BAD_WORDS),
    )
    validate_sampling_params(params, vocab_size=vocab_size)
    return params


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """What the engine allows: context and KV pool in tokens of one choice, choices at once."""

    context: int
    pool: int
    max_num_seqs: int

    @property
    def tightest(self) -> tuple[str, int]:
        """Its name for an error message, and its tokens.

        Where they are equal, the context was cut to what the pool holds.
        """
        if self.context < self.pool:
            return "the model's context", self.context
        return "the KV pool", self.pool


def fit_max_tokens(
    params: SamplingParams, *, num_prompt_tokens: int, limits: TokenLimits, default: int | None
) -> SamplingParams:
    """Settle ``max_tokens``: an explicit one that cannot fit is refused.

    Without one and without ``default`` it stays None: the engine, which knows what every choice
    costs in blocks, fits it to the model and the pool.

    Raises:
        ContextLengthError: with both numbers.
        InvalidRequestError: more choices, or more least tokens, than there may be.
    """
    if params.width > limits.max_num_seqs:
        name = params.width_field
        raise wrong(
            name,
            f"is {params.width}; this server runs at most {limits.max_num_seqs} choices at once",
        )
    name, limit = limits.tightest
    room = limit - num_prompt_tokens
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {num_prompt_tokens} tokens, but {name} is {limit} tokens and one "
            "must be left to generate; shorten the prompt",
            param="prompt",
        )
    wanted = params.max_tokens
    if wanted is not None and wanted > room:
        raise ContextLengthError(
            f"the prompt has {num_prompt_tokens} tokens and max_tokens is {wanted}, together "
            f"{num_prompt_tokens + wanted}, but {name} is {limit} tokens",
            param="max_tokens",
        )
    if wanted is None and default is not None:
        wanted = min(room, default)
    if params.min_tokens > (most := room if wanted is None else wanted):
        raise wrong("min_tokens", f"({params.min_tokens}) exceeds max_tokens ({most})")
    return replace(params, max_tokens=wanted)


def _or_else(value: _Value | None, default: _Value) -> _Value:
    return default if value is None else value


def _max_tokens(body: TypedBody) -> int | None:
    old, new = body.integer("max_tokens"), body.integer("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise InvalidRequestError(
            f"max_tokens ({old}) and max_completion_tokens ({new}) disagree; send one of them",
            param="max_completion_tokens",
        )
    if new is not None and new < 1:
        raise wrong("max_completion_tokens", "must be 1 or more")
    return new if new is not None else old


def _top_k(body: TypedBody, defaults: SamplingParams) -> int:
    value = body.integer("top_k")
    if value is None:
        return defaults.top_k
    # Other engines write -1 for "off".
    return 0 if value == -1 else value


def _logit_bias(body: TypedBody) -> tuple[tuple[int, float], ...]:
    pairs = []
    biases = body.mapping("logit_bias")
    check_length(biases, "logit_bias", MAX_LOGIT_BIAS)
    for key, value in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 12):
            raise wrong("logit_bias", "keys must be token ids")
        pairs.append((int(key), finite_number(value, "logit_bias")))
    tokens = [token for token, _ in pairs]
    if len(set(tokens)) != len(tokens):
        raise wrong("logit_bias", "names a token id twice")
    return tuple(sorted(pairs))


def _allowed(body: TypedBody) -> tuple[int, ...]:
    name = "allowed_token_ids"
    if body.raw(name) == []:
        raise wrong(name, "is empty: nothing could be sampled")
    return tuple(sorted(set(body.integers(name, at_most=MAX_ALLOWED_TOKEN_IDS))))


def _chat_logprobs(body: TypedBody) -> int | None:
    top = body.integer("top_logprobs")
    if not body.boolean("logprobs"):
        if top is not None:
            raise wrong("top_logprobs", "needs logprobs: true")
        return None
    return _checked_top(top or 0)


def _responses_logprobs(body: TypedBody) -> int | None:
    top = body.integer("top_logprobs") or 0
    asked = LOGPROBS_INCLUDE in body.strings("include", at_most=MAX_INCLUDE)
    if top and not asked:
        raise wrong("top_logprobs", f"needs include: {LOGPROBS_INCLUDE}")
    return _checked_top(top) if asked else None


def _checked_top(top: int) -> int:
    if not 0 <= top <= MAX_LOGPROBS:
        raise wrong("top_logprobs", f"must be between 0 and {MAX_LOGPROBS}")
    return top


# An endpoint that is not here reports none.
_LOGPROBS: dict[Endpoint, Callable[[TypedBody], int | None]] = {
    Endpoint.CHAT: _chat_logprobs,
    Endpoint.COMPLETIONS: lambda body: body.integer("logprobs"),
    Endpoint.RESPONSES: _responses_logprobs,
}
