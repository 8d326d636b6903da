"""Hugging Face directories, file to logits, against transformers (make_tiny_goldens.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.backends.program import BackendOptions
from octavo.backends.reference import ReferenceBackend
from octavo.models import build_program, cache_layout, model_spec
from octavo.weights import open_model
from oracles.step_batches import Row, step
from oracles.tiny_hf import TOKENS, VARIANTS, write_tiny_hf

GOLDENS = Path(__file__).resolve().parent.parent / "data" / "logits_tiny_hf.npz"


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_the_oracle(tmp_path, variant):
    expected = np.load(GOLDENS)[variant]
    model = open_model(write_tiny_hf(tmp_path, variant))
    spec = model_spec(model)
    layout = cache_layout(spec, block_size=16, num_blocks=15)
    executor = ReferenceBackend().load(
        build_program(spec), model.tensors, layout, options=BackendOptions()
    )
    row = Row(tokens=TOKENS, table=list(range(15)), logits_at=range(15, len(TOKENS), 16))
    logits = executor.forward(step([row])).logits
    assert logits.shape == expected.shape
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()
