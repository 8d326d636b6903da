"""Models on disk: GGUF and safetensors as logical tensors, and where models come from."""

from octavo.weights.catalog import CATALOG, DEFAULT_MODEL, CatalogEntry
from octavo.weights.hub import (
    PullProgress,
    StoredModel,
    list_models,
    pull,
    remove_model,
    resolve_model,
)
from octavo.weights.mapping import drop_pages
from octavo.weights.model_file import open_model
from octavo.weights.tensor import LogicalTensor, ModelFile, TensorType

__all__ = [
    "CATALOG",
    "DEFAULT_MODEL",
    "CatalogEntry",
    "LogicalTensor",
    "ModelFile",
    "PullProgress",
    "StoredModel",
    "TensorType",
    "drop_pages",
    "list_models",
    "open_model",
    "pull",
    "remove_model",
    "resolve_model",
]
