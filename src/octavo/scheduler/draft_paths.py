"""Draft trees: one forked table per path from root to leaf, so that each is the plain linear case.

    trunk      … t  a b c          the sequence itself, with its first drafts
    path       … t  a x y          a fork of it for this step: other drafts behind the same tokens
                    └ computed twice where both say it; a tail that is shared is copied

Whichever path is right longest stays: if it is not the trunk, the trunk takes over its table and
row slot. The others let go of theirs. All of it is over when the step is.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.kv import KVCacheManager, StepReservation
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.slots import SlotTable

# A sequence and other drafts than its first that may follow it.
Detour = tuple[Sequence, tuple[int, ...]]


class DraftPaths:
    """Forks sequences for one step and ends the forks. Owns nothing between steps."""

    def __init__(self, kv: KVCacheManager, slots: SlotTable) -> None:
        self._kv = kv
        self._slots = slots

    def fork(
        self, detours: Iterable[Detour], reservation: StepReservation
    ) -> dict[Sequence, tuple[int, ...]]:
        """A path and its drafts for every detour whose blocks nobody else was promised."""
        paths = {}
        for trunk, drafts in detours:
            assert trunk.kv is not None, "I7: a running sequence has KV"
            path = Sequence(trunk.state, trunk.branch, trunk.token_ids)
            path.trunk, path.grammar = trunk, trunk.grammar
            path.kv = self._kv.fork(trunk.kv)
            if reservation.grow_path(path.kv, 1 + len(drafts)):
                paths[path] = drafts
            else:
                self._kv.release(path.kv)
        return paths

    def adopt(self, path: Sequence) -> None:
        """The trunk goes on as ``path``, before anything of the step is committed."""
        trunk = path.trunk
        assert trunk is not None
        assert trunk.kv is not None
        assert path.kv is not None
        self._kv.adopt(trunk.kv, path.kv)
        trunk.slot, path.slot = path.slot, trunk.slot

    def drop(self, paths: Iterable[Sequence]) -> None:
        """Roll back whatever was not adopted. Idempotent."""
        for path in paths:
            assert path.kv is not None
            self._kv.release(path.kv)
            self._slots.give_back(path)
