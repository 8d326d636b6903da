"""What the chat protocols read of a body: its messages, its tools, its words for the template."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.frontend.conversation import Conversation
from octavo.frontend.tools import CHAT_TOOLS, ToolDialect, ToolUse, choose_tools
from octavo.server.prompts import read_chat
from octavo.server.reasoning_effort import effort_variables, read_effort
from octavo.server.structured import read_grammar
from octavo.server.typed_body import TypedBody
from octavo.text import ChatTemplate
from octavo.text.members import shown_name, wrong
from octavo.text.tool_formats import ToolFormat


def chat_conversation(body: TypedBody, template: ChatTemplate) -> Conversation:
    """The conversation of a chat request, with its fields for the template.

    Raises:
        InvalidRequestError: naming the field.
    """
    continues = body.boolean("continue_final_message")
    if continues and body.boolean("add_generation_prompt"):
        raise wrong("continue_final_message", "and add_generation_prompt exclude each other")
    switches, ignored = effort_variables(read_effort(body), template)
    return Conversation(
        messages=read_chat(body),
        add_generation_prompt=body.boolean_or("add_generation_prompt", True),
        continue_final=continues,
        variables={**switches, **_variables(body, template)},
        tools=read_tools(body, template.tool_format, CHAT_TOOLS),
        ignored=ignored,
    )


def read_tools(body: TypedBody, family: ToolFormat, dialect: ToolDialect) -> ToolUse | None:
    """What a request may call; None where it may call nothing.

    Raises:
        InvalidRequestError: naming the tool or choice and what is wrong with it.
    """
    return choose_tools(
        body.raw("tools"),
        body.raw("tool_choice"),
        dialect,
        family=family,
        parallel=_parallel(body),
        structure=read_grammar(body) if body.raw("tools") else None,
    )


def _parallel(body: TypedBody) -> bool:
    """Messages says it, the other way round, in the choice."""
    choice = body.raw("tool_choice")
    if isinstance(choice, Mapping) and "disable_parallel_tool_use" in choice:
        return choice["disable_parallel_tool_use"] is not True
    return body.boolean_or("parallel_tool_calls", True)


def _variables(body: TypedBody, template: ChatTemplate) -> dict[str, object]:
    """Only what the template reads."""
    given = body.mapping("chat_template_kwargs")
    for name in given:
        if name not in template.variables:
            where = f"chat_template_kwargs.{shown_name(name)}"
            known = ", ".join(sorted(template.variables)) or "none"
            raise wrong(where, f"is not read by this model's template; it reads: {known}")
    return given
