"""Draft trees on the fake runner: paths forked for one step, and no trace of them behind it."""

from __future__ import annotations

from random import Random

import pytest

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.grammar import Grammar
from octavo.core.request import Abort
from octavo.core.sampling_params import SamplingParams
from octavo.testing import EngineDriver, clairvoyant_tree, make_info, make_request
from octavo.testing.toy_grammar import ToyGrammars

PROMPT = list(range(20, 57))


def make_driver(first_wrong=None, *, info=None, cache=None, seed=1, **config) -> EngineDriver:
    rng = Random(seed)
    driver = EngineDriver(
        info or make_info(block_size=4, num_blocks=256),
        SchedulerConfig(speculate="tree", **config),
        cache,
    )
    speculation = driver.core.scheduler.speculation
    speculation.propose = clairvoyant_tree(driver.info, first_wrong or (lambda: rng.randrange(8)))
    speculation.step_cost = 1000
    return driver


def submit(driver: EngineDriver, name: str = "r", prompt=PROMPT, **fields):
    sampling = SamplingParams(**{"max_tokens": 24, "seed": 1, **fields})
    return driver.submit(make_request(name, prompt, sampling=sampling))


def assert_trees(counters: dict[str, int]) -> None:
    assert 0 < counters["draft_paths_kept"] < counters["draft_paths"]
    assert counters["draft_trees"] <= counters["draft_paths"]
    assert 0 < counters["draft_tokens_accepted"] < counters["draft_tokens"]


