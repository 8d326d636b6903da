"""How many draft tokens each sequence gets in a step: a function of tokens and counters alone.

A draft costs one token of the step whether it is accepted or not. Where a step of T tokens takes
F + c · ⌈T⌉ (T rounded up to a tile of rows, but for 1), a draft is worth its token if it raises

    expected tokens gained / (F + c · ⌈T⌉)

and the i-th draft of a sequence is gained with chance pⁱ. p is a moving average of how its last
proposals fared, those included that were only compared with what came and never computed: so an
unpredictable text costs nothing, and a full batch drafts only what is nearly sure.

Another path that parts from the first behind i drafts is gained with chance pⁱ · (1 - p) · q and
costs its drafts and the token before them, which its row computes again; q is measured like p.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Values
from typing import NamedTuple

from octavo.config import DRAFT_MODEL
from octavo.core.step import RowPlan
from octavo.kv import StepReservation, common_prefix_length
from octavo.scheduler.draft_paths import Detour
from octavo.scheduler.guess import SURE, Guess
from octavo.scheduler.sequence import Sequence

# Of the native backend on two cores, see benchmarks/LOG.md: F, what a row alone takes beyond it,
# and c, in quarters of c; the tile in tokens. They decide about speed alone.
STEP_COST = 9
ALONE_COST = 7
TOKEN_COST = 4
TILE = 4


class _Branch(NamedTuple):
    """A path that parts from the first of sequence ``at`` behind ``fork`` drafts.

    ``offer``: its gain (in tokens · SURE) and its tokens.
    """

    at: int
    fork: int
    path: tuple[int, ...]
    offer: tuple[int, int]


class Speculation:
    """Proposes drafts. ``propose`` (guess, sequence, limit) is None where speculation is off.

    ``by_runner``: the runner drafts by itself; the tokens that stand for its drafts mean nothing.
    ``step_cost`` is F of the machine.
    """

    def __init__(self, proposer: str, num_draft_tokens: int) -> None:
        self.by_runner = proposer.startswith(DRAFT_MODEL)
        self.propose: Proposer | None = _unknown if self.by_runner else _PROPOSERS.get(proposer)
        self.num_draft_tokens = num_draft_tokens
        self.step_cost = STEP_COST

    def drafts(
        self,
        decodes: list[Sequence],
        reservation: StepReservation,
        *,
        num_tokens: int,
        budget: int,
        seats: int,
    ) -> tuple[dict[Sequence, tuple[int, ...]], list[Detour]]:
        """Drafts behind sequences that have one token to compute in a step of ``num_tokens``.

        At most ``budget``, only as far as they pay and only into slots that nobody else is short
        of, which are added to ``reservation``. And what may be verified beside them, in rows of
        their own: at most ``seats``.
        """
        guesses = [self._guess(seq) for seq in decodes]
        if not self.by_runner and not any(guess.drafts for guess in guesses):
            return {}, []  # of a text that repeats nothing: most steps
        worth = SURE * num_tokens // _cost(num_tokens, self.step_cost)
        branches = [
            _Branch(at, fork, path, offer)
            for at, guess in enumerate(guesses)
            if guess.others
            for fork, path, offer in _branches(guess, worth)
        ]
        counts = allot(
            [guess.chance for guess in guesses],
            limits=[len(guess.drafts) for guess in guesses],
            num_tokens=num_tokens,
            budget=budget,
            step_cost=self.step_cost,
            bundles=[branch.offer for branch in branches],
        )
        drafts: dict[Sequence, tuple[int, ...]] = {}
        for seq, guess, count in zip(decodes, guesses, counts, strict=False):
            assert seq.kv is not None, "I7: a running sequence has KV"
            if count and (count := reservation.extend(seq.kv, len(seq.token_ids), count)):
                drafts[seq] = tuple(guess.drafts[:count])
            if self.by_runner:
                guess.drafts = []
                guess.recover(count)
        detours = [
            (decodes[branch.at], branch.path)
            for branch, taken in zip(branches, counts[len(guesses) :], strict=True)
            if taken and branch.fork < len(drafts.get(decodes[branch.at], ()))
        ]
        return drafts, detours[:seats]

    def put(self, row: RowPlan, drafts: tuple[int, ...]) -> None:
        """Let a row that has just been made verify ``drafts``."""
        if self.by_runner:
            row.num_proposals = len(drafts)
        else:
            row.token_ids += drafts
            row.num_drafts = len(drafts)

    def _guess(self, seq: Sequence) -> Guess:
        """What may follow ``seq``; the last token that it can have needs no draft."""
        guess = seq.guess
        if guess is None:
            guess = seq.guess = Guess(seq.token_ids)
        guess.learn(seq.token_ids)
        room = min(self.num_draft_tokens, seq.state.max_output - seq.num_output - 1)
        if room > 0 and self.propose is not None:
            guess.drafts = self.propose(guess, seq, room)
        return guess


def _ngram(guess: Guess, seq: Sequence, limit: int) -> list[int]:
    return guess.lookup.ngram(seq.token_ids, limit)


def _unknown(guess: Guess, seq: Sequence, limit: int) -> list[int]:
    """Room for the runner's drafts. A grammar would have to see them first: none with one."""
    del guess
    return [0] * limit if seq.grammar is None else []


