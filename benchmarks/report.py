"""Tables and plots from the stored figures: ``python benchmarks/report.py [--readme NAME …]``.

Reads every benchmarks/results/*.json that compare.py or `octavo bench memory --json` wrote, prints
its tables and draws its chart beside it. With --readme the tables of the named comparisons also
replace what stands between the README's bench markers, in that order.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import memory_report
from chart import bars

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
START, END = "<!-- bench:start -->", "<!-- bench:end -->"
OURS = "octavo"

Figures = dict[str, dict[str, list[float]]]


def main(argv: Sequence[str] | None = None) -> int:
    """Print, draw, and with --readme write. Returns 1 when there is no data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--readme", nargs="+", default=[], metavar="NAME",
        help="write these comparisons' tables into README.md, such as: engine engine-1.5b http",
    )  # fmt: skip
    options = parser.parse_args(argv)
    paths = sorted(RESULTS.glob("*.json"))
    if not paths:
        print("benchmarks/results holds no data; run benchmarks/compare.py first", file=sys.stderr)
        return 1
    sections = {}
    for path in paths:
        data = json.loads(path.read_text(encoding="utf-8"))
        chart = path.with_suffix(".svg").relative_to(ROOT).as_posix()
        if data["kind"] == "memory":
            print(memory_report.section(data, chart=chart), end="\n\n")
            path.with_suffix(".svg").write_text(memory_report.drawing(data), encoding="utf-8")
            continue
        sections[path.stem] = section(data, chart=chart)
        path.with_suffix(".svg").write_text(drawing(data), encoding="utf-8")
    print("\n\n".join(sections.values()))
    if unknown := [name for name in options.readme if name not in sections]:
        parser.error(f"no comparison {unknown[0]}; there are {', '.join(sections)}")
    if options.readme:
        text = "\n\n".join([sections[name] for name in options.readme])
        readme = ROOT / "README.md"
        readme.write_text(replaced(readme.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0


def section(data: dict[str, Any], *, chart: str) -> str:
    """One comparison: where and how it was taken, its table, what failed, its chart."""
    figures, failures = collect(data)
    parts = [caption(data), table(figures)]
    if "Poisson" in "".join(row for rows in figures.values() for row in rows):
        parts.append(slo_lines(data))
    parts += [f"No figure from {name}: {reason}." for name, reason in failures.items()]
    return "\n\n".join([*parts, f"![{data['kind']} comparison]({chart})"])


def collect(data: dict[str, Any]) -> tuple[Figures, dict[str, str]]:
    """Figures by engine and row over all rounds, and why an engine has none (its last reason)."""
    figures: Figures = {}
    failures: dict[str, str] = {}
    for turn in data["turns"]:
        if "error" in turn:
            failures[turn["engine"]] = turn["error"]
            continue
        rows = figures.setdefault(turn["engine"], {})
        for row in turn["rows"]:
            rows.setdefault(row["name"], []).append(row["tokens_per_s"])
    return figures, failures


def medians(figures: Figures) -> dict[str, dict[str, float]]:
    """The median over rounds, per engine and row."""
    return {
        name: {row: statistics.median(values) for row, values in rows.items()}
        for name, rows in figures.items()
    }


def table(figures: Figures) -> str:
    """Rows of work, columns of engines, and ours over the best peer where both have a figure."""
    found = medians(figures)
    names = sorted(found, key=lambda name: name != OURS)
    rows = list(dict.fromkeys(row for name in names for row in found[name]))
    lines = [
        "| tokens/s | " + " | ".join(names) + " | octavo / best peer |",
        "|---|" + "---:|" * (len(names) + 1),
    ]
    for row in rows:
        cells = [shown(found[name][row]) if row in found[name] else "–" for name in names]
        peers = [found[name][row] for name in names if name != OURS and row in found[name]]
        ours = found.get(OURS, {}).get(row)
        ratio = f"{ours / max(peers):.2f} ×" if ours and peers and max(peers) else "–"
        lines.append(f"| {row} | " + " | ".join(cells) + f" | {ratio} |")
    return "\n".join(lines)


def shown(value: float) -> str:
    """A figure as the table has it: three digits are enough."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def slo_lines(data: dict[str, Any]) -> str:
    """Per engine, the median share of requests of the open loop that met both limits."""
    shares: dict[str, list[float]] = {}
    for turn in data["turns"]:
        for row in turn.get("rows", ()):
            if "within_slo_percent" in row:
                shares.setdefault(turn["engine"], []).append(row["within_slo_percent"])
    work = data["workload"]
    told = ", ".join(f"{name} {statistics.median(values):.0f} %" for name, values in shares.items())
    return (
        f"Open loop ({work['num_requests']} requests, in {work['prompt_tokens']}, out "
        f"{work['output_tokens']}), within TTFT {work['slo_ttft_s']:g} s and TPOT "
        f"{1e3 * work['slo_tpot_s']:g} ms: {told}."
    )


def caption(data: dict[str, Any]) -> str:
    """Machine, model, workload and the machine's state: a figure means nothing without."""
    machine, work = data["machine"], data["workload"]
    turns = [turn for turn in data["turns"] if "rows" in turn]
    rounds = 1 + max((turn["round"] for turn in data["turns"]), default=0)
    states = [turn["state"] for turn in turns]
    ours: dict[str, Any] = next((turn["facts"] for turn in turns if turn["engine"] == OURS), {})
    barrier, read = (
        statistics.median(state[name] for state in states) if states else float("nan")
        for name in ("barrier_ns", "read_gb_per_s")
    )
    prefix = "fixed_" if data["kind"] == "http" else ""
    lengths = f"{work[prefix + 'prompt_tokens']} in / {work[prefix + 'output_tokens']} out"
    own = (
        f"; Octavo: {ours['fingerprint']}, {ours['heads']} heads, block size {ours['block_size']}, "
        f"token budget {ours['token_budget']}"
        if "fingerprint" in ours
        else ""
    )
    return (
        f"{data['date']}, {machine['cores']} cores ({machine['cpu']}), {work['threads']} threads, "
        f"{data['model']}, {lengths}; medians of {rounds} interleaved rounds{own}. "
        f"Machine then: barrier {barrier:,.0f} ns, read {read:.0f} GB/s."
    )


def drawing(data: dict[str, Any]) -> str:
    """The chart of one comparison."""
    found = medians(collect(data)[0])
    rows = list(dict.fromkeys(row for figures in found.values() for row in figures))
    return bars(f"{data['model']}: tokens per second ({data['date']})", rows, found).svg()


def replaced(readme: str, text: str) -> str:
    """``readme`` with ``text`` between its markers.

    Raises:
        SystemExit: a marker is missing.
    """
    head, start, rest = readme.partition(START)
    _, end, tail = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"README.md has no {START} … {END}")
    return f"{head}{START}\n{text}\n{END}{tail}"


if __name__ == "__main__":
    sys.exit(main())
