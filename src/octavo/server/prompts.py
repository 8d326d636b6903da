"""The prompts of a request: which shapes are taken, and the limits on them before tokenising."""

from __future__ import annotations

from octavo.errors import InvalidRequestError
from octavo.server.typed_body import TypedBody, check_length, is_integer
from octavo.text import Message, read_messages
from octavo.text.members import wrong

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
    check_length(messages, "messages", MAX_MESSAGES)
    return read_messages(messages)


def read_prompts(
    body: TypedBody, *, vocab_size: int, name: str = "prompt"
) -> list[str | list[int]]:
    """The prompts in the field ``name``: each a text or a list of token ids.

    Raises:
        InvalidRequestError: naming the field and what is wrong with it.
    """
    prompt = body.raw(name)
    if isinstance(prompt, str):
        return [_checked_text(prompt, name)]
    if not isinstance(prompt, list) or not prompt:
        raise wrong(name, "must be a text, a list of texts, token ids or a list of token id lists")
    if isinstance(prompt[0], (int, float)):
        return [_checked_ids(prompt, vocab_size, name)]
    check_length(prompt, name, MAX_PROMPTS)
    return [
        _checked_text(item, name) if isinstance(item, str) else _checked_ids(item, vocab_size, name)
        for item in prompt
    ]


def _checked_text(text: str, name: str) -> str:
    if not text:
        raise InvalidRequestError(f"the {name} is empty", param=name)
    return text


def _checked_ids(ids: object, vocab_size: int, name: str) -> list[int]:
    if isinstance(ids, list) and len(ids) > MAX_PROMPT_IDS:
        raise InvalidRequestError(
            f"a {name} has {len(ids)} token ids; the limit is {MAX_PROMPT_IDS}", param=name
        )
    if not isinstance(ids, list) or not all(is_integer(item) for item in ids):
        raise InvalidRequestError(f"a {name} must be a text or a list of token ids", param=name)
    if not ids:
        raise InvalidRequestError(f"the {name} is empty", param=name)
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise InvalidRequestError(f"token ids must be between 0 and {vocab_size - 1}", param=name)
    return ids
