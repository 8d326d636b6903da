from __future__ import annotations

import pytest

from octavo.frontend.progress_watch import FIRST_STEP, HANG_S, ProgressWatch


class Ticking:
    """A watch under a clock of its own, ticked four times a second."""

    def __init__(self) -> None:
        self.now = 100.0
        self.watch = ProgressWatch(lambda: self.now)
        self.watch.new_engine()

    def wait(self, seconds: float, *, owed: bool = True) -> float:
        """Seconds until a hang was told, 0 if none was."""
        started = self.now
        while self.now < started + seconds:
            self.now += 0.25
            if self.watch.tick(owed=owed):
                return self.now - started
        return 0.0


def moving(gap_s: float = 0.25, movements: int = 20) -> Ticking:
    here = Ticking()
    for progress in range(movements):
        here.watch.note(progress)
        assert not here.wait(gap_s)
    return here


def test_silence_with_work_is_a_hang_and_is_told_again() -> None:
    here = moving()
    assert HANG_S < here.wait(60) <= HANG_S + 2 * 0.25 + 0.5
    assert HANG_S < here.wait(60) <= HANG_S + 2 * 0.25 + 0.5


def test_silence_without_work_is_rest() -> None:
    here = moving()
    assert not here.wait(600, owed=False)
    assert here.wait(HANG_S - 1) == 0


def test_the_same_number_again_is_no_movement() -> None:
    here = moving(movements=20)
    for _ in range(3):
        assert not here.wait(1.5)
        here.watch.note(19)
    assert here.wait(60) <= HANG_S


@pytest.mark.parametrize("gap_s", [1.0, 4.0])
def test_a_slow_machine_is_given_its_own_pace(gap_s: float) -> None:
    here = moving(gap_s)
    assert here.wait(60) > HANG_S + gap_s - 0.5


def test_one_slow_step_is_forgotten() -> None:
    here = moving()
    here.wait(4)
    for progress in range(1000, 1600):
        here.watch.note(progress)
        here.wait(0.25)
    assert here.wait(60) <= HANG_S + 1


def test_a_cold_first_step_may_last() -> None:
    here = Ticking()
    here.watch.note(0)
    assert here.wait(600) >= FIRST_STEP * HANG_S
    # A second engine on the same machine is known to be quick.
    here = moving()
    here.watch.new_engine()
    assert 0 < here.wait(600) < 2 * HANG_S


def test_a_frontend_that_was_stopped_itself_blames_nobody() -> None:
    here = moving()
    here.now += 3600
    assert not here.watch.tick(owed=True)
    here.watch.note(77)
    assert not here.wait(4)
