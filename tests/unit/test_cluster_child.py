"""What every child owes its supervisor: its level of logging and the pool of the first engine."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from octavo.cluster.engine_process import _pin, _pinned
from octavo.config import CacheConfig, EngineConfig
from octavo.environment import LOG_LEVELS, log_level
from octavo.errors import ConfigError
from octavo.testing.fake_runner import make_info

CHILD = """
import logging, os, sys
from pathlib import Path
from octavo.cluster.child import ChildChannel, run_child
def main():
    for level in (10, 20, 30, 40):
        logging.getLogger("octavo").log(level, "level %d", level)
    return 0
channel = ChildChannel(death_fd=-1, status_fd=1, runtime_dir=Path("/nowhere"))
sys.exit(run_child(channel, main, name="child"))
"""


def run(level: str) -> subprocess.CompletedProcess[str]:
    environment = {"OCTAVO_LOG_LEVEL": level, "PATH": ""}
    return subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("level", "lines"), [("", 3), ("debug", 4), ("WARNING", 2), ("error", 1)])
def test_a_child_logs_at_the_level_that_was_asked_for(level: str, lines: int) -> None:
    done = run(level)
    assert done.returncode == 0
    said = done.stderr.splitlines()
    assert said == [f"child: level {number}" for number in (10, 20, 30, 40)][4 - lines :]


def test_a_level_that_does_not_exist_is_fatal_by_name() -> None:
    done = run("loud")
    assert done.returncode == 1
    status = msgspec.json.decode(done.stdout)
    assert status["event"] == "fatal"
    assert "OCTAVO_LOG_LEVEL is 'loud'" in status["error"]
    assert "debug, info, warning, error" in status["error"]


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_every_level_is_one_of_loggings(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_LOG_LEVEL", level)
    assert logging.getLevelNamesMapping()[log_level()]


def test_no_level_means_info(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_LOG_LEVEL", raising=False)
    assert log_level() == "INFO"
    monkeypatch.setenv("OCTAVO_LOG_LEVEL", "1")
    with pytest.raises(ConfigError):
        log_level()


def test_a_restarted_engine_takes_over_the_pool(tmp_path: Path) -> None:
    asked = EngineConfig(cache=CacheConfig(kv_bytes=1 << 20, block_size=8))
    assert _pinned(asked, tmp_path) == asked
    _pin(make_info(num_blocks=77, max_model_len=600), tmp_path)
    again = _pinned(asked, tmp_path)
    assert (again.cache.num_blocks, again.model.max_model_len) == (77, 600)
    assert (again.cache.kv_bytes, again.cache.block_size) == (1 << 20, 8)
    assert [path.name for path in tmp_path.iterdir()] == ["pool.json"]
