"""The prompts of a request: which shapes are taken, and the limits on them before tokenising."""

from __future__ import annotations

from octavo.errors import InvalidRequestError
from octavo.server.typed_body import TypedBody, is_integer, shown_name

MAX_MESSAGES = 4096
MAX_PROMPTS = 128
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_MESSAGE_KEYS = frozenset({"role", "content"})


def read_messages(body: TypedBody) -> list[dict[str, str]]:
    """The chat as {"role", "content"} pairs; text parts are joined; developer means system.

    Raises:
        InvalidRequestError: naming the message and what is wrong with it.
    """
    messages = body.raw("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequestError("messages must be a non-empty list", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequestError(
            f"messages has {len(messages)} entries; the limit is {MAX_MESSAGES}", param="messages"
        )
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: object, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise InvalidRequestError(f"{where} must be an object", param=where)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequestError(
            f"{where}.role must be one of {', '.join(ROLES)}", param=f"{where}.role"
        )
    for key, value in message.items():
        if key not in _MESSAGE_KEYS and value not in (None, []):
            shown = shown_name(key)
            raise InvalidRequestError(f"{where}.{shown} is not supported", param=f"{where}.{shown}")
    return {"role": ROLES[role], "content": _content(message.get("content"), f"{where}.content")}


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidRequestError(
            f"{where} must be a string or a non-empty list of text parts", param=where
        )
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise InvalidRequestError(f"{where} must be a text part; only text is read", param=where)
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.text must be a string", param=f"{where}.text")
    if set(part) - {"type", "text"}:
        raise InvalidRequestError(f"{where} has keys besides type and text", param=where)
    return text


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
    if not isinstance(ids, list) or not all(is_integer(item) for item in ids):
        raise InvalidRequestError("a prompt must be a text or a list of token ids", param="prompt")
    if not ids:
        raise InvalidRequestError("the prompt is empty", param="prompt")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise InvalidRequestError(
            f"token ids must be between 0 and {vocab_size - 1}", param="prompt"
        )
    return ids
