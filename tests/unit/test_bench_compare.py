"""The comparison with peers: their formats, their failures, and the tables made from the data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import chart  # noqa: E402
import compare  # noqa: E402
import engines  # noqa: E402
import memory_report  # noqa: E402
import report  # noqa: E402
from process import PeerError, run_to_end, server, stop  # noqa: E402
from servers import HttpWorkload, Server, free_port  # noqa: E402

# What the programs printed, cut to the fields of interest.
BATCHED = (
    '{"n_kv_max": 2048, "pp": 128, "tg": 16, "pl": 4, "n_kv": 576, "t_pp": 9.348376, '
    '"speed_pp": 54.768871, "t_tg": 29.383987, "speed_tg": 2.178057, "t": 38.732365, '
    '"speed": 14.871284}\n\n'
)
LLAMA_BENCH = '[{"n_prompt": 512, "n_gen": 0, "avg_ts": 32.728614, "stddev_ts": 0.0}]'

WORKLOAD = engines.Workload(
    concurrency=(1, 4), prompt_tokens=8, output_tokens=4, prefill_tokens=16, threads=1
)


def test_llama_formats_are_read() -> None:
    assert engines.parse_batched_bench(BATCHED) == [
        {"name": "decode x4", "tokens_per_s": 2.18},
        {"name": "end to end x4", "tokens_per_s": 1.65},
    ]
    assert engines.parse_llama_bench(LLAMA_BENCH) == [
        {"name": "prefill 512", "tokens_per_s": 32.73}
    ]


@pytest.mark.parametrize("text", ["", "usage: llama-batched-bench", '{"pl": 4}'])
def test_an_unknown_batched_bench_output_is_an_error(text: str) -> None:
    with pytest.raises(PeerError, match="llama-batched-bench printed"):
        engines.parse_batched_bench(text)


@pytest.mark.parametrize("text", ["", "[{}]", "{}x"])
def test_an_unknown_llama_bench_output_is_an_error(text: str) -> None:
    with pytest.raises(PeerError, match="llama-bench printed"):
        engines.parse_llama_bench(text)


def test_missing_programs_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"none\.gguf is missing"):
        engines.LlamaCpp("x", tmp_path, tmp_path / "none.gguf").measure(WORKLOAD)
    model = tmp_path / "m.gguf"
    model.touch()
    with pytest.raises(PeerError, match="llama-bench is not in the folder"):
        engines.LlamaCpp("x", tmp_path, model).measure(WORKLOAD)
    with pytest.raises(PeerError, match="python-none cannot be run"):
        engines.ScriptEngine(
            "x", python=tmp_path / "python-none", script="vllm_runner.py", model=model
        ).measure(WORKLOAD)


def test_a_command_s_failure_shows_its_message_without_directories() -> None:
    code = "import sys; sys.exit('cannot open ' + '/' + 'some/where/model.gguf')"
    with pytest.raises(PeerError, match=r"exit code 1: cannot open model\.gguf"):
        run_to_end([sys.executable, "-c", code], timeout_s=30)
    with pytest.raises(PeerError, match="longer than"):
        run_to_end([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.3)
    done = run_to_end([sys.executable, "-c", "print(5)"], timeout_s=30)
    assert done.stdout == "5\n"
    assert done.peak_rss_mib > 1


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from runner import serve_rounds
def load(model, threads):
    print("noise of the engine")
    def measure(workload):
        if workload["threads"] == 9:
            raise ValueError("no such thing")
        return [{{"name": "decode x1", "tokens_per_s": workload["output_tokens"]}}]
    return {{"version": "1"}}, measure
serve_rounds(load)
"""


def script_engine(tmp_path: Path) -> engines.ScriptEngine:
    path = tmp_path / "fake_runner.py"
    path.write_text(SCRIPT.format(folder=str(ROOT / "benchmarks")))
    return engines.ScriptEngine(
        "fake", python=Path(sys.executable), script=str(path), model=tmp_path / "model"
    )


def test_a_script_keeps_its_engine_between_rounds(tmp_path: Path) -> None:
    engine = script_engine(tmp_path)
    try:
        for _ in range(2):
            measured = engine.measure(WORKLOAD)
            assert measured.rows == [{"name": "decode x1", "tokens_per_s": 4}]
            assert measured.facts == {"model": "model", "version": "1"}
    finally:
        engine.close()