def _suffix(guess: Guess, seq: Sequence, limit: int) -> list[int]:
    return guess.lookup.suffix(seq.token_ids, limit)


def _tree(guess: Guess, seq: Sequence, limit: int) -> list[int]:
    paths = guess.lookup.tree(seq.token_ids, limit)
    guess.others = paths[1:]
    return paths[0] if paths else []


Proposer = Callable[[Guess, Sequence, int], list[int]]
_PROPOSERS: dict[str, Proposer] = {"ngram": _ngram, "suffix": _suffix, "tree": _tree}


def _branches(guess: Guess, worth: int) -> Iterator[tuple[int, tuple[int, ...], tuple[int, int]]]:
    """(fork, path, offer) of each further path, as far as a token more is ``worth`` / SURE."""
    left: dict[int, int] = {}
    for path in guess.others:
        fork = common_prefix_length(path, guess.drafts)
        reach = left.get(fork, SURE - guess.chance)
        left[fork] = reach * (SURE - guess.detour) // SURE
        reach = reach * guess.detour // SURE
        for _ in range(fork):
            reach = reach * guess.chance // SURE
        gain, length = reach, fork + 1
        while length < len(path) and (reach := reach * guess.chance // SURE) >= worth:
            gain, length = gain + reach, length + 1
        yield fork, tuple(path[:length]), (gain, 1 + length)


def allot(
    chances: Values[int],
    *,
    limits: Values[int],
    num_tokens: int,
    budget: int,
    step_cost: int = STEP_COST,
    bundles: Values[tuple[int, int]] = (),
) -> list[int]:
    """Drafts per sequence for a step that computes ``num_tokens`` anyhow, ``budget`` at most more.

    ``chances[s]`` / SURE is p, ``limits[s]`` how many drafts there are to have. Behind them, 1 for
    each of the ``bundles`` (gain · SURE, tokens) that is to be had, else 0.
    """
    offers = []
    for index, (chance, limit) in enumerate(zip(chances, limits, strict=True)):
        gain = SURE
        for _ in range(limit):
            gain = gain * chance // SURE
            offers.append((-gain, index))
    num_chains = len(chances)
    for index, (gain, size) in enumerate(bundles, num_chains):
        offers.append((-(gain // size), index))
    offers.sort(key=_gain)
    counts, taken, tokens = [0] * (num_chains + len(bundles)), 0, num_tokens
    gained = num_tokens * SURE
    best = gained, _cost(num_tokens, step_cost)
    for number, (loss, index) in enumerate(offers, 1):
        gain, size = (-loss, 1) if index < num_chains else bundles[index - num_chains]
        tokens += size
        if tokens > num_tokens + budget:
            break
        gained += gain
        cost = _cost(tokens, step_cost)
        if gained * best[1] > best[0] * cost:
            best, taken = (gained, cost), number
    for _, index in offers[:taken]:
        counts[index] += 1
    return counts


def _gain(offer: tuple[int, int]) -> int:
    return offer[0]


def _cost(num_tokens: int, step_cost: int) -> int:
    if num_tokens == 1:
        return step_cost + ALONE_COST
    return step_cost + TOKEN_COST * (-(-num_tokens // TILE) * TILE)
