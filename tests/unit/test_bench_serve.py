"""``octavo bench serve`` against a small server that behaves, refuses, breaks off or is silent."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from octavo.bench import add_arguments, run
from octavo.bench.client import Target
from octavo.bench.exposition import Exposition, histogram_quantiles
from octavo.bench.figures import Slo
from octavo.bench.http_stream import Endpoint
from octavo.bench.serve import ServeOptions, num_failed, run_serve
from octavo.bench.waste import WasteMeter
from octavo.bench.workload import ServeWorkload
from octavo.errors import ConfigError, UnavailableError

WORKLOAD = ServeWorkload(
    num_requests=6, concurrency=3, prompt_tokens="uniform:4:9", output_tokens="uniform:2:6"
)
TEMPLATE_TOKENS = 3


class Server:
    """A token per word of the prompt, ``max_tokens`` pieces out. ``mode`` says what goes wrong."""

    def __init__(self, mode: str = "good") -> None:
        self.mode = mode
        self.bodies: list[dict[str, object]] = []
        self.left_early = 0
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if head.startswith("GET"):
                await self.metrics(writer)
                return
            size = int(head.lower().partition("content-length:")[2].split()[0])
            body = json.loads(await reader.readexactly(size))
            self.bodies.append(body)
            await self.answer(head.split()[1], body, writer)
        except ConnectionError:
            self.left_early += 1
        finally:
            writer.close()

    async def metrics(self, writer: asyncio.StreamWriter) -> None:
        steps = len(self.bodies)
        page = (
            f'vllm:prefix_cache_queries_total{{model_name="m"}} {100 * steps}\n'
            f'vllm:prefix_cache_hits_total{{model_name="m"}} {25 * steps}\n'
            'octavo_kv_bytes{state="used"} 90\noctavo_kv_bytes{state="tail_waste"} 10\n'
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="9"} 1\n'
        )
        status = "404 Not Found" if self.mode == "bare" else "200 OK"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(page)}\r\n\r\n{page}".encode())
        await writer.drain()

    async def answer(
        self, path: str, body: dict[str, object], writer: asyncio.StreamWriter
    ) -> None:
        # The two probes go well in every mode: a run has to begin before it can go wrong.
        mode = self.mode if len(self.bodies) > 2 else "good"
        if mode == "refuse":
            text = '{"error": {"message": "the queue is full", "code": "overloaded"}}'
            writer.write(
                f"HTTP/1.1 429 Too Many Requests\r\nContent-Length: {len(text)}\r\n\r\n{text}"
                .encode()
            )  # fmt: skip
            return
        if mode == "silent":
            await asyncio.sleep(30)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        is_chat = path.endswith("/chat/completions")
        for _ in range(int(str(body["max_tokens"]))):
            choice = {"delta": {"content": "x "}} if is_chat else {"text": "x "}
            await self.event(writer, {"choices": [{"index": 0, **choice}]})
            await asyncio.sleep(0.002)
            if mode == "break":
                return
        await self.end(body, writer, mode)

    async def end(self, body: dict[str, object], writer: asyncio.StreamWriter, mode: str) -> None:
        if mode == "fault":
            await self.event(writer, {"error": {"message": "the engine died"}})
        elif mode != "unfinished":
            await self.event(writer, {"choices": [{"index": 0, "finish_reason": "length"}]})
        if mode != "uncounted":
            text = str(body.get("prompt") or body["messages"])
            usage = {
                "prompt_tokens": len(text.split()) + TEMPLATE_TOKENS,
                "completion_tokens": body["max_tokens"],
            }
            await self.event(writer, {"choices": [], "usage": usage})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()

    async def event(self, writer: asyncio.StreamWriter, value: object) -> None:
        text = f"data: {json.dumps(value)}\n\n".encode()
        writer.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")
        await writer.drain()


@contextmanager
def serving(mode: str = "good") -> Iterator[Server]:
    """The server on a loop of its own thread: the benchmark's clock is not slowed by it."""
    server = Server(mode)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(server.handle, "127.0.0.1", 0)

    async def stop(listener: asyncio.Server) -> None:
        listener.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    listener = asyncio.run_coroutine_threadsafe(start(), loop).result()
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(stop(listener), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(autouse=True)
def _no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.bench.serve.machine_state", dict)


def options(server: Server, **workload: object) -> ServeOptions:
    return ServeOptions(
        target=Target(url=f"http://127.0.0.1:{server.port}/v1", model="m", timeout_s=20.0),
        workload=replace(WORKLOAD, **workload),  # type: ignore[arg-type]
        slo=Slo(ttft_s=10.0, tpot_s=10.0),
    )


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("loop", [{}, {"concurrency": 0, "rate_per_s": 200.0}])
def test_a_good_server_is_counted_by_its_usage(api: str, loop: dict[str, object]) -> None:
    with serving() as server:
        chosen = options(server, **loop)
        report = run_serve(replace(chosen, target=replace(chosen.target, api=api)))
    assert report.observed["outcomes"] == {"done": 6}
    assert report.observed["errors"] == {}
    assert report.observed["within_slo_percent"] == report.observed["on_time_percent"] == 100.0
    assert report.observed["output_tokens"] == report.workload["planned_output_tokens"]
    assert "counted" not in report.observed
    assert num_failed(report) == 0
    if api == "completions":
        # Calibration took the template's tokens into account.
        assert report.observed["prompt_tokens"] == report.workload["planned_prompt_tokens"]


def test_what_the_server_tells_is_reported() -> None:
    with serving() as server:
        report = run_serve(options(server))
    assert report.observed["prefix_hit_percent"] == 25.0
    assert report.observed["internal_waste_percent"] == 10.0
    assert (report.facts["block_size"], report.facts["kv_dtype"]) == ("16", "absent")


def test_what_a_server_does_not_tell_is_absent() -> None:
    with serving("bare") as server:
        report = run_serve(options(server))
    assert report.observed["prefix_hit_percent"] == "absent"
    assert report.observed["internal_waste_percent"] == "absent"
    assert report.facts["block_size"] == "absent"


@pytest.mark.parametrize(
    ("mode", "outcome", "error"),
    [
        ("refuse", "refused", "HTTP 429: the queue is full"),
        ("break", "failed", "connection lost after 1 events"),
        ("fault", "failed", "error event: the engine died"),
    ],
)
def test_failures_are_named_and_count(mode: str, outcome: str, error: str) -> None:
    with serving(mode) as server:
        report = run_serve(options(server))
    assert report.observed["outcomes"] == {outcome: 6}
    assert report.observed["errors"] == {error: 6}
    assert report.observed["within_slo_percent"] == report.observed["goodput_per_s"] == 0.0
    assert num_failed(report) == 6
    assert {row["mean"] for row in report.rows if row["name"] != "chunk gap ms"} == {"absent"}


def test_a_stream_that_only_says_done_is_an_end() -> None:
    with serving("unfinished") as server:
        assert run_serve(options(server)).observed["outcomes"] == {"done": 6}


def test_a_server_that_never_answers_times_out() -> None:
    with serving("silent") as server:
        chosen = options(server, num_requests=2)
        report = run_serve(replace(chosen, target=replace(chosen.target, timeout_s=0.3)))
    assert report.observed["outcomes"] == {"timed out": 2}


def test_without_usage_pieces_are_counted_and_said() -> None:
    with serving("uncounted") as server:
        report = run_serve(options(server))
    assert report.observed["output_tokens"] == report.workload["planned_output_tokens"]
    assert "6 requests came without usage" in report.observed["counted"]


def test_cancels_close_the_connection_midway() -> None:
    with serving() as server:
        report = run_serve(options(server, cancel_fraction=1.0, output_tokens="40"))
    outcomes = report.observed["outcomes"]
    assert outcomes["cancelled"] >= 4
    assert num_failed(report) == 0
    assert report.observed["output_tokens"] < 6 * 40


def test_the_same_seed_sends_the_same_bodies() -> None:
    sent = []
    for _ in range(2):
        with serving() as server:
            run_serve(options(server, concurrency=1))
            sent.append(server.bodies)
    assert sent[0] == sent[1]
    assert len({body["seed"] for body in sent[0][2:]}) == 6


def test_an_absent_server_is_named() -> None:
    with serving() as server:
        chosen = options(server)
    with pytest.raises(UnavailableError, match="cannot connect"):
        run_serve(chosen)


def test_processor_time_is_told_per_process_and_token() -> None:
    with serving() as server:
        told = run_serve(replace(options(server), server_pid=os.getpid())).observed
        untold = run_serve(options(server)).observed
    (name, spent), *_ = told["cpu_us_per_token"].items()
    assert name.endswith(f" {os.getpid()}")
    assert spent >= 0.0
    assert "give --server-pid" in untold["cpu_us_per_token"]


def test_an_unknown_pid_is_refused() -> None:
    with serving() as server, pytest.raises(ConfigError, match="--server-pid"):
        run_serve(replace(options(server), server_pid=2**30))


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://h:port", "http://h:99999"])
def test_senseless_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="no HTTP URL"):
        Endpoint.parse(url)


