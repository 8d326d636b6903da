"""How much a client wants a model to reason, in three protocols' words, and what can be done of it.

chat        reasoning_effort: "medium"
Responses   reasoning: {"effort": "medium", "summary": …}
Messages    thinking: {"type": "enabled", "budget_tokens": …}, output_config: {"effort": "high"}

A model reasons as it was trained to. Where its template has a switch, effort sets it; what cannot
change its answer is ignored, and named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.server.typed_body import TypedBody
from octavo.text import ChatTemplate

# Template variables that are true for a model that is to reason.
_SWITCHES = ("enable_thinking", "thinking")
_LEVEL = "reasoning_effort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """``level`` is one of the table's words, None where nothing is asked. ``field`` asked for it.

    ``unused`` are the fields beside it that nothing here can follow.
    """

    level: str | None = None
    field: str = ""
    unused: tuple[str, ...] = ()


def read_effort(body: TypedBody) -> Effort:
    """What a body asks for."""
    thinking = body.mapping("thinking")
    reasoning = body.mapping("reasoning")
    config = body.mapping("output_config")
    if thinking:
        return _thinking(thinking, config)
    if reasoning:
        return Effort(
            level=reasoning.get("effort"),
            field="reasoning",
            unused=_asked("reasoning", reasoning, but="effort"),
        )
    level = body.raw(_LEVEL)
    if level is not None:
        return Effort(level=level, field=_LEVEL)
    return Effort(level=config.get("effort"), field="output_config.effort")


def effort_variables(effort: Effort, template: ChatTemplate) -> tuple[dict[str, object], list[str]]:
    """What the template is told, and the names of what it cannot be told."""
    level, ignored = effort.level, list(effort.unused)
    if level is None:
        return {}, ignored
    found: dict[str, object] = {
        name: level != "none" for name in _SWITCHES if name in template.variables
    }
    if _LEVEL in template.variables and level != "none":
        found[_LEVEL] = level
    return found, ignored if found else [effort.field, *ignored]


def _thinking(thinking: Mapping[str, Any], config: Mapping[str, Any]) -> Effort:
    level = config.get("effort") or "medium"
    return Effort(
        level="none" if thinking["type"] == "disabled" else level,
        field="thinking",
        unused=_asked("thinking", thinking, but="type"),
    )


def _asked(field: str, members: Mapping[str, Any], *, but: str) -> tuple[str, ...]:
    asked = [name for name, held in members.items() if held is not None and name != but]
    return tuple(f"{field}.{name}" for name in asked)
