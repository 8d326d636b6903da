"""Loading: checks the options, hands the program's tensors to the native packer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.backends.native.executor import NativeExecutor
from octavo.backends.native.machine import default_num_threads
from octavo.backends.program import (
    BackendOptions,
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
from octavo.config import ACTIVATIONS, KV_DTYPES, MAX_STEP_TOKENS, MAX_THREADS
from octavo.errors import ConfigError
from octavo.weights.tensor import LogicalTensor

logger = logging.getLogger(__name__)

_MAX_HEAD_RATIO = 64
_NO_BIAS = np.empty(0, np.float32)

# (GGUF type number, rows, columns, bytes): a tensor as the native packer takes it.
RawTensor = tuple[int, int, int, NDArray[np.uint8]]


class NativeBackend:
    """Makes native executors. All ISAs of one activation mode compute the same bits."""

    name = "native"

    def load(
        self,
        program: Program,
        tensors: Mapping[str, LogicalTensor],
        layout: CacheLayout,
        *,
        options: BackendOptions,
    ) -> NativeExecutor:
        """Pack the weights, allocate the pool, start the threads.

        Raises:
            ConfigError: an option or the model cannot be served by this backend or machine.
        """
        isa = _check_isa(options.isa)
        num_threads = _check_threads(options.num_threads)
        _check_options(options, layout)
        model = _native.Model(
            {
                "hidden": program.hidden_size,
                "vocab": program.vocab_size,
                "k_slices": program.k_slices,
                "threads": num_threads,
                "max_tokens": options.max_tokens,
                "int8_activations": options.activation == "int8",
                "isa": isa,
                "int8_kv": layout.kv_dtype == "int8",
                "block_size": layout.block_size,
                "num_blocks": layout.num_blocks,
                "group_layers": list(layout.group_layers),
                "kv_heads": layout.num_kv_heads,
                "head_dim": layout.head_dim,
            }
        )
        for op in program.ops:
            _add_op(model, op, tensors, layout=layout)
        try:
            model.finish()
        except MemoryError:
            raise ConfigError(
                f"no memory for the model and a KV pool of {layout.num_blocks} blocks; "
                "lower --kv-memory or free some memory"
            ) from None
        return NativeExecutor(
            model,
            layout,
            program=program,
            fingerprint=f"native/{_native.kernel_revision}/{options.activation}"
            f"/kv-{layout.kv_dtype}",
            info=_load_info(model, isa, num_threads),
            borrowed=tuple(tensors[op.table] for op in program.ops if isinstance(op, Embed)),
        )

    def kv_block_bytes(self, layout: CacheLayout, group: int) -> int:
        """Bytes of one block over the group's layers; no padding.

        int8 K and V have a float32 scale each per token and head, bf16 has none.
        """
        per_head = layout.head_dim * 2 + 8 if layout.kv_dtype == "int8" else layout.head_dim * 4
        return layout.group_layers[group] * layout.block_size * layout.num_kv_heads * per_head


def _check_isa(isa: str) -> str:
    supported = list(_native.cpu_features())
    if isa and isa not in supported:
        raise ConfigError(
            f"instruction set '{isa}' is not available on this machine; "
            f"choose one of {', '.join(supported)} (isa or OCTAVO_ISA), or leave it unset",
            param="isa",
        )
    return isa or str(supported[-1])


def _check_threads(num_threads: int) -> int:
    if not 0 <= num_threads <= MAX_THREADS:
        _refuse("num_threads", f"is {num_threads}; it must be between 0 and {MAX_THREADS}")
    return num_threads or default_num_threads()


def _check_options(options: BackendOptions, layout: CacheLayout) -> None:
    if options.activation not in ACTIVATIONS:
        _refuse("activation", f"'{options.activation}' is unknown; choose int8 or f32")
    if not 1 <= options.max_tokens <= MAX_STEP_TOKENS:
        _refuse("max_num_batched_tokens", f"{options.max_tokens} is outside 1…{MAX_STEP_TOKENS}")
    if layout.kv_dtype not in KV_DTYPES:
        _refuse("kv_dtype", f"'{layout.kv_dtype}' is none of its types: {', '.join(KV_DTYPES)}")
    if layout.block_size < 16 or layout.block_size % 16:
        _refuse("block_size", f"{layout.block_size} is no multiple of 16; choose one")
    if layout.num_blocks < 1:
        _refuse("kv_memory", f"holds {layout.num_blocks} blocks; raise it")
    dim, longest = layout.head_dim, _native.max_int8_kv_head_dim
    if dim % 16:
        raise ConfigError(f"head_dim {dim} is not a multiple of 16; use the reference backend")
    if layout.kv_dtype == "int8" and dim > longest:
        _refuse("kv_dtype", f"int8 takes head_dim up to {longest}, not {dim}; choose bf16")


def _refuse(param: str, why: str) -> NoReturn:
    raise ConfigError(f"native backend: --{param.replace('_', '-')} {why}", param=param)


def _load_info(model: _native.Model, isa: str, num_threads: int) -> dict[str, object]:
    weight_bytes = int(model.weight_bytes)
    fraction = int(model.huge_weight_bytes) / weight_bytes if weight_bytes else 1.0
    notes = []
    if fraction < 0.9:
        notes.append(
            f"{fraction:.0%} of the weights lie on huge pages; enable them with "
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        )
    if num_threads > default_num_threads():
        notes.append(f"{num_threads} threads share {default_num_threads()} processors")
    if isa != "avx512vnni":
        notes.append(f"kernels for {isa} are slower than those for avx512vnni")
    for note in notes:
        logger.warning("octavo: %s", note)
    return {
        "isa": isa,
        "num_threads": num_threads,
        "weight_bytes": weight_bytes,
        "huge_page_fraction": fraction,
        "notes": tuple(notes),
    }


def _add_op(
    model: _native.Model, op: Op, tensors: Mapping[str, LogicalTensor], *, layout: CacheLayout
) -> None:
    match op:
        case Embed():
            model.set_embedding(_raw(tensors[op.table]), op.scale)
        case NormLinear():
            biases = [_vector(tensors, name) for name in op.biases] or [_NO_BIAS] * len(op.weights)
            weights = [_raw(tensors[name]) for name in op.weights]
            model.add_norm_linear(_vector(tensors, op.norm), op.eps, weights, biases)
        case PagedAttention():
            _add_attention(model, op, layout)
        case LinearResidual():
            model.add_linear_residual(_raw(tensors[op.weight]), _vector(tensors, op.bias))
        case NormMlp():
            if op.activation != "silu":
                raise ConfigError(
                    f"activation function '{op.activation}' is not supported by the native backend"
                )
            matrices = (_raw(tensors[name]) for name in (op.gate, op.up, op.down))
            model.add_norm_mlp(_vector(tensors, op.norm), op.eps, *matrices)
        case NormHead():
            model.set_head(_vector(tensors, op.norm), op.eps, _raw(tensors[op.weight]))


def _add_attention(model: _native.Model, op: PagedAttention, layout: CacheLayout) -> None:
    if (op.num_kv_heads, op.head_dim) != (layout.num_kv_heads, layout.head_dim):
        raise ConfigError("all layers must share the pool's KV heads and head_dim")
    ratio = op.num_heads // op.num_kv_heads
    if ratio * op.num_kv_heads != op.num_heads or ratio > _MAX_HEAD_RATIO:
        raise ConfigError(
            f"{op.num_heads} heads on {op.num_kv_heads} KV heads are not supported: "
            f"the ratio must be whole and at most {_MAX_HEAD_RATIO}"
        )
    model.add_attention(
        {
            "layer": op.layer,
            "group": op.group,
            "heads": op.num_heads,
            "kv_heads": op.num_kv_heads,
            "head_dim": op.head_dim,
            "scale": op.scale,
            "window": op.window or 0,
            "interleaved": op.rope.interleaved,
            "inv_freq": list(op.rope.inv_freq),
        }
    )


def _raw(tensor: LogicalTensor) -> RawTensor:
    rows, columns = tensor.shape
    return tensor.type.gguf_id, rows, columns, tensor.data.reshape(-1)


def _vector(tensors: Mapping[str, LogicalTensor], name: str) -> NDArray[np.float32]:
    if not name:
        return _NO_BIAS
    tensor = tensors[name]
    out = np.empty((1, tensor.shape[0]), np.float32)
    raw = (tensor.type.gguf_id, 1, tensor.shape[0], tensor.data.reshape(-1))
    _native.dequantize(raw, out)
    return out.reshape(-1)
