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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, pairwise
from typing import Any, Final

from jinja2 import Template, meta
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError

from octavo.errors import InvalidRequestError, ModelFileError
from octavo.text.messages import Message, read_messages, texts_of, with_objects
from octavo.text.reasoning import reasoning_format
from octavo.text.template_sandbox import (
    MAX_SOURCE_CHARS,
    MAX_VALUE_CHARS,
    Budget,
    TemplateEnvironment,
    TemplateLimitError,
    TemplateRefusalError,
)
from octavo.text.tokenizer import Tokenizer, check_text
from octavo.text.tool_formats import Tool, as_plain_text, tool_format
from octavo.text.vocabulary import digest_of

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
# What a rendering sets itself: never a client's.
_OWN_VARIABLES: Final = frozenset(
    {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}
)
# Noncharacters first (no text should hold one), then a private plane.
_MARKS: Final = (*range(0xFDD0, 0xFDF0), *range(0x10_0000, 0x10_FFFE))

_NO_VARIABLES: Final[Mapping[str, object]] = {}


@dataclass(frozen=True, slots=True)
class _Ask:
    """How to render, besides the messages."""

    add_generation_prompt: bool
    continue_final: bool
    variables: Mapping[str, object]
    tools: Sequence[Tool]


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
        self.tokenizer: Final = tokenizer
        self._environment = TemplateEnvironment(now)
        self._template = self._compile(source)
        read = meta.find_undeclared_variables(self._environment.parse(source))
        self.variables: Final = frozenset(read) - set(self._environment.globals) - _OWN_VARIABLES
        # The environment meters one rendering at a time.
        self._lock = threading.Lock()
        protected = {t.text: t.special for t in tokenizer.added_tokens if t.protected}
        self._all_tokens = _Spellings(list(protected))
        self._control_tokens = _Spellings([text for text, special in protected.items() if special])
        self._names = _special_names(tokenizer)
        self.tool_format: Final = tool_format(source)
        self.reasoning_format: Final = reasoning_format(source)
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
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        variables: Mapping[str, object] = _NO_VARIABLES,
        tools: Sequence[Tool] = (),
    ) -> str:
        """The exact prompt text of messages as ``read_messages`` takes them.

        ``continue_final`` ends the prompt with the text of the last message, which must be the
        assistant's, so that the answer goes on from there. ``variables`` are for the template
        itself; ``self.variables`` are the names that it reads. ``tools`` are functions that may be
        called, {"type": "function", "function": {"name", …}}; a template that knows of none gets
        them, their calls and their answers as plain text.

        Raises:
            InvalidRequestError: a message is malformed, or the template refuses the conversation.
            ModelFileError: the template tries to leave its sandbox.
        """
        ask = _Ask(add_generation_prompt, continue_final, variables, tools)
        return self._render(messages, ask)[0]

    def encode(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        variables: Mapping[str, object] = _NO_VARIABLES,
        tools: Sequence[Tool] = (),
    ) -> list[int]:
        """The ids of the rendered prompt; see ``render``. Users' text makes no special token."""
        ask = _Ask(add_generation_prompt, continue_final, variables, tools)
        text, breaks = self._render(messages, ask)
        return self.tokenizer.encode_rendered(text, breaks)

    def _render(self, messages: Sequence[Mapping[str, object]], ask: _Ask) -> tuple[str, list[int]]:
        normal = [with_objects(message) for message in read_messages(messages)]
        tools = list(ask.tools)
        if self.tool_format.is_generic:
            normal, tools = as_plain_text(normal, tools, self.tool_format), []
        texts = texts_of([normal, tools])
        check_text("".join(texts), "messages")
        mark, end = _free_marks("".join([self._source, *texts]))
        marked = [self._marked_message(message, mark) for message in normal]
        if ask.continue_final:
            if normal[-1]["role"] != "assistant":
                raise InvalidRequestError(
                    "only a last message of the assistant can be continued; send one, or leave out "
                    "continue_final_message",
                    param="messages",
                )
            marked[-1]["content"] += end
        rendered = self._run(
            {
                **ask.variables,
                **self._names,
                "messages": marked,
                "tools": _marked(tools, self._all_tokens, mark) or None,
                "add_generation_prompt": ask.add_generation_prompt and not ask.continue_final,
            }
        )
        # A template may have written a mark as a JSON escape.
        for one in (mark, end):
            rendered = rendered.replace(json.dumps(one)[1:-1], one)
        if ask.continue_final:
            rendered = _up_to_last(rendered, end)
        return _take_out(rendered, mark)

    def _marked_message(self, message: Message, mark: str) -> Message:
        wrote_it = message["role"] == "assistant"
        spellings = self._control_tokens if wrote_it else self._all_tokens
        marked = {key: _marked(value, spellings, mark) for key, value in message.items()}
        return {**marked, "role": message["role"]}

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

    def marked(self, text: str, mark: str) -> str:
        """The text with ``mark`` in it; see the module's description."""
        positions = self._positions(text)
        if not positions:
            return text
        borders = pairwise([0, *positions, len(text)])
        return mark.join(text[a:b] for a, b in borders)

    def _positions(self, text: str) -> list[int]:
        if self._pattern is None or not text:
            return []
        positions = {match.start() + 1 for match in self._pattern.finditer(text)}
        reach = range(1, min(self._longest, len(text) + 1))
        # With its neighbours in the template, the begin or end of a text may spell a token.
        if any(text[:n] in self._tails for n in reach):
            positions.add(1)
        if any(text[-n:] in self._heads for n in reach):
            positions.add(len(text))
        # The inside of a token, which a template might complete on both sides.
        if len(text) < self._longest and any(text in token for token in self._tokens):
            positions.add(1)
        return sorted(positions)


def _marked(value: Any, spellings: _Spellings, mark: str) -> Any:  # noqa: ANN401 - any JSON
    """Every text in ``value`` with its marks, names of members included."""
    if isinstance(value, str):
        return spellings.marked(value, mark)
    if isinstance(value, dict):
        return {spellings.marked(k, mark): _marked(v, spellings, mark) for k, v in value.items()}
    if isinstance(value, list):
        return [_marked(item, spellings, mark) for item in value]
    return value


def _free_marks(texts: str) -> list[str]:
    """Two characters that occur in no text."""
    used = set(texts)
    free = (chr(code) for code in _MARKS if chr(code) not in used)
    marks = list(islice(free, 2))
    if len(marks) == 2:
        return marks
    raise InvalidRequestError(
        "the messages use every private and noncharacter code point; leave one out",
        param="messages",
    )


def _up_to_last(text: str, end: str) -> str:
    position = text.rfind(end)
    if position < 0:
        raise InvalidRequestError(
            "the model's chat template leaves out the last message, which was to be continued",
            param="messages",
        )
    return text[:position].replace(end, "")


def _take_out(text: str, mark: str) -> tuple[str, list[int]]:
    pieces = text.split(mark)
    breaks = []
    position = 0
    for piece in pieces[:-1]:
        position += len(piece)
        breaks.append(position)
    return "".join(pieces), breaks


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
