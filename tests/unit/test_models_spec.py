"""ModelSpec from both kinds of header: what is read, and what is refused by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from octavo.backends.program import LinearResidual, NormHead, NormLinear, NormMlp, PagedAttention
from octavo.backends.reference import ReferenceBackend
from octavo.errors import ModelFileError
from octavo.models import build_program, cache_layout, kv_groups, model_spec
from octavo.models.decoder import k_slices
from octavo.weights.tensor import LogicalTensor
from oracles.tiny_models import random_tensors, tensor, tiny_spec


@dataclass
class Opened:
    """An opened model, written by hand."""

    kind: str
    metadata: dict[str, Any]
    tensors: dict[str, LogicalTensor] = field(default_factory=dict)
    digest: str = "0" * 64


GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 256,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
}
CONFIG = {
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
}


def gguf(
    changes: dict[str, Any] | None = None, *, spec: dict[str, Any] | None = None, arch="llama"
):
    values = {key.replace("llama.", f"{arch}."): value for key, value in GGUF.items()}
    values["general.architecture"] = arch
    values |= changes or {}
    values = {key: value for key, value in values.items() if value is not None}
    return Opened("gguf", values, random_tensors(tiny_spec(**(spec or {}))))


def hf(changes: dict[str, Any] | None = None, *, spec: dict[str, Any] | None = None):
    values = {key: value for key, value in (CONFIG | (changes or {})).items() if value is not None}
    return Opened("hf", {"config": values}, random_tensors(tiny_spec(**(spec or {}))))


def test_a_gguf_llama_is_interleaved_and_tied():
    spec = model_spec(gguf())
    assert spec.rope.interleaved
    expected = tiny_spec(rope=spec.rope)
    assert spec == expected
    assert len(spec.rope.inv_freq) == 8


def test_a_gguf_qwen2_is_half_split_with_biases():
    spec = model_spec(gguf(arch="qwen2", spec={"qkv_bias": True, "tied_head": False}))
    assert not spec.rope.interleaved
    assert spec.qkv_bias
    assert not spec.tied_head


def test_numpy_scalars_are_numbers_too():
    spec = model_spec(
        gguf(
            {
                "llama.block_count": np.uint32(2),
                "llama.attention.layer_norm_rms_epsilon": np.float32(1e-5),
            }
        )
    )
    assert spec.num_layers == 2


def test_a_hf_llama_is_half_split():
    spec = model_spec(hf({"tie_word_embeddings": True}))
    assert spec == tiny_spec(rope=spec.rope)
    assert not spec.rope.interleaved


def test_hf_variants():
    assert not model_spec(hf(spec={"tied_head": False})).tied_head
    biased = model_spec(hf({"attention_bias": True}, spec={"qkv_bias": True, "output_bias": True}))
    assert biased.output_bias
    qwen = model_spec(hf({"model_type": "qwen2"}, spec={"qkv_bias": True}))
    assert qwen.qkv_bias
    assert not qwen.output_bias
    wide = model_spec(hf({"head_dim": 32}, spec={"head_dim": 32}))
    assert wide.head_dim == 32
    alone = model_spec(hf({"num_key_value_heads": None}, spec={"num_kv_heads": 4}))
    assert alone.num_kv_heads == 4


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "default theta=10000 "),
        ({"rope_theta": 5e5}, "default theta=500000 "),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear theta=10000 factor=2 "),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "default theta=1e+06 "),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 128,
                }
            },
            "llama3 theta=10000 factor=8 low=1 high=4 context=128 ",
        ),
    ],
)
def test_hf_ropes(changes, name):
    assert model_spec(hf(changes)).rope.name == name + "pairs=halves"


def test_gguf_ropes():
    assert "linear" in model_spec(gguf({"llama.rope.scale_linear": 2.0})).rope.name
    scaled = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert "factor=4" in model_spec(gguf(scaled)).rope.name
    model = gguf()
    plain = model_spec(model).rope.inv_freq
    model.tensors["rope_freqs.weight"] = tensor("rope_freqs.weight", np.full(8, 2, np.float32))
    assert model_spec(model).rope.inv_freq == tuple(f / 2 for f in plain)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"general.architecture": "gemma3"}, "architecture 'gemma3'"),
        ({"general.architecture": None}, "'general.architecture' is missing"),
        ({"general.architecture": 3}, "not a string"),
        ({"llama.block_count": None}, "'llama.block_count' is missing"),
        ({"llama.block_count": 1 << 20}, "between 1 and 1024"),
        ({"llama.block_count": "2"}, "not an integer"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "above 0"),
        ({"llama.attention.layer_norm_rms_epsilon": "x"}, "not a number"),
        ({"llama.attention.head_count_kv": 3}, "share 3 KV heads"),
        ({"llama.attention.key_length": 15, "llama.attention.value_length": 15}, "is odd"),
        ({"llama.attention.value_length": 8}, "value_length"),
        ({"llama.rope.dimension_count": 8}, "dimension_count"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn'"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.attention.sliding_window": 512}, "sliding_window"),
        ({"llama.attention.clamp_kqv": 8.0}, "clamp_kqv' is 8.0; only 0.0"),
        ({"llama.attention.causal": False}, "causal' is False; only True"),
        ({"llama.rope.scaling.attn_factor": 1.2}, "attn_factor' is 1.2"),
        ({"llama.rope.scaling.factor": 4.0}, "rope.scaling.factor' has no rope.scaling.type"),
        ({"llama.use_parallel_residual": True}, "use_parallel_residual' is True"),
        ({"llama.attention.temperature_length": 0}, "temperature_length' is not supported"),
        ({"llama.tensor_data_layout": "reference"}, "only 'Meta AI original pth'"),
        ({"llama.swin_norm": False}, "swin_norm' is not supported"),
        ({"llama.vocab_size": 96}, "token_embd.weight"),
        ({"llama.block_count": 3}, "blk.2.attn_norm.weight' is missing"),
        ({"llama.block_count": 1}, "'blk.1.+' has no place"),
    ],
)
def test_gguf_headers_are_refused_by_name(changes, match):
    with pytest.raises(ModelFileError, match=match):
        model_spec(gguf(changes))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"mlp_bias": 1}, "true or false"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping' is 30.0; only 0.0"),
        ({"residual_multiplier": 0.22}, "residual_multiplier' is 0.22"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"layer_types": "full_attention"}, "layer_types' is not a list"),
        ({"num_experts": 0}, "'num_experts' is not supported"),
        ({"rope_interleaved": True}, "rope_interleaved' is True"),
        ({"qk_layernorm": False}, "qk_layernorm"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "attention_factor": 1.1}},
            "rope_scaling key 'attention_factor' is not supported",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"x": 1}},
            "both keys",
        ),
        ({"tie_word_embeddings": False}, "output.weight"),
        ({"attention_bias": True}, "attn_q.bias' is missing"),
        ({"model_type": "qwen2"}, "attn_q.bias' is missing"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope type 'yarn'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling key 'factor' is missing"),
        ({"rope_scaling": [1]}, "not an object"),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 4.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 128,
                }
            },
            "high_freq_factor",
        ),
    ],
)
def test_hf_configs_are_refused_by_name(changes, match):
    with pytest.raises(ModelFileError, match=match):
        model_spec(hf(changes))


PUBLISHED = {
    "_name_or_path": "x", "architectures": ["LlamaForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": [2, 3], "head_dim": None,
    "initializer_range": 0.02, "is_llama_config": True, "layer_types": ["full_attention"] * 2,
    "max_window_layers": 28, "mlp_bias": False, "pad_token_id": 2, "pretraining_tp": 1,
    "rope_interleaved": False, "rope_scaling": None, "rope_theta": 10000.0,
    "sliding_window": 4096, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "transformers.js_config": {"dtype": "q4"}, "transformers_version": "4.47.1",
    "use_cache": True, "use_sliding_window": False,
}  # fmt: skip


def test_what_published_configs_hold_besides_is_known():
    plain = model_spec(hf({"tie_word_embeddings": True}))
    assert model_spec(hf(PUBLISHED)) == plain


def test_gguf_keys_at_their_neutral_value_change_nothing():
    plain = model_spec(gguf())
    changes = {"llama.attention.causal": True, "llama.expert_count": 0, "llama.vocab_size": 97,
               "llama.rope.dimension_count": 16, "llama.rope.scaling.attn_factor": 1.0,
               "llama.tensor_data_layout": "Meta AI original pth",
               "general.name": "x", "tokenizer.ggml.model": "gpt2"}  # fmt: skip
    assert model_spec(gguf(changes)) == plain


@pytest.mark.parametrize("factors", [[2.0] * 7, [0.0] * 8, [float("nan")] * 8])
def test_bad_rope_factors_are_refused(factors):
    model = gguf()
    model.tensors["rope_freqs.weight"] = tensor("rope_freqs.weight", np.array(factors, np.float32))
    with pytest.raises(ModelFileError, match="rope_freqs"):
        model_spec(model)


def test_rope_factors_and_linear_scaling_do_not_mix():
    model = gguf({"llama.rope.scale_linear": 2.0})
    model.tensors["rope_freqs.weight"] = tensor("rope_freqs.weight", np.ones(8, np.float32))
    with pytest.raises(ModelFileError, match="linear"):
        model_spec(model)


def test_a_tensor_of_the_wrong_shape_is_refused():
    model = gguf()
    model.tensors["blk.1.ffn_up.weight"] = tensor("x", np.zeros((128, 65), np.float32))
    with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_up\.weight.*\(128, 65\).*\(128, 64\)"):
        model_spec(model)


def test_an_unknown_tensor_is_refused():
    model = gguf()
    model.tensors["blk.0.attn_q_norm.weight"] = tensor("x", np.ones(16, np.float32))
    with pytest.raises(ModelFileError, match="attn_q_norm"):
        model_spec(model)


def test_the_program_is_four_ops_a_layer_between_embed_and_head():
    program = build_program(tiny_spec(num_layers=3, qkv_bias=True))
    layer = [NormLinear, PagedAttention, LinearResidual, NormMlp]
    assert [type(op) for op in program.ops[1:-1]] == layer * 3
    assert program.ops[-1] == NormHead(
        norm="output_norm.weight", eps=1e-5, weight="token_embd.weight"
    )
    assert program.ops[5].biases == ("blk.1.attn_q.bias", "blk.1.attn_k.bias", "blk.1.attn_v.bias")
    assert build_program(tiny_spec(tied_head=False)).ops[-1].weight == "output.weight"


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "inner", "slices"),
    [
        (9, 3, 64, 1536, 3),
        (12, 2, 128, 8960, 2),
        (32, 8, 64, 8192, 8),
        (32, 32, 64, 8192, 8),
        (20, 20, 64, 1280, 5),
        (14, 2, 64, 4864, 2),
        (4, 1, 64, 256, 1),
        (4, 4, 16, 64, 2),
        (7, 7, 32, 256, 1),
    ],
)
def test_k_slices(heads, kv_heads, head_dim, inner, slices):
    spec = tiny_spec(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, intermediate_size=inner
    )
    assert k_slices(spec) == slices
    assert kv_heads % slices == 0
    assert slices == 1 or heads * head_dim % (32 * slices) == 0


def test_groups_for_the_control_plane():
    spec = tiny_spec()
    layout = cache_layout(spec, block_size=8, num_blocks=5)
    (group,) = kv_groups(build_program(spec), layout, ReferenceBackend())
    assert (group.window, group.num_layers) == (None, 2)
    assert group.block_bytes == 2 * 8 * 2 * 16 * 2 * 4
    assert (layout.num_blocks, layout.kv_dtype) == (5, "bf16")
