"""How a call is served, whatever it asks for: how early, and until when."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.core.request import validate_priority
from octavo.server.typed_body import TypedBody
from octavo.text.members import wrong


def read_service(values: Mapping[str, object], *, limit_s: float) -> tuple[int, float]:
    """The fields ``priority`` and ``timeout`` (s), whose limit and default is ``limit_s``.

    Raises:
        InvalidRequestError: naming field and limit.
    """
    body = TypedBody(values)
    priority = body.integer("priority") or 0
    validate_priority(priority)
    timeout_s = body.number("timeout")
    if timeout_s is not None and not 0 < timeout_s <= limit_s:
        raise wrong(
            "timeout", f"must be over 0 and at most {limit_s:g} seconds (--request-timeout)"
        )
    return priority, limit_s if timeout_s is None else timeout_s
