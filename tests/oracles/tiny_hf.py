"""Tiny Hugging Face directories with fixed random weights, one per variant of the decoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from oracles.tiny_models import random_tensors, tiny_spec

TOKENS = np.random.default_rng(17).integers(0, 97, 240).tolist()
BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 97,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# name: (changes to config.json, changes to the tiny spec that its tensors follow)
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": ({}, {}),
    "llama3_wide_heads": (
        {
            "rope_theta": 500000.0,
            "rope_scaling": LLAMA3,
            "head_dim": 32,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
        {"head_dim": 32, "qkv_bias": True, "output_bias": True, "tied_head": False},
    ),
    "linear": ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, {}),
    "qwen2": (
        {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
        {"qkv_bias": True},
    ),
}
_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def hf_name(name: str) -> str:
    """The Hugging Face name of a canonical tensor name."""
    if name in _TOP:
        return _TOP[name]
    _, layer, kind, ending = name.split(".")
    return f"model.layers.{layer}.{_NAMES[kind]}.{ending}"


def write_tiny_hf(directory: Path, variant: str) -> Path:
    """Write config.json and model.safetensors of a variant."""
    config, spec = VARIANTS[variant]
    tensors = random_tensors(tiny_spec(**spec), seed=23)
    (directory / "config.json").write_text(json.dumps(BASE | config))
    save_file(
        {hf_name(name): tensor.dequantize() for name, tensor in tensors.items()},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    return directory
