"""A step that lasts is spoken for by another thread; short ones and idleness are not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from octavo.cluster import heartbeat
from octavo.cluster.heartbeat import Heartbeat
from octavo.config import CacheConfig, EngineConfig, ModelConfig
from octavo.core.request import Request, Submit
from octavo.core.sampling_params import SamplingParams
from octavo.engine import EngineCore
from octavo.worker import load_runner


class Beats:
    """A heart that beats every ``beat_s``; it ends with the block."""

    def __init__(self, beat_s: float = 0.005) -> None:
        self.beat_s = beat_s
        self.progress = 0
        self.sent: list[int] = []
        self.heart = Heartbeat(lambda: self.progress, self.sent.append)

    def __enter__(self) -> Beats:
        self._before, heartbeat.BEAT_S = heartbeat.BEAT_S, self.beat_s
        self.heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.heart.close()
        heartbeat.BEAT_S = self._before
        assert "heartbeat" not in [thread.name for thread in threading.enumerate()]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_long_step_reports_the_progress_that_it_makes() -> None:
    with Beats() as beats, beats.heart:
        until(lambda: len(beats.sent) >= 2)
        beats.progress = 7
        until(lambda: beats.sent[-1] == 7)


def test_a_hanging_step_reports_that_nothing_moves() -> None:
    with Beats() as beats:
        with beats.heart:
            until(lambda: len(beats.sent) >= 3)
        assert set(beats.sent) == {0}


def test_nothing_is_sent_outside_a_step() -> None:
    with Beats() as beats:
        with beats.heart:
            until(lambda: bool(beats.sent))
        count = len(beats.sent)
        time.sleep(0.05)
        assert len(beats.sent) == count
        beats.heart.rest()


def test_short_steps_send_nothing() -> None:
    with Beats(0.2) as beats:
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            with beats.heart:
                time.sleep(0.0002)
        assert beats.sent == []


def test_a_step_that_raises_gives_the_socket_back() -> None:
    with Beats() as beats:
        try:
            with beats.heart:
                raise SystemExit(1)
        except SystemExit:
            pass
        count = len(beats.sent)
        time.sleep(0.03)
        assert len(beats.sent) == count


def test_the_native_counter_moves_during_a_step(smollm2_path: Path) -> None:
    config = EngineConfig(
        model=ModelConfig(model=str(smollm2_path)), cache=CacheConfig(num_blocks=64)
    )
    runner = load_runner(config).runner
    seen: set[int] = set()
    core = EngineCore(runner, config.scheduler, config.cache, epoch=1)
    prompt = tuple(range(100, 612))
    request = Request(
        request_id="r", prompt_token_ids=prompt, sampling=SamplingParams(max_tokens=1, seed=1)
    )
    core.handle(Submit(request=request), 0.0)
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            seen.add(runner.progress)
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    before = runner.progress
    core.step(0.0)
    ended.set()
    watcher.join()
    assert any(before < progress < core.progress for progress in seen)
    runner.close()
