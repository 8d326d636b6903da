"""What a tokenizer is made of, whichever file it comes from; and how to read it from GGUF."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import tokenizers
from tokenizers.models import BPE

from octavo.errors import ModelFileError
from octavo.text.pre_tokenizers import PRE_TOKENIZERS
from octavo.text.reasoning import REASONING_TAGS
from octavo.text.tool_formats import TOOL_TAGS

MAX_VOCABULARY: Final = 1 << 21

_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_UNUSED: Final = 5
_BRACKETS: Final = {"<": ">", "[": "]"}
# Control tokens that end a turn or a document, by the spellings that model families use. GGUF has
# room for few end ids, so files often name only one of them.
_END_SPELLINGS: Final = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>"}
)
# What parsers of answers read is text, also where a file calls it a control token.
MARKUP: Final = REASONING_TAGS | TOOL_TAGS


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is matched in text as a whole, before BPE.

    ``special`` (control) tokens vanish from decoded text by default. ``lstrip`` and ``rstrip``
    swallow the white space beside it; ``single_word`` wants no word character beside it.
    """

    id: int
    text: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False

    @property
    def protected(self) -> bool:
        """Whether text that a user wrote must not become this token.

        True for control tokens, and for others that read as markup (``<tool_call>``): a model
        takes both as structure. Other added tokens, such as runs of spaces, are plain vocabulary.
        """
        return self.special or _BRACKETS.get(self.text[0]) == self.text[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Everything that ``Tokenizer`` needs.

    ``first`` encodes the piece at the start of a text and ``rest`` every later piece; neither knows
    added tokens. ``tokens[id]`` is a spelling or None where the id means nothing. ``byte_level``
    says whether spellings are in the byte-level alphabet, or in SentencePiece's (▁, <0xNN>).
    ``prefix`` and ``suffix`` are the ids put around a text when special tokens are asked for.
    """

    first: tokenizers.Tokenizer
    rest: tokenizers.Tokenizer
    tokens: list[str | None]
    added: tuple[AddedToken, ...]
    byte_level: bool
    strips_leading_space: bool = False
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    digest: str = ""


def vocabulary_from_gguf(metadata: Mapping[str, Any]) -> Vocabulary:
    """Read the ``tokenizer.ggml.*`` keys.

    Raises:
        ModelFileError: a key is missing or contradicts another, or the kind is unsupported.
    """
    model = _text_key(metadata, "tokenizer.ggml.model")
    if model != "gpt2":
        raise ModelFileError(
            f"tokenizer model {model!r} is not supported; use a model with a BPE ('gpt2') tokenizer"
        )
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        known = " ".join(PRE_TOKENIZERS)
        raise ModelFileError(f"pre-tokenizer {pre!r} is not supported; supported are: {known}")
    spec = PRE_TOKENIZERS[pre]
    tokens = _string_list(metadata, "tokenizer.ggml.tokens")
    merges = _string_list(metadata, "tokenizer.ggml.merges")
    types = _token_types(metadata, len(tokens))
    added = tuple(
        AddedToken(i, tokens[i], special=kind == _CONTROL and tokens[i] not in MARKUP)
        for i, kind in enumerate(types)
        if kind in (_CONTROL, _USER_DEFINED) and tokens[i]
    )
    hidden = {_UNUSED, _CONTROL}
    ids = {token: i for i, token in enumerate(tokens) if types[i] not in hidden}
    if len(set(tokens)) != len(tokens):
        raise ModelFileError("tokenizer.ggml.tokens holds duplicates; fetch the file again")

    def build() -> tokenizers.Tokenizer:
        pairs = [_pair(merge) for merge in merges]
        backend = tokenizers.Tokenizer(
            BPE(vocab=ids, merges=pairs, ignore_merges=spec.ignore_merges)
        )
        backend.pre_tokenizer = spec.build()
        return backend

    backend = build_backend(build)
    bos = _token_id(metadata, "bos", len(tokens))
    eos = _end_ids(metadata, added, len(tokens))
    wants_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", spec.adds_bos))
    wants_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
    eos_id = _token_id(metadata, "eos", len(tokens))
    prefix = (bos,) if wants_bos and bos is not None else ()
    suffix = (eos_id,) if wants_eos and eos_id is not None else ()
    parts = [pre, repr((prefix, suffix, types)), "\n".join(merges), *tokens]
    return Vocabulary(
        first=backend,
        rest=backend,
        tokens=[t if types[i] != _UNUSED else None for i, t in enumerate(tokens)],
        added=added,
        byte_level=True,
        prefix=prefix,
        suffix=suffix,
        bos_token_id=bos,
        eos_token_ids=eos,
        digest=digest_of(parts),
    )


def build_backend(build: Callable[[], tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    """Run ``build``, turning whatever the library raises into ``ModelFileError``."""
    try:
        return build()
    except ModelFileError:
        raise
    except BaseException as error:
        # A panic in the library arrives as a BaseException of its own.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        cause = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ModelFileError(
            f"the tokenizer cannot be built ({cause}); fetch the model again"
        ) from None


def digest_of(parts: Iterable[str]) -> str:
    """A digest over length-prefixed strings."""
    digest = hashlib.blake2b(digest_size=32, person=b"octavo-text")
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _text_key(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str):
        raise ModelFileError(f"the key {key!r} is missing or not a string; fetch the file again")
    return value


def _string_list(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise ModelFileError(
            f"the key {key!r} is missing or not a list of strings; fetch the file again"
        )
    if len(value) > MAX_VOCABULARY:
        raise ModelFileError(f"{key!r} has {len(value)} entries, the limit is {MAX_VOCABULARY}")
    return value


def _token_types(metadata: Mapping[str, Any], count: int) -> list[int]:
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return [1] * count
    if not isinstance(types, list) or len(types) != count or not isinstance(types[0], int):
        raise ModelFileError(
            f"'tokenizer.ggml.token_type' must list {count} numbers, one per token; "
            "fetch the file again"
        )
    return types


def _token_id(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < count:
        raise ModelFileError(
            f"{key!r} is {value!r}, outside the vocabulary of {count}; fetch the file again"
        )
    return value


def _end_ids(
    metadata: Mapping[str, Any], added: tuple[AddedToken, ...], count: int
) -> tuple[int, ...]:
    named = (_token_id(metadata, name, count) for name in ("eos", "eot", "eom"))
    spelled = (token.id for token in added if token.special and token.text in _END_SPELLINGS)
    return tuple(dict.fromkeys(i for i in (*named, *spelled) if i is not None))


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right) or " " in right:
        raise ModelFileError(f"the merge {merge!r} is not a pair of tokens; fetch the file again")
    return left, right
