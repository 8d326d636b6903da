"""What the death of each process costs, with real processes and sockets and a fake runner."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.testing.processes import (
    ServerProcess,
    fake_serve_argv,
    running_server,
    serve_argv,
    wait_gone,
)

ENGINE, API = "fake_engine_process", "api_process"
SLOW, HANG = 40001, 40002


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("deaths")
    argv = fake_serve_argv(folder, smollm2_path, step_s=0.004, num_blocks=256, poison=40000)
    with running_server(folder, argv) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def own_server(smollm2_path: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    argv = fake_serve_argv(
        tmp_path, smollm2_path, step_s=0.004, num_blocks=256, restart_budget=2,
        slow=SLOW, slow_s=5.0, hang=HANG,
    )  # fmt: skip
    with running_server(tmp_path, argv) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def hasty_server(smollm2_path: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """One that calls half a second without progress a hang."""
    argv = fake_serve_argv(
        tmp_path, smollm2_path, step_s=0.004, num_blocks=256, hang_s=0.5, hang=HANG
    )
    with running_server(tmp_path, argv) as running:
        running.wait_ready()
        yield running


class Stream(threading.Thread):
    """Reads one streamed completion; ``text`` grows as it comes."""

    def __init__(self, server: ServerProcess, seed: int, **body: Any) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.body = {
            "prompt": [100 + seed, 200, 300], "max_tokens": 250, "seed": seed, "stream": True,
            "ignore_eos": True, **body,
        }  # fmt: skip
        self.text = ""
        self.finish: str | None = None
        self.error: Any = None
        self.done = False
        self.start()

    def run(self) -> None:
        try:
            with (
                self.server.client() as http,
                http.stream("POST", "/v1/completions", json=self.body) as response,
            ):
                for line in response.iter_lines():
                    self._line(line)
                if response.status_code != 200:
                    self.error = response.status_code
        except httpx.HTTPError as error:
            self.error = error

    def _line(self, line: str) -> None:
        if line == "data: [DONE]":
            self.done = True
        elif line.startswith("data: "):
            data = json.loads(line[6:])
            self.error = data.get("error", self.error)
            for choice in data.get("choices", []):
                self.text += choice["text"]
                self.finish = choice["finish_reason"] or self.finish

    def wait_for_text(self) -> None:
        deadline = time.monotonic() + 30
        while not self.text and self.error is None and time.monotonic() < deadline:
            time.sleep(0.002)
        assert self.text, self.error


def settle(server: ServerProcess) -> None:
    """Nothing runs, nothing waits, every block is free or cached."""
    server.wait_ready()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        running = server.metric("octavo_num_requests_running")
        waiting = server.metric("octavo_num_requests_waiting")
        if running == waiting == server.metric("octavo_requests_in_flight") == 0:
            assert server.metric("octavo_orphan_blocks") == 0
            assert server.metric("vllm:kv_cache_usage_perc") == 0
            return
        time.sleep(0.05)
    raise AssertionError("the server does not settle")


def test_streams_go_on_over_an_engines_death(server: ServerProcess) -> None:
    calm = [Stream(server, seed) for seed in range(5)]
    for stream in calm:
        stream.join(60)
    stormy = [Stream(server, seed) for seed in range(5)]
    for stream in stormy:
        stream.wait_for_text()
    before = server.metric("octavo_engine_restarts_total")
    pid = server.kill_child(ENGINE)
    for stream in stormy:
        stream.join(60)
    wait_gone({pid})
    assert [stream.error for stream in stormy] == [None] * 5
    assert [stream.text for stream in stormy] == [stream.text for stream in calm]
    assert all(stream.done and stream.finish == "length" for stream in stormy)
    assert server.metric("octavo_engine_restarts_total") == before + 1
    settle(server)


def test_an_api_death_gives_the_blocks_back(server: ServerProcess) -> None:
    streams = [Stream(server, seed, max_tokens=3000) for seed in range(3)]
    for stream in streams:
        stream.wait_for_text()
    pid = server.kill_child(API)
    for stream in streams:
        stream.join(30)
        assert stream.error is not None
    wait_gone({pid})
    settle(server)
    again = Stream(server, 1, max_tokens=5)
    again.join(30)
    assert again.finish == "length"


def test_a_poison_pill_costs_itself(server: ServerProcess) -> None:
    calm = Stream(server, 3)
    calm.join(60)
    innocent = Stream(server, 3)
    innocent.wait_for_text()
    pill = Stream(server, 4, prompt=[1, 40000, 2])
    pill.join(60)
    innocent.join(60)
    assert "is dropped" in json.dumps(pill.error) or pill.error == 500
    assert innocent.error is None
    assert innocent.text == calm.text
    settle(server)


def test_an_idle_server_uses_no_cpu(server: ServerProcess) -> None:
    """Nor a timer: no thread of it wakes up, however busy the machine is with others."""
    Stream(server, 1, max_tokens=5).join(30)
    pids = {server.process.pid, *server.children.values()}

    def wakeups() -> dict[Path, str]:
        files = [file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/status")]
        return {
            file: file.read_text().rpartition("\nvoluntary_ctxt_switches:")[2] for file in files
        }

    # What a request leaves to be done may take a while where there is no processor free.
    deadline, before = time.monotonic() + 30, wakeups()
    time.sleep(1.5)
    while (after := wakeups()) != before:
        assert time.monotonic() < deadline
        before = after
        time.sleep(1.5)


def test_a_stopped_engine_is_killed_and_its_streams_go_on(hasty_server: ServerProcess) -> None:
    calm = Stream(hasty_server, 1, max_tokens=300)
    calm.join(60)
    stream = Stream(hasty_server, 1, max_tokens=300)
    stream.wait_for_text()
    before = hasty_server.metric("octavo_engine_steps_total")
    pid = hasty_server.children[ENGINE]
    os.kill(pid, signal.SIGSTOP)
    with hasty_server.client() as http:
        assert http.get("/health").status_code == 200
    stream.join(60)
    wait_gone({pid})
    assert (stream.finish, stream.done, stream.error) == ("length", True, None)
    assert stream.text == calm.text
    assert hasty_server.metric("octavo_engine_restarts_total") >= 1
    assert "'hung'" in hasty_server.output
    settle(hasty_server)
    # What the dead engine had counted still counts.
    assert hasty_server.metric("octavo_engine_steps_total") > before >= 300


@pytest.mark.slow
def test_an_engine_that_stopped_before_the_api_died_is_killed_too(
    hasty_server: ServerProcess,
) -> None:
    pid = hasty_server.children[ENGINE]
    os.kill(pid, signal.SIGSTOP)
    hasty_server.kill_child(API)
    wait_gone({pid}, timeout_s=60)
    hasty_server.wait_ready()
    stream = Stream(hasty_server, 1, max_tokens=5)
    stream.join(30)
    assert stream.finish == "length"


@pytest.mark.slow
def test_a_stopped_engine_with_a_model_is_killed_too(smollm2_path: Path, tmp_path: Path) -> None:
    argv = serve_argv(str(smollm2_path), "--kv-memory", "64MiB")
    with running_server(tmp_path, argv) as server:
        server.wait_ready()
        calm = Stream(server, 1)
        calm.join(60)
        stream = Stream(server, 1)
        stream.wait_for_text()
        pid = server.children["engine_process"]
        os.kill(pid, signal.SIGSTOP)
        stream.join(120)
        wait_gone({pid})
        assert (stream.finish, stream.done, stream.error) == ("length", True, None)
        assert stream.text == calm.text
        assert server.metric("octavo_engine_restarts_total") == 1
        assert "made no progress for" in server.output


def test_a_step_that_hangs_costs_its_own_request(hasty_server: ServerProcess) -> None:
    calm = Stream(hasty_server, 2)
    calm.join(60)
    innocent = Stream(hasty_server, 2)
    innocent.wait_for_text()
    hung = Stream(hasty_server, 3, prompt=[5, HANG, 6], max_tokens=5)
    hung.join(60)
    innocent.join(60)
    assert "is dropped" in json.dumps(hung.error) or hung.error == 500
    assert (innocent.error, innocent.text) == (None, calm.text)
    settle(hasty_server)


def test_a_step_that_hangs_is_not_ready_and_one_that_lasts_is(own_server: ServerProcess) -> None:
    slow = Stream(own_server, 1, prompt=[5, SLOW, 6], max_tokens=5)
    with own_server.client() as http:
        while not slow.done:
            assert http.get("/ready").status_code == 200
            time.sleep(0.05)
    assert slow.finish == "length"
    hung = Stream(own_server, 2, prompt=[5, HANG, 6], max_tokens=5)
    own_server.wait_ready(ready=False)
    assert not hung.text


def test_no_orphan_when_the_supervisor_dies(own_server: ServerProcess) -> None:
    children = set(own_server.children.values())
    assert len(children) == 2
    os.kill(own_server.process.pid, signal.SIGKILL)
    own_server.process.wait()
    wait_gone(children, timeout_s=5)


def test_sigterm_drains(own_server: ServerProcess) -> None:
    stream = Stream(own_server, 2, max_tokens=300)
    stream.wait_for_text()
    children = set(own_server.children.values())
    own_server.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 5
    with own_server.client() as http:
        while http.get("/ready").status_code == 200:
            assert time.monotonic() < deadline
        refused = http.post("/v1/completions", json={"prompt": "x"})
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    stream.join(60)
    assert (stream.finish, stream.done, stream.error) == ("length", True, None)
    assert own_server.process.wait(30) == 0
    wait_gone(children)


def test_a_drain_that_loses_something_says_so(own_server: ServerProcess) -> None:
    stream = Stream(own_server, 2, max_tokens=3500)
    stream.wait_for_text()
    assert own_server.stop() == 1
    stream.join(30)
    assert stream.error is not None
    assert stream.finish is None
    assert own_server.output.splitlines()[-1] == ("1 requests were lost: the drain deadline passed")


def test_an_engine_that_keeps_dying_ends_it_all(own_server: ServerProcess) -> None:
    children = own_server.children
    seen = set(children.values())
    deadline = time.monotonic() + 60
    while own_server.process.poll() is None:
        assert time.monotonic() < deadline
        children = own_server.children
        if ENGINE in children:
            seen |= set(children.values())
            os.kill(children[ENGINE], signal.SIGKILL)
        time.sleep(0.02)
    assert own_server.process.returncode == 1
    last = own_server.output.splitlines()[-1]
    assert "engine process was killed by SIGKILL" in last
    wait_gone(seen)


def test_the_count_of_engine_deaths_outlives_the_api(own_server: ServerProcess) -> None:
    own_server.kill_child(ENGINE)
    own_server.wait_ready(ready=False)
    own_server.wait_ready()
    before = own_server.metric("octavo_engine_restarts_total")
    assert before > 0
    pid = own_server.kill_child(API)
    wait_gone({pid})
    own_server.wait_ready()
    assert own_server.metric("octavo_engine_restarts_total") == before
