"""Write tests/data/logits_tiny_hf.npz: logits of the tiny directories by transformers.

Not a test. Run it in an environment with torch, transformers and safetensors:

    PYTHONPATH=src:tests python tests/oracles/make_tiny_goldens.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from oracles.tiny_hf import TOKENS, VARIANTS, write_tiny_hf

DATA = Path(__file__).resolve().parent.parent / "data"
EVERY = 16


def main() -> None:
    """Every sixteenth position's logits [15, 97] of every variant."""
    out = {}
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory() as directory:
            path = write_tiny_hf(Path(directory), variant)
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
            with torch.no_grad():
                logits = model(torch.tensor([TOKENS])).logits[0].float().numpy()
        out[variant] = logits[EVERY - 1 :: EVERY]
    np.savez_compressed(DATA / "logits_tiny_hf.npz", **out)


if __name__ == "__main__":
    main()
