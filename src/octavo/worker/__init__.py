"""The worker: a model loaded into a backend, driven by plans through row slots."""

from octavo.worker.load import LoadedModel, load_runner, open_text, token_table
from octavo.worker.model_runner import ModelRunner

__all__ = ["LoadedModel", "ModelRunner", "load_runner", "open_text", "token_table"]
