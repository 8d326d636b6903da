"""The tokenizer is held against the model: padded embeddings work, missing rows are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.config import CacheConfig
from octavo.core.sampling_params import SamplingParams
from octavo.errors import ModelFileError
from octavo.llm import LLM
from octavo.worker import open_text
from octavo.worker.batch import NO_MASKS, allowed_mask
from oracles.gguf_writer import write_gguf
from oracles.hf_writer import write_hf_directory
from oracles.tiny_models import random_tensors, tiny_spec

ROWS = 97
HOT = SamplingParams(temperature=100.0, max_tokens=60, n=8, seed=3, ignore_eos=True, logprobs=0)

# Among the 40 likeliest of 97 rows some stand for no token.
WIDE = SamplingParams(
    use_beam_search=True, temperature=0.0, best_of=20, n=20, max_tokens=4, ignore_eos=True
)


def write_model(path: Path, num_tokens: int, unused: tuple[int, ...] = ()) -> Path:
    """A GGUF model of 97 rows whose tokenizer has ``num_tokens`` ids."""
    spec = tiny_spec()
    tokens = [chr(0x100 + i) if i < 33 else f"token{i}" for i in range(num_tokens)]
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": spec.num_layers,
        "llama.context_length": spec.context_length,
        "llama.embedding_length": spec.hidden_size,
        "llama.feed_forward_length": spec.intermediate_size,
        "llama.attention.head_count": spec.num_heads,
        "llama.attention.head_count_kv": spec.num_kv_heads,
        "llama.attention.layer_norm_rms_epsilon": spec.rms_eps,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [5 if i in unused else 1 for i in range(num_tokens)],
        "tokenizer.ggml.merges": [f"{tokens[0]} {tokens[1]}"],
        "tokenizer.ggml.eos_token_id": 2,
    }
    metadata["tokenizer.ggml.tokens"][40] = tokens[0] + tokens[1]
    tensors = {t.name: (t.type, t.shape, t.data) for t in random_tensors(spec).values()}
    write_gguf(path, metadata, tensors)
    return path


def sampled(llm: LLM) -> set[int]:
    return {token for done in llm.generate([3, 4, 5], HOT) for token in done.token_ids}


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_rows_without_a_token_are_never_sampled(tmp_path: Path, backend: str) -> None:
    path = write_model(tmp_path / "padded.gguf", 60, unused=(50, 51))
    with LLM(str(path), backend=backend, cache=CacheConfig(num_blocks=128)) as llm:
        drawn = sampled(llm)
        assert len(drawn) > 50
        assert drawn <= set(range(60)) - {50, 51}
        beams = llm.generate([3, 4, 5], WIDE)
        assert len(beams) == 20
        assert {token for done in beams for token in done.token_ids} <= set(range(60)) - {50, 51}
        # Such an id may stand in a prompt, and reads as nothing.
        llm.generate([96, 60], SamplingParams(max_tokens=1))
        assert llm.tokenizer.decode([3, 96, 50, 4]) == llm.tokenizer.decode([3, 4])
    _, tokenizer, _ = open_text(str(path))
    assert tokenizer.vocab_size == ROWS
    assert tokenizer.unnamed_ids == [50, 51, *range(60, ROWS)]


def test_a_whole_vocabulary_is_sampled_without_a_mask(tmp_path: Path) -> None:
    path = write_model(tmp_path / "whole.gguf", ROWS)
    with LLM(str(path), cache=CacheConfig(num_blocks=128)) as llm:
        assert max(sampled(llm)) >= 60
        assert llm.tokenizer.unnamed_ids == []


def test_a_token_without_a_row_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "short.gguf", 100)
    for attempt in (lambda: LLM(str(path)), lambda: open_text(str(path))):
        with pytest.raises(ModelFileError, match="100 ids, the model only 97 rows"):
            attempt()


def test_a_directory_with_holes_and_one_with_a_token_too_many(tmp_path: Path) -> None:
    write_hf_directory(tmp_path, "llama")
    with LLM(str(tmp_path), backend="reference", cache=CacheConfig(num_blocks=128)) as llm:
        assert sampled(llm) <= {*range(43), 62, 63}
    file = tmp_path / "tokenizer.json"
    document = json.loads(file.read_text())
    document["added_tokens"].append({**document["added_tokens"][0], "id": 64, "content": "<x>"})
    file.write_text(json.dumps(document))
    with pytest.raises(ModelFileError, match="65 ids, the model only 64 rows"):
        open_text(str(tmp_path))


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 97])
def test_mask_bits(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    gone = sorted(set(rng.integers(0, vocab_size, 1 + vocab_size // 3).tolist()))
    (words,) = allowed_mask(vocab_size, gone)
    assert words.dtype == np.uint32
    bits = [int(words[i >> 5]) >> (i & 31) & 1 for i in range(32 * len(words))]
    assert bits == [i < vocab_size and i not in gone for i in range(32 * len(words))]
    assert allowed_mask(vocab_size, []) is NO_MASKS