def test_a_script_s_fault_is_reported(tmp_path: Path) -> None:
    engine = script_engine(tmp_path)
    try:
        bad = engines.Workload(
            concurrency=(1,), prompt_tokens=1, output_tokens=1, prefill_tokens=1, threads=9
        )
        with pytest.raises(PeerError, match="ValueError: no such thing"):
            engine.measure(bad)
        with pytest.raises(PeerError, match="its process"):
            engine.measure(WORKLOAD)
    finally:
        engine.close()


def test_a_server_that_ends_or_never_answers_is_reported() -> None:
    url = f"http://127.0.0.1:{free_port()}/"
    with (
        pytest.raises(PeerError, match="ended with 3"),
        server([sys.executable, "-c", "exit(3)"], ready_url=url, timeout_s=30),
    ):
        pytest.fail("it is not ready")
    with (
        pytest.raises(PeerError, match="not ready"),
        server([sys.executable, "-c", "import time; time.sleep(60)"], ready_url=url, timeout_s=0),
    ):
        pytest.fail("it is not ready")


class Scripted:
    """Gives its figures in turn, or fails where there is none."""

    def __init__(self, name: str, figures: list[float | None]) -> None:
        self.name = name
        self.figures = figures
        self.is_closed = False

    def measure(self, workload: engines.Workload) -> engines.Measured:
        figure = self.figures.pop(0)
        if figure is None:
            raise PeerError("out of memory")
        return engines.Measured(rows=[{"name": "decode x1", "tokens_per_s": figure}], facts={})

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    state = {"load": [9.0], "barrier_ns": 100, "read_gb_per_s": 50.0}
    monkeypatch.setattr(compare, "machine_state", lambda: state)
    contenders = [
        Scripted("octavo", [300.0, 100.0, 200.0]),
        Scripted("peer", [50.0, 40.0, 60.0]),
        Scripted("broken", [None, None, None]),
    ]
    found = list(compare.run_rounds(contenders, WORKLOAD, rounds=3))  # type: ignore[arg-type]
    assert all(contender.is_closed for contender in contenders)
    return found


def data_of(turns: list[dict[str, Any]], **workload: object) -> dict[str, Any]:
    return {
        "kind": "engine", "date": "2026-01-01", "model": "m.gguf", "turns": turns,
        "machine": {"cores": 2, "cpu": "C"}, "workload": engines.as_json(WORKLOAD) | workload,
    }  # fmt: skip


def test_rounds_are_interleaved_and_failures_kept(turns: list[dict[str, Any]]) -> None:
    assert [turn["engine"] for turn in turns] == ["octavo", "peer", "broken"] * 3
    assert [turn["error"] for turn in turns if "error" in turn] == ["out of memory"] * 3


def test_the_table_has_medians_and_ratios_and_names_failures(turns: list[dict[str, Any]]) -> None:
    text = report.section(data_of(turns), chart="c.svg")
    assert "| decode x1 | 200 | 50.0 | 4.00 × |" in text
    assert "No figure from broken: out of memory." in text
    assert "medians of 3 interleaved rounds" in text


def test_a_peer_without_a_figure_is_no_zero(turns: list[dict[str, Any]]) -> None:
    turns[1]["rows"].append({"name": "decode x4", "tokens_per_s": 70.0})
    assert "| decode x4 | – | 70.0 | – |" in report.section(data_of(turns), chart="c.svg")


def test_the_chart_is_the_same_for_the_same_data(turns: list[dict[str, Any]]) -> None:
    drawings = {report.drawing(data_of(turns)) for _ in range(2)}
    assert len(drawings) == 1
    assert chart.bars("<t>", ["none"], {"a": {}}).svg().count("&lt;t&gt;") == 1


def test_the_readme_s_table_is_replaced_and_only_that() -> None:
    readme = f"before\n{report.START}\nold\n{report.END}\nafter\n"
    once = report.replaced(readme, "new")
    assert once == f"before\n{report.START}\nnew\n{report.END}\nafter\n"
    assert report.replaced(once, "new") == once
    with pytest.raises(SystemExit, match="bench:start"):
        report.replaced("no markers", "new")


def test_stored_results_can_be_reported() -> None:
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        data = json.loads(path.read_text())
        section = memory_report.section if data["kind"] == "memory" else report.section
        assert section(data, chart="c.svg")
        drawing = memory_report.drawing if data["kind"] == "memory" else report.drawing
        assert ElementTree.fromstring(drawing(data)).tag.endswith("svg")


