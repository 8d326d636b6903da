"""The reference backend against stored float32 logits of transformers (make_logit_goldens.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.backends.program import BackendOptions
from octavo.backends.reference import ReferenceBackend
from octavo.models import build_program, cache_layout, model_spec
from octavo.weights import open_model
from oracles.step_batches import Row, step

DATA = Path(__file__).resolve().parent.parent / "data"
TOLERANCE = 1e-3
BLOCK_SIZE = 16


def worst_error(model_path: Path, golden_path: Path) -> float:
    """Largest |logit error| / max|logit| over all probes; asserts the argmax of each."""
    golden = np.load(golden_path)
    model = open_model(model_path)
    spec = model_spec(model)
    prompts = np.split(golden["tokens"], golden["starts"][1:-1])
    rows, next_block = [], 0
    for index, prompt in enumerate(prompts):
        blocks = range(next_block, next_block + -(-len(prompt) // BLOCK_SIZE))
        next_block = blocks.stop
        looked_at = [int(position) for owner, position in golden["probes"] if owner == index]
        rows.append(Row(tokens=prompt, table=list(blocks), logits_at=looked_at))
    layout = cache_layout(spec, block_size=BLOCK_SIZE, num_blocks=next_block)
    executor = ReferenceBackend().load(
        build_program(spec), model.tensors, layout, options=BackendOptions()
    )
    output = executor.forward(step(rows))
    executor.close()
    assert output.logits is not None
    assert list(output.token_ids) == golden["top_ids"][:, 0].tolist()
    top = np.take_along_axis(output.logits, golden["top_ids"].astype(np.int64), axis=1)
    fixed = output.logits[:, golden["fixed_ids"]]
    errors = np.maximum(
        np.abs(top - golden["top_values"]).max(axis=1),
        np.abs(fixed - golden["fixed_values"]).max(axis=1),
    )
    return float((errors / golden["largest"]).max())


def test_smollm2_logits_equal_the_oracle(smollm2_path):
    assert worst_error(smollm2_path, DATA / "logits_smollm2.npz") <= TOLERANCE


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_qwen_logits_equal_the_oracle(qwen_path):
    assert worst_error(qwen_path, DATA / "logits_qwen.npz") <= TOLERANCE
