"""The prompts of a request: which shapes are taken, and the limits on them before tokenising."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.errors import shown_number
from octavo.server.typed_body import TypedBody, check_length
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
    given = body.raw(name)
    is_one = isinstance(given, str) or isinstance(given[0], int)
    prompts: list[str | list[int]] = [given] if is_one else given
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            check_ids(prompt, vocab_size, name if is_one else f"{name}[{i}]")
    return prompts


def check_ids(ids: Sequence[int], vocab_size: int, where: str) -> None:
    """Hold token ids, none negative, against the vocabulary.

    Raises:
        InvalidRequestError: naming the first that it lacks.
    """
    if ids and max(ids) >= vocab_size:
        at = next(i for i, token in enumerate(ids) if token >= vocab_size)
        why = f"must be between 0 and {vocab_size - 1}, the vocabulary's last id"
        raise wrong(f"{where}[{at}]", f"{why}, not {shown_number(ids[at])}")
