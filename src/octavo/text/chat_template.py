"""Chat messages to a prompt, by the model's own template.

A template is code from a model file: it runs in ``template_sandbox``. Messages are text from a
user: a special token spelled in them must stay text, also when the template cuts, trims or joins
them. So before rendering, a *mark* (a noncharacter that occurs in no message) is put behind the
first character of each such spelling; after rendering the marks are taken out and their positions
kept:

    content          a <|im_end|> b
    marked           a <¤|im_end|> b              ¤ is the mark
    rendered         <|im_start|>user⏎a <¤|im_end|> b<|im_end|>
    prompt, breaks   <|im_start|>user⏎a <|im_end|> b<|im_end|>   and the position behind that "<"

A token spelled across a break is not a token. (A template that cuts off the character before a
mark may so lose a token of its own.) Text without such a spelling is not touched at all.
What an assistant wrote may hold the model's own markup (``<think>``, ``<tool_call>``), which is
read as tokens again, so that a conversation continues from the same ids; control tokens never are.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from jinja2 import Template
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError

from octavo.errors import InvalidRequestError, ModelFileError
from octavo.text.template_sandbox import (
    MAX_SOURCE_CHARS,
    MAX_VALUE_CHARS,
    Budget,
    TemplateEnvironment,
    TemplateLimitError,
    TemplateRefusalError,
)
from octavo.text.tokenizer import Tokenizer, check_text
from octavo.text.vocabulary import digest_of

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
# What a client may set beside the messages (``chat_template_kwargs``).
TEMPLATE_KWARGS: Final = frozenset({"enable_thinking", "thinking", "reasoning_effort"})
MAX_DEPTH: Final = 64

_CHATML: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_PLAIN: Final = (
    "{% for message in messages %}"
    "{{ message.role | capitalize + ': ' + message.content + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
# Noncharacters first (no text should hold one), then a private plane.
_MARKS: Final = (*range(0xFDD0, 0xFDF0), *range(0x10_0000, 0x10_FFFE))


class ChatTemplate:
    """Renders and encodes conversations for one model."""

    def __init__(
        self,
        source: str | None,
        tokenizer: Tokenizer,
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """``source`` None is the fallback: ChatML if the tokenizer knows it, else plain lines.

        Raises:
            ModelFileError: the template does not compile, or uses what the sandbox has not.
        """
        if source is None:
            source = _CHATML if "<|im_start|>" in tokenizer.special_tokens else _PLAIN
        if len(source) > MAX_SOURCE_CHARS:
            raise ModelFileError(
                f"the chat template has {len(source)} characters, the limit is {MAX_SOURCE_CHARS}"
            )
        self._source = source
        self._tokenizer = tokenizer
        self._environment = TemplateEnvironment(now)
        self._template = self._compile(source)
        # The environment meters one rendering at a time.
        self._lock = threading.Lock()
        protected = {t.text: t.special for t in tokenizer.added_tokens if t.protected}
        self._all_tokens = _Spellings(list(protected))
        self._control_tokens = _Spellings([text for text, special in protected.items() if special])
        self._names = _special_names(tokenizer)
        self.digest: Final = digest_of([source, tokenizer.digest])

    @classmethod
    def from_model(
        cls, kind: str, metadata: Mapping[str, Any], tokenizer: Tokenizer
    ) -> ChatTemplate:
        """The template of an opened model (``ModelFile.kind`` and ``.metadata``)."""
        key = "tokenizer.chat_template" if kind == "gguf" else "chat_template"
        source = metadata.get(key)
        if source is not None and not isinstance(source, str):
            raise ModelFileError(f"the key {key!r} is not a string; fetch the model again")
        return cls(source, tokenizer)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The exact prompt text.

        A message has a ``role`` of ``ROLES`` and a ``content``: a string, null, or a list of text
        parts, which are joined by a line end. ``template_kwargs`` may hold ``TEMPLATE_KWARGS``.

        Raises:
            InvalidRequestError: a message is malformed, or the template refuses the conversation.
            ModelFileError: the template tries to leave its sandbox.
        """
        options = {"add_generation_prompt": add_generation_prompt, "tools": tools}
        return self._render(messages, options, template_kwargs or {})[0]

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The ids of the rendered prompt; see ``render``. Users' text makes no special token."""
        options = {"add_generation_prompt": add_generation_prompt, "tools": tools}
        text, breaks = self._render(messages, options, template_kwargs or {})
        return self._tokenizer.encode_rendered(text, breaks)

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        template_kwargs: Mapping[str, Any],
    ) -> tuple[str, list[int]]:
        normal = [_normal_message(message, i) for i, message in enumerate(messages)]
        if not normal:
            raise InvalidRequestError("messages is empty; send at least one", param="messages")
        _check_kwargs(template_kwargs)
        untrusted = [options["tools"], dict(template_kwargs)]
        texts = list(_strings([normal, untrusted], 0))
        check_text("".join(texts), "messages")
        mark = _free_mark("".join([self._source, *texts]))
        marked = [self._marked_message(message, mark) for message in normal]
        tools, kwargs = (_map(value, self._all_tokens.marker(mark)) for value in untrusted)
        rendered = self._run(
            {
                **self._names,
                **kwargs,
                "messages": marked,
                "tools": tools,
                "add_generation_prompt": options["add_generation_prompt"],
            }
        )
        # A template may have written the mark as a JSON escape.
        escape = json.dumps(mark)[1:-1]
        return _take_out(rendered.replace(escape, mark), mark)

    def _marked_message(self, message: dict[str, Any], mark: str) -> dict[str, Any]:
        wrote_it = message["role"] == "assistant"
        spellings = self._control_tokens if wrote_it else self._all_tokens
        nested, alone = spellings.marker(mark), spellings.marker(mark, alone=True)
        marked = {}
        for key, value in message.items():
            change = alone if isinstance(value, str) else nested
            marked[key] = value if key == "role" else _map(value, change)
        return marked

    def _compile(self, source: str) -> Template:
        try:
            return self._environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ModelFileError(
                f"the chat template does not compile (line {error.lineno}: {error.message})"
            ) from None
        except (TemplateError, RecursionError, ValueError, TypeError, ArithmeticError) as error:
            raise ModelFileError(f"the chat template does not compile ({error})") from None

    def _run(self, variables: Mapping[str, Any]) -> str:
        try:
            with self._lock:
                self._environment.budget = Budget()
                return self._collect(variables)
        except TemplateRefusalError as error:
            cause = str(error)
        except TemplateLimitError as error:
            cause = f"{error}; send less"
        except SecurityError:
            raise ModelFileError(
                "the chat template tries to leave its sandbox; use another model"
            ) from None
        except RecursionError:
            cause = "it nests too deep"
        except (UndefinedError, TemplateError, LookupError, AttributeError) as error:
            cause = str(error)
        except (TypeError, ValueError, ArithmeticError) as error:
            cause = str(error)
        message = f"the model's chat template cannot render these messages: {cause}"
        raise InvalidRequestError(message, param="messages")

    def _collect(self, variables: Mapping[str, Any]) -> str:
        pieces = []
        size = 0
        for piece in self._template.generate(variables):
            size += len(piece)
            if size > MAX_VALUE_CHARS:
                raise TemplateLimitError(f"the prompt has more than {MAX_VALUE_CHARS} characters")
            pieces.append(piece)
        return "".join(pieces)


