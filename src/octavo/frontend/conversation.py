"""A conversation, how the model's template renders it, and how what it answers is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.core.sampling_params import SamplingParams
from octavo.frontend.answer import AnswerForm
from octavo.frontend.tools import ToolUse
from octavo.text import ChatTemplate, Message

# Enough of a prompt's end to show a tag and the white space behind it.
_END_TOKENS = 16


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


def settle(sampling: SamplingParams, form: AnswerForm) -> tuple[SamplingParams, AnswerForm]:
    """What binds the answer, with room for reasoning before it, and how its text is read."""
    grammar = sampling.grammar
    if form.tools is not None and form.tools.grammar is not None:
        grammar = form.tools.grammar
    if grammar is not None:
        sampling = replace(sampling, grammar=form.bound(grammar))
    return sampling, replace(form, skips_special_tokens=sampling.skip_special_tokens)
