"""What the chat protocols share: a conversation, and how the model's template renders it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.core.sampling_params import SamplingParams
from octavo.errors import InvalidRequestError
from octavo.server.answer import AnswerForm
from octavo.server.prompts import read_chat
from octavo.server.reasoning_effort import effort_variables, read_effort
from octavo.server.tools import CHAT_TOOLS, ToolUse, read_tools
from octavo.server.typed_body import TypedBody
from octavo.text import ChatTemplate, Message
from octavo.text.members import shown_name

# Enough of a prompt's end to show a tag and the white space behind it.
_END_TOKENS = 16
# A word or two: nothing that could spell a special token.
_WORD = re.compile(r"[A-Za-z0-9 _.-]{0,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a chat template is given: messages as ``read_messages`` makes them, and how to end.

    ``ignored`` are the fields that this model's template has no use for.
    """

    messages: Sequence[Message]
    add_generation_prompt: bool = True
    continue_final: bool = False
    variables: Mapping[str, object] = field(default_factory=dict)
    tools: ToolUse | None = None
    ignored: Sequence[str] = ()

    def encode(self, template: ChatTemplate) -> list[int]:
        """The prompt's token ids.

        Raises:
            InvalidRequestError: the template does not take it.
        """
        return template.encode(self.messages, **self._options())

    def render(self, template: ChatTemplate) -> str:
        """The prompt's text, of which ``encode`` gives the ids.

        Raises:
            InvalidRequestError: the template does not take it.
        """
        return template.render(self.messages, **self._options())

    def answer_form(self, template: ChatTemplate, token_ids: Sequence[int]) -> AnswerForm:
        """What the answer to the prompt ``token_ids`` may hold."""
        family, tokenizer = template.reasoning_format, template.tokenizer
        if self.continue_final:
            begun = str(self.messages[-1]["content"])
            opened = family.is_open_in(begun)
            goes_on = bool(begun.strip()) and not opened
        else:
            end = tokenizer.decode(token_ids[-_END_TOKENS:], skip_special_tokens=False)
            opened, goes_on = family.opened_by(end), family.closed_by(end)
        return AnswerForm(
            tokenizer=tokenizer, family=family, opened=opened, goes_on=goes_on, tools=self.tools
        )

    def _options(self) -> dict[str, Any]:
        return {
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final": self.continue_final,
            "variables": self.variables,
            "tools": self.tools.tools if self.tools is not None else (),
        }


def chat_conversation(body: TypedBody, template: ChatTemplate) -> Conversation:
    """The conversation of a chat request, with its fields for the template.

    Raises:
        InvalidRequestError: naming the field.
    """
    continues = body.boolean("continue_final_message")
    if continues and body.boolean("add_generation_prompt"):
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other",
            param="continue_final_message",
        )
    switches, ignored = effort_variables(read_effort(body), template)
    return Conversation(
        messages=read_chat(body),
        add_generation_prompt=body.boolean_or("add_generation_prompt", True),
        continue_final=continues,
        variables={**switches, **_variables(body, template)},
        tools=read_tools(body, template.tool_format, CHAT_TOOLS),
        ignored=ignored,
    )


def settle(sampling: SamplingParams, form: AnswerForm) -> tuple[SamplingParams, AnswerForm]:
    """What binds the answer, with room for reasoning before it, and how its text is read."""
    grammar = sampling.grammar
    if form.tools is not None and form.tools.grammar is not None:
        grammar = form.tools.grammar
    if grammar is not None:
        sampling = replace(sampling, grammar=form.bound(grammar))
    return sampling, replace(form, skips_special_tokens=sampling.skip_special_tokens)


def _variables(body: TypedBody, template: ChatTemplate) -> dict[str, object]:
    """Only what the template reads, and only values that can spell nothing."""
    given = body.mapping("chat_template_kwargs")
    for name, value in given.items():
        where = f"chat_template_kwargs.{shown_name(name)}"
        if name not in template.variables:
            known = ", ".join(sorted(template.variables)) or "none"
            raise InvalidRequestError(
                f"{where} is not read by this model's template; it reads: {known}", param=where
            )
        word = isinstance(value, str) and _WORD.fullmatch(value) is not None
        if not (word or value is None or isinstance(value, bool | int | float)):
            raise InvalidRequestError(
                f"{where} must be true, false, null, a number or a plain word", param=where
            )
    return given