class _Spellings:
    """Finds where a text spells, or could help to spell, one of some tokens."""

    def __init__(self, tokens: list[str]) -> None:
        alternatives = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
        # Look-ahead: spellings may overlap, and each gets its mark.
        self._pattern = re.compile(f"(?={alternatives})") if tokens else None
        self._heads = {token[:i] for token in tokens for i in range(1, len(token))}
        self._tails = {token[i:] for token in tokens for i in range(1, len(token))}
        self._tokens = tokens
        self._longest = max(map(len, tokens), default=0)

    def marker(self, mark: str, *, alone: bool = False) -> Callable[[str], str]:
        """A function that puts ``mark`` into texts; see the module's description.

        ``alone``: also into a text that is the inside of a token, which a template might complete
        on both sides. Not for keys and schema values: templates compare those with plain words.
        """

        def apply(text: str) -> str:
            positions = self._positions(text, alone)
            if not positions:
                return text
            borders = pairwise([0, *positions, len(text)])
            return mark.join(text[a:b] for a, b in borders)

        return apply

    def _positions(self, text: str, alone: bool) -> list[int]:
        if self._pattern is None or not text:
            return []
        positions = {match.start() + 1 for match in self._pattern.finditer(text)}
        reach = range(1, min(self._longest, len(text) + 1))
        # With its neighbours in the template, the begin or end of a text may spell a token.
        if any(text[:n] in self._tails for n in reach):
            positions.add(1)
        if any(text[-n:] in self._heads for n in reach):
            positions.add(len(text))
        if alone and len(text) < self._longest and any(text in token for token in self._tokens):
            positions.add(1)
        return sorted(positions)


