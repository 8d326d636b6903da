"""Writes tiny random Hugging Face model directories for tests."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VOCAB_SIZE = 64
HIDDEN = 32
FFN = 48
HEADS = 4
KV_HEADS = 2
HEAD_DIM = HIDDEN // HEADS
LAYERS = 2

Arrays = Mapping[str, NDArray[Any]]


def tiny_config(model_type: str, *, tied: bool) -> dict[str, Any]:
    """A config.json of ``model_type`` "llama" or "qwen2"."""
    return {
        "model_type": model_type,
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[model_type]],
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "bos_token_id": 62,
        "eos_token_id": 63,
    }


def tiny_weights(model_type: str, *, tied: bool, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Weights under Hugging Face names; qwen2 has q, k and v biases."""
    rng = np.random.default_rng(seed)
    weights: dict[str, NDArray[np.float32]] = {}

    def add(name: str, *shape: int) -> None:
        weights[name] = rng.normal(0, 0.2, shape).astype(np.float32)

    add("model.embed_tokens.weight", VOCAB_SIZE, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            add(f"{prefix}{norm}.weight", HIDDEN)
        for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            add(f"{prefix}self_attn.{name}_proj.weight", rows * HEAD_DIM, HIDDEN)
            if model_type == "qwen2":
                add(f"{prefix}self_attn.{name}_proj.bias", rows * HEAD_DIM)
        add(f"{prefix}self_attn.o_proj.weight", HIDDEN, HIDDEN)
        add(f"{prefix}mlp.gate_proj.weight", FFN, HIDDEN)
        add(f"{prefix}mlp.up_proj.weight", FFN, HIDDEN)
        add(f"{prefix}mlp.down_proj.weight", HIDDEN, FFN)
    add("model.norm.weight", HIDDEN)
    if not tied:
        add("lm_head.weight", VOCAB_SIZE, HIDDEN)
    return weights


def tiny_tokenizer_json() -> str:
    """A byte-level BPE without merges: lower-case letters, digits and two special tokens."""
    vocab = {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyz0123456789.,:!?ĠĊ")}
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [
                {"id": 62, "content": "<s>", "special": True, **flags},
                {"id": 63, "content": "</s>", "special": True, **flags},
            ],
            "pre_tokenizer": {"type": "ByteLevel", **byte_level},
            "decoder": {"type": "ByteLevel", **byte_level},
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        }
    )


def write_hf_directory(
    folder: Path, model_type: str, *, tied: bool = False, dtype: str = "F32", shards: int = 1
) -> dict[str, NDArray[np.float32]]:
    """Write a whole directory; the weights as stored, in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = tiny_weights(model_type, tied=tied)
    (folder / "config.json").write_text(json.dumps(tiny_config(model_type, tied=tied)))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.7}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    (folder / "tokenizer.json").write_text(tiny_tokenizer_json())
    names = sorted(weights)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", weights, dtype)
    else:
        weight_map = {name: f"model-{i % shards}.safetensors" for i, name in enumerate(names)}
        for file in sorted(set(weight_map.values())):
            part = {name: weights[name] for name in names if weight_map[name] == file}
            write_safetensors(folder / file, part, dtype)
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return {name: stored(array, dtype)[1] for name, array in weights.items()}


def stored(array: NDArray[np.float32], dtype: str) -> tuple[bytes, NDArray[np.float32]]:
    """The bytes of ``array`` in ``dtype``, and the values that they mean."""
    if dtype == "F32":
        return array.astype("<f4").tobytes(), array
    if dtype == "F16":
        half = array.astype("<f2")
        return half.tobytes(), half.astype(np.float32)
    # BF16 by truncation: any rounding will do, since the values returned are the ones stored.
    words = (array.view(np.uint32) >> 16).astype("<u2")
    return words.tobytes(), (words.astype(np.uint32) << 16).view(np.float32)


def write_safetensors(path: Path, arrays: Mapping[str, NDArray[np.float32]], dtype: str) -> None:
    """The published layout: header length, JSON header padded to 8 bytes, data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs = []
    offset = 0
    for name, array in arrays.items():
        blob = stored(array, dtype)[0]
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
