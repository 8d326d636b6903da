"""OpenAI's objects: usage, logprobs, choices and chunks as plain dictionaries."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.request import FinishReason, TokenLogprobs
from octavo.frontend import Usage
from octavo.text import Tokenizer


def usage_object(usage: Usage, *, num_reasoning_tokens: int = 0) -> dict[str, object]:
    """Token counts with the details that clients read."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": num_reasoning_tokens,
            "accepted_prediction_tokens": usage.accepted_tokens,
            "rejected_prediction_tokens": usage.rejected_tokens,
        },
    }


def finish_text(reason: FinishReason | None, *, calls: bool = False) -> str | None:
    """The wire's word for a normal end, which may be that tools are called.

    An abort or a fault has none: it is an error (P5).
    """
    if reason is None:
        return None
    assert reason in (FinishReason.STOP, FinishReason.LENGTH), "a fault is no finish"
    return "tool_calls" if calls and reason is FinishReason.STOP else reason.value


def chat_logprobs(
    entries: Sequence[TokenLogprobs], tokenizer: Tokenizer, *, top: int
) -> dict[str, object]:
    """The chat form: one object per token, with ``top`` alternatives each."""
    content = [
        {
            **_chat_token(tokenizer, entry.token_id, entry.logprob),
            "top_logprobs": [
                _chat_token(tokenizer, token_id, logprob) for token_id, logprob in entry.top[:top]
            ],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, object]:
    data = tokenizer.token_bytes(token_id)
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": finite_logprob(logprob),
        "bytes": list(data),
    }


def finite_logprob(logprob: float) -> float:
    """JSON has no infinity: a banned token reads as -9999."""
    return max(logprob, -9999.0)


class CompletionLogprobs:
    """The completions form: parallel lists; text offsets run on over a choice's chunks."""

    def __init__(self, tokenizer: Tokenizer, *, top: int, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._top = top
        self._offset = offset

    def render(
        self, entries: Sequence[TokenLogprobs], *, first: int | None = None
    ) -> dict[str, object]:
        """The lists for the next tokens of the choice.

        ``first`` is the first token of an echoed prompt, of which there is no logprob.
        """
        tokens, offsets = [], []
        ids = [] if first is None else [first]
        for token_id in [*ids, *(entry.token_id for entry in entries)]:
            token = self._token(token_id)
            tokens.append(token)
            offsets.append(self._offset)
            self._offset += len(token)
        nothing = [None] * len(ids)
        return {
            "tokens": tokens,
            "token_logprobs": [*nothing, *(finite_logprob(entry.logprob) for entry in entries)],
            "top_logprobs": [*nothing, *map(self._alternatives, entries)],
            "text_offset": offsets,
        }

    def _alternatives(self, entry: TokenLogprobs) -> dict[str, float]:
        pairs = [*entry.top[: self._top], (entry.token_id, entry.logprob)]
        return {self._token(token): finite_logprob(logprob) for token, logprob in pairs}

    def _token(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def prompt_logprobs(
    entries: Sequence[TokenLogprobs], tokenizer: Tokenizer, *, top: int
) -> list[dict[str, object] | None]:
    """Per token of the prompt, by id: it and its ``top`` alternatives; null for the first."""

    def shown(token_id: int, logprob: float) -> dict[str, object]:
        text = tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        return {"logprob": finite_logprob(logprob), "decoded_token": text}

    told: list[dict[str, object] | None] = [None]
    for entry in entries:
        pairs = [*entry.top[:top], (entry.token_id, entry.logprob)]
        told.append({str(token_id): shown(token_id, value) for token_id, value in pairs})
    return told