def _free_mark(texts: str) -> str:
    used = set(texts)
    for code in _MARKS:
        if chr(code) not in used:
            return chr(code)
    raise InvalidRequestError(
        "the messages use every private and noncharacter code point; leave one out",
        param="messages",
    )


def _take_out(text: str, mark: str) -> tuple[str, list[int]]:
    pieces = text.split(mark)
    breaks = []
    position = 0
    for piece in pieces[:-1]:
        position += len(piece)
        breaks.append(position)
    return "".join(pieces), breaks


def _normal_message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequestError(
            f"{where}.role is not one of {', '.join(sorted(ROLES))}", param=f"{where}.role"
        )
    return {**message, "role": role, "content": _flat_content(message.get("content"), where)}


def _flat_content(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    param = f"{where}.content"
    if not isinstance(content, list):
        raise InvalidRequestError(f"{param} is neither text nor a list of parts", param=param)
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequestError(
                f"{param}[{i}] is not a text part; only parts of type 'text' are supported",
                param=f"{param}[{i}]",
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _check_kwargs(kwargs: Mapping[str, Any]) -> None:
    for name, value in kwargs.items():
        if name not in TEMPLATE_KWARGS:
            known = ", ".join(sorted(TEMPLATE_KWARGS))
            raise InvalidRequestError(
                f"chat_template_kwargs may only set {known}", param="chat_template_kwargs"
            )
        if not isinstance(value, bool | str | int | None):
            raise InvalidRequestError(
                f"chat_template_kwargs.{name} is neither a text, a number nor a boolean",
                param=f"chat_template_kwargs.{name}",
            )


def _strings(value: object, depth: int) -> Iterator[str]:
    """Every string in a JSON value, keys included."""
    if depth > MAX_DEPTH:
        raise InvalidRequestError(
            f"the messages nest deeper than {MAX_DEPTH} levels", param="messages"
        )
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key, depth + 1)
            yield from _strings(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item, depth + 1)


def _map(value: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401
    """The JSON value with every string in it changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): _map(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map(item, change) for item in value]
    return value


def _special_names(tokenizer: Tokenizer) -> dict[str, str]:
    """``bos_token`` and ``eos_token``, which templates may print."""
    spelled = {token.id: token.text for token in tokenizer.added_tokens}
    first_eos = next(iter(tokenizer.eos_token_ids), -1)
    return {
        "bos_token": spelled.get(
            -1 if tokenizer.bos_token_id is None else tokenizer.bos_token_id, ""
        ),
        "eos_token": spelled.get(first_eos, ""),
    }
