"""The decoder, written once: from a ModelSpec to the program that every backend runs.

Embed · L x (NormLinear, PagedAttention, LinearResidual, NormMlp) · NormHead
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from octavo.backends.program import (
    Backend,
    CacheLayout,
    Embed,
    LinearResidual,
    NormHead,
    NormLinear,
    NormMlp,
    Op,
    PagedAttention,
    Program,
)
from octavo.core.runner import KVGroupSpec
from octavo.errors import ModelFileError
from octavo.models.gguf_header import spec_from_gguf
from octavo.models.hf_config import spec_from_hf
from octavo.models.spec import ModelSpec
from octavo.weights.tensor import LogicalTensor, ModelFile

# Widths of K-slices must be whole groups of 32, the smallest unit that weights are scaled by.
_SLICE_UNIT = 32
_MAX_SLICES = 8


def model_spec(model: ModelFile) -> ModelSpec:
    """The spec of an opened model, its tensors checked against it.

    Raises:
        ModelFileError: the header or a tensor is missing, unknown or of the wrong shape.
    """
    if model.kind == "gguf":
        spec = spec_from_gguf(model.metadata, model.tensors)
    else:
        spec = spec_from_hf(model.metadata["config"], model.tensors)
    check_tensors(spec, model.tensors)
    return spec


def build_program(spec: ModelSpec) -> Program:
    """The op program of a decoder."""
    ops: list[Op] = [Embed(table="token_embd.weight")]
    for layer in range(spec.num_layers):
        ops.extend(_layer(spec, layer))
    head = "token_embd.weight" if spec.tied_head else "output.weight"
    ops.append(NormHead(norm="output_norm.weight", eps=spec.rms_eps, weight=head))
    return Program(
        ops=tuple(ops),
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        num_layers=spec.num_layers,
        k_slices=k_slices(spec),
    )


def k_slices(spec: ModelSpec) -> int:
    """V: into how many slices of K the row-parallel products (o and down) are cut, always.

    The number of KV heads, at most 8, so that any tensor-parallel degree that divides it sums
    the same slices in the same order; fewer where a slice would not be whole groups.
    """
    widths = (spec.num_heads * spec.head_dim, spec.intermediate_size)
    for count in range(min(spec.num_kv_heads, _MAX_SLICES), 1, -1):
        unit = count * _SLICE_UNIT
        if spec.num_kv_heads % count == 0 and all(width % unit == 0 for width in widths):
            return count
    return 1


def cache_layout(
    spec: ModelSpec, *, block_size: int, num_blocks: int, kv_dtype: str = "bf16"
) -> CacheLayout:
    """The paged pool that the program needs: one full-attention group of all layers."""
    return CacheLayout(
        block_size=block_size,
        num_blocks=num_blocks,
        group_layers=(spec.num_layers,),
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        kv_dtype=kv_dtype,
    )


def kv_groups(program: Program, layout: CacheLayout, backend: Backend) -> tuple[KVGroupSpec, ...]:
    """What the control plane plans with: span, layers and block bytes of every KV group."""
    windows = {op.group: op.window for op in program.ops if isinstance(op, PagedAttention)}
    return tuple(
        KVGroupSpec(
            window=windows[group],
            num_layers=num_layers,
            block_bytes=backend.kv_block_bytes(layout, group),
        )
        for group, num_layers in enumerate(layout.group_layers)
    )


def check_tensors(spec: ModelSpec, tensors: Mapping[str, LogicalTensor]) -> None:
    """Every tensor of the program is there with its shape, and no other.

    Raises:
        ModelFileError: naming the tensor, its shape and the expected one.
    """
    expected = dict(_expected_shapes(spec))
    for name, shape in expected.items():
        if name not in tensors:
            raise ModelFileError(f"tensor '{name}' is missing")
        if tensors[name].shape != shape:
            raise ModelFileError(
                f"tensor '{name}' has shape {tensors[name].shape}; the header asks for {shape}"
            )
    # A tied head may be stored again, and rotary factors are part of the spec already.
    spare = {"rope_freqs.weight", "output.weight"}
    for name in tensors:
        if name not in expected and name not in spare:
            raise ModelFileError(
                f"tensor '{name}' has no place in a {spec.architecture} model of "
                f"{spec.num_layers} layers"
            )


def _layer(spec: ModelSpec, layer: int) -> Iterator[Op]:
    prefix = f"blk.{layer}."
    projections = ("attn_q", "attn_k", "attn_v")
    yield NormLinear(
        norm=prefix + "attn_norm.weight",
        eps=spec.rms_eps,
        weights=tuple(f"{prefix}{name}.weight" for name in projections),
        biases=tuple(f"{prefix}{name}.bias" for name in projections) if spec.qkv_bias else (),
    )
    yield PagedAttention(
        layer=layer,
        group=0,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        scale=spec.head_dim**-0.5,
        rope=spec.rope,
    )
    yield LinearResidual(
        weight=prefix + "attn_output.weight",
        bias=prefix + "attn_output.bias" if spec.output_bias else "",
    )
    yield NormMlp(
        norm=prefix + "ffn_norm.weight",
        eps=spec.rms_eps,
        gate=prefix + "ffn_gate.weight",
        up=prefix + "ffn_up.weight",
        down=prefix + "ffn_down.weight",
    )


def _expected_shapes(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    yield "token_embd.weight", (spec.vocab_size, hidden)
    yield "output_norm.weight", (hidden,)
    if not spec.tied_head:
        yield "output.weight", (spec.vocab_size, hidden)
    for layer in range(spec.num_layers):
        prefix = f"blk.{layer}."
        yield prefix + "attn_norm.weight", (hidden,)
        yield prefix + "ffn_norm.weight", (hidden,)
        for name, rows in (("attn_q", query), ("attn_k", key), ("attn_v", key)):
            yield f"{prefix}{name}.weight", (rows, hidden)
            if spec.qkv_bias:
                yield f"{prefix}{name}.bias", (rows,)
        yield prefix + "attn_output.weight", (hidden, query)
        if spec.output_bias:
            yield prefix + "attn_output.bias", (hidden,)
        yield prefix + "ffn_gate.weight", (inner, hidden)
        yield prefix + "ffn_up.weight", (inner, hidden)
        yield prefix + "ffn_down.weight", (hidden, inner)
