"""How a call is served, whatever it asks for: for which tenant, how early, and until when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.core.request import validate_priority
from octavo.server.typed_body import TypedBody
from octavo.text.members import wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The fields ``priority`` and ``timeout`` (s), and whose key it was."""

    tenant: str
    priority: int
    timeout_s: float


def read_service(values: Mapping[str, object], *, tenant: str, limit_s: float) -> Service:
    """Read and validate; ``limit_s`` is the longest that a request may take, and the default.

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
    return Service(
        tenant=tenant,
        priority=priority,
        timeout_s=limit_s if timeout_s is None else timeout_s,
    )
