"""Tokenizers from hand-made GGUF keys and tokenizer.json documents, good and bad."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.errors import InvalidRequestError, ModelFileError
from octavo.text import Tokenizer
from octavo.text.pre_tokenizers import PRE_TOKENIZERS

ALPHABET = [*"abcdefghijklmnopqrstuvwxyz0123456789<>|_[]/.,!'", "Ġ", "Ċ", "Ã", "©"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ã ©", "1 2", "12 3"]
WORDS = ["".join(merge.split()) for merge in MERGES]
CONTROL = ["<s>", "</s>", "<|im_end|>"]


def gguf(**changes: Any) -> dict[str, Any]:
    tokens = [*CONTROL, *ALPHABET, *WORDS, "<think>", "  ", "[unused]"]
    kinds = [3] * 3 + [1] * (len(ALPHABET) + len(WORDS)) + [4, 4, 5]
    keys = {
        "model": "gpt2", "pre": "gpt2", "tokens": tokens, "token_type": kinds, "merges": MERGES,
        "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    keys |= changes
    return {f"tokenizer.ggml.{k}": v for k, v in keys.items() if v is not None}


def spellings(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    ids = tokenizer.encode(text, **options)
    return [tokenizer.token_bytes(i).decode() for i in ids]


def test_gguf_keys_make_a_tokenizer():
    tokenizer = Tokenizer.from_model("gguf", gguf())
    assert spellings(tokenizer, "hello world") == ["hello", " w", "o", "r", "l", "d"]
    assert tokenizer.decode(tokenizer.encode("hello é")) == "hello é"
    assert tokenizer.bos_token_id == 0
    assert tokenizer.eos_token_ids == (1, 2)
    assert set(tokenizer.special_tokens) == set(CONTROL)


def test_special_tokens_are_read_only_when_asked():
    tokenizer = Tokenizer.from_model("gguf", gguf())
    text = "a</s><think>b"
    assert spellings(tokenizer, text) == list("a</s><think>b")
    assert spellings(tokenizer, text, parse_special=True) == ["a", "</s>", "<think>", "b"]
    # Control tokens vanish from text, markup does not; runs of spaces are plain vocabulary.
    ids = tokenizer.encode(text, parse_special=True)
    assert tokenizer.decode(ids) == "a<think>b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert spellings(tokenizer, "a  b") == ["a", "  ", "b"]


def test_breaks_decide_which_spelling_is_a_token():
    tokenizer = Tokenizer.from_model("gguf", gguf())
    text = "</s></s></s>"
    parsed = [
        [i for i in tokenizer.encode_rendered(text, breaks) if i == 1]
        for breaks in ([], [1], [4], [5], [0], [12], [3, 7, 11])
    ]
    assert [len(ids) for ids in parsed] == [3, 2, 2, 2, 3, 2, 0]


def test_prefix_and_suffix_are_the_models():
    plain = Tokenizer.from_model("gguf", gguf())
    assert plain.encode("a") == plain.encode("a", add_special_tokens=False)
    both = Tokenizer.from_model("gguf", gguf(add_bos_token=True, add_eos_token=True))
    assert spellings(both, "a") == ["<s>", "a", "</s>"]
    assert spellings(both, "a", add_special_tokens=False) == ["a"]
    assert spellings(Tokenizer.from_model("gguf", gguf(pre="llama-bpe")), "a") == ["<s>", "a"]
    quiet = Tokenizer.from_model("gguf", gguf(pre="llama-bpe", add_bos_token=False))
    assert spellings(quiet, "a") == ["a"]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt2", ["it", "'s", " 1234", "!!", " ", " x"]),
        ("smollm", ["it", "'s", " ", "1", "2", "3", "4", "!!", " ", " x"]),
        ("qwen2", ["it", "'s", " ", "1", "2", "3", "4", "!!", " ", " x"]),
        ("llama-bpe", ["it", "'s", " ", "123", "4", "!!", " ", " x"]),
        ("default", ["it", "'", "s", " ", "123", "4", "!!", " ", " x"]),
    ],
)
def test_pre_tokenizers_cut_as_published(pre, pieces):
    cut = PRE_TOKENIZERS[pre].build().pre_tokenize_str("it's 1234!!  x")
    assert [piece.replace("Ġ", " ") for piece, _ in cut] == pieces


def test_lone_surrogates_are_refused_and_nul_is_text():
    tokenizer = Tokenizer.from_model("gguf", gguf())
    with pytest.raises(InvalidRequestError, match="U\\+D800 at character 2"):
        tokenizer.encode("ab\ud800c")
    assert tokenizer.encode("") == []
    assert tokenizer.decode(tokenizer.encode("a\0b")) in {"ab", "a\0b"}


def test_digests_tell_tokenizers_apart():
    changes = [{}, {"pre": "qwen2"}, {"merges": MERGES[:-1]}, {"add_bos_token": True}]
    changes.append({"tokens": [*gguf()["tokenizer.ggml.tokens"][:-1], "[other]"]})
    assert len({Tokenizer.from_model("gguf", gguf(**c)).digest for c in changes}) == len(changes)


BAD_KEYS = {
    "no model": ({"model": None}, "tokenizer.ggml.model"),
    "sentencepiece": ({"model": "llama"}, "'llama' is not supported"),
    "unknown pre-tokenizer": ({"pre": "tekken"}, "'tekken' is not supported"),
    "no tokens": ({"tokens": None}, "tokenizer.ggml.tokens"),
    "tokens are numbers": ({"tokens": [1, 2]}, "tokenizer.ggml.tokens"),
    "no merges": ({"merges": None}, "tokenizer.ggml.merges"),
    "few types": ({"token_type": [1, 1]}, "token_type"),
    "merge of one": ({"merges": ["abc"]}, "not a pair"),
    "merge of three": ({"merges": ["a b c"]}, "not a pair"),
    "merge of strangers": ({"merges": ["Q Q"]}, "cannot be built"),
    "end id outside": ({"eos_token_id": 10**6}, "eos_token_id"),
    "begin id is text": ({"bos_token_id": "x"}, "bos_token_id"),
    "duplicate tokens": ({"tokens": [*CONTROL, *ALPHABET, *WORDS, "a", "b", "c"]}, "duplicates"),
}


@pytest.mark.parametrize("name", BAD_KEYS)
def test_bad_keys_are_refused(name):
    changes, cause = BAD_KEYS[name]
    with pytest.raises(ModelFileError, match=cause):
        Tokenizer.from_model("gguf", gguf(**changes))


def added_token(token_id: int, text: str, **flags: bool) -> dict[str, Any]:
    names = ("special", "lstrip", "rstrip", "single_word", "normalized")
    return {"id": token_id, "content": text, **dict.fromkeys(names, False), **flags}


def document(**changes: Any) -> dict[str, Any]:
    vocab = {token: i for i, token in enumerate([*ALPHABET, *WORDS])}
    size = len(vocab)
    added = [
        added_token(size + i, text, special=special)
        for i, (text, special) in enumerate([("<s>", True), ("</s>", True), ("<think>", False)])
    ]
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    post = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, first],
        "pair": [first, second],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [size], "tokens": ["<s>"]}},
    }  # fmt: skip
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    whole = {
        "version": "1.0", "truncation": {"max_length": 3, "strategy": "LongestFirst", "stride": 0,
        "direction": "Right"}, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", **byte_level}, "post_processor": post,
        "decoder": {"type": "ByteLevel", **byte_level},
        "model": {"type": "BPE", "vocab": vocab, "merges": [m.split() for m in MERGES]},
    }  # fmt: skip
    return whole | changes


def hf(doc: dict[str, Any] | str, **configs: Any) -> dict[str, Any]:
    text = doc if isinstance(doc, str) else json.dumps(doc)
    base = {"config": {}, "generation_config": {}, "tokenizer_config": {}, "tokenizer_json": text}
    return base | configs


def test_a_tokenizer_json_makes_the_same_tokenizer():
    tokenizer = Tokenizer.from_model("hf", hf(document()))
    assert spellings(tokenizer, "hello world") == ["<s>", "hello", " w", "o", "r", "l", "d"]
    assert spellings(tokenizer, "</s><think>", add_special_tokens=False) == list("</s><think>")
    parsed = tokenizer.encode("</s><think>", parse_special=True, add_special_tokens=False)
    assert tokenizer.decode(parsed) == "<think>"
    assert tokenizer.decode(tokenizer.encode("hello é 123")) == "hello é 123"


def test_end_ids_come_from_all_configurations():
    size = len(ALPHABET) + len(WORDS)
    metadata = hf(
        document(),
        config={"eos_token_id": 3, "vocab_size": 500, "bos_token_id": None},
        generation_config={"eos_token_id": [4, 3]},
        tokenizer_config={"eos_token": {"content": "</s>"}, "bos_token": "<s>"},
    )
    tokenizer = Tokenizer.from_model("hf", metadata)
    assert tokenizer.eos_token_ids == (4, 3, size + 1)
    assert tokenizer.bos_token_id == size
    assert tokenizer.vocab_size == 500
    assert tokenizer.token_bytes(499) == b""


def sentencepiece(scheme: str) -> dict[str, Any]:
    spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    vocab = {t: i for i, t in enumerate(["▁", *"abcxyz", "▁a", "<0xC3>", "<0xA9>"])}
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]  # fmt: skip
    return document(
        pre_tokenizer=spaces,
        decoder={"type": "Sequence", "decoders": decoders},
        post_processor=None,
        added_tokens=[added_token(20, "</s>", special=True)],
        model={"type": "BPE", "vocab": vocab, "merges": [["▁", "a"]], "byte_fallback": True},
    )


def test_sentencepiece_spaces_and_bytes():
    first = Tokenizer.from_model("hf", hf(sentencepiece("first")))
    ids = first.encode("abc é</s>a", parse_special=True)
    assert [first.token_bytes(i) for i in ids] == [
        b" a", b"b", b"c", b" ", b"\xc3", b"\xa9", b"</s>", b"a",
    ]  # fmt: skip
    assert first.decode(ids) == "abc éa"
    always = Tokenizer.from_model("hf", hf(sentencepiece("always")))
    assert [always.token_bytes(i) for i in always.encode("x</s>a", parse_special=True)][-1] == b" a"


def test_added_tokens_keep_their_flags():
    added = [
        added_token(90, "<l>", special=True, lstrip=True),
        added_token(91, "<r>", special=True, rstrip=True),
        added_token(92, "zz", single_word=True),
    ]
    tokenizer = Tokenizer.from_model("hf", hf(document(added_tokens=added, post_processor=None)))
    parsed = tokenizer.encode("a  <l> b<r>  c zz azz", parse_special=True)
    assert [tokenizer.token_bytes(i).decode() for i in parsed] == [
        "a", "<l>", " ", "b", "<r>", "c", " ", "zz", " ", "a", "z", "z",
    ]  # fmt: skip


BPE_MODEL = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
BAD_DOCUMENTS = {
    "not JSON": ("{", "not valid JSON"),
    "deep": ("[" * 100_000, "not valid JSON"),
    "a list": ([], "no 'model'"),
    "no model": ({}, "no 'model'"),
    "unigram": (document(model={"type": "Unigram", "vocab": []}), "'Unigram' is not supported"),
    "vocab of texts": (document(model={"type": "BPE", "vocab": {"a": "b"}, "merges": []}), "vocab"),
    "negative id": (document(model={"type": "BPE", "vocab": {"a": -1}, "merges": []}), "vocab"),
    "huge id": (document(model={"type": "BPE", "vocab": {"a": 1 << 40}, "merges": []}), "vocab"),
    "two tokens of one id": (
        document(model={"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}),
        "two tokens",
    ),
    "bad added token": (document(added_tokens=[{"id": 1}]), "added_tokens"),
    "added twice": (
        document(added_tokens=[added_token(90, "x"), added_token(91, "x")]),
        "twice",
    ),
    "unknown decoder": (document(decoder={"type": "WordPiece"}), "'WordPiece' is not supported"),
    "unknown pre-tokenizer": (document(pre_tokenizer={"type": "Nope"}), "cannot be built"),
    "merge of strangers": (
        document(model=BPE_MODEL | {"merges": [["q", "q"]]}, post_processor=None),
        "cannot be built",
    ),
}


@pytest.mark.parametrize("name", BAD_DOCUMENTS)
def test_bad_documents_are_refused(name):
    doc, cause = BAD_DOCUMENTS[name]
    with pytest.raises(ModelFileError, match=cause):
        Tokenizer.from_model("hf", hf(doc if isinstance(doc, str) else json.dumps(doc)))


def test_a_model_without_tokenizer_or_with_a_bad_end_is_refused():
    with pytest.raises(ModelFileError, match="has no tokenizer"):
        Tokenizer.from_model("hf", {"config": {}, "generation_config": {}, "tokenizer_config": {}})
    with pytest.raises(ModelFileError, match="eos_token_id"):
        Tokenizer.from_model("hf", hf(document(), config={"eos_token_id": 10**5}))
