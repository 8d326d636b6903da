"""Write tests/data/logits_<name>.npz: float32 logits of a GGUF model by transformers.

Not a test. Run it in an environment with torch, transformers >= 5.24, gguf and accelerate:

    python tests/oracles/make_logit_goldens.py smollm2 path/to/SmolLM2-135M-Instruct.Q4_1.gguf

Every probe is one position of one prompt. Kept of its logits: the highest 64 (ids and values), the
values at 256 ids fixed for all probes, and the largest magnitude.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

DATA = Path(__file__).resolve().parent.parent / "data"
TOP = 64
FIXED = 256

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived a clockmaker who",
    "def reverse(text: str) -> str:\n    return text[",
    "1, 1, 2, 3, 5, 8, 13,",
    "Die Würde des Menschen ist",
    "Il était une fois une petite fille de village, la plus jolie",
    "東京は日本の",
    "😀 means happy, 😢 means",
    "We hold these truths to be self-evident, that all men are created equal, that they are "
    "endowed by their Creator with certain unalienable Rights, that among these are",
    "SELECT name, COUNT(*) FROM orders WHERE total > 100 GROUP BY",
    "<|im_start|>user\nWhat is the boiling point of water at sea level?<|im_end|>\n"
    "<|im_start|>assistant\n",
    "Water boils, ice melts, and steam rises. " * 24 + "Water",
)


def probes(length: int) -> list[int]:
    """Positions that are looked at in a prompt: three inner ones and the last."""
    return sorted({length // 4, length // 2, 3 * length // 4, length - 1})


def main(name: str, file: Path) -> None:
    """Run the model over the prompts and store the probes."""
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).eval()
    fixed = np.sort(np.random.default_rng(0).choice(model.config.vocab_size, FIXED, replace=False))
    tokens, starts, where, top_ids, top_values, fixed_values, largest = [], [0], [], [], [], [], []
    for index, prompt in enumerate(PROMPTS):
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        tokens.extend(ids)
        starts.append(len(tokens))
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].float().numpy()
        for position in probes(len(ids)):
            line = logits[position]
            best = np.argsort(-line, kind="stable")[:TOP]
            where.append((index, position))
            top_ids.append(best)
            top_values.append(line[best])
            fixed_values.append(line[fixed])
            largest.append(np.abs(line).max())
    np.savez_compressed(
        DATA / f"logits_{name}.npz",
        tokens=np.array(tokens, np.int32),
        starts=np.array(starts, np.int32),
        probes=np.array(where, np.int32),
        top_ids=np.array(top_ids, np.int32),
        top_values=np.array(top_values, np.float32),
        fixed_ids=fixed.astype(np.int32),
        fixed_values=np.array(fixed_values, np.float32),
        largest=np.array(largest, np.float32),
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
