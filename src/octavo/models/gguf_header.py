"""ModelSpec from the key-value header of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.backends.program import RopeSpec
from octavo.errors import ModelFileError
from octavo.models.rope import default_rope, factored_rope, linear_rope
from octavo.models.spec import ARCHITECTURES, MAX_CONTEXT, MAX_LAYERS, Header, ModelSpec, checked
from octavo.weights.tensor import LogicalTensor

# Keys "<architecture>.…" that describe without changing the layers.
_HARMLESS_KEYS = ("rope.scaling.finetuned", "rope.scaling.original_context_length")
# Keys that change the layers unless they have this value. Any other key is refused by name.
_NEUTRAL_KEYS: Mapping[str, object] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.logit_softcapping": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.sliding_window": 0,
    "embedding_scale": 1.0,
    "expert_count": 0,
    "expert_shared_count": 0,
    "expert_used_count": 0,
    "final_logit_softcapping": 0.0,
    "leading_dense_block_count": 0,
    "logit_scale": 1.0,
    "pooling_type": 0,
    "residual_scale": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "use_parallel_residual": False,
}

# How the rows of q and k stand in the file: llama's are permuted, so that rotary pairs are
# neighbours.
_TENSOR_LAYOUTS = {"llama": "Meta AI original pth", "qwen2": "reference"}


def spec_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, LogicalTensor]) -> ModelSpec:
    """Read the spec.

    Raises:
        ModelFileError: an unknown architecture, key or rope type, or a missing or senseless key.
    """
    header = Header(metadata, "GGUF header")
    arch = header.text("general.architecture")
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelFileError(f"architecture '{arch}' is not supported (supported: {known})")
    hidden = header.integer(f"{arch}.embedding_length")
    heads = header.integer(f"{arch}.attention.head_count")
    head_dim = header.integer(f"{arch}.attention.key_length", max(hidden // heads, 1))
    if header.integer(f"{arch}.attention.value_length", head_dim) != head_dim:
        raise ModelFileError(f"GGUF key '{arch}.attention.value_length' differs from the key's")
    spec = ModelSpec(
        architecture=arch,
        hidden_size=hidden,
        intermediate_size=header.integer(f"{arch}.feed_forward_length"),
        num_layers=header.integer(f"{arch}.block_count", limit=MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=header.integer(f"{arch}.attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=header.integer(f"{arch}.vocab_size", _embedding_rows(tensors)),
        context_length=header.integer(f"{arch}.context_length", limit=MAX_CONTEXT),
        rms_eps=header.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        rope=_rope(header, arch, head_dim, tensors=tensors),
        qkv_bias=arch == "qwen2" or "blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        tied_head="output.weight" not in tensors,
    )
    layout = {"tensor_data_layout": _TENSOR_LAYOUTS[arch]}
    header.refuse_unknown(_HARMLESS_KEYS, {**_NEUTRAL_KEYS, **layout}, prefix=f"{arch}.")
    return checked(spec)


def _embedding_rows(tensors: Mapping[str, LogicalTensor]) -> int | None:
    table = tensors.get("token_embd.weight")
    return table.shape[0] if table is not None else None


def _rope(
    header: Header, arch: str, head_dim: int, *, tensors: Mapping[str, LogicalTensor]
) -> RopeSpec:
    # GGUF permutes the q and k rows of llama so that rotary pairs are neighbours.
    interleaved = arch == "llama"
    theta = header.number(f"{arch}.rope.freq_base", 10000.0)
    rotated = header.integer(f"{arch}.rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise ModelFileError(
            f"GGUF key '{arch}.rope.dimension_count' is {rotated}; only the whole head "
            f"({head_dim}) is supported"
        )
    factor = header.raw(f"{arch}.rope.scale_linear")
    is_scaled = header.raw(f"{arch}.rope.scaling.factor")
    kind = header.text(f"{arch}.rope.scaling.type", "none" if factor is None else "linear")
    if factor is None and kind == "none" and is_scaled:
        raise ModelFileError(f"GGUF key '{arch}.rope.scaling.factor' has no rope.scaling.type")
    if kind not in ("none", "linear"):
        raise ModelFileError(f"rope scaling '{kind}' is not supported (supported: none, linear)")
    if "rope_freqs.weight" in tensors:
        if kind == "linear":
            raise ModelFileError("rope scaling 'linear' together with rope_freqs.weight")
        return _factored(tensors["rope_freqs.weight"], head_dim, theta, interleaved=interleaved)
    if kind == "linear":
        key = "rope.scaling.factor" if factor is None else "rope.scale_linear"
        scale = header.number(f"{arch}.{key}")
        return linear_rope(head_dim, theta, scale, interleaved=interleaved)
    return default_rope(head_dim, theta, interleaved=interleaved)


def _factored(tensor: LogicalTensor, head_dim: int, theta: float, *, interleaved: bool) -> RopeSpec:
    factors = tensor.dequantize()
    if factors.shape != (head_dim // 2,):
        raise ModelFileError(f"rope_freqs.weight must hold {head_dim // 2} values")
    if not bool(np.all(np.isfinite(factors) & (factors > 0))):
        raise ModelFileError("rope_freqs.weight holds a value that is not above 0")
    return factored_rope(head_dim, theta, factors.tolist(), interleaved=interleaved)
