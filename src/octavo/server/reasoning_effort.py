"""How much a client wants a model to reason, in three protocols' words, and what can be done of it.

chat        reasoning_effort: "medium"
Responses   reasoning: {"effort": "medium", "summary": …}
Messages    thinking: {"type": "enabled", "budget_tokens": …}, output_config: {"effort": "high"}

A model reasons as it was trained to. Where its template has a switch, effort sets it; what cannot
change its answer is ignored, and named.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.server.typed_body import TypedBody
from octavo.text import ChatTemplate

# Template variables that are true for a model that is to reason.
_SWITCHES = ("enable_thinking", "thinking")
_LEVEL = "reasoning_effort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """``level`` is a word of the table, None where nothing is asked. ``field`` asked for it."""

    level: str | None = None
    field: str = ""


def read_effort(body: TypedBody) -> Effort:
    """What a body asks for."""
    thinking = body.mapping("thinking")
    reasoning = body.mapping("reasoning")
    config = body.mapping("output_config")
    if thinking:
        level = config.get("effort") or "medium"
        return Effort(level="none" if thinking["type"] == "disabled" else level, field="thinking")
    if reasoning:
        return Effort(level=reasoning.get("effort"), field="reasoning")
    level = body.raw(_LEVEL)
    if level is not None:
        return Effort(level=level, field=_LEVEL)
    return Effort(level=config.get("effort"), field="output_config.effort")


def effort_variables(effort: Effort, template: ChatTemplate) -> tuple[dict[str, object], list[str]]:
    """What the template is told, and the names of what it cannot be told."""
    level = effort.level
    if level is None:
        return {}, []
    found: dict[str, object] = {
        name: level != "none" for name in _SWITCHES if name in template.variables
    }
    if _LEVEL in template.variables and level != "none":
        found[_LEVEL] = level
    return found, [] if found else [effort.field]
