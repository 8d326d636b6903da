"""The in-process benchmarks on runners without a model: what is counted, and as what."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.backends.program import NO_LOGPROBS, OpTime, StepBatch, StepOutput
from octavo.bench.drive import bench_config, drive, random_prompts
from octavo.bench.latency import LatencyWorkload, measure_latency
from octavo.bench.machine import (
    cpu_seconds,
    peak_memory_mib,
    process_name,
    process_tree,
    shared_memory_mib,
)
from octavo.bench.report import Report
from octavo.bench.step import (
    MarkingExecutor,
    StepWorkload,
    gap_row,
    measure_gaps,
    profile_rows,
    unseen_gaps,
)
from octavo.bench.throughput import ThroughputWorkload, measure_throughput
from octavo.bench.waste import WasteMeter
from octavo.config import EngineConfig
from octavo.errors import ConfigError, EngineError
from octavo.testing.fake_runner import FakeRunner, make_info
from octavo.worker import ModelRunner

CONFIG = bench_config(EngineConfig(), streams=4, prefix_cache=False)


def runner(num_blocks: int = 256) -> FakeRunner:
    return FakeRunner(make_info(num_blocks=num_blocks))


class ConstantExecutor:
    """Samples token 7 for every row, whatever it is asked."""

    fingerprint = "constant"
    progress = 0

    def forward(self, batch: StepBatch) -> StepOutput:
        return StepOutput((7,) * len(batch.sample.token_index), *NO_LOGPROBS)

    def read_block(
        self, group: int, layer: int, block: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        raise NotImplementedError

    def poison_blocks(self, blocks: NDArray[np.int32]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def test_a_drive_counts_each_token_in_its_phase() -> None:
    waste = WasteMeter()
    prompts = random_prompts(random.Random(1), 1000, count=4, length=20)
    result = drive(runner(), CONFIG, prompts, num_output=33, waste=waste)
    assert result.prefill.tokens == result.prompt_tokens == 80
    assert result.total.tokens == 4 * 33
    # The first token of each comes with its prompt.
    assert result.decode.tokens == 4 * 32
    assert [len(stamps) for stamps in result.token_s.values()] == [33] * 4
    assert all(stamps == sorted(stamps) for stamps in result.token_s.values())
    assert waste.num_samples == 2
    assert result.prefix_hit_tokens == 0


def test_a_shared_prefix_is_read_from_the_cache() -> None:
    sharing = bench_config(CONFIG, streams=4, prefix_cache=True)
    prompts = random_prompts(random.Random(1), 1000, count=4, length=60, shared=48)
    result = drive(runner(), sharing, prompts, num_output=4, waste=WasteMeter())
    assert result.prefix_hit_tokens >= 3 * 48


def test_a_refused_request_is_no_figure() -> None:
    prompts = random_prompts(random.Random(1), 1000, count=1, length=100)
    with pytest.raises(EngineError, match="was dropped"):
        drive(runner(num_blocks=4), CONFIG, prompts, num_output=8, waste=WasteMeter())


def test_throughput_has_a_row_for_each_width_and_kind() -> None:
    workload = ThroughputWorkload(
        concurrency=(1, 4), prompt_tokens=16, output_tokens=8, prefill_tokens=32,
        prefill_prompts=2, shared_prefix_tokens=32, repeat=2,
    )  # fmt: skip
    samples = measure_throughput(runner(), CONFIG, workload)
    rows = samples.rows()
    assert [row["name"] for row in rows] == [
        "prefill 32",
        "decode x1", "end to end x1", "decode x1, prefix 32 shared", "decode x1, prefix 32 own",
        "decode x4", "end to end x4", "decode x4, prefix 32 shared", "decode x4, prefix 32 own",
    ]  # fmt: skip
    assert all(row["tokens_per_s"] for row in rows)
    # One output token has no time per token.
    assert rows[0]["tpot_ms"] == "absent"
    assert samples.prefix_hit_tokens > 0


def test_latency_measures_each_request_alone() -> None:
    workload = LatencyWorkload(num_requests=3, prompt_tokens=16, output_tokens=5)
    records = measure_latency(runner(), CONFIG, workload, waste=WasteMeter())
    assert [record.output_tokens for record in records] == [5, 5, 5]
    assert all(record.ttft_s and record.tpot_s for record in records)


@pytest.mark.parametrize("width", [1, 4])
def test_step_takes_the_gaps_between_full_decode_steps(width: int) -> None:
    marking = MarkingExecutor(ConstantExecutor())
    worker = ModelRunner(marking, make_info(num_blocks=256), max_slots=64)
    workload = StepWorkload(prompt_tokens=8, steps=20)
    gaps, marks = measure_gaps(worker, marking, CONFIG, width=width, workload=workload)
    assert 0 < len(gaps) < len(marks) <= 20
    assert all(mark.rows == mark.tokens == width for mark in marks)
    assert min(gaps) > 0
    row = gap_row(width, gaps, marks)
    assert row["gaps"] == len(gaps)
    assert float(str(row["p50_us"])) <= float(str(row["p99_us"]))


def test_a_profile_has_rates_per_op() -> None:
    times = [
        OpTime(op="norm_mlp", calls=60, seconds=0.3, read_bytes=6 * 10**9, operations=3 * 10**9),
        OpTime(op="sample", calls=2, seconds=0.1, read_bytes=0, operations=0),
        OpTime(op="copy", calls=0, seconds=0.0, read_bytes=0, operations=0),
    ]
    mlp, sample = profile_rows(4, times, steps=2)
    assert (mlp["us_per_step"], mlp["percent"]) == (150_000.0, 75.0)
    assert (mlp["gb_per_s"], mlp["gops"], mlp["mb_per_step"]) == (20.0, 10.0, 3000.0)
    assert (sample["op"], sample["gb_per_s"]) == ("sample", 0.0)


def test_no_gaps_are_absent_not_zero() -> None:
    assert gap_row(64, [], [])["p50_us"] == "absent"


def test_streams_that_never_decode_together_are_told_with_the_remedy() -> None:
    marking = MarkingExecutor(ConstantExecutor())
    worker = ModelRunner(marking, make_info(num_blocks=256), max_slots=64)
    workload = StepWorkload(prompt_tokens=8, steps=1)
    gaps, marks = measure_gaps(worker, marking, CONFIG, width=4, workload=workload)
    assert gaps == []
    told = str(unseen_gaps([gap_row(4, gaps, marks)])["gaps"])
    assert "streams 4:" in told
    assert "raise --steps" in told
    assert unseen_gaps([{"streams": 1, "gaps": 3}]) == {}


@pytest.mark.timeout(20)
def test_streams_that_the_engine_refuses_end_the_benchmark() -> None:
    marking = MarkingExecutor(ConstantExecutor())
    worker = ModelRunner(marking, make_info(num_blocks=256), max_slots=64)
    full = replace(CONFIG, scheduler=replace(CONFIG.scheduler, max_waiting=1))
    workload = StepWorkload(prompt_tokens=8, steps=4)
    with pytest.raises(EngineError, match="of 8 streams were refused"):
        measure_gaps(worker, marking, full, width=8, workload=workload)


@pytest.mark.timeout(20)
def test_what_no_context_holds_is_refused_before_it_is_run() -> None:
    info = make_info(num_blocks=256)
    marking = MarkingExecutor(ConstantExecutor())
    worker = ModelRunner(marking, info, max_slots=64)
    for prompt, steps in ((info.max_model_len, 4), (8, info.max_model_len - 8), (10**12, 4)):
        workload = StepWorkload(prompt_tokens=prompt, steps=steps)
        with pytest.raises(
            ConfigError, match=f"--steps {steps} .*limit .* is {info.max_model_len}"
        ):
            measure_gaps(worker, marking, CONFIG, width=1, workload=workload)
    for change in ({"prompt_tokens": 10**12}, {"output_tokens": 10**12},
                   {"prefill_tokens": 10**12}, {"shared_prefix_tokens": 10**12}):  # fmt: skip
        with pytest.raises(ConfigError, match=str(10**12)):
            measure_throughput(runner(), CONFIG, ThroughputWorkload(**change))
    with pytest.raises(ConfigError, match="--output-tokens"):
        measure_latency(runner(), CONFIG, LatencyWorkload(output_tokens=10**12), waste=WasteMeter())


def test_a_rate_of_no_step_is_absent_with_its_reason() -> None:
    workload = ThroughputWorkload(
        concurrency=(1,), prompt_tokens=16, output_tokens=1, prefill_prompts=0, repeat=1
    )
    samples = measure_throughput(runner(), CONFIG, workload)
    decode, whole = samples.rows()
    assert (decode["tokens_per_s"], decode["min"], decode["max"]) == ("absent",) * 3
    assert whole["tokens_per_s"] != "absent"
    assert "decode x1: no step was" in samples.unseen()["rates"]


def test_a_report_is_json_and_a_table() -> None:
    report = Report(kind="x", facts={"cores": 2}, workload={}, rows=[{"name": "a", "value": 1.5}])
    assert '"value": 1.5' in report.json()
    assert report.text().splitlines() == [
        "octavo bench x", "facts", "  cores: 2", "", "name  value", "a     1.5",
    ]  # fmt: skip
    assert Report(kind="x", facts={}, workload={}, rows=[]).table() == "(no rows)"


def test_memory_of_this_process_and_of_none() -> None:
    peak, pss = peak_memory_mib(), shared_memory_mib(["self"])
    assert peak is None or peak > 1
    assert pss is None or pss > 1
    assert peak_memory_mib(2**30) is None
    assert shared_memory_mib([2**30]) is None
    assert process_tree(2**30) == []


def test_processes_have_names_and_used_time() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "http.server", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as child:
        try:
            while process_name(child.pid) != "http.server":
                time.sleep(0.01)
            while not cpu_seconds(child.pid):
                time.sleep(0.01)
        finally:
            child.kill()
    assert cpu_seconds(2**30) == 0.0
    assert process_name(2**30) == "unknown"