def test_options_make_the_contenders(tmp_path: Path) -> None:
    options = compare.parse(
        ["engine", "--llama-bin", str(tmp_path), "--llama-gguf", f"Q4_0={tmp_path}/q.gguf",
         "--vllm-python", "p", "--vllm-model", "m"]
    )  # fmt: skip
    model = tmp_path / "m.gguf"
    assert [engine.name for engine in compare.engines(options, model)] == [
        "octavo", "llama.cpp, same file", "llama.cpp, Q4_0", "vLLM",
    ]  # fmt: skip
    options = compare.parse(
        ["http", "--llama-bin", str(tmp_path), "--llama-gguf", f"Q4_0={tmp_path}/q.gguf",
         "--server", "other=serve --port {port}"]
    )  # fmt: skip
    assert [entry.name for entry in compare.servers(options, model)] == [
        "octavo", "llama.cpp, same file", "llama.cpp, Q4_0", "other",
    ]  # fmt: skip
    with pytest.raises(SystemExit):
        compare.parse(["engine", "--vllm-python", "p"])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("engine --server x=y", "--server does nothing for engine"),
        ("engine --rate 5", "--rate does nothing for engine"),
        ("http --concurrency 3", "--concurrency does nothing for http"),
        ("http --vllm-python p --vllm-model m", "--vllm-python does nothing for http"),
        ("engine --llama-gguf Q4_0", "--llama-gguf is 'Q4_0'; write NAME="),
        ("engine --output-tokens 1", "--output-tokens is 1"),
        ("engine --rounds 0", "'0' must be a whole number above 0"),
        ("engine --threads -1", "'-1' must be a whole number above 0"),
        ("engine --concurrency 1,x", "'x' must be a whole number above 0"),
    ],
)
def test_what_a_comparison_cannot_use_is_refused(
    given: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        compare.parse(given.split())
    assert named in capsys.readouterr().err


def test_a_name_that_no_engine_has_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.touch()
    with pytest.raises(SystemExit, match=r"--only zzz.*octavo"):
        compare.main(["engine", "--model", str(model), "--only", "zzz"])


def test_http_runs_are_alike_for_every_server() -> None:
    workload = HttpWorkload(
        streams=16, fixed_prompt_tokens=128, fixed_output_tokens=128, rate_per_s=3.0,
        num_requests=300, prompt_tokens="exponential:161", output_tokens="exponential:100",
        slo_ttft_s=2.0, slo_tpot_s=0.05, threads=2,
    )  # fmt: skip
    runs = workload.runs()
    assert list(runs) == ["HTTP x1", "HTTP x16", "Poisson 3/s"]
    seeds = [options[options.index("--seed") + 1] for options in runs.values()]
    assert len(set(seeds)) == len(seeds)
    broken = Server("gone", [sys.executable, "-c", "exit(1)"], ready="/health", model="m")
    with pytest.raises(PeerError, match="ended with 1"):
        broken.measure(workload)


def test_rounds_go_on_from_those_that_are_stored(tmp_path: Path) -> None:
    facts = {"kind": "engine", "machine": {"cores": 2}, "model": "m", "workload": {"threads": 2}}
    path = tmp_path / "engine.json"
    assert compare.earlier_turns(path, facts) == []
    stored = [{"engine": "octavo", "round": 0, "rows": []}]
    path.write_text(json.dumps({**facts, "turns": stored}), encoding="utf-8")
    assert compare.earlier_turns(path, facts) == stored
    with pytest.raises(SystemExit, match="another workload"):
        compare.earlier_turns(path, {**facts, "workload": {"threads": 1}})
    missing = engines.LlamaCpp("octavo", tmp_path, tmp_path / "none.gguf")
    [turn] = compare.run_rounds([missing], WORKLOAD, rounds=1, earlier=stored)
    assert turn["round"] == 1
    assert "none.gguf is missing" in turn["error"]


def test_whoever_a_stopped_peer_leaves_behind_ends_too() -> None:
    """Some engines start workers that outlive them."""
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c',"
        " 'import time; print(1, flush=True); time.sleep(600)']); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == b"1\n"
        stop(leader)
        assert leader.stdout.read() == b"", "its worker would keep the pipe open"
