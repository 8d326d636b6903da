"""The covering array covers: every compatible pair, no incompatible one, in few rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pairwise import covering_rows, pairs_in, pairs_of

SIZES = st.lists(st.integers(2, 4), min_size=2, max_size=6)


@given(SIZES, st.data())
def test_every_compatible_pair_occurs(sizes: list[int], data: st.DataObject) -> None:
    factors = {
        f"f{at}": tuple(f"v{value}" for value in range(size)) for at, size in enumerate(sizes)
    }
    pairs = list(pairs_of(factors))
    assert len(set(pairs)) == len(pairs)
    # First values go with everything.
    choosable = [pair for pair in pairs if all(value != "v0" for _, value in pair)]
    incompatible = data.draw(st.sets(st.sampled_from(choosable), max_size=5))
    rows = covering_rows(factors, incompatible, seed=data.draw(st.integers(0, 9)))
    seen = set().union(*map(pairs_in, rows))
    assert seen == set(pairs) - incompatible
    for row in rows:
        assert list(row) == list(factors)
        assert all(row[name] in values for name, values in factors.items())


def test_it_takes_few_rows() -> None:
    factors = {f"f{at}": ("a", "b") for at in range(15)}
    assert len(covering_rows(factors, set())) <= 12
    assert covering_rows(factors, set()) == covering_rows(factors, set())
    assert covering_rows(factors, set(), seed=1) != covering_rows(factors, set())
