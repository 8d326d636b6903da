"""Who is proposed what, and how much of it is worth verifying."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import SchedulerConfig
from octavo.errors import ConfigError
from octavo.scheduler.guess import SURE, Guess
from octavo.scheduler.lookup import MAX_PATHS, NGRAM, Lookup
from octavo.scheduler.speculation import ALONE_COST, STEP_COST, TILE, TOKEN_COST, _branches, allot

TOKENS = st.lists(st.integers(0, 3), max_size=60)


def follow(tokens: list[int], place: int, limit: int) -> list[int]:
    """What a copy from behind ``place`` gives, token by token."""
    copy = list(tokens)
    for _ in range(limit):
        place += 1
        copy.append(copy[place])
    return copy[len(tokens) :]


def places(tokens: list[int]) -> list[int]:
    last = tokens[-NGRAM:]
    ends = range(len(tokens) - 2, NGRAM - 2, -1)
    return [end for end in ends if len(last) == NGRAM and tokens[end - 2 : end + 1] == last]


def shared(tokens: list[int], place: int) -> int:
    most = min(place + 1, 32)
    lengths = [k for k in range(1, most + 1) if tokens[place + 1 - k : place + 1] == tokens[-k:]]
    return max(lengths)


@given(TOKENS, st.integers(1, 9))
def test_ngram_copies_from_behind_the_latest_earlier_place(tokens: list[int], limit: int) -> None:
    found = places(tokens)
    expected = follow(tokens, found[0], limit) if found else []
    assert Lookup(len(tokens)).ngram(tokens, limit) == expected


@given(TOKENS, st.integers(1, 9))
def test_suffix_copies_from_behind_the_longest_match(tokens: list[int], limit: int) -> None:
    # Buckets of 64 hold several n-grams of four tokens: candidates are what a walk of 8 meets.
    index = Lookup(1 << 14)
    found = places(tokens)[:8]
    expected: list[int] = []
    if found:
        best = max(found, key=lambda place: (shared(tokens, place), place))
        expected = follow(tokens, best, min(limit, 2 * shared(tokens, best)))
    assert index.suffix(tokens, limit) == expected


@given(TOKENS, st.integers(1, 9))
def test_a_tree_goes_on_from_every_place_that_says_something_else(
    tokens: list[int], limit: int
) -> None:
    index = Lookup(1 << 14)
    ranked = sorted(places(tokens)[:8], key=lambda place: (-shared(tokens, place), -place))
    expected: list[list[int]] = []
    for place in ranked:
        path = follow(tokens, place, min(limit, 2 * shared(tokens, place)))
        is_new = all(
            path[: len(other)] != other[: len(path)] for other in expected
        )  # neither begins the other
        if is_new and len(expected) < MAX_PATHS:
            expected.append(path)
    paths = index.tree(tokens, limit)
    assert paths == expected
    assert (paths[0] if paths else []) == Lookup(1 << 14).suffix(tokens, limit)


@given(TOKENS)
def test_an_index_that_grew_with_its_tokens_equals_one_made_at_the_end(tokens: list[int]) -> None:
    grown = Lookup(1)
    for end in range(1, len(tokens)):
        grown.ngram(tokens[:end], 1)
    assert grown.ngram(tokens, 5) == Lookup(1).ngram(tokens, 5)


def test_an_index_takes_bytes_in_proportion_to_its_tokens() -> None:
    tokens = [i * 7919 % 50000 for i in range(40_000)]
    index = Lookup(len(tokens))
    index.ngram(tokens, 1)
    used = index._heads.itemsize * len(index._heads) + index._previous.itemsize * len(tokens)
    assert used <= 4 * len(tokens) + (4 << 15)


def test_a_bucket_shared_by_others_gives_nothing_wrong() -> None:
    tokens = list(range(2000))
    assert Lookup(1).ngram([*tokens, 500, 501, 502], 2) in ([], [503, 504])
    assert Lookup(1).ngram(tokens, 3) == []


def test_a_guess_learns_up_to_its_first_mistake() -> None:
    guess = Guess([1, 2])
    guess.drafts = [3, 4, 5]
    guess.learn([1, 2, 3])
    once = SURE // 2 + SURE // 2 // 8
    assert guess.chance == once
    guess.drafts = [4, 9, 9]
    guess.learn([1, 2, 3, 4, 5, 6])
    twice = once + (SURE - once) // 8
    assert guess.chance == twice + -twice // 8
    assert (guess.drafts, guess.position) == ([], 6)
    for _ in range(200):
        guess.drafts = [8]
        guess.learn([0] * (guess.position + 1))
    assert guess.chance == 0
    for _ in range(200):
        guess.drafts = [0]
        guess.learn([0] * (guess.position + 1))
    assert SURE - 8 <= guess.chance < SURE


def test_a_guess_learns_whether_a_detour_would_have_been_right() -> None:
    guess = Guess([1])
    assert guess.detour == SURE // 4
    guess.drafts, guess.others = [3, 4, 5], [[3, 9], [8, 4, 5]]
    guess.learn([1, 3, 9])
    better = SURE // 4 + (SURE - SURE // 4) // 8
    assert guess.detour == better, "the path that parts behind the 3"
    assert guess.others == []
    guess.drafts, guess.others = [3, 4, 5], [[3, 9], [8, 4, 5]]
    guess.learn([1, 3, 9, 7])
    assert guess.detour == better + -better // 8, "neither 3 nor 8"
    before = guess.detour
    for drafts, others, token in (([3, 4], [[3, 9]], 8), ([3, 4], [], 8), ([3], [[8]], 3)):
        guess.drafts, guess.others = list(drafts), [list(path) for path in others]
        guess.learn([0] * guess.position + [token])
        assert guess.detour == before, "there was no detour at the place of the mistake"


def test_a_detour_is_worth_what_it_may_gain() -> None:
    half = SURE // 2
    guess = Guess([1])
    guess.chance, guess.detour = half, half
    guess.drafts = [1, 2, 3, 4]
    guess.others = [[9, 8, 7, 6], [1, 2, 8, 7], [1, 2, 9, 9], [6]]
    assert list(_branches(guess, SURE // 9)) == [
        (0, (9, 8), (SURE // 4 + SURE // 8, 3)),
        (2, (1, 2, 8), (SURE // 16, 4)),
        # Where a path before it parts too, it is right only if that one is not.
        (2, (1, 2, 9), (SURE // 32, 4)),
        (0, (6,), (SURE // 8, 2)),
    ]


def test_a_bundle_is_taken_where_it_pays() -> None:
    def taken(chance: int, gain: int, *, streams: int = 1, budget: int = 99) -> list[int]:
        return allot(
            [chance] * streams, limits=[7] * streams, num_tokens=streams, budget=budget,
            bundles=[(gain, 2)],
        )  # fmt: skip

    # One draft and a path of two fill the tile that three drafts would.
    assert taken(SURE // 3, 0) == [0, 0]
    assert taken(SURE // 3, 2 * SURE // 3) == [1, 1]
    assert taken(SURE // 3, 2 * SURE // 3, budget=2) == [0, 0]
    assert taken(SURE // 3, 2 * SURE // 3, streams=16)[-1] == 0
    assert taken(SURE - 1, SURE // 9) == [7, 0]


def value(counts: tuple[int, ...], chances: list[int], num_tokens: int) -> float:
    gained = float(num_tokens)
    for count, chance in zip(counts, chances, strict=True):
        gained += sum((chance / SURE) ** i for i in range(1, count + 1))
    total = num_tokens + sum(counts)
    tiled = TOKEN_COST * TILE * -(-total // TILE)
    return gained / (STEP_COST + (ALONE_COST if total == 1 else tiled)) * TOKEN_COST


@given(
    st.lists(st.tuples(st.integers(0, SURE - 1), st.integers(0, 3)), min_size=1, max_size=3),
    st.integers(0, 40),
    st.integers(0, 6),
)
def test_allotment_is_the_best_of_all(
    offers: list[tuple[int, int]], others: int, budget: int
) -> None:
    chances, limits = [c for c, _ in offers], [limit for _, limit in offers]
    num_tokens = len(offers) + others
    counts = allot(chances, limits=limits, num_tokens=num_tokens, budget=budget)
    assert all(count <= limit for count, limit in zip(counts, limits, strict=True))
    assert sum(counts) <= budget
    every = product(*(range(limit + 1) for limit in limits))
    best = max(value(c, chances, num_tokens) for c in every if sum(c) <= budget)
    # Chances are rounded down at each draft.
    assert value(tuple(counts), chances, num_tokens) >= best - 8 / SURE


def test_a_full_batch_drafts_only_what_is_nearly_sure() -> None:
    def total(chance: int, streams: int) -> int:
        return sum(allot([chance] * streams, limits=[7] * streams, num_tokens=streams, budget=512))

    assert total(980, 1) == 7
    assert total(300, 1) == 0
    assert total(1000, 16) > 0
    assert total(600, 16) == 0
    assert total(700, 4) > 0


@pytest.mark.parametrize(
    ("field", "bad", "named"),
    [
        (
            "speculate",
            "magic",
            "--speculate is 'magic'; choose one of off, ngram, suffix, tree, draft:MODEL",
        ),
        ("speculate", "draft:", "--speculate is 'draft:'; choose one of"),
        ("speculate", 7, "--speculate is 7; choose one of"),
        ("num_draft_tokens", 0, "--num-draft-tokens is 0; it must be between 1 and 32"),
        ("num_draft_tokens", 33, "--num-draft-tokens is 33; it must be between 1 and 32"),
        ("num_draft_tokens", True, "--num-draft-tokens is True; it must be an integer"),
    ],
)
def test_bad_settings_are_refused_by_name(field: str, bad: object, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        SchedulerConfig(**{field: bad})
    assert named in str(refused.value)
    assert refused.value.param == field
