"""The library face: a model in this process."""

from octavo.llm.llm import LLM, Completion

__all__ = ["LLM", "Completion"]
