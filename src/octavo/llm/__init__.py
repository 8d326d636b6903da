"""The library face: a model in this process."""

from octavo.frontend.readings import LabelScore
from octavo.llm.async_llm import AsyncLLM
from octavo.llm.llm import LLM
from octavo.llm.outputs import ChatOutput, Completion, Embedding
from octavo.llm.requests import ChatOptions

__all__ = ["LLM", "AsyncLLM", "ChatOptions", "ChatOutput", "Completion", "Embedding", "LabelScore"]
