"""Who of the waiting is next: fair between tenants; by priority, age and arrival within one.

    tenants   by virtual token counter, least served first   (heap, stale keys renewed at its top)
    a tenant  by (due, arrival, branch)                      (heap, whoever left is skipped)

Each tenant has a counter of the service that it got (Sheng et al., *Fairness in Serving Large
Language Models*, OSDI 2024). It pays for a prompt when it is admitted (what the prefix cache held
is free), for every token that is sampled, and for KV that it holds while it runs: ``HELD_STEPS``
steps of one token's KV cost as much as one computed token. Recomputation after a preemption is
the scheduler's doing and costs it nothing. A tenant that had nothing waiting starts again at the
level of the least served that waits: being idle earns no credit.

Priority orders a tenant's own requests. It means nothing across tenants, or each would claim the
highest. A request is due ``AGEING_STEPS`` steps later per level, so one of lower priority stands
before whatever arrives more than that many steps after it: it ages past any flood.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush, heapreplace

from octavo.scheduler.sequence import Order, Sequence

AGEING_STEPS = 256
HELD_STEPS = 256
_MIN_SWEEP = 64

Entry = tuple[Order, Sequence]


class Tenant:
    """One tenant's counter, in 1/``HELD_STEPS`` tokens, and its waiting sequences.

    ``number`` says when its account was opened; it breaks ties. ``entries`` may hold sequences
    that have left meanwhile.
    """

    __slots__ = ("entries", "is_queued", "num_fresh", "num_waiting", "number", "served")

    def __init__(self, number: int, served: int) -> None:
        self.number = number
        self.served = served
        self.entries: list[Entry] = []
        self.num_waiting = 0
        self.num_fresh = 0
        self.is_queued = False


class FairQueue:
    """Waiting sequences. Every operation is O(log n) in those that wait, amortised.

    ``num_fresh`` counts the new requests in it, which is what is bounded. ``step`` is the number
    of the step being planned: the clock by which requests age.
    """

    def __init__(self) -> None:
        self.num_fresh = 0
        self.step = 0
        self._members: dict[Sequence, Entry] = {}
        self._tenants: dict[str, Tenant] = {}
        self._queued: list[tuple[int, int, Tenant]] = []
        self._last: Tenant | None = None
        self._offered: list[tuple[Tenant, Entry]] = []
        self._exhausted: list[Tenant] = []
        self._num_opened = 0
        self._sweep_at = _MIN_SWEEP

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        """Everybody who waits, in no particular order."""
        return iter(self._members)

    # -- membership --------------------------------------------------------------------------

    def add(self, seq: Sequence) -> None:
        """Let a sequence wait. One that comes back stands where it stood."""
        state = seq.state
        if state.due is None:
            state.due = self.step + state.request.priority * AGEING_STEPS
        tenant = self._tenant(state.request.tenant)
        if not tenant.num_waiting:
            tenant.served = max(tenant.served, self._level())
        entry = self._members[seq] = (seq.order, seq)
        heappush(tenant.entries, entry)
        tenant.num_waiting += 1
        tenant.num_fresh += seq.is_fresh
        self.num_fresh += seq.is_fresh
        self._enqueue(tenant)

    def remove(self, seq: Sequence) -> None:
        """Take out a sequence that waits."""
        assert seq in self._members, "I7: a waiting sequence is not in the queue"
        del self._members[seq]
        tenant = self._tenants[seq.state.request.tenant]
        tenant.num_waiting -= 1
        tenant.num_fresh -= seq.is_fresh
        self.num_fresh -= seq.is_fresh
        if len(tenant.entries) > _MIN_SWEEP + 2 * tenant.num_waiting:
            tenant.entries = list(filter(self._waits, tenant.entries))
            heapify(tenant.entries)

    def is_full(self, tenant: str, limit: int, *, held: Collection[str] = ()) -> bool:
        """Whether a new request of ``tenant`` is to be turned away.

        Past ``limit`` a tenant may still fill its equal share of it, so that one tenant's flood
        does not shut the others out; twice the limit is the end for all. ``held`` names the
        tenants of requests that wait before the queue; they count.
        """
        total = self.num_fresh + len(held)
        if total < limit:
            return False
        counts = Counter(held)
        for name, account in self._tenants.items():
            counts[name] += account.num_fresh
        others = sum(count > 0 for name, count in counts.items() if name != tenant)
        return counts[tenant] >= limit // (others + 1) or total >= 2 * limit

    # -- whose turn it is --------------------------------------------------------------------

    def head(self) -> Sequence:
        """Whose turn it is. Somebody must wait."""
        tenant = self._front()
        assert tenant is not None, "asked for the head of an empty queue"
        self._drop_absent(tenant)
        return tenant.entries[0][1]

    def take(self) -> Sequence | None:
        """The next in turn, given what was charged so far; each once, until ``put_back``."""
        while (tenant := self._front()) is not None:
            self._drop_absent(tenant)
            if tenant.entries:
                entry = heappop(tenant.entries)
                self._offered.append((tenant, entry))
                return entry[1]
            heappop(self._queued)
            self._exhausted.append(tenant)
        return None

    def put_back(self) -> None:
        """Whoever was taken stands in the queue again, until it is removed."""
        for tenant, entry in self._offered:
            heappush(tenant.entries, entry)
        for tenant in self._exhausted:
            tenant.is_queued = False
            self._enqueue(tenant)
        self._offered.clear()
        self._exhausted.clear()

    def _front(self) -> Tenant | None:
        """The least served tenant that has somebody waiting."""
        queued = self._queued
        while queued:
            served, number, tenant = queued[0]
            if not tenant.num_waiting:
                heappop(queued)
                tenant.is_queued = False
            elif served != tenant.served:
                heapreplace(queued, (tenant.served, number, tenant))
            else:
                return tenant
        return None

    def _enqueue(self, tenant: Tenant) -> None:
        if not tenant.is_queued:
            tenant.is_queued = True
            heappush(self._queued, (tenant.served, tenant.number, tenant))

    def _drop_absent(self, tenant: Tenant) -> None:
        entries = tenant.entries
        while entries and not self._waits(entries[0]):
            heappop(entries)

    def _waits(self, entry: Entry) -> bool:
        return self._members.get(entry[1]) is entry

    # -- accounts ----------------------------------------------------------------------------

    def charge_running(self, service: dict[str, int]) -> None:
        """What each tenant got in a step, in 1/``HELD_STEPS`` tokens (see above)."""
        tenants = self._tenants
        for name, served in service.items():
            (tenants.get(name) or self._tenant(name)).served += served

    def charge(self, seq: Sequence, num_tokens: int) -> None:
        """The tenant of ``seq`` got ``num_tokens`` computed."""
        self._tenant(seq.state.request.tenant).served += num_tokens * HELD_STEPS

    def admitted(self, seq: Sequence, num_tokens: int) -> None:
        """``seq`` is to be admitted, with ``num_tokens`` to compute that were not paid for yet."""
        self.charge(seq, num_tokens)
        self._last = self._tenants[seq.state.request.tenant]

    def refund(self, seq: Sequence, num_tokens: int) -> None:
        """It was not admitted after all. Keys only ever grow behind the heap's back: rebuild it."""
        self.charge(seq, -num_tokens)
        self._queued = [(tenant.served, number, tenant) for _, number, tenant in self._queued]
        heapify(self._queued)

    def close_accounts(self) -> None:
        """Nothing waits and nothing runs: nobody is owed anything."""
        self._tenants.clear()
        self._queued.clear()
        self._last = None

    @property
    def num_accounts(self) -> int:
        """Tenants on the books (0 when idle)."""
        return len(self._tenants)

    def _level(self) -> int:
        """Where a tenant starts: at the least served that waits, else at the last admitted."""
        front = self._front() or self._last
        return front.served if front is not None else 0

    def _tenant(self, name: str) -> Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= self._sweep_at:
                self._sweep()
            self._num_opened += 1
            tenant = self._tenants[name] = Tenant(self._num_opened, self._level())
        return tenant

    def _sweep(self) -> None:
        """Forget accounts that say no more than a new one would."""
        level = self._level()
        self._tenants = {
            name: tenant
            for name, tenant in self._tenants.items()
            if tenant.num_waiting or tenant.served > level
        }
        self._sweep_at = max(_MIN_SWEEP, 2 * len(self._tenants))
