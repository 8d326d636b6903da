"""KV bytes that hold no token, sampled from the ledger and weighted by step.

waste = 1 − token bytes held / KV bytes held. Held are owned blocks: used and shared slots carry
tokens; tail waste and provisional slots do not (yet). Promised, cached and free blocks are not
held.
"""

from __future__ import annotations

from collections.abc import Mapping

TOKENS = ("used", "shared")
NO_TOKENS = ("tail_waste", "provisional")


class WasteMeter:
    """Sums the ledger's terms over samples, so that a fuller pool weighs more."""

    def __init__(self) -> None:
        self.num_samples = 0
        self._sums = dict.fromkeys((*TOKENS, *NO_TOKENS), 0.0)
        self._peak_held = 0.0

    def add(self, ledger: Mapping[str, float]) -> None:
        """Take one sample: bytes by state."""
        terms = {name: float(ledger.get(name, 0.0)) for name in self._sums}
        held = sum(terms.values())
        if held <= 0:
            return
        self.num_samples += 1
        self._peak_held = max(self._peak_held, held)
        for name, value in terms.items():
            self._sums[name] += value

    def observed(self, why: str = "") -> dict[str, object]:
        """Percentages of held bytes, and the peak, for a report; "absent" without a sample, and
        ``why`` if it is known.
        """
        held = sum(self._sums.values())
        if not self.num_samples:
            return {"internal_waste_percent": f"absent ({why})" if why else "absent"}
        found: dict[str, object] = {
            "internal_waste_percent": round(
                100 * sum(self._sums[name] for name in NO_TOKENS) / held, 3
            ),
            "kv_held_percent": {
                name: round(100 * value / held, 3) for name, value in self._sums.items()
            },
            "kv_peak_mib": round(self._peak_held / 2**20, 3),
            "ledger_samples": self.num_samples,
        }
        return found
