"""Every field of the prefix key counts, and no two fields can be confused."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from octavo.kv import PrefixKey

KEY = PrefixKey(
    model_digest="m",
    adapter="a",
    tokenizer_digest="t",
    rope="r",
    fingerprint="f",
    kv_dtype="d",
    layout="l",
    tenant="n",
    domain="s",
)
NAMES = [field.name for field in fields(PrefixKey)]


def test_no_field_is_missing() -> None:
    """Each stands for something that the numbers, or who may read them, depend on."""
    assert set(NAMES) == {
        "schema", "model_digest", "adapter", "tokenizer_digest", "rope", "fingerprint", "kv_dtype",
        "layout", "tenant", "domain",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_dropping_a_field_changes_the_key(name: str) -> None:
    assert replace(KEY, **{name: ""}).digest() != KEY.digest()
    assert replace(KEY, **{name: "other"}).digest() != KEY.digest()


def test_equal_strings_in_different_fields() -> None:
    blank = replace(KEY, **dict.fromkeys(NAMES, ""))
    digests = {replace(blank, **{name: "salt"}).digest() for name in NAMES}
    assert len(digests) == len(NAMES)


def test_text_moved_across_a_boundary() -> None:
    left = replace(KEY, tenant="ab", domain="c")
    right = replace(KEY, tenant="a", domain="bc")
    assert left.digest() != right.digest()


def test_digest_is_256_bits_and_stable() -> None:
    assert len(KEY.digest()) == 32
    assert replace(KEY).digest() == KEY.digest()
    assert replace(KEY, domain="\ud800").digest() != KEY.digest()
