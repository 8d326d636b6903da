"""What simulated clients ask for: every shape of request that the engine takes.

Of parameters, only those are drawn that change what the engine or the runner's plan does; how a
sampler weighs logits (temperature, penalties, bias) is nothing to either.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Literal

from octavo.core.grammar import Grammar
from octavo.core.probe import Probe
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.testing.simulator_scenario import MAX_OUTPUT, MAX_PROMPT, Scenario

NUM_WORDS = 40
EOS = (7, 8)
# How many different parameters an episode's requests have between them.
MENU_SIZE = 32


class RequestMaker:
    """Draws requests for one episode and counts their kinds in ``events``."""

    def __init__(self, rng: Random, scenario: Scenario, events: Counter[str]) -> None:
        self._rng = rng
        self._scenario = scenario
        self._events = events
        self._topics = [
            [rng.randrange(NUM_WORDS) for _ in range(MAX_PROMPT)] for _ in range(rng.randint(1, 3))
        ]
        self._menu: list[tuple[SamplingParams, Probe | None, tuple[str, ...]]] = []

    def draw(self, request_id: str, now: float) -> Request:
        """One request; some are impossible."""
        rng, events = self._rng, self._events
        if len(self._menu) < MENU_SIZE:
            self._menu.append(self._shape())
            sampling, probe, kinds = self._menu[-1]
        else:
            sampling, probe, kinds = rng.choice(self._menu)
        prompt = rng.choice(self._topics)[: rng.randint(1, MAX_PROMPT - 4)]
        prompt += rng.choices(range(NUM_WORDS), k=rng.randint(0, 3))
        oddity = rng.random()
        if oddity < 0.004:
            prompt *= MAX_PROMPT + MAX_OUTPUT  # longer than the model
        request = Request(
            request_id=request_id,
            prompt_token_ids=tuple(prompt),
            sampling=sampling,
            eos_token_ids=EOS,
            tenant=rng.choice("aaabc"),
            domain=rng.choice(("", "", "salt")),
            adapter="unknown" if oddity > 0.996 else "",
            deadline=now + rng.uniform(0.02, 0.5) if rng.random() < 0.05 else None,
            priority=rng.choice((0, 0, -1, 1)),
            probe=probe,
        )
        for kind in (*kinds, f"tenant {request.tenant}", f"priority {request.priority}"):
            events[kind] += 1
        events["salts"] += request.domain != ""
        events["deadlines"] += request.deadline is not None
        events["arrivals"] += 1
        return request

    def _shape(self) -> tuple[SamplingParams, Probe | None, tuple[str, ...]]:
        """Parameters, the probe that they belong to, and what they are to be counted as."""
        rng, shares = self._rng, self._scenario.shares
        kind = rng.random()
        if kind < 0.06:
            probe = self._probe()
            return probe.sampling, probe, ("probes",)
        if kind < 0.12 and shares:
            return self._beam_search(), None, ("beam searches",)
        if kind < 0.2:
            return self._structured(), None, ("grammars",)
        sampling = self._plain()
        names = [name for name in ("prompt_logprobs", "logprobs", "best_of")
                 if getattr(sampling, name) is not None]  # fmt: skip
        names += [name for name in ("allowed_token_ids", "ignore_eos")
                  if getattr(sampling, name)]  # fmt: skip
        return sampling, None, tuple(names)

    def _plain(self) -> SamplingParams:
        rng = self._rng
        output = rng.randint(1, MAX_OUTPUT)
        n = rng.choice((1, 1, 1, 2, 3)) if self._scenario.shares else 1
        return SamplingParams(
            n=n,
            best_of=rng.randint(n, 4) if n > 1 and rng.random() < 0.3 else None,
            max_tokens=output if rng.random() < 0.9 else None,
            min_tokens=rng.choice((0, 0, min(3, output))),
            seed=rng.randrange(1 << 30),
            ignore_eos=rng.random() < 0.1,
            stop_token_ids=tuple(rng.sample(range(NUM_WORDS), rng.choice((0, 0, 0, 3)))),
            logprobs=rng.choice((0, 2)) if rng.random() < 0.1 else None,
            prompt_logprobs=rng.choice((0, 2)) if rng.random() < 0.08 else None,
            allowed_token_ids=tuple(range(5, 12)) if rng.random() < 0.05 else (),
        )

    def _structured(self) -> SamplingParams:
        """A grammar of a few places; one in ten ends nowhere."""
        rng = self._rng
        places = [" ".join(map(str, rng.sample(range(NUM_WORDS), rng.randint(1, 3))))
                  for _ in range(rng.randint(1, 8))]  # fmt: skip
        if rng.random() < 0.1:
            places.append(" ")
        return SamplingParams(
            n=rng.choice((1, 1, 2)) if self._scenario.shares else 1,
            max_tokens=rng.randint(1, MAX_OUTPUT),
            seed=rng.randrange(1 << 30),
            grammar=Grammar(kind="choice", choices=tuple(places)),
        )

    def _beam_search(self) -> SamplingParams:
        rng = self._rng
        early_stopping: list[bool | Literal["never"]] = [False, True, "never"]
        plain = self._plain()
        return replace(
            plain,
            use_beam_search=True,
            best_of=rng.randint(max(2, plain.n), 4),
            temperature=0.0,
            length_penalty=rng.choice((0.0, 1.0, 2.0)),
            early_stopping=rng.choice(early_stopping),
            stop_token_ids=tuple(rng.sample(range(NUM_WORDS), rng.choice((0, 0, 3)))),
            prompt_logprobs=None,
            allowed_token_ids=(),
        )

    def _probe(self) -> Probe:
        """Labels to be scored, or a hidden state to be told."""
        rng = self._rng
        if rng.random() < 0.4:
            return Probe(hidden=True)
        count = rng.randint(1, 3) if self._scenario.shares else 1
        lengths = [rng.randint(1, 4) for _ in range(count)]
        return Probe(labels=tuple(tuple(rng.choices(range(NUM_WORDS), k=n)) for n in lengths))
