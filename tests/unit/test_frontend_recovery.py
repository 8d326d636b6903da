from __future__ import annotations

import random

import pytest

from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.frontend.journal import Journal
from octavo.frontend.recovery import FIRST_PROBATION, RETRY_BUDGET, Recovery


class Bench:
    """Requests that give a token per step together; some kill the engine at some of their steps.

    ``pills`` maps a request to how many steps of an attempt it survives.
    """

    def __init__(self, names: str, pills: dict[str, int], *, length: int = 40) -> None:
        self.journal = Journal(draw_seed=lambda: 1)
        self.recovery = Recovery(self.journal)
        self.pills = pills
        self.left = dict.fromkeys(names, length)
        self.attempt: dict[str, int] = {}
        self.dropped: list[str] = []
        self.deaths = 0
        for name in names:
            self.journal.open(
                Request(request_id=name, prompt_token_ids=(1,), sampling=SamplingParams())
            )
        self.recovery.restart(names)

    def submit(self) -> None:
        while (name := self.recovery.next()) is not None:
            self.recovery.took(name)
            self.attempt[name] = 0

    def step(self) -> None:
        self.submit()
        killers = [name for name in self.attempt if self.attempt[name] >= self.pills.get(name, 999)]
        if killers:
            self.die()
            return
        for name in list(self.attempt):
            self.attempt[name] += 1
            self.left[name] -= 1
            if not self.left[name]:
                self.end(name)
            elif self.recovery.delivered(name, 1):
                del self.attempt[name]

    def die(self) -> None:
        self.deaths += 1
        for name in self.recovery.engine_died(set(self.attempt)):
            self.dropped.append(name)
            self.end(name)
        self.attempt.clear()
        self.recovery.restart(self.left)

    def end(self, name: str) -> None:
        self.left.pop(name)
        self.attempt.pop(name, None)
        self.journal.close(name)
        self.recovery.left(name)

    def run(self) -> None:
        for _ in range(10_000):
            if not self.left:
                return
            self.step()
        raise AssertionError(f"never done: {self.left}")


@pytest.mark.parametrize("survives", range(4))
@pytest.mark.parametrize("pill", "ace")
def test_only_the_one_that_kills_is_dropped(survives: int, pill: str) -> None:
    bench = Bench("abcde", {pill: survives})
    bench.run()
    assert bench.dropped == [pill]
    assert bench.deaths == 1 + RETRY_BUDGET


@pytest.mark.parametrize("survives", [5, 12, 25])
def test_one_that_kills_late_is_found_out_too(survives: int) -> None:
    bench = Bench("abc", {"b": survives}, length=200)
    bench.run()
    assert bench.dropped in (["b"], [])
    assert bench.deaths <= 8


def test_two_pills_cost_two_requests() -> None:
    bench = Bench("abcd", {"a": 1, "d": 0})
    bench.run()
    assert sorted(bench.dropped) == ["a", "d"]
    assert bench.deaths == 1 + 2 * RETRY_BUDGET


def test_deaths_from_outside_drop_nobody() -> None:
    rng = random.Random(3)
    bench = Bench("abcdef", {}, length=60)
    for _ in range(5):
        for _ in range(rng.randint(2 * FIRST_PROBATION, 8 * FIRST_PROBATION)):
            bench.step()
        bench.die()
        while bench.recovery.active and bench.left:
            bench.step()
    bench.run()
    assert bench.dropped == []


def test_suspects_run_alone_and_pass_in_turn() -> None:
    bench = Bench("abc", {})
    bench.submit()
    bench.die()
    alone = []
    for _ in range(3 * FIRST_PROBATION - 1):
        bench.submit()
        alone.append("".join(bench.attempt))
        bench.step()
    assert alone == sorted("abc" * FIRST_PROBATION)[:-1]
    bench.step()
    bench.submit()
    assert sorted(bench.attempt) == ["a", "b", "c"]
    assert not bench.recovery.active


def test_a_probe_that_leaves_makes_room_for_the_next() -> None:
    bench = Bench("abc", {})
    bench.submit()
    bench.die()
    bench.submit()
    assert bench.recovery.probe == "a"
    bench.end("b")
    bench.end("a")
    bench.submit()
    assert bench.recovery.probe == "c"


def test_those_that_passed_go_on_in_the_order_of_arrival() -> None:
    """Nobody who arrived while suspects ran alone, or who never was one, overtakes them."""
    bench = Bench("abcdef", {})
    bench.recovery.engine_died({"b", "d", "e"})
    bench.recovery.restart("abcdef")
    submitted = []
    while len(bench.left) > len(submitted):
        before = set(bench.attempt)
        bench.submit()
        submitted += [name for name in bench.attempt if name not in before]
        if bench.recovery.probe is None:
            break
        bench.step()
    assert submitted[:3] == ["b", "d", "e"]
    # "e", the last that ran alone, stays; "b" and "d" come back where they stood.
    assert submitted[3:] == ["a", "b", "c", "d", "f"]


def test_whoever_is_queued_again_stands_where_it_stood() -> None:
    """One that its reader paused, or whose outputs were lost, is no newcomer."""
    bench = Bench("abc", {})
    bench.recovery.left("a")
    bench.recovery.queue("a")
    bench.submit()
    assert list(bench.attempt) == ["a", "b", "c"]
