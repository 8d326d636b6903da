"""Mixed load with a fifth of the clients leaving, beside idle connections: nothing accumulates.

The short run is for the counts; the long one also looks at the trend of memory and at how long the
event loop stood still. ``pytest -s -m slow tests/integration/test_soak.py`` shows its figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from health_watch import HEALTH, percentile, watched
from octavo.bench.http_stream import Endpoint, HttpClient
from octavo.cluster.engine_loop import LEASE_S
from octavo.testing.processes import ServerProcess, fake_serve_argv, running_server

NUM_IDLE = 200
NUM_BUSY = 64
ABORTED_SHARE = 0.2
# Below the server's own limit, so that an idle connection stays one.
IDLE_S = 20.0
SAMPLE_S = 1.0
# How late a process may wake on a machine whose other figures say something.
QUIET_S = 0.01

# What a client is told after the machine stood still for longer than some deadline.
LATE = (" 503", " 408", "'timed out'")

Ask = tuple[str, dict[str, Any]]


def _chat(rng: random.Random) -> Ask:
    text = "word " * rng.randint(1, 80)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    return "/v1/chat/completions", {"messages": messages, "n": rng.choice([1, 1, 2])}


def _completion(rng: random.Random) -> Ask:
    more = rng.choice([{}, {"logprobs": 5}, {"stop": ["zz", "\n\n"]}, {"return_token_ids": True}])
    ids = [rng.randrange(1000, 40000) for _ in range(rng.randint(1, 120))]
    return "/v1/completions", {"prompt": ids, **more}


def _search(rng: random.Random) -> Ask:
    return "/v1/completions", {"prompt": "Hi", "use_beam_search": True, "n": rng.randint(1, 3)}


def _response(rng: random.Random) -> Ask:
    return "/v1/responses", {"input": "word " * rng.randint(1, 80), "store": rng.random() < 0.5}


def _message(rng: random.Random) -> Ask:
    content = "word " * rng.randint(1, 80)
    return "/v1/messages", {"messages": [{"role": "user", "content": content}]}


def _embedding(rng: random.Random) -> Ask:
    return "/v1/embeddings", {"input": ["word " * rng.randint(1, 40)] * rng.randint(1, 3)}


def _mistake(rng: random.Random) -> Ask:
    wrong = rng.choice([{"n": 0}, {"prompt": "word " * 60_000}, {"top_p": "x"}, {"stop": [""]}])
    return "/v1/completions", {"prompt": "Hi", **wrong}


ASKS: tuple[Callable[[random.Random], Ask], ...] = (
    _chat, _chat, _completion, _completion, _search, _response, _message, _embedding, _mistake,
)  # fmt: skip


@pytest.fixture
def server(smollm2_path: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    # A pool that is too small for all: some wait, some are preempted.
    argv = fake_serve_argv(tmp_path, smollm2_path, step_s=0.02, num_blocks=400)
    with running_server(tmp_path, argv) as running:
        running.wait_ready()
        yield running


class Load:
    """Who is connected, and what their requests came to."""

    def __init__(self, url: str, *, seconds: float) -> None:
        self._endpoint = Endpoint.parse(url)
        self._http = HttpClient(self._endpoint, headers={}, timeout_s=120)
        self._until = time.monotonic() + seconds
        self.outcomes: dict[str, int] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for seed in range(NUM_BUSY):
                group.create_task(self._busy(random.Random(seed)))
            for seed in range(NUM_IDLE):
                group.create_task(self._idle(random.Random(seed)))

    def _left_s(self) -> float:
        return self._until - time.monotonic()

    async def _busy(self, rng: random.Random) -> None:
        while self._left_s() > 0:
            path, body = rng.choice(ASKS)(rng)
            if path != "/v1/embeddings":
                name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
                streams = "use_beam_search" not in body and rng.random() < 0.7
                body |= {name: rng.randint(1, 60), "seed": rng.randrange(99), "ignore_eos": True,
                         "stream": streams}  # fmt: skip
            leaves = rng.random() < ABORTED_SHARE
            await self._ask(path, json.dumps(body).encode(), leaves=leaves, rng=rng)

    async def _ask(self, path: str, body: bytes, *, leaves: bool, rng: random.Random) -> None:
        if leaves and rng.random() < 0.5:
            # Anywhere: before the head is read, while it waits, behind the last token.
            await self._leave(path, body, after_s=rng.choice([0.0, 0.01, 0.1, 0.5, 1.0]))
            return
        cancel_after = rng.randint(1, 30) if leaves else 0
        exchange = await self._http.post(path, body, cancel_after=cancel_after)
        said = f"{path} {exchange.status}"
        if exchange.fault or any(b'"error":{' in payload for _, payload in exchange.events):
            said += f" {exchange.fault or exchange.events[-1][1][:80]!r}"
        self._count(said)

    async def _leave(self, path: str, body: bytes, *, after_s: float) -> None:
        lines = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
                 f"Content-Length: {len(body)}", "", "")  # fmt: skip
        _, writer = await asyncio.open_connection(self._endpoint.host, self._endpoint.port)
        writer.write("\r\n".join(lines).encode() + body)
        await asyncio.sleep(after_s)
        writer.transport.abort()
        self._count("left")

    async def _idle(self, rng: random.Random) -> None:
        while self._left_s() > 0:
            # A machine that stood still for longer than a connection may be idle ends it.
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._keep_idle(rng)
        self._count("idle")

    async def _keep_idle(self, rng: random.Random) -> None:
        reader, writer = await asyncio.open_connection(self._endpoint.host, self._endpoint.port)
        with contextlib.closing(writer):
            while self._left_s() > 0:
                writer.write(HEALTH)
                assert (await reader.readuntil(b'"alive"}')).startswith(b"HTTP/1.1 200")
                await asyncio.sleep(min(rng.uniform(0.5, 1) * IDLE_S, max(0.0, self._left_s())))

    def _count(self, what: str) -> None:
        self.outcomes[what] = self.outcomes.get(what, 0) + 1


def rss_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


def num_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def sampled(children: dict[str, int], samples: dict[str, list[int]]) -> None:
    while True:
        for name, pid in children.items():
            samples[name].append(rss_kib(pid))
        await asyncio.sleep(SAMPLE_S)


def check_nothing_is_left(server: ServerProcess) -> None:
    def metrics() -> dict[str, float]:
        text = httpx.get(f"{server.url}/metrics").text
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def used(found: dict[str, float]) -> dict[str, float]:
        # Stored responses stay, up to their cap; a connection is ours.
        return {
            name: value
            for name, value in found.items()
            if name.startswith(("octavo_limit_used", "octavo_num_requests", "octavo_requests_in"))
            and value
            and "stored_" not in name
            and "connections" not in name
        }

    deadline = time.monotonic() + 20
    while used(found := metrics()):
        assert time.monotonic() < deadline, used(found)
        time.sleep(0.1)
    pool = httpx.get(f"{server.url}/debug/kv").json()["groups"][0]
    assert pool["tables"] == {}
    assert set(pool["states"]) <= {"free", "cached"}
    assert sum(pool["states"].values()) == pool["num_blocks"]
    assert httpx.get(f"{server.url}/debug/requests").json() == {}
    violations = 'octavo_engine_invariant_violations_total{model_name="fake"}'
    orphans = 'octavo_orphan_blocks{model_name="fake"}'
    assert found[violations] == found[orphans] == 0


def check_outcomes(outcomes: dict[str, int], *, stood_still: bool) -> None:
    """``stood_still``: the machine did, for longer than the lease between the processes."""
    bad = {
        what: count
        for what, count in outcomes.items()
        if not is_expected(what) and not (stood_still and what.endswith(LATE))
    }
    assert not bad, bad
    assert outcomes.pop("idle") == NUM_IDLE
    assert outcomes["left"] > 0
    assert {path for path, _ in (one(random.Random(0)) for one in ASKS)} <= {
        what.split()[0] for what in outcomes
    }


def is_expected(what: str) -> bool:
    return what in ("left", "idle") or what.endswith((" 200", "/completions 400"))


@pytest.mark.parametrize(
    "seconds",
    [6, pytest.param(600, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_mixed_load_leaves_nothing(server: ServerProcess, seconds: int) -> None:
    children = server.children
    descriptors = {name: num_descriptors(pid) for name, pid in children.items()}
    samples: dict[str, list[int]] = {name: [] for name in children}
    load = Load(server.url, seconds=seconds)

    async def main() -> None:
        sampling = asyncio.create_task(sampled(children, samples))
        await load.run()
        sampling.cancel()

    with watched(server.url) as stalls:
        asyncio.run(main())
    report(load, samples, stalls, steps=server.metric("octavo_engine_steps_total"))
    check_outcomes(load.outcomes, stood_still=max(stalls["watcher"]) > LEASE_S / 2)
    check_nothing_is_left(server)
    assert server.children == children
    assert {name: num_descriptors(pid) for name, pid in children.items()} == descriptors
    if seconds > 60:
        for name, values in samples.items():
            # The first third fills caches and stores up to their caps. What long texts take for
            # a moment is no leak, so the valleys are compared.
            third = len(values) // 3
            middle, last = (
                percentile(part, 10) for part in (values[third:-third], values[-third:])
            )
            assert last - middle < 8 << 10, (name, middle, last)
        if percentile(stalls["watcher"], 99) < QUIET_S:
            assert percentile(stalls["health"], 99) < 0.1


def report(
    load: Load, samples: dict[str, list[int]], stalls: dict[str, list[float]], *, steps: float
) -> None:
    lines = [f"{sum(load.outcomes.values())} exchanges in {steps:.0f} steps: {load.outcomes}"]
    for name, values in samples.items():
        tenths = [values[len(values) * i // 10] >> 10 for i in range(10)] + [values[-1] >> 10]
        lines.append(f"RSS of {name}, MiB: {tenths}")
    for name, times in stalls.items():
        found = (percentile(times, 50), percentile(times, 99), max(times))
        p50, p99, worst = (1e3 * one for one in found)
        lines.append(f"{name}: p50 {p50:.1f} ms, p99 {p99:.1f}, worst {worst:.0f}")
    sys.stdout.write("\n" + "\n".join(lines) + "\n")
