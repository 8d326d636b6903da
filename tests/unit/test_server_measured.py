"""What the server measures of the answers it gives."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.frontend.counter_totals import CounterTotals
from octavo.server import build_app
from served import CHAT, HELLO, Served


def finished_metric(reason: str) -> str:
    labels = f'finished_reason="{reason}",model_name="tiny"'
    return f"vllm:request_success_total{{{labels}}}"


def test_metrics_speak_both_languages(play: Any) -> None:
    async def test(here: Served) -> None:
        await here.chat(n=2)
        await here.settle()
        values = await here.metrics()
        for name in ("num_requests_running", "num_requests_waiting"):
            assert values[f"octavo_{name}{MODEL}"] == values[f"vllm:{name}{MODEL}"] == 0
        assert values[f"octavo_orphan_blocks{MODEL}"] == 0
        assert values[f"vllm:generation_tokens_total{MODEL}"] == 10
        assert values[finished_metric("length")] == 2
        states = [value for name, value in values.items() if name.startswith("octavo_kv_bytes{")]
        assert sum(states) == values[f"octavo_kv_pool_bytes{MODEL}"] > 0

    play(test)


MODEL = '{model_name="tiny"}'


class Watched:
    """A request watch on a clock that the test turns."""

    def __init__(self, n: int) -> None:
        from octavo.core.request import Request
        from octavo.core.sampling_params import SamplingParams
        from octavo.server.metrics import Metrics

        self.now = 100.0
        client: Any = SimpleNamespace(
            ready=True,
            num_active=0,
            engine_restarts=0,
            stats=None,
            welcome=None,
            counters=CounterTotals(),
        )
        self.metrics = Metrics(
            client, model="tiny", is_draining=lambda: False, limits=dict, clock=lambda: self.now
        )
        request = Request(
            request_id="r", prompt_token_ids=(1, 2), sampling=SamplingParams(n=n), arrival_time=99.0
        )
        self.watch = self.metrics.watch(request)

    def step(self, seconds: float, *tokens: int, finish: Any = None) -> None:
        from octavo.frontend import BranchDelta, RequestOutput, Usage

        self.now += seconds
        deltas = tuple(
            BranchDelta(branch=i, token_ids=(7,) * count, finish_reason=finish)
            for i, count in enumerate(tokens)
            if count
        )
        usage = Usage(prompt_tokens=2, completion_tokens=0)
        self.watch.observe(RequestOutput(request_id="r", branches=deltas, usage=usage))

    def sample(self, name: str) -> float:
        line = f'{name}{{model_name="tiny"}} '
        (found,) = [x for x in self.metrics.render().decode().splitlines() if x.startswith(line)]
        return float(found.removeprefix(line))


@pytest.mark.parametrize("n", [1, 4])
def test_inter_token_latency_is_of_each_branch(n: int) -> None:
    watched = Watched(n)
    for _ in range(6):
        watched.step(0.1, *[1] * n)
    assert watched.sample("vllm:inter_token_latency_seconds_count") == 5 * n
    assert watched.sample("vllm:inter_token_latency_seconds_sum") == pytest.approx(0.5 * n)
    # Three tokens that came together share the gap before them, one observation each.
    watched.step(0.3, 3)
    assert watched.sample("vllm:inter_token_latency_seconds_count") == 5 * n + 3
    assert watched.sample("vllm:inter_token_latency_seconds_sum") == pytest.approx(0.5 * n + 0.3)
    assert watched.sample("vllm:time_to_first_token_seconds_sum") == pytest.approx(1.1)
    assert watched.sample("vllm:generation_tokens_total") == 6 * n + 3


def test_a_branch_that_began_later_has_its_own_gaps() -> None:
    watched = Watched(2)
    watched.step(0.1, 1)
    watched.step(0.1, 1, 1)
    watched.step(0.1, 1, 1)
    assert watched.sample("vllm:inter_token_latency_seconds_count") == 3
    assert watched.sample("vllm:inter_token_latency_seconds_sum") == pytest.approx(0.3)


def test_what_became_of_choices_is_counted_each(play: Any) -> None:
    async def test(here: Served) -> None:
        here.state.request_timeout_s = 0.0
        assert (await here.chat(n=3)).status_code == 504
        here.state.request_timeout_s = 60.0
        assert here.engine.runner is not None
        here.engine.runner.inner.fail_next = True
        assert (await here.complete(prompt=["a", "b"], n=2)).status_code == 500
        assert (await here.complete(temperature=-1)).status_code == 400
        values = await here.metrics()
        assert values[finished_metric("error")] == 3 + 4
        assert finished_metric("abort") not in values
        await leave(here, n=3)
        assert (await here.metrics())[finished_metric("abort")] == 3

    async def leave(here: Served, **body: Any) -> None:
        """Ask, and go away when the first event has come."""
        sent = [{"type": "http.request", "body": json.dumps(chat_body(**body)).encode()}]
        gone = asyncio.Event()

        async def receive() -> Any:
            if sent:
                return sent.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message.get("body"):
                gone.set()

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": headers,
                 "root_path": "", "query_string": b""}  # fmt: skip
        await build_app(here.state)(scope, receive, send)

    play(test)


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"messages": HELLO, "stream": True, "max_tokens": 200, **fields}


def test_ready_is_not_draining(play: Any) -> None:
    async def test(here: Served) -> None:
        assert (await here.metrics())[f"octavo_ready{MODEL}"] == 1
        here.state.draining = True
        values = await here.metrics()
        assert values[f"octavo_ready{MODEL}"] == 0
        assert values[f"octavo_draining{MODEL}"] == 1

    play(test)
