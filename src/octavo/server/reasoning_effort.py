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

from octavo.server.typed_body import TypedBody
from octavo.text import ChatTemplate
from octavo.text.members import refuse_others, wrong

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# Template variables that are true for a model that is to reason.
_SWITCHES = ("enable_thinking", "thinking")
_LEVEL = "reasoning_effort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """``level`` is one of ``EFFORTS``, None where nothing is asked. ``field`` asked for it.

    ``unused`` are the fields beside it that nothing here can follow.
    """

    level: str | None = None
    field: str = ""
    unused: tuple[str, ...] = ()


def read_effort(body: TypedBody) -> Effort:
    """What a body asks for.

    Raises:
        InvalidRequestError: naming the field and what it may be.
    """
    thinking, reasoning = body.mapping("thinking"), body.mapping("reasoning")
    config = body.mapping("output_config")
    if body.raw("thinking") is not None:
        return _thinking(thinking, config)
    if reasoning:
        refuse_others(reasoning, ("effort", "summary", "generate_summary", "context"), "reasoning")
        level = _level(reasoning.get("effort"), "reasoning.effort")
        asked = [name for name in reasoning if name != "effort" and reasoning[name] is not None]
        unused = tuple(f"reasoning.{name}" for name in asked)
        return Effort(level=level, field="reasoning", unused=unused)
    for value, name in ((body.raw(_LEVEL), _LEVEL), (config.get("effort"), "output_config.effort")):
        if value is not None:
            return Effort(level=_level(value, name), field=name)
    return Effort()


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


def _thinking(thinking: Mapping[str, object], config: Mapping[str, object]) -> Effort:
    refuse_others(thinking, ("type", "budget_tokens", "display"), "thinking")
    kind = thinking.get("type")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise wrong("thinking.type", "must be enabled, adaptive or disabled")
    budget = TypedBody({"thinking.budget_tokens": thinking.get("budget_tokens")})
    budget.integer("thinking.budget_tokens")
    asked = [name for name in ("budget_tokens", "display") if thinking.get(name) is not None]
    level = _level(config.get("effort"), "output_config.effort") or "medium"
    return Effort(
        level="none" if kind == "disabled" else level,
        field="thinking",
        unused=tuple(f"thinking.{name}" for name in asked),
    )


def _level(value: object, name: str) -> str | None:
    if value is not None and value not in EFFORTS:
        raise wrong(name, f"must be one of {', '.join(EFFORTS)}")
    return None if value is None else str(value)
