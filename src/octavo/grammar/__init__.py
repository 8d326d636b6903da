"""Grammars compiled by llguidance: from a ``Grammar`` to bit masks over the vocabulary."""

from octavo.grammar.compiler import MAX_PENDING, GrammarCompiler
from octavo.grammar.token_table import TokenTable

__all__ = ["MAX_PENDING", "GrammarCompiler", "TokenTable"]
