"""Small random decoders, and a dense float64 forward without pages to hold them against."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from octavo.models import ModelSpec
from octavo.models.rope import default_rope
from octavo.weights.tensor import LogicalTensor, TensorType

Floats = NDArray[np.float64]


def tiny_spec(**changes: object) -> ModelSpec:
    """Two layers of 4 query and 2 KV heads of 16."""
    fields: dict[str, object] = {
        "architecture": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "vocab_size": 97,
        "context_length": 256,
        "rms_eps": 1e-5,
        "rope": default_rope(16, 10000.0, interleaved=False),
        "qkv_bias": False,
        "output_bias": False,
        "tied_head": True,
    }
    return ModelSpec(**(fields | changes))  # type: ignore[arg-type]


def tensor(name: str, values: NDArray[np.float32]) -> LogicalTensor:
    """Float32 values as a stored tensor."""
    data = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
    return LogicalTensor(name, TensorType.F32, values.shape, data)


def random_tensors(spec: ModelSpec, seed: int = 0) -> dict[str, LogicalTensor]:
    """Every tensor that the spec asks for, scaled so that activations stay near 1."""
    rng = np.random.default_rng(seed)
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, inner = spec.hidden_size, spec.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (spec.vocab_size, hidden),
        "output_norm.weight": (hidden,),
    }
    if not spec.tied_head:
        shapes["output.weight"] = (spec.vocab_size, hidden)
    for layer in range(spec.num_layers):
        block = {
            "attn_norm.weight": (hidden,),
            "ffn_norm.weight": (hidden,),
            "attn_q.weight": (query, hidden),
            "attn_k.weight": (key, hidden),
            "attn_v.weight": (key, hidden),
            "attn_output.weight": (hidden, query),
            "ffn_gate.weight": (inner, hidden),
            "ffn_up.weight": (inner, hidden),
            "ffn_down.weight": (hidden, inner),
        }
        if spec.qkv_bias:
            block |= {"attn_q.bias": (query,), "attn_k.bias": (key,), "attn_v.bias": (key,)}
        if spec.output_bias:
            block |= {"attn_output.bias": (hidden,)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    out = {}
    for name, shape in shapes.items():
        scale = 1.0 / math.sqrt(shape[-1]) if len(shape) == 2 else 0.3
        centre = 1.0 if name.endswith("norm.weight") else 0.0
        out[name] = tensor(name, (centre + scale * rng.normal(size=shape)).astype(np.float32))
    return out


def dense_logits(
    spec: ModelSpec,
    tensors: dict[str, LogicalTensor],
    tokens: list[int],
    windows: list[int | None] | None = None,
    *,
    kv_dtype: str = "f64",
) -> Floats:
    """Logits [T, V] of every position, attending within one contiguous sequence.

    With ``kv_dtype`` int8, keys and values are rounded before they are attended to.
    """
    weights = {name: t.dequantize().astype(np.float64) for name, t in tensors.items()}
    x = weights["token_embd.weight"][tokens]
    for layer in range(spec.num_layers):
        block = {
            name.split(".", 2)[2]: value
            for name, value in weights.items()
            if name.startswith(f"blk.{layer}.")
        }
        window = windows[layer] if windows else None
        h = _norm(x, block["attn_norm.weight"], spec)
        x = x + _attention(spec, block, h, window, rounded=kv_dtype == "int8")
        h = _norm(x, block["ffn_norm.weight"], spec)
        gate = h @ block["ffn_gate.weight"].T
        up = h @ block["ffn_up.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ block["ffn_down.weight"].T
    head = weights["token_embd.weight" if spec.tied_head else "output.weight"]
    return _norm(x, weights["output_norm.weight"], spec) @ head.T


def _norm(x: Floats, weight: Floats, spec: ModelSpec) -> Floats:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + spec.rms_eps) * weight


def _attention(
    spec: ModelSpec, block: dict[str, Floats], h: Floats, window: int | None, *, rounded: bool
) -> Floats:
    def project(name: str, heads: int) -> Floats:
        out = h @ block[f"{name}.weight"].T + block.get(f"{name}.bias", 0.0)
        return out.reshape(len(h), heads, spec.head_dim)

    query = _rope(spec, project("attn_q", spec.num_heads))
    key = _rope(spec, project("attn_k", spec.num_kv_heads))
    value = project("attn_v", spec.num_kv_heads)
    if rounded:
        key, value = _through_int8(key), _through_int8(value)
    out = np.zeros_like(query)
    share = spec.num_heads // spec.num_kv_heads
    for head in range(spec.num_heads):
        for position in range(len(h)):
            low = 0 if window is None else max(0, position - window + 1)
            seen = slice(low, position + 1)
            scores = key[seen, head // share] @ query[position, head] / math.sqrt(spec.head_dim)
            weights = np.exp(scores - scores.max())
            out[position, head] = weights / weights.sum() @ value[seen, head // share]
    flat = out.reshape(len(h), -1)
    return flat @ block["attn_output.weight"].T + block.get("attn_output.bias", 0.0)


def _through_int8(x: Floats) -> Floats:
    """Rounded to 255 steps of one size per (token, head)."""
    step = np.abs(x).max(axis=2, keepdims=True) / 127
    step[step == 0] = 1
    return np.round(x / step) * step


def _rope(spec: ModelSpec, x: Floats) -> Floats:
    """Complex rotation of every pair."""
    half = spec.head_dim // 2
    turns = np.exp(1j * np.outer(np.arange(len(x)), np.array(spec.rope.inv_freq)))[:, None, :]
    out = np.empty_like(x)
    if spec.rope.interleaved:
        z = (x[..., 0::2] + 1j * x[..., 1::2]) * turns
        out[..., 0::2], out[..., 1::2] = z.real, z.imag
    else:
        z = (x[..., :half] + 1j * x[..., half:]) * turns
        out[..., :half], out[..., half:] = z.real, z.imag
    return out
