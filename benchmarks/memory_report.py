"""Tables and charts from the figures that ``octavo bench memory --json`` stored."""

from __future__ import annotations

from typing import Any

from chart import Drawing, bars, stacked

# Column of the breakdown → what the legend says.
PARTS = {
    "tokens": "token states",
    "later": "reserved or promised for later",
    "internal": "lost inside what is held",
    "external": "free, and of no use to who waits",
}


def section(data: dict[str, Any], *, chart: str) -> str:
    """One run: its workload, every table, its chart."""
    work = data["workload"]
    caption = (
        f"{work['num_requests']} requests per replay, trace {work['trace']}, pool of "
        f"{work['pool_tokens']} tokens, context {work['context']}, virtual clock "
        f"({data['facts']['step_time_s']}), seed {work['seed']}."
    )
    tables = {"Percent of the KV pool, while requests wait": data["rows"], **data["tables"]}
    parts = [f"**{title}**\n\n{table(rows)}" for title, rows in tables.items()]
    return "\n\n".join([caption, *parts, f"![where KV memory goes]({chart})"])


def table(rows: list[dict[str, Any]]) -> str:
    """Rows with equal keys as Markdown."""
    names = list(rows[0]) if rows else ["no rows"]
    lines = [names, ["---"] * len(names), *([str(row[name]) for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def drawing(data: dict[str, Any]) -> str:
    """Every table as a chart, one below the other."""
    tables = data["tables"]
    return _breakdown(data["rows"]).svg(
        _sharing(tables["sharing by branches"]),
        _measures(
            "Block sizes: percent of held slots without a token, percent of blocks saved (n = 2)",
            tables["block size"],
            keys=["block_size"],
            names={"tail_waste_percent": "tail waste", "saved_percent": "saved by sharing"},
        ),
        _measures(
            "Prompts that share so many first tokens, prefix cache off and on",
            tables["shared prefix"],
            keys=["prefix_tokens", "prefix_cache"],
            names={"requests_per_s": "requests/s"},
        ),
        _policies(tables["admission policy"]),
    )


def _breakdown(rows: list[dict[str, Any]]) -> Drawing:
    """One bar per system; a workload that nobody waited in is left out."""
    groups: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row["tokens"] != "absent":
            shares = {legend: row[name] for name, legend in PARTS.items()}
            groups.setdefault(row["workload"], {})[row["system"]] = shares
    title = "Percent of the KV pool by what it holds, while requests wait (virtual time)"
    notes = {row["system"]: f" (paper {row['paper_tokens']})" for row in rows}
    return stacked(title, groups, list(PARTS.values()), notes)


def _sharing(rows: list[dict[str, Any]]) -> Drawing:
    """The paper gives the ends of a range, which grow with n: those of n = 2 and n = 6."""
    series: dict[str, dict[str, float]] = {}
    for row in rows:
        group = _group(row)
        series.setdefault(row["kind"], {})[group] = row["saved_percent"]
        ends = {2: 0, 6: 1}
        if row["paper_n_2_to_6"] != "absent" and row["n"] in ends:
            end = float(row["paper_n_2_to_6"].split("-")[ends[row["n"]]])
            series.setdefault(f"{row['kind']}, the paper's", {})[group] = end
    groups = list(dict.fromkeys(map(_group, rows)))
    title = "Percent of blocks saved by n parallel branches, and by a beam of n"
    return bars(title, groups, dict(sorted(series.items())), full=100, digits=1)


def _group(row: dict[str, Any]) -> str:
    """The name of a trace's file is longer than the margin."""
    return f"{row['workload'] if len(row['workload']) <= 16 else 'trace'}, n = {row['n']}"


def _measures(
    title: str, rows: list[dict[str, Any]], *, keys: list[str], names: dict[str, str]
) -> Drawing:
    """A group per row, named by its ``keys``, a bar per column of ``names``, on one scale."""
    labelled = {" ".join(str(row[key]) for key in keys): row for row in rows}
    series = {
        legend: {label: row[name] for label, row in labelled.items()}
        for name, legend in names.items()
    }
    largest = max((value for held in series.values() for value in held.values()), default=0.0)
    return bars(title, list(labelled), series, full=largest, digits=2)


def _policies(rows: list[dict[str, Any]]) -> Drawing:
    """A group per measure, each on its own scale, and a bar per policy."""
    measures = {
        "goodput_per_s": "goodput, requests/s",
        "requests_per_s": "requests/s",
        "preemptions": "preemptions",
        "recompute_tax_percent": "recompute tax, %",
    }
    series = {
        row["policy"]: {legend: row[name] for name, legend in measures.items()} for row in rows
    }
    return bars("Admission policies", list(measures.values()), series, digits=2)
