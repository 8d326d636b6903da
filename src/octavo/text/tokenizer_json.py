"""Reads a ``tokenizer.json`` (the format of the ``tokenizers`` library) into a ``Vocabulary``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import tokenizers

from octavo.errors import ModelFileError
from octavo.text.vocabulary import (
    MARKUP,
    MAX_VOCABULARY,
    AddedToken,
    Vocabulary,
    build_backend,
    digest_of,
)

_SENTENCEPIECE_DECODERS: Final = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


def vocabulary_from_json(text: str, metadata: Mapping[str, Any]) -> Vocabulary:
    """Build a vocabulary from the text of tokenizer.json and the files beside it.

    ``metadata`` is that of a Hugging Face ``ModelFile``: its configurations name the ids that
    begin and end a text.

    Raises:
        ModelFileError: the file is malformed, or of a kind that is not supported.
    """
    document = _document(text)
    model = document["model"]
    added = tuple(_added_tokens(document))
    byte_level, strips = _decoder_style(document)
    names = {token.text: token.id for token in added}
    tokens = _id_table(model["vocab"], names)
    if model.get("ignore_merges"):
        # A piece of user text that is spelled like a special token must not be taken whole.
        protected = {token.text for token in added if token.protected}
        model["vocab"] = {t: i for t, i in model["vocab"].items() if t not in protected}
    prefix, suffix = _surroundings(document)
    bare = document | {
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    first = _backend(bare)
    rest = first
    if _without_first_space(bare):
        rest = _backend(bare)
    named = _named_ids(metadata, names | dict(model["vocab"]), len(tokens))
    return Vocabulary(
        first=first,
        rest=rest,
        tokens=tokens,
        added=added,
        byte_level=byte_level,
        strips_leading_space=strips,
        prefix=prefix,
        suffix=suffix,
        bos_token_id=next(iter(named["bos"]), None),
        eos_token_ids=named["eos"],
        digest=digest_of([text, repr(sorted(named.items()))]),
    )


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ModelFileError("tokenizer.json is not valid JSON; fetch the model again") from None
    model = document.get("model") if isinstance(document, dict) else None
    if not isinstance(model, dict):
        raise ModelFileError("tokenizer.json has no 'model'; fetch the model again")
    # Old files leave the type out; only BPE has merges.
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind != "BPE":
        raise ModelFileError(f"tokenizer model {kind!r} is not supported; supported is: BPE")
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not all(_is_id(i) for i in vocab.values()):
        raise ModelFileError("tokenizer.json has no good 'model.vocab'; fetch the model again")
    return dict(document)


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < MAX_VOCABULARY


def _added_tokens(document: Mapping[str, Any]) -> Iterator[AddedToken]:
    seen: set[str] = set()
    for entry in document.get("added_tokens") or []:
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str) or not content or not _is_id(entry.get("id")):
            raise ModelFileError(
                "tokenizer.json has a malformed entry in 'added_tokens'; fetch the model again"
            )
        if content in seen:
            raise ModelFileError(f"tokenizer.json adds the token {content!r} twice")
        seen.add(content)
        flags = {name: bool(entry.get(name)) for name in ("lstrip", "rstrip", "single_word")}
        special = bool(entry.get("special")) and content not in MARKUP
        yield AddedToken(entry["id"], content, special, **flags)


def _id_table(vocab: Mapping[str, int], names: Mapping[str, int]) -> list[str | None]:
    largest = max([*vocab.values(), *names.values()], default=-1)
    tokens: list[str | None] = [None] * (largest + 1)
    for token, token_id in (*vocab.items(), *names.items()):
        if tokens[token_id] not in (None, token):
            raise ModelFileError(
                f"tokenizer.json gives id {token_id} to two tokens; fetch the model again"
            )
        tokens[token_id] = token
    return tokens


def _parts(component: object, plural: str) -> Iterator[dict[str, Any]]:
    """The component, or the members of a sequence of them, at any depth."""
    if not isinstance(component, dict):
        return
    if component.get("type") == "Sequence":
        for member in component.get(plural) or []:
            yield from _parts(member, plural)
    else:
        yield component


def _decoder_style(document: Mapping[str, Any]) -> tuple[bool, bool]:
    """(byte level?, strips a leading space?), refusing decoders of another kind by name."""
    decoders = list(_parts(document.get("decoder"), "decoders"))
    kinds = [str(decoder.get("type")) for decoder in decoders]
    if kinds == ["ByteLevel"]:
        return True, False
    unknown = [kind for kind in kinds if kind not in _SENTENCEPIECE_DECODERS]
    if unknown or not kinds:
        raise ModelFileError(
            f"tokenizer decoder {' + '.join(unknown) or None!r} is not supported; supported are: "
            "ByteLevel and SentencePiece-style"
        )
    strips = any(
        kind == "Strip" or (kind == "Metaspace" and decoder.get("prepend_scheme") != "never")
        for kind, decoder in zip(kinds, decoders, strict=True)
    )
    return False, strips


def _backend(document: Mapping[str, Any]) -> tokenizers.Tokenizer:
    return build_backend(lambda: tokenizers.Tokenizer.from_str(json.dumps(document)))


def _without_first_space(document: dict[str, Any]) -> bool:
    """Make "a space before the first piece only" into "never"; whether there was such a rule."""
    changed = False
    for part in _parts(document.get("pre_tokenizer"), "pretokenizers"):
        if part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first":
            part["prepend_scheme"] = "never"
            changed = True
    return changed


def _surroundings(document: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the file's post-processor puts before and after a text.

    Seen from a text of one token, in a vocabulary that has no other.
    """
    sole = {"type": "BPE", "vocab": {"a": MAX_VOCABULARY}, "merges": []}
    ids = (
        _backend({"post_processor": document.get("post_processor"), "model": sole})
        .encode("a", add_special_tokens=True)
        .ids
    )
    if ids.count(MAX_VOCABULARY) != 1:
        raise ModelFileError("the post-processor of tokenizer.json repeats or drops texts")
    middle = ids.index(MAX_VOCABULARY)
    return tuple(ids[:middle]), tuple(ids[middle + 1 :])


def _named_ids(
    metadata: Mapping[str, Any], names: Mapping[str, int], count: int
) -> dict[str, tuple[int, ...]]:
    """The ids that begin ("bos") and end ("eos") a text, as all the configurations say."""
    found: dict[str, tuple[int, ...]] = {}
    size = max(count, metadata["config"].get("vocab_size") or 0)
    for name in ("bos", "eos"):
        ids: list[Any] = []
        for source in ("generation_config", "config"):
            value = metadata.get(source, {}).get(f"{name}_token_id")
            ids += value if isinstance(value, list) else [value]
        spelled = metadata.get("tokenizer_config", {}).get(f"{name}_token")
        if isinstance(spelled, dict):
            spelled = spelled.get("content")
        ids.append(names.get(spelled) if isinstance(spelled, str) else None)
        known = [token_id for token_id in ids if token_id is not None]
        for token_id in known:
            if not (_is_id(token_id) and token_id < size):
                raise ModelFileError(
                    f"{name}_token_id {token_id!r} is outside the vocabulary of {size}"
                )
        found[name] = tuple(dict.fromkeys(known))
    return found
