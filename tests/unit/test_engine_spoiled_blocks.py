"""Blocks whose KV is not a number: who pays for them, and that nobody finds them."""

from __future__ import annotations

from octavo.config import SchedulerConfig
from octavo.core.request import Abort, FinishReason
from octavo.core.sampling_params import SamplingParams
from octavo.testing import EngineDriver, make_info, make_request

PROMPT = list(range(20, 57))


def sampling(**fields) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 8, "seed": 1, **fields})


# -- KV that is not a number ---------------------------------------------------------------------


def chunked(**fields) -> EngineDriver:
    return EngineDriver(
        make_info(block_size=8), SchedulerConfig(max_num_batched_tokens=16, **fields)
    )


def spoil_first_chunk(driver: EngineDriver, name: str) -> None:
    """The first chunk of a prompt is spoiled, computed and published before anything is sampled."""
    driver.submit(make_request(name, PROMPT))
    driver.runner.spoil_next = True
    driver.step()
    assert len(driver.core.kv.index.blocks(0)) >= 2


def test_spoiled_blocks_cannot_be_found_after_the_failure() -> None:
    driver = chunked()
    driver.submit(make_request("other", [1, *PROMPT]))
    driver.run()
    kept = len(driver.core.kv.index.blocks(0))
    spoil_first_chunk(driver, "bad")
    driver.run()
    assert driver.entries["bad"].ended == {0: FinishReason.ERROR}
    assert len(driver.core.kv.index.blocks(0)) == kept
    driver.submit(make_request("same", PROMPT))
    driver.submit(make_request("again", [1, *PROMPT]))
    driver.run()
    assert driver.entries["same"].ended == {0: FinishReason.LENGTH}
    cached = {o.request_id: o.num_cached_tokens for o in driver.outputs}
    assert (cached["same"], cached["again"]) == (0, 37)
    driver.verify()


def test_nothing_of_a_failing_step_is_published() -> None:
    driver = EngineDriver(make_info(block_size=8))
    driver.submit(make_request("bad", PROMPT))
    driver.runner.spoil_next = True
    driver.step()
    assert driver.entries["bad"].ended == {0: FinishReason.ERROR}
    assert driver.core.kv.index.blocks(0) == {}
    assert driver.core.kv.pools[0].num_free == 64


def test_what_a_culprit_left_behind_costs_one_request_only() -> None:
    """It was cancelled before it could fail: the next to read its blocks fails, and clears them."""
    driver = chunked()
    spoil_first_chunk(driver, "bad")
    driver.core.handle(Abort(request_id="bad"), 0.0)
    driver.submit(make_request("victim", [*PROMPT, 1]))
    driver.run()
    assert driver.entries["victim"].ended == {0: FinishReason.ERROR}
    driver.submit(make_request("next", PROMPT))
    driver.run()
    assert driver.entries["next"].ended == {0: FinishReason.LENGTH}
    driver.verify()


def test_who_runs_on_spoiled_blocks_stops_publishing_behind_them() -> None:
    driver = chunked(max_num_seqs=4)
    spoil_first_chunk(driver, "bad")
    driver.submit(make_request("sharer", [*PROMPT[:16], *range(200, 260)]))
    driver.run()
    assert driver.entries["bad"].ended == driver.entries["sharer"].ended == {0: FinishReason.ERROR}
    assert driver.core.kv.index.blocks(0) == {}
    driver.core.kv.distrust(b"nobody's key", PROMPT)
