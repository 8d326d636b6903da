"""Drafts on the fake runner: whatever is proposed, the answer is the one without them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.grammar import Grammar
from octavo.core.request import Abort, FinishReason, StopBranch
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import RowResult, StepResult
from octavo.errors import EngineError
from octavo.testing import EngineDriver, clairvoyant, make_info, make_request
from octavo.testing.toy_grammar import ToyGrammars

PROMPT = list(range(20, 57))


def sampling(**fields) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 20, "seed": 1, **fields})


def make_driver(first_wrong=lambda: 99, *, info=None, cache=None, **config) -> EngineDriver:
    driver = EngineDriver(
        info or make_info(block_size=8), SchedulerConfig(speculate="ngram", **config), cache
    )
    driver.core.scheduler.speculation.propose = clairvoyant(driver.info, first_wrong)
    return driver


def submit(driver: EngineDriver, name: str = "r", prompt=PROMPT, **fields):
    return driver.submit(make_request(name, prompt, sampling=sampling(**fields)))


@pytest.mark.parametrize("wrong", [0, 1, 2, 5, 99])
@pytest.mark.parametrize("block_size", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("windows", [(None,), (None, 6), (5,)])
def test_right_partly_right_and_wrong_drafts(wrong: int, block_size: int, windows) -> None:
    """Prompts of every residue modulo the block size, so drafts end everywhere in a block."""
    info = make_info(block_size=block_size, num_blocks=1600 // block_size, windows=windows)
    driver = make_driver(lambda: wrong, info=info)
    for i in range(block_size):
        submit(driver, f"r{i}", PROMPT[: 8 + i], seed=i, max_tokens=9 + i)
    driver.run()
    driver.verify()
    counters = driver.counters
    assert counters["draft_tokens"] == driver.runner.counts.drafts > 0
    assert counters["draft_tokens_accepted"] == driver.runner.counts.accepted
    assert (counters["draft_tokens_accepted"] > 0) == (wrong > 0)
    assert (counters["draft_tokens_accepted"] == counters["draft_tokens"]) == (wrong == 99)
    per_position = [counters.get(f"draft_tokens_accepted_at_{i}", 0) for i in range(7)]
    assert sum(per_position) == counters["draft_tokens_accepted"]
    assert per_position == sorted(per_position, reverse=True)
    assert not any(per_position[wrong:])


def test_right_drafts_save_steps_and_compute_each_token_once() -> None:
    driver = make_driver()
    submit(driver, max_tokens=25)
    driver.run()
    driver.verify()
    # One step for the prompt and its token, then 8 tokens a step.
    assert driver.runner.counts.steps == 1 + 3
    assert driver.counters["computed_tokens"] == 37 + 24
    assert driver.counters["generation_tokens"] == 25


@pytest.mark.parametrize("limit", range(1, 20))
def test_max_tokens_inside_a_run(limit: int) -> None:
    driver = make_driver()
    entry = submit(driver, max_tokens=limit)
    driver.run()
    driver.verify()
    assert len(entry.delivered[0]) == limit
    assert entry.ended[0] is FinishReason.LENGTH
    assert driver.counters["draft_tokens"] == driver.counters["draft_tokens_accepted"]


@pytest.mark.parametrize("at", range(1, 18))
def test_a_stop_inside_an_accepted_run(at: int) -> None:
    alone = make_driver()
    tokens = submit(alone).delivered[0]
    alone.run()
    driver = make_driver()
    stop = tokens[at]
    entry = driver.submit(make_request("r", PROMPT, sampling=sampling(), eos=(stop,)))
    driver.run()
    assert entry.delivered[0] == tokens[: tokens.index(stop) + 1]
    last = driver.outputs[-1]
    assert (last.finish_reason, last.stop_token_id) == (FinishReason.STOP, stop)
    assert last.num_accepted <= len(last.token_ids)


def test_min_tokens_outlast_a_stop_inside_a_run() -> None:
    alone = make_driver()
    tokens = submit(alone).delivered[0]
    alone.run()
    driver = make_driver()
    entry = driver.submit(
        make_request("r", PROMPT, sampling=sampling(min_tokens=12), eos=tuple(tokens[2:8]))
    )
    driver.run()
    driver.verify()
    assert len(entry.delivered[0]) >= 12
    assert driver.counters["draft_tokens_accepted"] > 0


def test_logprobs_come_with_every_token() -> None:
    driver = make_driver(lambda: 3)
    submit(driver, logprobs=0)
    driver.run()
    for output in driver.outputs:
        assert tuple(entry.token_id for entry in output.logprobs) == output.token_ids
    assert max(len(output.token_ids) for output in driver.outputs) == 4


def test_branches_are_forked_first_and_drafted_for_then() -> None:
    driver = make_driver(lambda: 2)
    submit(driver, n=3)
    driver.run()
    driver.verify()
    assert driver.counters["forks"] == 2
    assert driver.counters["cow_copies"] == 2
    assert driver.counters["draft_tokens_accepted"] > 0
    # A prompt read from the cache to its last token: one token to compute, three to sample.
    submit(driver, "again", n=3)
    driver.core.set_token_budget(1)
    driver.run()
    driver.verify()


@pytest.mark.parametrize("at", range(1, 7))
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preempted_inside(at: int, prefix_cache: bool) -> None:
    driver = make_driver(lambda: 2, cache=CacheConfig(prefix_cache=prefix_cache))
    for i in range(3):
        submit(driver, f"r{i}", PROMPT[i:], n=2, seed=i)
    for _ in range(at):
        driver.step()
    for seq in list(driver.core.scheduler.running):
        driver.core.scheduler.preempt(seq)
    driver.run()
    driver.verify()
    assert driver.counters["preemptions"] > 0
    assert driver.counters["draft_tokens_accepted"] > 0


@pytest.mark.parametrize("event", [Abort(request_id="r"), StopBranch(request_id="r", branch=0)])
def test_aborted_or_stopped_inside(event) -> None:
    driver = make_driver(lambda: 2)
    entry = submit(driver)
    submit(driver, "other", PROMPT[::-1])
    for _ in range(3):
        driver.step()
    assert len(entry.delivered[0]) > 3
    if isinstance(event, StopBranch):
        entry.stopped.add(0)
    driver.core.handle(event, 0.0)
    driver.run()
    driver.verify()
    kv = driver.core.kv
    assert kv.pools[0].num_free + kv.pools[0].num_cached == 64


@pytest.mark.parametrize("policy", ["reserve", "estimate", "optimistic"])
@pytest.mark.parametrize("num_blocks", [14, 18, 23])
def test_drafts_cost_nobody_a_block(policy: str, num_blocks: int) -> None:
    """In a pool that is too small, the same sequences are preempted as without drafts, or fewer."""
    info = make_info(block_size=4, num_blocks=num_blocks)
    preempted = {}
    for wrong in (0, -1):
        driver = make_driver(lambda wrong=wrong: wrong, info=info, policy=policy)
        if wrong < 0:
            driver.core.scheduler.speculation.propose = None
        for i in range(4):
            submit(driver, f"r{i}", [i] * 9, max_tokens=30, seed=i)
        driver.run()
        driver.verify()
        preempted[wrong] = driver.counters["preemptions"]
        assert (driver.counters["draft_tokens"] > 0) == (wrong == 0)
        assert driver.counters["refused_reservations"] == 0
        if policy == "reserve":
            assert driver.counters["promises_shed"] == 0
    assert preempted[0] == preempted[-1]


def test_drafts_are_trimmed_to_the_budget_and_prompts_go_first() -> None:
    driver = make_driver(max_num_batched_tokens=4)
    submit(driver, "a", PROMPT[:3], max_tokens=40)
    driver.step()
    driver.step()
    assert len(driver.outputs[-1].token_ids) == 4, "three drafts beside the one token"
    submit(driver, "b", PROMPT[::-1], max_tokens=3)
    for _ in range(12):
        (output,) = driver.step()
        assert (output.request_id, len(output.token_ids)) == ("a", 1), "the prompt has the rest"
    driver.run()
    driver.verify()


def test_a_failed_verify_row_costs_its_request_alone() -> None:
    driver = make_driver(lambda: 1)
    submit(driver, "bad")
    submit(driver, "good", PROMPT[::-1], seed=2)
    driver.step()
    driver.step()
    driver.core.scheduler.running.reverse()
    driver.runner.spoil_next = True
    driver.run()
    driver.verify()
    assert [code for code, _ in driver.errors()] == ["engine_error"]
    assert driver.counters["requests_failed"] == 1


class Liar:
    """Turns every verified row into something that was not asked for."""

    def __init__(self, inner, change) -> None:
        self.inner, self.change, self.info = inner, change, inner.info

    def execute(self, plan):
        result = self.inner.execute(plan)
        rows = tuple(self.change(row) if row.num_verified else row for row in result.rows)
        return StepResult(step_id=result.step_id, rows=rows, progress=result.progress)


def _other_draft(row: RowResult) -> RowResult:
    return replace(row, token_ids=((row.token_ids[0] + 1) % 1000, *row.token_ids[1:]))


def _too_many(row: RowResult) -> RowResult:
    return replace(row, token_ids=(*row.token_ids, 1, 2), num_verified=row.num_verified + 2)


def _too_few(row: RowResult) -> RowResult:
    return replace(row, num_verified=row.num_verified + 1)


@pytest.mark.parametrize("change", [_other_draft, _too_many, _too_few])
def test_a_runner_that_lies_about_drafts_fails_the_step(change) -> None:
    driver = make_driver()
    driver.core._runner = Liar(driver.runner, change)
    submit(driver)
    driver.run()
    assert isinstance(driver.core.last_fault, EngineError)
    assert [code for code, _ in driver.errors()] == ["engine_error"]


def test_lookup_drafts_of_a_text_that_repeats_itself() -> None:
    """The product's own proposers end to end: the fake runner's ten tokens recur by chance."""
    for proposer in ("ngram", "suffix"):
        driver = EngineDriver(
            make_info(block_size=4, vocab_size=2, windows=(3,)),
            SchedulerConfig(speculate=proposer, num_draft_tokens=3),
        )
        for i in range(3):
            submit(driver, f"r{i}", [0, 1, 1, i % 2], max_tokens=60, seed=i)
        driver.run()
        driver.verify()
        assert 0 < driver.counters["draft_tokens_accepted"] < driver.counters["draft_tokens"]
        assert "draft_tokens_accepted_at_3" not in driver.counters


def test_many_at_random() -> None:
    rng = Random(5)
    driver = make_driver(lambda: rng.randrange(9), max_num_batched_tokens=48)
    for i in range(24):
        prompt = [*PROMPT[: rng.randrange(1, 30)], i]
        submit(driver, f"r{i}", prompt, n=rng.choice([1, 2]), max_tokens=rng.randrange(1, 30))
        driver.step()
    driver.run()
    driver.verify()
    assert 0 < driver.counters["draft_tokens_accepted"] < driver.counters["draft_tokens"]


def grammar_answers(propose) -> tuple[list[list[int]], EngineDriver]:
    """Fourteen places, each for a third of the vocabulary; then the text is complete."""
    info = make_info(block_size=4, vocab_size=60)
    places = [" ".join(str(t) for t in range(60) if t % 3 == i % 3) for i in range(14)]
    grammar = Grammar(kind="choice", choices=tuple(places))
    grammars = ToyGrammars(info.vocab_size)
    driver = EngineDriver(info, SchedulerConfig(speculate="ngram"), grammars=grammars)
    driver.core.scheduler.speculation.propose = propose
    driver.core.handle(grammars.finish(grammar), 0.0)
    entry = submit(driver, n=2, grammar=grammar)
    submit(driver, "free", PROMPT[::-1])
    driver.run()
    return entry.delivered, driver


@pytest.mark.parametrize("wrong_by", [0, 1, 3])
def test_a_grammar_binds_every_draft(wrong_by: int) -> None:
    """Wrong drafts: one that the grammar refuses, and one that it allows."""
    plain, _ = grammar_answers(None)
    assert [len(tokens) for tokens in plain] == [14, 14]
    rng = Random(3)

    def propose(guess, seq, limit):
        guess.chance = 1023
        drafts = [*plain[seq.branch], *range(9)][seq.num_output :][:limit]
        drafts[rng.randrange(len(drafts))] += wrong_by
        return [draft % 60 for draft in drafts] if seq.grammar is not None else []

    drafted, driver = grammar_answers(propose)
    assert drafted == plain
    assert {entry.ended[0] for entry in driver.entries.values()} == {
        FinishReason.STOP, FinishReason.LENGTH,
    }  # fmt: skip
    assert 0 < driver.counters["draft_tokens_accepted"] < driver.counters["draft_tokens"]


# -- drafts of the runner's own ------------------------------------------------------------------


def runner_driver(first_wrong, **config) -> EngineDriver:
    settings = SchedulerConfig(speculate="draft:small", **config)
    driver = EngineDriver(make_info(block_size=4, num_blocks=256), settings)
    driver.runner.first_wrong = first_wrong
    return driver


@pytest.mark.parametrize("wrong", [0, 2, 99])
def test_the_runner_may_draft_by_itself(wrong: int) -> None:
    driver = runner_driver(lambda: wrong)
    for i in range(3):
        submit(driver, f"r{i}", PROMPT[: 5 + i], seed=i, n=1 + i, max_tokens=24)
    driver.run()
    driver.verify()
    counters = driver.counters
    assert counters["draft_tokens"] == driver.runner.counts.drafts > 0
    assert counters["draft_tokens_accepted"] == driver.runner.counts.accepted
    assert (counters["draft_tokens_accepted"] > 0) == (wrong > 0)


def test_a_runner_that_was_wrong_is_asked_again_in_time() -> None:
    right = iter([*[0] * 20, *[99] * 1000])
    driver = runner_driver(lambda: next(right))
    submit(driver, max_tokens=600)
    driver.run()
    driver.verify()
    asked = [output.num_drafts for output in driver.outputs]
    first_rest = asked.index(0, 5)
    assert any(asked[first_rest:]), "after a rest"
    assert driver.counters["draft_tokens_accepted"] > 100


def test_a_grammar_takes_no_drafts_of_the_runners() -> None:
    grammar = Grammar(kind="choice", choices=("3 4 5",) * 9)
    grammars = ToyGrammars(1000)
    driver = EngineDriver(make_info(), SchedulerConfig(speculate="draft:small"), grammars=grammars)
    driver.core.handle(grammars.finish(grammar), 0.0)
    entry = submit(driver, grammar=grammar)
    driver.run()
    assert set(entry.delivered[0]) <= {3, 4, 5}
    assert len(entry.delivered[0]) == 9
    assert driver.counters["draft_tokens"] == 0


def _proposes_too_much(row: RowResult) -> RowResult:
    return replace(row, proposals=(*row.proposals, *[1] * 9))


@pytest.mark.parametrize("change", [_other_draft, _proposes_too_much])
def test_a_runner_that_lies_about_its_own_drafts_fails_the_step(change) -> None:
    driver = runner_driver(lambda: 99)
    driver.core._runner = Liar(driver.runner, change)
    submit(driver)
    driver.run()
    assert isinstance(driver.core.last_fault, EngineError)


def test_a_row_without_drafts_cannot_have_accepted_any() -> None:
    driver = EngineDriver(make_info())
    driver.core._runner = Liar(driver.runner, lambda row: row)
    driver.core._runner.execute = lambda plan: StepResult(
        step_id=plan.step_id, rows=(RowResult(row=0, token_ids=(1, 2), num_verified=1),)
    )
    submit(driver)
    driver.run()
    assert "no draft of its row" in str(driver.core.last_fault)
