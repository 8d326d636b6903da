"""Beam search as a value: live beams, finished hypotheses and what each beam offers next.

    beams ─ offers of every beam ─► 2 · width best ─┬─ end, among the first width ─► hypotheses
                                                    └─ the first width others ─────► beams

It follows Hugging Face's ``generate`` (``octavo.testing.beam_reference`` is the plain form), knows
no blocks and no steps, and survives a preemption as it is: only KV is lost. Scores are double
precision sums of the sampler's log-probabilities, in the order of the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from octavo.core.request import TokenLogprobs
from octavo.core.sampling_params import SamplingParams
from octavo.kv import common_prefix_length

Candidates = Sequence[tuple[int, float]]
"""(token id, logprob), likeliest first, ties by id."""


@dataclass(frozen=True, slots=True)
class Beam:
    """A live beam: output tokens and Σ logprob. The sequence of ``branch`` computes it."""

    branch: int
    token_ids: tuple[int, ...] = ()
    total: float = 0.0
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished beam. ``score`` is Σ logprob / length ** length_penalty."""

    token_ids: tuple[int, ...]
    score: float
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class _Offer:
    """One beam's next token: the new Σ logprob, the beam's place, the token, its logprob."""

    total: float
    place: int
    token_id: int
    logprob: float

    @property
    def rank(self) -> tuple[float, int, int]:
        """Best first; ties by beam, then by token id."""
        return (-self.total, self.place, self.token_id)


class BeamSearch:
    """The search of one request. ``beams`` stand best first; none is left when it is over.

    ``stop_ids`` end a beam, but not among its first ``min_tokens`` tokens; ``max_output`` tokens
    end every beam.
    """

    def __init__(
        self, sampling: SamplingParams, *, stop_ids: Collection[int], max_output: int
    ) -> None:
        self.width = sampling.width
        self.beams = [Beam(0)]
        self.hypotheses: list[Hypothesis] = []
        self.num_banned = len(stop_ids) if sampling.min_tokens else 0
        self._sampling = sampling
        self._stop_ids = stop_ids
        self._max_output = max_output
        self._offers: dict[int, tuple[Candidates, tuple[tuple[int, float], ...]]] = {}

    @property
    def num_candidates(self) -> int:
        """How many a row must give, so that 2 · width are left when the banned ones are out."""
        return 2 * self.width + self.num_banned

    # -- offers ------------------------------------------------------------------------------

    def offer(
        self, branch: int, candidates: Candidates, top: tuple[tuple[int, float], ...] = ()
    ) -> None:
        """What may follow a beam; of ``top``, what was asked for goes with the token chosen."""
        self._offers[branch] = (candidates, top[: self._sampling.logprobs or 0])

    def has_offer(self, branch: int) -> bool:
        """Whether a beam waits for the others: its own row is computed."""
        return branch in self._offers

    def withdraw(self) -> None:
        """Forget all offers: the rows that gave them will be computed again."""
        self._offers.clear()

    @property
    def is_ready(self) -> bool:
        """Whether every beam has made its offer."""
        return bool(self.beams) and len(self._offers) == len(self.beams)

    # -- one step of the search --------------------------------------------------------------

    def advance(self) -> dict[int, list[Beam]]:
        """Choose the next beams; per branch that goes on its children, the first under its own
        number. Empty when the search is over.
        """
        length = len(self.beams[0].token_ids) + 1
        grown: list[_Offer] = []
        for place, offer in enumerate(self._best_offers(length)):
            if offer.token_id not in self._stop_ids and length < self._max_output:
                grown.append(offer)
            elif place < self.width:
                self._finish(offer, length)
        families = self._families(grown[: self.width])
        self._offers.clear()
        self.hypotheses.sort(key=lambda each: -each.score)
        del self.hypotheses[self.width :]
        if self._is_over(length):
            self.beams = []
        return families if self.beams else {}

    def _best_offers(self, length: int) -> list[_Offer]:
        count = 2 * self.width
        banned = self._stop_ids if length <= self._sampling.min_tokens else ()
        offers: list[_Offer] = []
        for place, beam in enumerate(self.beams):
            allowed = [pair for pair in self._offers[beam.branch][0] if pair[0] not in banned]
            offers += [
                _Offer(beam.total + logprob, place, token, logprob)
                for token, logprob in allowed[:count]
            ]
        return sorted(offers, key=lambda offer: offer.rank)[:count]

    def _finish(self, offer: _Offer, length: int) -> None:
        score = offer.total / math.pow(length, self._sampling.length_penalty)
        beam = self._extended(offer, -1)
        self.hypotheses.append(Hypothesis(beam.token_ids, score, beam.logprobs))

    def _extended(self, offer: _Offer, branch: int) -> Beam:
        parent = self.beams[offer.place]
        logprobs = parent.logprobs
        if self._sampling.logprobs is not None:
            top = self._offers[parent.branch][1]
            logprobs = (*logprobs, TokenLogprobs(offer.token_id, offer.logprob, top))
        return Beam(branch, (*parent.token_ids, offer.token_id), offer.total, logprobs)

    def _families(self, grown: list[_Offer]) -> dict[int, list[Beam]]:
        """The new beams by parent's branch; the second child on gets a number that is free."""
        kept = {self.beams[offer.place].branch for offer in grown}
        free = iter([branch for branch in range(self.width) if branch not in kept])
        families: dict[int, list[Beam]] = {}
        beams = []
        for offer in grown:
            parent = self.beams[offer.place].branch
            beam = self._extended(offer, next(free) if parent in families else parent)
            families.setdefault(parent, []).append(beam)
            beams.append(beam)
        self.beams = beams
        return families

    def _is_over(self, length: int) -> bool:
        """Whether nothing that goes on is expected to beat the worst hypothesis.

        Expected is what the best beam would score at its length now, or, if early stopping is
        "never" and longer is better, at the greatest length.
        """
        sampling = self._sampling
        if not self.beams:
            return True
        if len(self.hypotheses) < self.width:
            return False
        if sampling.early_stopping is True:
            return True
        longest = sampling.early_stopping == "never" and sampling.length_penalty > 0
        reach = math.pow(self._max_output if longest else length, sampling.length_penalty)
        return self.hypotheses[-1].score >= self.beams[0].total / reach

    # -- the sharing tree --------------------------------------------------------------------

    def below(self, token_ids: tuple[int, ...]) -> list[list[Beam]]:
        """The beams that go on after output ``token_ids``, one list per next token."""
        at = len(token_ids)
        groups: dict[int, list[Beam]] = {}
        for beam in self.beams:
            if beam.token_ids[:at] == token_ids:
                groups.setdefault(beam.token_ids[at], []).append(beam)
        return list(groups.values())


def shared_tokens(beams: Sequence[Beam]) -> tuple[int, ...]:
    """The output tokens that all beams begin with; of one beam, all of its own."""
    first, last = min(b.token_ids for b in beams), max(b.token_ids for b in beams)
    return first[: common_prefix_length(first, last)]