def test_urls_are_read_with_and_without_v1() -> None:
    assert Endpoint.parse("http://h:1/a/v1/") == Endpoint.parse("h:1/a")
    assert Endpoint.parse("https://h").port == 443
    assert Endpoint.parse("http://[::1]:80").netloc == "[::1]:80"


def test_the_command_prints_json_and_fails_with_the_server(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, add_engine_options=lambda _: None)
    for mode, code in (("good", 0), ("refuse", 1)):
        with serving(mode) as server:
            arguments = parser.parse_args(
                f"serve --url http://127.0.0.1:{server.port} --model m --concurrency 2 "
                "--num-requests 4 --prompt-tokens 5 --output-tokens 2 --json".split()
            )
            assert run(arguments, lambda _: pytest.fail("no engine is needed")) == code
        assert json.loads(capsys.readouterr().out)["kind"] == "serve"


@pytest.mark.parametrize(
    "option", ["--rate", "--slo-ttft-s", "--temperature", "--timeout", "--cancel-fraction"]
)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "many"])
def test_numbers_are_finite(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, add_engine_options=lambda _: None)
    with pytest.raises(SystemExit):
        parser.parse_args(["serve", f"{option}={value}"])
    assert f"argument {option}: '{value}' must be a finite number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--timeout", "0"), "--timeout is 0"),
        (("--slo-ttft-s", "2"), "go together"),  # an SLO needs both limits
    ],
)
def test_what_measures_nothing_is_refused(options: tuple[str, str], words: str) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, add_engine_options=lambda _: None)
    arguments = parser.parse_args(["serve", "--concurrency", "1", *options])
    with pytest.raises(ConfigError, match=words):
        run(arguments, lambda _: pytest.fail("no engine is needed"))


def test_histogram_quantiles_are_those_of_what_was_gained() -> None:
    name = "gap"

    def page(low: int, high: int) -> Exposition:
        return Exposition(
            f'{name}_bucket{{le="0.1"}} {low}\n{name}_bucket{{le="0.2"}} {high}\n'
            f'{name}_bucket{{le="+Inf"}} {high}\n'
        )

    found = histogram_quantiles(page(100, 100), page(100, 110), name, percents=(50, 90))
    assert found is not None
    assert found[50] == pytest.approx(0.15)
    assert found[90] == pytest.approx(0.19)
    assert histogram_quantiles(page(1, 1), page(1, 1), name, percents=(50,)) is None


def test_waste_weighs_by_bytes_held() -> None:
    meter = WasteMeter()
    meter.add({"used": 0, "free": 10})
    assert meter.observed() == {"internal_waste_percent": "absent"}
    meter.add({"used": 90, "tail_waste": 10, "cached_cold": 1000})
    meter.add({"used": 200, "shared": 100, "provisional": 100})
    assert meter.observed()["internal_waste_percent"] == 22.0
