"""Many streams, a pool too small for them, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.testing.processes import ServerProcess, fake_serve_argv, running_server

NUM_STREAMS = 32


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("disconnects")
    argv = fake_serve_argv(folder, smollm2_path, step_s=0.001, num_blocks=40)
    with running_server(folder, argv) as running:
        running.wait_ready()
        yield running


def ask(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    return {
        "prompt": [rng.randrange(1000, 40000) for _ in range(rng.randint(1, 120))],
        "max_tokens": rng.randint(5, 180),
        "seed": seed,
        "n": 1 + seed % 2,
        "stream": True,
        "ignore_eos": True,
    }


async def read(http: httpx.AsyncClient, seed: int, leave_after: int | None) -> dict[int, str]:
    texts: dict[int, str] = {}
    finished: set[int] = set()
    async with http.stream("POST", "/v1/completions", json=ask(seed)) as response:
        assert response.status_code == 200
        count = 0
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            count += 1
            if leave_after is not None and count > leave_after:
                return {}
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
                if choice["finish_reason"] is not None:
                    assert choice["finish_reason"] == "length"
                    finished.add(choice["index"])
    assert len(finished) == 1 + seed % 2
    return texts


ASK_FOR_LONG: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 400},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 400},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400},
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("path", ASK_FOR_LONG)
def test_who_leaves_leaves_nothing(server: ServerProcess, path: str, stream: bool) -> None:
    def aborted() -> float:
        return server.metric("octavo_engine_requests_aborted_total")

    async def main() -> None:
        body = {**ASK_FOR_LONG[path], "ignore_eos": True, "stream": stream}
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            task = asyncio.create_task(http.post(path, json=body))
            while not (await http.get("/debug/requests")).json():  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            assert not task.done()
            task.cancel()
            await asyncio.wait({task})
            while (await http.get("/debug/requests")).json():  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            groups = (await http.get("/debug/kv")).json()["groups"]
            assert all(group["tables"] == {} for group in groups)

    before = aborted()
    asyncio.run(asyncio.wait_for(main(), 30))
    deadline = time.monotonic() + 20
    while aborted() != before + 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_survivors_end_and_the_pool_returns(server: ServerProcess) -> None:
    rng = random.Random(20)
    leavers = set(rng.sample(range(NUM_STREAMS), NUM_STREAMS * 3 // 10))

    async def longest_queue(http: httpx.AsyncClient) -> None:
        while True:
            text = (await http.get("/metrics")).text
            queues.append(float(text.partition("vllm:num_requests_waiting{")[2].split()[1]))
            await asyncio.sleep(0.05)

    async def main() -> tuple[list[dict[int, str]], list[dict[int, str]]]:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=server.url, timeout=90, limits=limits) as http:
            alone = [await read(http, seed, None) for seed in range(0, NUM_STREAMS, 4)]
            watcher = asyncio.create_task(longest_queue(http))
            together = await asyncio.gather(
                *(
                    read(http, seed, rng.randint(0, 40) if seed in leavers else None)
                    for seed in range(NUM_STREAMS)
                )
            )
            watcher.cancel()
            return alone, list(together)

    queues: list[float] = []
    alone, together = asyncio.run(main())
    for index, seed in enumerate(range(0, NUM_STREAMS, 4)):
        if seed not in leavers:
            assert together[seed] == alone[index]
    assert all(together[seed] for seed in range(NUM_STREAMS) if seed not in leavers)

    deadline = time.monotonic() + 20
    while server.metric("octavo_requests_in_flight") or server.metric("vllm:kv_cache_usage_perc"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert server.metric("octavo_orphan_blocks") == 0
    assert server.metric("octavo_engine_requests_aborted_total") > 0
    assert server.metric("octavo_engine_invariant_violations_total") == 0
    # The pool was too small for all at once: some had to wait.
    assert max(queues) > 0
    with server.client() as http:
        pool = http.get("/debug/kv").json()["groups"][0]
        assert set(pool["states"]) <= {"free", "cached"}
        assert sum(pool["states"].values()) == len(pool["blocks"]) == pool["num_blocks"]
        assert pool["tables"] == {}
