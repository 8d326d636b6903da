"""The pre-tokenizers that a GGUF file names in ``tokenizer.ggml.pre``: how text is cut before BPE.

Each is the composition of the published tokenizer of its family. A name that is not here is
refused: a near miss would give wrong ids without an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tokenizers import Regex, pre_tokenizers

# Contractions, words with at most one leading sign, digits, signs, line ends, spaces.
_WORDS_BEFORE_DIGITS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_SIGNS_AND_SPACES: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2: Final = _WORDS_BEFORE_DIGITS + r"\p{N}" + _SIGNS_AND_SPACES
_LLAMA_BPE: Final = _WORDS_BEFORE_DIGITS + r"\p{N}{1,3}" + _SIGNS_AND_SPACES
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_DEFAULT: Final = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class PreTokenizerSpec:
    """``patterns`` are cut one after the other; ``gpt2`` adds the byte-level regex at the end.

    ``ignore_merges``: a piece that is a token is taken whole. ``adds_bos``: a beginning token is
    put in front when the file does not say.
    """

    patterns: tuple[str, ...] = ()
    gpt2: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The pre-tokenizer of the ``tokenizers`` library."""
        splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in self.patterns]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2)
        return pre_tokenizers.Sequence([*splits, byte_level])


PRE_TOKENIZERS: Final = {
    "default": PreTokenizerSpec(_DEFAULT),
    "gpt2": PreTokenizerSpec(gpt2=True),
    "gpt-2": PreTokenizerSpec(gpt2=True),
    "llama-bpe": PreTokenizerSpec((_LLAMA_BPE,), ignore_merges=True, adds_bos=True),
    "qwen2": PreTokenizerSpec((_QWEN2,)),
    "smollm": PreTokenizerSpec((r"\p{N}",), gpt2=True),
}
