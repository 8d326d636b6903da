"""A request ends in every phase, streamed or not, in every way: its blocks are back in two steps.

The engine's process is halted while a request is seen in a phase; the client leaves, cancels or is
out of time; then it goes on, and the steps that it still makes are counted.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.cluster.engine_loop import STATS_INTERVAL_S
from octavo.testing.processes import ServerProcess, fake_serve_argv, running_server

CHUNK = 16
TIMEOUT_S = 3.0
# Longer than the pause between two reports of the engine: every step is told of.
STEP_S = 1.2 * STATS_INTERVAL_S
LONG = {"input": "Hi", "max_output_tokens": 500, "ignore_eos": True}
# Compiled ahead of what is to be seen compiling.
EXPENSIVE = "(a*)*b" * 400
# What has been compiled or computed is kept: each is to be another grammar, and prefix.
NUMBERS = itertools.count()
PHASES: dict[str, dict[str, Any]] = {
    "queued": LONG,
    "compiling": {"input": "Hi"},
    "chunk": {"input": "word " * 300, "max_output_tokens": 5},
    "decode": LONG,
    "grammar": {"input": "Hi", "structured_outputs": {"regex": "[a-z]{900}"}},
}
Found = dict[str, Any]


def bound_by(regex: str) -> dict[str, Any]:
    """A request whose grammar nobody has compiled yet."""
    return {"input": "Hi", "structured_outputs": {"regex": f"{regex}{next(NUMBERS)}"}}


def is_in(phase: str, request: Found) -> bool:
    (branch,) = request["branches"].values()
    status, said = branch["status"], branch["num_output_tokens"]
    if phase in ("queued", "compiling"):
        return status == {"queued": "waiting"}.get(phase, phase)
    if phase == "chunk":
        return 0 < branch["num_computed_tokens"] < request["num_prompt_tokens"] - CHUNK
    return status == "running" and said > 1


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("phases")
    argv = fake_serve_argv(
        folder, smollm2_path, hang_s=60, step_s=STEP_S, num_blocks=80, max_num_seqs=1,
        token_budget=CHUNK, grammars_of=str(smollm2_path),
    )  # fmt: skip
    with running_server(folder, argv) as running:
        running.wait_ready()
        yield running


@asynccontextmanager
async def halted(server: ServerProcess) -> AsyncIterator[None]:
    pid = server.children["fake_engine_process"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def page(http: httpx.AsyncClient, path: str) -> Any:
    """What the engine says of itself, once it does: halted for long it counts as silent."""
    while (answer := await http.get(path)).status_code == 503:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def seen(http: httpx.AsyncClient, found: Callable[[Found], bool]) -> Found:
    """The engine's requests, once they are as asked."""
    while not found(requests := await page(http, "/debug/requests")):  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    return requests


async def in_flight(server: ServerProcess, count: int) -> None:
    """The API process has let go of all but so many requests."""
    while server.metric("octavo_requests_in_flight") > count:  # noqa: ASYNC110
        await asyncio.sleep(0.002)


@asynccontextmanager
async def others(http: httpx.AsyncClient, phase: str) -> AsyncIterator[set[str]]:
    """What it takes to hold a request in a phase: a seat taken, or a compiler that is busy."""
    bodies: list[dict[str, Any]] = []
    if phase == "queued":
        bodies = [LONG]
    elif phase == "compiling":
        bodies = [bound_by(EXPENSIVE) for _ in range(8)]
    tasks = [asyncio.create_task(http.post("/v1/responses", json=body)) for body in bodies]
    ids = set(await seen(http, lambda requests: len(requests) == len(bodies)))
    yield ids
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await seen(http, lambda requests: not requests)


async def ask(http: httpx.AsyncClient, body: dict[str, Any], way: str) -> tuple[Any, str]:
    """The task that waits for the answer, and the response's id where it runs on without it."""
    if way != "cancel":
        more = {"timeout": TIMEOUT_S} if way == "deadline" else {}
        return asyncio.create_task(http.post("/v1/responses", json={**body, **more})), ""
    if not body["stream"]:
        response = await http.post("/v1/responses", json={**body, "background": True})
        return None, response.json()["id"]
    request = http.build_request("POST", "/v1/responses", json={**body, "background": True})
    response = await http.send(request, stream=True)
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            return response, httpx.Response(200, text=line[6:]).json()["response"]["id"]
    raise AssertionError("a stream without an event")


async def end(http: httpx.AsyncClient, asked: Any, response_id: str, way: str) -> None:
    if way == "close":
        asked.cancel()
        await asyncio.wait({asked})
    elif way == "deadline":
        answer = await asked
        assert answer.status_code == 504 or '"response.failed"' in answer.text
    else:
        cancelled = await http.post(f"/v1/responses/{response_id}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        if asked is not None:
            await asked.aclose()


@pytest.mark.parametrize("way", ["close", "cancel", "deadline"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("phase", PHASES)
def test_its_blocks_are_back_within_two_steps(
    server: ServerProcess, phase: str, stream: bool, way: str
) -> None:
    def steps() -> float:
        return server.metric("octavo_engine_steps_total")

    async def main() -> None:
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=60) as http,
            others(http, phase) as known,
        ):
            body = bound_by("[a-z]{900}") if phase == "compiling" else PHASES[phase]
            asked, response_id = await ask(
                http, {**body, "stream": stream, "cache_salt": f"{next(NUMBERS)}"}, way
            )
            requests = await seen(
                http,
                lambda requests: any(
                    is_in(phase, requests[name]) for name in requests.keys() - known
                ),
            )
            (mine,) = requests.keys() - known
            async with halted(server):
                await end(http, asked, response_id, way)
                await in_flight(server, len(known))
                before = steps()
            await seen(http, lambda requests: mine not in requests)
            for group in (await page(http, "/debug/kv"))["groups"]:
                assert not [owner for owner in group["tables"] if owner.startswith(mine)]
                assert known or "owned" not in group["states"]
            if not known:
                assert steps() - before <= 2

    before = server.metric("octavo_engine_requests_aborted_total")
    asyncio.run(asyncio.wait_for(main(), 60))
    if way != "deadline":
        # The engine tells its counters four times a second.
        until = time.monotonic() + 20
        while server.metric("octavo_engine_requests_aborted_total") <= before:
            assert time.monotonic() < until, "the request was not counted as aborted"
            time.sleep(0.05)
    assert server.metric("octavo_orphan_blocks") == 0
    assert server.metric("octavo_engine_invariant_violations_total") == 0
