"""What the native backend refuses, reports and survives."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from octavo import _native
from octavo.backends.native import NativeBackend, default_num_threads, probe_machine
from octavo.backends.program import BackendOptions
from octavo.errors import ConfigError
from octavo.models import build_program, cache_layout
from octavo.models.rope import default_rope
from oracles.step_batches import Row, step
from oracles.tiny_models import random_tensors, tiny_spec


def load(*, block_size=16, num_blocks=8, kv_dtype="bf16", head_dim=16, **options):
    rope = default_rope(head_dim, 10000.0, interleaved=False)
    spec = tiny_spec(head_dim=head_dim, rope=rope)
    layout = cache_layout(spec, block_size=block_size, num_blocks=num_blocks, kv_dtype=kv_dtype)
    return NativeBackend().load(
        build_program(spec), random_tensors(spec), layout, options=BackendOptions(**options)
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"isa": "sse9"}, ("sse9", "scalar")),
        ({"num_threads": -1}, ("-1", "256")),
        ({"num_threads": 1000}, ("1000", "256")),
        ({"activation": "int4"}, ("--activation 'int4'", "f32")),
        ({"max_tokens": 0}, ("0", "--max-num-batched-tokens")),
        ({"block_size": 8}, ("--block-size 8", "16")),
        ({"num_blocks": 0}, ("--kv-memory holds 0 blocks",)),
        ({"kv_dtype": "fp8"}, ("fp8", "bf16, int8")),
        ({"kv_dtype": "f32"}, ("f32", "bf16, int8")),
        ({"kv_dtype": "int8", "head_dim": 528}, ("528", "512", "--kv-dtype int8", "bf16")),
    ],
)
def test_impossible_options_are_refused_by_name(options, words):
    with pytest.raises(ConfigError) as caught:
        load(**options)
    for word in words:
        assert word in caught.value.message


def test_info_says_what_runs_and_the_log_what_runs_slower(caplog):
    executor = load(num_threads=3, isa="scalar")
    assert executor.info["isa"] == "scalar"
    assert executor.info["num_threads"] == 3
    assert any("scalar" in note for note in executor.info["notes"])
    assert [record.getMessage() for record in caplog.records] == [
        f"octavo: {note}" for note in executor.info["notes"]
    ]


def test_the_fingerprint_names_the_activation_mode_not_the_instruction_set():
    assert load(isa="scalar").fingerprint == load(isa="avx2").fingerprint
    assert load(activation="f32").fingerprint != load().fingerprint
    assert load(kv_dtype="int8").fingerprint == load().fingerprint.replace("kv-bf16", "kv-int8")


@pytest.mark.parametrize(("kv_dtype", "per_head"), [("bf16", 16 * 2 * 2), ("int8", 16 * 2 + 2 * 4)])
def test_block_bytes_count_all_layers_and_scales(kv_dtype, per_head):
    spec = tiny_spec()
    layout = cache_layout(spec, block_size=32, num_blocks=4, kv_dtype=kv_dtype)
    expected = spec.num_layers * 32 * spec.num_kv_heads * per_head
    assert NativeBackend().kv_block_bytes(layout, 0) == expected


def test_broken_batches_are_caught_before_memory_is():
    executor = load()
    good = Row(tokens=[1, 2], table=[0], logits_at=[1])
    expected = executor.forward(step([good])).logits
    for bad in (
        replace(good, tokens=[1, 97]),
        replace(good, table=[8]),
        replace(good, start=15),
        replace(good, first=3),
        replace(good, tokens=list(range(90)) * 6, table=[0] * 40),
    ):
        with pytest.raises(ValueError, match=r"."):
            executor.forward(step([bad]))
    assert np.array_equal(executor.forward(step([good])).logits, expected)


def test_close_is_idempotent_and_frees_the_threads():
    before = len(os.listdir("/proc/self/task"))
    executor = load(num_threads=4)
    assert len(os.listdir("/proc/self/task")) == before + 3
    executor.close()
    executor.close()
    assert len(os.listdir("/proc/self/task")) == before


def test_probes_measure_something():
    found = probe_machine(2)
    assert found["isas"] == list(_native.cpu_features())
    assert found["barrier_ns"] > 0
    assert found["read_gbs"] > 0
    assert found["int8_gops"] > 0
    assert default_num_threads() >= 1


def test_op_times_count_what_ran():
    executor = load(num_blocks=8)
    batch = step([Row(tokens=[1, 2, 3], table=[0], logits_at=[2])])
    executor.forward(batch)
    assert executor.op_times() == []
    executor.start_profile()
    executor.forward(batch)
    spec = tiny_spec()
    times = {spent.op: spent for spent in executor.op_times()}
    assert list(times) == [
        "embed", "norm_linear", "attention", "linear_residual", "norm_mlp", "head", "sample"
    ]  # fmt: skip
    assert times["attention"].calls == times["norm_mlp"].calls == spec.num_layers
    assert times["head"].calls == 1
    assert all(spent.seconds > 0 for spent in times.values())
    per_layer = 3 * spec.num_kv_heads * spec.head_dim * 2 * 2
    assert times["attention"].read_bytes == spec.num_layers * per_layer
    pairs = 1 + 2 + 3
    per_pair = 2 * 2 * spec.num_heads * spec.head_dim
    before_last = (spec.num_layers - 1) * pairs * per_pair
    assert times["attention"].operations >= before_last + 3 * per_pair
    executor.start_profile()
    assert executor.op_times() == []


def test_no_more_threads_than_the_pool_takes(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: range(400))
    monkeypatch.setattr("octavo.backends.native.machine.cpu_quota", lambda: None)
    assert default_num_threads() == 256
    for probe in (_native.probe_barrier_ns, _native.probe_read_gbs, _native.probe_int8_gops):
        for threads in (0, -1, 257):
            with pytest.raises(ValueError, match="threads"):
                probe(threads)
