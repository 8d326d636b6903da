"""Octavo: an LLM serving engine whose KV cache is paged, owned state.

The names below load on first use, so that a command line that needs no model starts at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.core.grammar import Grammar as Grammar
    from octavo.core.sampling_params import SamplingParams as SamplingParams
    from octavo.llm import LLM as LLM
    from octavo.llm import AsyncLLM as AsyncLLM
    from octavo.llm import ChatOptions as ChatOptions
    from octavo.llm import ChatOutput as ChatOutput
    from octavo.llm import Completion as Completion
    from octavo.llm import Embedding as Embedding
    from octavo.llm import LabelScore as LabelScore

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncLLM",
    "ChatOptions",
    "ChatOutput",
    "Completion",
    "Embedding",
    "Grammar",
    "LabelScore",
    "SamplingParams",
    "__version__",
]

# Of those that are not the library face's.
_HOMES = {"Grammar": "octavo.core.grammar", "SamplingParams": "octavo.core.sampling_params"}


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, "octavo.llm")), name)
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
