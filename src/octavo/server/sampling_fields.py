"""From request fields to ``SamplingParams``: model defaults first, then what the client says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from octavo.core.sampling_params import SamplingParams, validate_sampling_params
from octavo.errors import ContextLengthError, InvalidRequestError
from octavo.server.endpoints import Endpoint
from octavo.server.request_shapes import LOGPROBS_INCLUDE
from octavo.server.structured import read_grammar
from octavo.server.typed_body import TypedBody
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
        early_stopping=_or_else(body.raw("early_stopping"), False),
        max_tokens=_max_tokens(body),
        min_tokens=_or_else(body.integer("min_tokens"), 0),
        top_k=_top_k(body, defaults),
        seed=body.integer("seed"),
        logit_bias=_logit_bias(body),
        ignore_eos=body.boolean("ignore_eos"),
        stop=body.strings("stop"),
        stop_token_ids=body.integers("stop_token_ids"),
        include_stop_str_in_output=body.boolean("include_stop_str_in_output"),
        skip_special_tokens=body.boolean_or("skip_special_tokens", True),
        grammar=read_grammar(body),
        logprobs=_LOGPROBS[endpoint](body) if endpoint in _LOGPROBS else None,
        prompt_logprobs=body.integer("prompt_logprobs"),
        allowed_token_ids=_allowed(body),
        bad_words=body.strings("bad_words"),
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
        raise wrong(
            "min_tokens", f"({params.min_tokens}) exceeds max_tokens ({most}); send a lower one"
        )
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
    return new if new is not None else old


def _top_k(body: TypedBody, defaults: SamplingParams) -> int:
    value = body.integer("top_k")
    if value is None:
        return defaults.top_k
    # Other engines write -1 for "off".
    return 0 if value == -1 else value


def _logit_bias(body: TypedBody) -> tuple[tuple[int, float], ...]:
    biases: dict[int, float] = {}
    for key, value in body.mapping("logit_bias").items():
        if int(key) in biases:
            raise wrong(f"logit_bias.{key}", "is a token id that is named before; send it once")
        biases[int(key)] = float(value)
    return tuple(sorted(biases.items()))


def _allowed(body: TypedBody) -> tuple[int, ...]:
    return tuple(sorted(set(body.integers("allowed_token_ids"))))


def _chat_logprobs(body: TypedBody) -> int | None:
    top = body.integer("top_logprobs")
    if not body.boolean("logprobs"):
        if top is not None:
            raise wrong("top_logprobs", "needs logprobs: true")
        return None
    return top or 0


def _responses_logprobs(body: TypedBody) -> int | None:
    top = body.integer("top_logprobs") or 0
    asked = LOGPROBS_INCLUDE in body.strings("include")
    if top and not asked:
        raise wrong("top_logprobs", f"needs include: {LOGPROBS_INCLUDE}")
    return top if asked else None


# An endpoint that is not here reports none.
_LOGPROBS: dict[Endpoint, Callable[[TypedBody], int | None]] = {
    Endpoint.CHAT: _chat_logprobs,
    Endpoint.COMPLETIONS: lambda body: body.integer("logprobs"),
    Endpoint.RESPONSES: _responses_logprobs,
}
