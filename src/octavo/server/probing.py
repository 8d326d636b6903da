"""Running the probes of one HTTP request: like any generation, read at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.frontend import Usage
from octavo.frontend.readings import Reading
from octavo.server.call import Call
from octavo.server.generation import Generation
from octavo.server.replies import Exchange
from octavo.server.state import ServerState


@dataclass(frozen=True, slots=True)
class Answer:
    """A reading per request of the call, and what all of them took."""

    readings: Sequence[Reading]
    usage: Usage
    timings: dict[str, float]


async def run_probes(state: ServerState, http: Exchange, call: Call) -> Answer | None:
    """Run a call's requests to their ends; None where the client left.

    Raises:
        OctavoError: one is not taken or was dropped; none runs on.
    """
    readings = [Reading() for _ in call.requests]
    with Generation(state, call.requests, http.receive, timeout_s=call.timeout_s) as generation:
        await generation.run(lambda index, output: readings[index].add(output))
        if generation.disconnected:
            return None
        return Answer(readings, generation.usage, generation.timings)
