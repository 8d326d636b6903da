"""Models on disk: GGUF and safetensors as logical tensors, and where models come from."""

from octavo.weights.catalog import CATALOG
from octavo.weights.hub import (
    PullProgress,
    list_models,
    pull,
    remove_model,
)
from octavo.weights.mapping import drop_pages
from octavo.weights.model_file import open_model
from octavo.weights.tensor import ModelFile

__all__ = [
    "CATALOG",
    "ModelFile",
    "PullProgress",
    "drop_pages",
    "list_models",
    "open_model",
    "pull",
    "remove_model",
]
