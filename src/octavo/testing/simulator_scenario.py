"""The shape of one simulated episode: model, pool, limits and policies, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.runner import RunnerInfo
from octavo.testing.fake_runner import make_info

POLICIES = ("reserve", "estimate", "optimistic", "optimistic")
BLOCK_SIZES = (1, 2, 3, 8, 16, 32)
MAX_PROMPT = 40
MAX_OUTPUT = 48


@dataclass(frozen=True, slots=True)
class Scenario:
    """``load`` requests at most are live. ``shares``: blocks are shared (prefixes, branches) and
    leased. ``misjudges``: what the policy promises is all or nothing, see ``Misjudging``.
    """

    info: RunnerInfo
    scheduler: SchedulerConfig
    cache: CacheConfig
    load: int
    shares: bool
    misjudges: bool

    @property
    def never_preempts(self) -> bool:
        """Whether promises must hold to the last block (see ``scheduler.admission``)."""
        exact = len(self.info.groups) == 1 or not self.shares
        return self.scheduler.policy == "reserve" and exact


class Misjudging:
    """A policy that promises half of the classes all, and the others nothing.

    Those grow into what these were promised: promises are shed.
    """

    promises_branches = True

    def output_tokens(self, tenant: str, max_output: int) -> int:
        """See ``AdmissionPolicy``."""
        return max_output if max_output % 2 else 1

    def observe(self, tenant: str, max_output: int, num_output: int) -> None:
        """It does not learn."""


def draw_scenario(rng: Random) -> Scenario:
    """Block size, pool, windows, policy and limits at random, always with too few blocks."""
    block_size, misjudges = rng.choice(BLOCK_SIZES), rng.random() < 0.25
    per_request = -(-(MAX_PROMPT + MAX_OUTPUT) // block_size)
    windows: tuple[int | None, ...] = rng.choice([(None,), (None,), (None, 5), (16, None)])
    info = make_info(
        block_size=block_size,
        num_blocks=max(
            4, int(per_request * (rng.uniform(1.5, 2.5) if misjudges else rng.uniform(2.0, 6.0)))
        ),
        windows=windows,
        max_model_len=MAX_PROMPT + MAX_OUTPUT,
        vocab_size=rng.choice([50, 1000]),
    )
    scheduler = SchedulerConfig(
        max_num_batched_tokens=rng.choice([8, 16, 64, 256]),
        max_num_seqs=16 if misjudges else rng.choice([6, 8, 16]),
        max_waiting=rng.choice([4, 64]),
        policy="estimate" if misjudges else rng.choice(POLICIES),
        speculate=rng.choice(["off", "ngram", "suffix", "tree", "tree", "draft:runner"]),
        num_draft_tokens=rng.choice([1, 3, 7]),
        check_every_n_steps=1,
    )
    shares = rng.random() < 0.85
    # Admission keeps away from others' cached blocks: without any, promises reach to the last.
    cached = shares and not misjudges and rng.random() < 0.95
    cache = CacheConfig(prefix_cache=cached)
    return Scenario(info, scheduler, cache, rng.randint(10, 16), shares, misjudges)
