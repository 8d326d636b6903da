"""Model architectures: from a file's header to a ModelSpec, from a ModelSpec to a Program."""

from octavo.models.decoder import (
    build_program,
    cache_layout,
    check_tensors,
    k_slices,
    kv_groups,
    model_spec,
)
from octavo.models.spec import ARCHITECTURES, ModelSpec

__all__ = [
    "ARCHITECTURES",
    "ModelSpec",
    "build_program",
    "cache_layout",
    "check_tensors",
    "k_slices",
    "kv_groups",
    "model_spec",
]
