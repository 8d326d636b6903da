"""The store of responses is bounded, in number and bytes, and its sums hold."""

from __future__ import annotations

import pytest

from octavo.errors import OverloadedError
from octavo.server.response_store import MAX_BACKGROUND, ResponseStore, StoredResponse


def entry(text: str = "x", *, running: bool = False) -> StoredResponse:
    status = "in_progress" if running else "completed"
    return StoredResponse(
        owner="", body={"status": status}, messages=[{"role": "user", "content": text}]
    )


def test_the_oldest_make_room_and_the_sum_holds() -> None:
    store = ResponseStore(max_responses=3, max_bytes=4000)
    for number in range(5):
        store.put(str(number), entry())
    assert [name for name in "01234" if present(store, name)] == ["2", "3", "4"]
    store.put("2", entry("y" * 10))
    store.put("5", entry())
    assert [name for name in "012345" if present(store, name)] == ["2", "4", "5"]
    store.put("6", entry("z" * 900))
    assert store.num_bytes == sum(
        store.get(n, "").num_bytes for n in "0123456" if present(store, n)
    )
    assert store.num_bytes <= 4000
    for name in "0123456":
        if present(store, name):
            store.delete(name, "")
    assert (len(store), store.num_bytes) == (0, 0)


def present(store: ResponseStore, name: str) -> bool:
    try:
        store.get(name, "")
    except Exception:
        return False
    return True


def test_what_runs_stays_and_is_bounded() -> None:
    store = ResponseStore(max_responses=2)
    for number in range(MAX_BACKGROUND):
        store.put(str(number), entry(running=True))
    assert len(store) == MAX_BACKGROUND
    with pytest.raises(OverloadedError, match="background"):
        store.put("more", entry(running=True))
    store.put("0", entry())
    assert not present(store, "0")
    store.put("more", entry(running=True))
