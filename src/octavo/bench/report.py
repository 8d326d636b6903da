"""What every benchmark prints: facts of machine and model, workload, rows; as JSON or a table.

A fact that the thing measured does not tell reads "absent", never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from octavo.bench.machine import machine_facts, peak_memory_mib, shared_memory_mib
from octavo.config import EngineConfig
from octavo.worker import LoadedModel

ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One benchmark's outcome. Every row has the same keys.

    ``facts`` hold of the whole run; ``observed`` was measured besides the rows (waste, prefix
    hits, memory, goodput). ``tables`` are further rows by title.
    """

    kind: str
    facts: Mapping[str, Any]
    workload: Mapping[str, Any]
    rows: list[dict[str, Any]]
    observed: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)

    def json(self) -> str:
        """The whole report, indented."""
        return msgspec.json.format(msgspec.json.encode(asdict(self)), indent=2).decode()

    def text(self) -> str:
        """Facts, workload and what was observed by line, then the rows as a table."""
        parts = [f"octavo bench {self.kind}"]
        for title, values in (
            ("facts", self.facts), ("workload", self.workload), ("observed", self.observed)
        ):  # fmt: skip
            if values:
                parts.append(
                    f"{title}\n" + "\n".join(f"  {k}: {_plain(values[k])}" for k in values)
                )
        parts += ["", self.table()]
        for title, rows in self.tables.items():
            parts += ["", title, _aligned(rows)]
        return "\n".join(parts)

    def table(self) -> str:
        """The rows, aligned."""
        return _aligned(self.rows)


def _aligned(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "(no rows)"
    names = list(rows[0])
    cells = [names, *([str(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def engine_facts(config: EngineConfig, loaded: LoadedModel) -> dict[str, Any]:
    """Facts of an engine in this process that a figure means nothing without."""
    info, spec = loaded.runner.info, loaded.spec
    return {
        **machine_facts(),
        # The name alone: a report may be published, the directory is the user's own.
        "model": Path(config.model.model).name,
        "weight_mib": round(loaded.weight_bytes / 2**20, 1),
        "kv_pool_mib": round(loaded.kv_bytes / 2**20, 1),
        "ready_after_s": round(sum(seconds for _, seconds in loaded.stages), 3),
        "fingerprint": info.fingerprint,
        "heads": f"{spec.num_heads} query, {spec.num_kv_heads} kv, {spec.head_dim} wide",
        "kv_dtype": info.kv_dtype,
        "block_size": info.block_size,
        "num_blocks": info.num_blocks,
        "token_budget": config.scheduler.max_num_batched_tokens,
        "max_num_seqs": config.scheduler.max_num_seqs,
        "policy": config.scheduler.policy,
    }


def memory_observed() -> dict[str, Any]:
    """Peak and present memory of this process."""
    peak, pss = peak_memory_mib(), shared_memory_mib(["self"])
    return {
        "peak_memory_mib": ABSENT if peak is None else peak,
        "pss_mib": ABSENT if pss is None else pss,
    }


def _plain(value: Any) -> str:  # noqa: ANN401 - any JSON value
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return "".join(f"\n    {_plain(item)}" for item in value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
