"""Model architectures: from a file's header to a ModelSpec, from a ModelSpec to a Program."""

from octavo.models.decoder import (
    build_program,
    cache_layout,
    kv_groups,
    model_spec,
)
from octavo.models.spec import ModelSpec

__all__ = [
    "ModelSpec",
    "build_program",
    "cache_layout",
    "kv_groups",
    "model_spec",
]
