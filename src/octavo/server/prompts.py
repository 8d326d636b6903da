"""The prompts of a request: which shapes are taken, and the limits on them before tokenising."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.errors import InvalidRequestError
from octavo.server.typed_body import TypedBody, is_integer
from octavo.text import Message, read_messages

MAX_MESSAGES = 4096
MAX_PROMPTS = 128
# Far past any context served here: keeps the checks of each id short.
MAX_PROMPT_IDS = 1 << 18


def read_chat(body: TypedBody) -> list[Message]:
    """The chat as {"role", "content"} pairs, as the model's template reads them.

    Raises:
        InvalidRequestError: naming the message and what is wrong with it.
    """
    messages = body.raw("messages")
    if isinstance(messages, list):
        check_message_count(messages, "messages")
    return read_messages(messages)


def check_message_count(messages: Sequence[object], name: str) -> None:
    """Refuse a conversation that is too long.

    Raises:
        InvalidRequestError: naming the field ``name`` and the limit.
    """
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequestError(
            f"{name} has {len(messages)} entries; the limit is {MAX_MESSAGES}", param=name
        )


def read_prompts(body: TypedBody, *, vocab_size: int) -> list[str | list[int]]:
    """The prompts of a completions request: each a text or a list of token ids.

    Raises:
        InvalidRequestError: naming the prompt and what is wrong with it.
    """
    prompt = body.raw("prompt")
    if isinstance(prompt, str):
        return [_checked_text(prompt)]
    if not isinstance(prompt, list) or not prompt:
        raise InvalidRequestError(
            "prompt must be a text, a list of texts, token ids or a list of token id lists",
            param="prompt",
        )
    if isinstance(prompt[0], (int, float)):
        return [_checked_ids(prompt, vocab_size)]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequestError(
            f"prompt has {len(prompt)} entries; the limit is {MAX_PROMPTS}", param="prompt"
        )
    return [
        _checked_text(item) if isinstance(item, str) else _checked_ids(item, vocab_size)
        for item in prompt
    ]


def _checked_text(text: str) -> str:
    if not text:
        raise InvalidRequestError("the prompt is empty", param="prompt")
    return text


def _checked_ids(ids: object, vocab_size: int) -> list[int]:
    if isinstance(ids, list) and len(ids) > MAX_PROMPT_IDS:
        raise InvalidRequestError(
            f"a prompt has {len(ids)} token ids; the limit is {MAX_PROMPT_IDS}", param="prompt"
        )
    if not isinstance(ids, list) or not all(is_integer(item) for item in ids):
        raise InvalidRequestError("a prompt must be a text or a list of token ids", param="prompt")
    if not ids:
        raise InvalidRequestError("the prompt is empty", param="prompt")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise InvalidRequestError(
            f"token ids must be between 0 and {vocab_size - 1}", param="prompt"
        )
    return ids