@pytest.mark.parametrize("block_size", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("windows", [(None,), (None, 6), (5,)])
def test_paths_from_every_place_in_a_block(block_size: int, windows) -> None:
    info = make_info(block_size=block_size, num_blocks=3200 // block_size, windows=windows)
    driver = make_driver(info=info)
    for i in range(block_size):
        submit(driver, f"r{i}", PROMPT[: 8 + i], seed=i, max_tokens=20 + i)
        driver.run()
    driver.verify()
    assert_trees(driver.counters)
    assert driver.counters["draft_tokens"] == driver.runner.counts.drafts
    assert (driver.counters["cow_copies"] > 0) == (block_size > 1)
    per_position = [driver.counters.get(f"draft_tokens_accepted_at_{i}", 0) for i in range(7)]
    assert sum(per_position) == driver.counters["draft_tokens_accepted"]
    assert "draft_tokens_accepted_at_7" not in driver.counters


def test_the_right_path_saves_the_step_that_the_first_would_cost() -> None:
    """The first path is wrong at once, the second never: as fast as if the first were right."""
    wrong = [0, 99, 0]
    turns = iter(wrong * 1000)
    driver = make_driver(lambda: next(turns), num_draft_tokens=3)
    submit(driver, max_tokens=1 + 4 * 5)
    driver.run()
    driver.verify()
    assert driver.runner.counts.steps == 1 + 5
    assert driver.counters["draft_trees"] == driver.counters["draft_paths_kept"] == 5


def test_the_first_of_equal_paths_stays() -> None:
    """Two paths that are wrong at the same place: there is nothing to take over."""
    driver = make_driver(lambda: 1, num_draft_tokens=3)
    submit(driver)
    driver.run()
    driver.verify()
    assert driver.counters["draft_paths"] > 0
    assert driver.counters["draft_paths_kept"] == 0


def test_usage_counts_the_drafts_of_every_path() -> None:
    driver = make_driver()
    submit(driver)
    driver.run()
    assert sum(o.num_drafts for o in driver.outputs) == driver.counters["draft_tokens"]
    assert sum(o.num_accepted for o in driver.outputs) == driver.counters["draft_tokens_accepted"]


def test_full_seats_leave_no_paths() -> None:
    driver = make_driver(max_num_seqs=2)
    submit(driver, "a", max_tokens=40)
    submit(driver, "b", PROMPT[::-1], max_tokens=8)
    while "b" in driver.core.requests.states:
        driver.step()
        assert driver.counters["draft_paths"] == 0
    driver.run()
    driver.verify()
    assert driver.counters["draft_paths"] > 0, "once there was a seat"


def test_the_budget_holds_for_all_paths_together() -> None:
    driver = make_driver(max_num_batched_tokens=20)
    submit(driver, max_tokens=60)
    while driver.core.has_work():
        before = driver.counters["computed_tokens"]
        driver.step()
        assert driver.counters["computed_tokens"] - before <= 20
    driver.verify()
    assert_trees(driver.counters)


def test_branches_that_share_their_tail_have_trees_too() -> None:
    driver = make_driver(cache=CacheConfig(prefix_cache=True))
    submit(driver, n=3, max_tokens=30)
    submit(driver, "other", PROMPT[:30], n=2, max_tokens=30)
    driver.run()
    driver.verify()
    assert_trees(driver.counters)
    assert driver.counters["forks"] == 3


@pytest.mark.parametrize("policy", ["reserve", "estimate", "optimistic"])
@pytest.mark.parametrize("num_blocks", [14, 18, 23, 40])
def test_paths_cost_nobody_a_block(policy: str, num_blocks: int) -> None:
    info = make_info(block_size=4, num_blocks=num_blocks)
    preempted = {}
    for with_paths in (False, True):
        driver = make_driver(info=info, policy=policy)
        if not with_paths:
            driver.core.scheduler.speculation.propose = None
        for i in range(4):
            submit(driver, f"r{i}", [i] * 9, max_tokens=30, seed=i)
        driver.run()
        driver.verify()
        preempted[with_paths] = driver.counters["preemptions"]
        assert driver.counters["refused_reservations"] == 0
        if policy == "reserve":
            assert driver.counters["promises_shed"] == 0
    assert preempted[True] <= preempted[False]


@pytest.mark.parametrize("at", range(2, 7))
def test_preempted_or_aborted_inside(at: int) -> None:
    driver = make_driver()
    for i in range(3):
        submit(driver, f"r{i}", PROMPT[i:], n=2, seed=i)
    for _ in range(at):
        driver.step()
    for seq in list(driver.core.scheduler.running):
        driver.core.scheduler.preempt(seq)
    driver.core.handle(Abort(request_id="r1"), 0.0)
    driver.run()
    driver.verify()
    assert_trees(driver.counters)
    kv = driver.core.kv
    assert kv.pools[0].num_free + kv.pools[0].num_cached == 256
    assert driver.core.scheduler.num_slots_taken == 0


def step_with_paths(driver: EngineDriver) -> int:
    """Step until a tree has been verified; how many paths there were."""
    while not driver.counters["draft_paths"]:
        assert driver.core.has_work()
        driver.step()
    return driver.counters["draft_paths"]


def test_a_failed_step_leaves_no_path() -> None:
    driver = make_driver()
    submit(driver)
    num_paths = step_with_paths(driver)
    driver.runner.fail_next = True
    driver.step()
    assert [code for code, _ in driver.errors()] == ["engine_error"]
    assert driver.counters["draft_paths"] == num_paths, "the paths of the failed step do not count"
    assert len(driver.core.kv.sequences) == driver.core.scheduler.num_slots_taken == 0
    submit(driver, "after", PROMPT[::-1])
    driver.run()
    assert not driver.entries["after"].stopped


def test_a_failed_row_takes_its_paths_along() -> None:
    driver = make_driver()
    submit(driver)
    step_with_paths(driver)
    driver.runner.spoil_next = True
    for seq in driver.core.scheduler.running:
        assert seq.trunk is None
    driver.run()
    assert len(driver.core.kv.sequences) == driver.core.scheduler.num_slots_taken == 0


def test_a_refused_reservation_takes_its_paths_back() -> None:
    driver = make_driver()
    submit(driver, max_tokens=40)
    step_with_paths(driver)
    pool = driver.core.kv.pools[0]
    real = pool.allocate
    for refuse_at in range(3):
        calls = iter(range(100))
        pool.allocate = lambda owner, count, n=refuse_at, c=calls: (
            None if next(c) == n else real(owner, count)
        )
        driver.step()
        pool.allocate = real
    assert driver.counters["refused_reservations"] > 0
    driver.run()
    driver.verify()


def test_a_grammar_binds_every_path() -> None:
    info = make_info(block_size=4, num_blocks=128, vocab_size=60)
    places = [" ".join(str(t) for t in range(60) if t % 3 == i % 3) for i in range(14)]
    grammar = Grammar(kind="choice", choices=tuple(places))
    answers = []
    for trees in (False, True):
        grammars = ToyGrammars(info.vocab_size)
        driver = EngineDriver(info, SchedulerConfig(speculate="tree"), grammars=grammars)
        speculation = driver.core.scheduler.speculation
        speculation.propose = _known(answers[0], random=Random(3)) if trees else None
        speculation.step_cost = 1000
        driver.core.handle(grammars.finish(grammar), 0.0)
        entry = submit(driver, n=2, grammar=grammar)
        driver.run()
        answers.append(entry.delivered)
    assert answers[0] == answers[1]
    assert_trees(driver.counters)


def _known(plain: list[list[int]], *, random: Random):
    """Paths of a known answer, each wrong somewhere: by what is allowed there, or not."""

    def propose(guess, seq, limit):
        guess.chance, guess.detour = 768, 1023
        right = [*plain[seq.branch], *range(9)][seq.num_output :][:limit]
        paths = [list(right) for _ in range(3)]
        for path in paths:
            at = random.randrange(len(path))
            path[at] = (path[at] + random.choice([1, 3])) % 60
        guess.others = [path for path in paths[1:] if path != paths[0]]
        return paths[0]

    return propose


def test_the_products_own_trees_of_a_text_that_repeats_itself() -> None:
    driver = EngineDriver(
        make_info(block_size=4, vocab_size=2, windows=(3,)),
        SchedulerConfig(speculate="tree", num_draft_tokens=3),
    )
    driver.core.scheduler.speculation.step_cost = 100
    for i in range(3):
        submit(driver, f"r{i}", [0, 1, 1, i % 2], max_tokens=80, seed=i)
    driver.run()
    driver.verify()
    assert_trees(driver.counters)
