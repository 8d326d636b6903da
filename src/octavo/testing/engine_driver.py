"""An engine core with a fake runner, driven by hand: what most tests of the engine start from."""

from __future__ import annotations

from dataclasses import replace

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.grammar import GrammarSource
from octavo.core.probe import Probe
from octavo.core.request import BranchOutput, FinishReason, Request
from octavo.core.runner import RunnerInfo
from octavo.core.sampling_params import SamplingParams
from octavo.engine import EngineCore
from octavo.testing.fake_runner import FakeRunner, make_info
from octavo.testing.journal import JournalEntry, SimulationError


class EngineDriver:
    """Submits, steps, keeps a journal per request and checks every invariant on every step."""

    def __init__(
        self,
        info: RunnerInfo | None = None,
        scheduler: SchedulerConfig | None = None,
        cache: CacheConfig | None = None,
        *,
        grammars: GrammarSource | None = None,
    ) -> None:
        self.info = info or make_info()
        self.runner = FakeRunner(self.info)
        self.core = EngineCore(
            self.runner,
            replace(scheduler or SchedulerConfig(), check_every_n_steps=1),
            cache or CacheConfig(),
            epoch=1,
            grammars=grammars,
        )
        self.now = 0.0
        self.entries: dict[str, JournalEntry] = {}
        self.outputs: list[BranchOutput] = []

    def submit(self, request: Request) -> JournalEntry:
        """Hand a request to the engine."""
        entry = self.entries[request.request_id] = JournalEntry(request)
        self.core.handle(entry.submit(), self.now)
        if (state := self.core.requests.states.get(request.request_id)) is not None:
            entry.limit = state.max_output
        return entry

    def step(self) -> list[BranchOutput]:
        """One step; its outputs go to the journal."""
        outputs = self.core.step(self.now)
        for output in outputs:
            self.entries[output.request_id].take(output)
        self.outputs += outputs
        if violations := self.core.violations + self.core.check_invariants():
            raise SimulationError("; ".join(violations))
        for group, pool in enumerate(self.core.kv.pools):
            self.runner.poison(group, pool.free_blocks())
        return outputs

    def run(self, limit: int = 10_000) -> None:
        """Step until nothing is left to do."""
        while self.core.has_work():
            self.step()
            limit -= 1
            if limit < 0:
                raise SimulationError("the engine does not come to an end")

    def verify(self) -> None:
        """Every branch ended, with the answer that its request gets alone."""
        for entry in self.entries.values():
            if not entry.is_done:
                raise SimulationError(f"{entry.request.request_id} has no outcome")
            for branch in entry.ended:
                entry.verify(branch, self.info)

    @property
    def counters(self) -> dict[str, int]:
        """The engine's counters."""
        return self.core.stats().counters

    def errors(self) -> list[tuple[str | None, str | None]]:
        """(code, text) of every branch that was dropped, in order."""
        dropped = (FinishReason.ERROR, FinishReason.ABORT)
        return [(o.error_code, o.error) for o in self.outputs if o.finish_reason in dropped]


def make_request(
    request_id: str,
    prompt: list[int] | tuple[int, ...],
    *,
    sampling: SamplingParams | None = None,
    eos: tuple[int, ...] = (),
    probe: Probe | None = None,
) -> Request:
    """A request of 8 output tokens unless ``sampling`` or ``probe`` say otherwise."""
    if probe is not None:
        sampling = probe.sampling
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=sampling or SamplingParams(max_tokens=8, seed=1),
        eos_token_ids=eos,
        probe=probe,
    )
