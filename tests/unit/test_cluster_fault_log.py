from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from octavo.cluster.fault_log import MAX_LINES, WINDOW_S, FaultLog
from octavo.engine.stats import EngineCounters


@dataclass
class Faulty:
    last_fault: BaseException | None = None
    violations: list[str] = field(default_factory=list)
    counters: EngineCounters = field(default_factory=EngineCounters)

    def violate(self, *texts: str) -> None:
        self.violations = (self.violations + list(texts))[-100:]
        self.counters.invariant_violations += len(texts)


class Log:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.ERROR)
        self.caplog = caplog
        self.now = 0.0
        self.engine = Faulty()
        self.log = FaultLog(lambda: self.now)

    def fail(self, text: str) -> None:
        try:
            raise RuntimeError(text)
        except RuntimeError as fault:
            self.engine.last_fault = fault
        self.log.note(self.engine)

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.caplog.records]


def test_a_fault_is_said_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    log = Log(caplog)
    log.log.note(log.engine)
    assert log.lines == []
    log.fail("matrix of lead")
    log.log.note(log.engine)
    assert len(log.lines) == 1
    assert "RuntimeError: matrix of lead" in log.lines[0]
    assert "in fail" in caplog.text


def test_every_new_violation_is_said(caplog: pytest.LogCaptureFixture) -> None:
    log = Log(caplog)
    log.engine.violate("I1: a", "I2: b")
    log.log.note(log.engine)
    log.log.note(log.engine)
    log.engine.violate("I3: c")
    log.log.note(log.engine)
    assert [line[-4:] for line in log.lines] == ["1: a", "2: b", "3: c"]


def test_repeats_and_floods_are_bounded_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    log = Log(caplog)
    for _ in range(50):
        log.fail("again")
    assert len(log.lines) == 1
    for index in range(100):
        log.fail(f"other {index}")
    assert len(log.lines) == MAX_LINES
    log.now += WINDOW_S
    log.fail("again")
    assert len(log.lines) == MAX_LINES + 2
    assert log.lines[-2] == f"{150 - MAX_LINES} more failures of steps or invariants"
