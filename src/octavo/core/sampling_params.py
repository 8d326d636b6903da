"""What a client may ask of the sampler: a frozen value, validated once at the edge."""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Literal

from octavo.core.grammar import Grammar, validate_grammar
from octavo.errors import InvalidRequestError, shown_number

MAX_N = 128
MAX_BEAM_WIDTH = 64
MAX_LENGTH_PENALTY = 10
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024
MAX_ALLOWED_TOKEN_IDS = 1 << 14
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 128
MAX_TOKENS = 1 << 20
SEED_LIMIT = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request.

    The order in which they act is fixed: penalties, bias, bans (``min_tokens``), temperature,
    ``top_k``, ``top_p``, ``min_p``. ``temperature`` 0 is greedy: highest logit, ties to the
    lowest id. ``max_tokens`` None means "up to the model's context". ``logprobs`` is the number
    of alternatives to report per token (0: the chosen one only), of the raw logits;
    ``prompt_logprobs`` the same for every token of the prompt but its first.
    Nothing but ``allowed_token_ids`` (empty: all) is sampled. No ``bad_words`` entry is sampled in
    the tokens that it has alone or behind a space; the frontend spells these ``bad_token_ids``.
    ``grammar`` binds the whole text of every branch, which ends where nothing more may follow. Of
    ``best_of`` branches (None: ``n``) the ``n`` with the highest mean logprob are returned, best
    first.

    With ``use_beam_search`` ``best_of`` is the width of a beam search whose ``n`` best sequences,
    by Σ logprob / length ** ``length_penalty``, are returned. ``early_stopping``: True ends it at
    ``best_of`` finished sequences; False when none that goes on would be better if it ended now;
    "never" when none can become better.

    Raises:
        InvalidRequestError: a value is out of its range; names field and limit. Token ids are
            held against the vocabulary by ``validate_sampling_params``.
    """

    n: int = 1
    best_of: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    grammar: Grammar | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        _check_ranges(self)

    @property
    def width(self) -> int:
        """Branches that are computed side by side."""
        return self.best_of or self.n

    @property
    def num_branches(self) -> int:
        """Branches that the engine reports on: a beam search keeps its width to itself."""
        return self.n if self.use_beam_search else self.width

    @property
    def width_field(self) -> str:
        """The field that ``width`` comes from, for errors."""
        return "best_of" if self.best_of else "n"

    @property
    def is_ranked(self) -> bool:
        """Whether the branches to return are known only when all have ended."""
        return self.num_branches > self.n

    @property
    def num_logprobs(self) -> int:
        """Alternatives that the sampler reports per token; -1: nothing, 0: the chosen one."""
        if self.logprobs is None:
            return 0 if self.is_ranked else -1
        return self.logprobs


def validate_sampling_params(params: SamplingParams, *, vocab_size: int) -> None:
    """Check token ids against the vocabulary; the other fields were checked when they were set.

    Raises:
        InvalidRequestError: naming the first bad field and its limit.
    """
    if params.use_beam_search and 2 * params.width > vocab_size:
        raise InvalidRequestError(
            f"a beam search of width {params.width} ({params.width_field}) needs a vocabulary of "
            f"{2 * params.width} tokens; the model's has {vocab_size}",
            param=params.width_field,
        )
    for token, _ in params.logit_bias:
        _integer("logit_bias", token, (0, vocab_size - 1), what="a token id of logit_bias")
    for name in ("stop_token_ids", "allowed_token_ids"):
        for token in getattr(params, name):
            _integer(name, token, (0, vocab_size - 1), what=f"a token id of {name}")


def _check_ranges(params: SamplingParams) -> None:
    _integer("n", params.n, (1, MAX_N))
    _best_of(params)
    if params.max_tokens is not None:
        _integer("max_tokens", params.max_tokens, (1, MAX_TOKENS))
    _integer("min_tokens", params.min_tokens, (0, MAX_TOKENS))
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidRequestError(
            f"min_tokens ({params.min_tokens}) exceeds max_tokens ({params.max_tokens}); send a "
            "lower one",
            param="min_tokens",
        )
    _number("temperature", params.temperature, (0.0, 100.0))
    _integer("top_k", params.top_k, (0, MAX_TOKENS))
    _number("top_p", params.top_p, (0.0, 1.0), open_low=True)
    _number("min_p", params.min_p, (0.0, 1.0))
    if params.seed is not None:
        _integer("seed", params.seed, (-SEED_LIMIT, SEED_LIMIT - 1))
    _number("repetition_penalty", params.repetition_penalty, (0.0, 10.0), open_low=True)
    _number("presence_penalty", params.presence_penalty, (-2.0, 2.0))
    _number("frequency_penalty", params.frequency_penalty, (-2.0, 2.0))
    if params.logprobs is not None:
        _integer("logprobs", params.logprobs, (0, MAX_LOGPROBS))
    if params.prompt_logprobs is not None:
        _integer("prompt_logprobs", params.prompt_logprobs, (0, MAX_LOGPROBS))
    _token_lists(params)
    _bans(params)
    _texts("stop", params.stop, (MAX_STOP_STRINGS, MAX_STOP_STRING_CHARS))
    if params.grammar is not None:
        _grammar(params, params.grammar)
    _beam_search(params)


def refuse_stream(params: SamplingParams) -> None:
    """Refuse to stream what is known only at the end.

    Raises:
        InvalidRequestError: naming ``stream``.
    """
    if params.use_beam_search:
        raise InvalidRequestError(
            "use_beam_search cannot be streamed: the answer is known when the search is over; "
            "leave stream out",
            param="stream",
        )
    if params.is_ranked:
        raise InvalidRequestError(
            f"best_of ({params.best_of}) above n ({params.n}) cannot be streamed: the best are "
            "known when all have ended; leave stream out, or give best_of the value of n",
            param="stream",
        )


def _best_of(params: SamplingParams) -> None:
    if params.best_of is None:
        return
    _integer("best_of", params.best_of, (1, MAX_N))
    if params.best_of < params.n:
        raise InvalidRequestError(
            f"best_of ({params.best_of}) is less than n ({params.n}); raise it or lower n",
            param="best_of",
        )


# What a beam search, which draws nothing and ranks by the model's own logprobs, has no use for.
_NEUTRAL_IN_BEAM_SEARCH = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": (),
    "stop": (),
    "prompt_logprobs": None,
    "allowed_token_ids": (),
    "bad_words": (),
}


def _beam_search(params: SamplingParams) -> None:
    if not isinstance(params.use_beam_search, bool):
        raise InvalidRequestError("use_beam_search must be true or false", param="use_beam_search")
    _number("length_penalty", params.length_penalty, (-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY))
    if not isinstance(params.early_stopping, bool) and params.early_stopping != "never":
        raise InvalidRequestError(
            'early_stopping must be true, false or "never"', param="early_stopping"
        )
    if not params.use_beam_search:
        for name, is_set in (
            ("length_penalty", params.length_penalty != 1.0),
            ("early_stopping", params.early_stopping is not False),
        ):
            if is_set:
                raise InvalidRequestError(f"{name} needs use_beam_search", param=name)
        return
    if not 2 <= params.width <= MAX_BEAM_WIDTH:
        raise InvalidRequestError(
            f"the width of a beam search (best_of, else n) is {params.width}; it must be between "
            f"2 and {MAX_BEAM_WIDTH}",
            param="best_of" if params.n == 1 else params.width_field,
        )
    if params.grammar is not None:
        raise InvalidRequestError(
            f"{params.grammar.field} cannot be combined with use_beam_search; leave one out",
            param=params.grammar.field,
        )
    for name, neutral in _NEUTRAL_IN_BEAM_SEARCH.items():
        if (value := getattr(params, name)) != neutral:
            shown = f"{value} " if isinstance(value, (int, float)) else ""
            is_number = isinstance(neutral, (int, float))
            remedy = f"; it must be {neutral:g}" if is_number else "; leave it out"
            raise InvalidRequestError(
                f"{name} {shown}has no meaning with use_beam_search{remedy}", param=name
            )


def _bans(params: SamplingParams) -> None:
    _texts("bad_words", params.bad_words, (MAX_BAD_WORDS, MAX_BAD_WORD_CHARS))
    allowed = params.allowed_token_ids
    _at_most("allowed_token_ids", allowed, MAX_ALLOWED_TOKEN_IDS)
    others = {"bad_words": params.bad_words, "a grammar": params.grammar}
    for name, other in others.items():
        if allowed and other:
            raise InvalidRequestError(
                f"allowed_token_ids cannot be combined with {name}; leave one of them out",
                param="allowed_token_ids",
            )
    if params.bad_words and params.grammar is not None:
        raise InvalidRequestError(
            f"bad_words cannot be combined with {params.grammar.field}; leave one of them out",
            param="bad_words",
        )


def _token_lists(params: SamplingParams) -> None:
    _at_most("logit_bias", params.logit_bias, MAX_LOGIT_BIAS)
    _at_most("stop_token_ids", params.stop_token_ids, MAX_STOP_TOKEN_IDS)
    for _, bias in params.logit_bias:
        _number("logit_bias", bias, (-100.0, 100.0), what="a value of logit_bias")


def _grammar(params: SamplingParams, grammar: Grammar) -> None:
    """A grammar decides where a branch may end: nothing else may forbid that end."""
    validate_grammar(grammar)
    for name, is_set in (("ignore_eos", params.ignore_eos), ("min_tokens", params.min_tokens > 0)):
        if is_set:
            raise InvalidRequestError(
                f"{name} cannot be combined with {grammar.field}, which decides where a text may "
                "end; leave one of them out",
                param=name,
            )


def _at_most(name: str, values: Sized, limit: int, *, what: str = "entries") -> None:
    if len(values) > limit:
        raise InvalidRequestError(
            f"{name} has {len(values)} {what}; the limit is {limit}", param=name
        )


def _texts(name: str, texts: str | Sequence[object], limits: tuple[int, int]) -> None:
    most, longest = limits
    if isinstance(texts, str):
        raise InvalidRequestError(f"{name} must be a list of strings, not a string", param=name)
    _at_most(name, texts, most, what="strings")
    for i, text in enumerate(texts):
        place = f"{name}[{i}]"
        if not isinstance(text, str) or not text:
            raise InvalidRequestError(f"{place} must be a string that is not empty", param=place)
        if len(text) > longest:
            raise InvalidRequestError(
                f"{place} has {len(text)} characters; the limit is {longest}", param=place
            )


def _integer(name: str, value: object, bounds: tuple[int, int], *, what: str = "") -> None:
    """``what`` names the value where it is one of several."""
    low, high = bounds
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{what or name} must be an integer", param=name)
    if not low <= value <= high:
        span = f"between {low} and {high}, not {shown_number(value)}"
        raise InvalidRequestError(f"{what or name} must be {span}", param=name)


def _number(
    name: str, value: object, bounds: tuple[float, float], *, open_low: bool = False, what: str = ""
) -> None:
    low, high = bounds
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidRequestError(f"{what or name} must be a finite number", param=name)
    if value > high or value < low or (open_low and value == low):
        span = f"over {low:g}, up to {high:g}" if open_low else f"between {low:g} and {high:g}"
        why = f"must be {span}, not {shown_number(value)}"
        raise InvalidRequestError(f"{what or name} {why}", param=name)
