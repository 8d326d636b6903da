"""Tables and a chart from the figures that ``octavo bench memory --json`` stored."""

from __future__ import annotations

from typing import Any

from chart import stacked

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
    """The breakdown: one bar per workload and system."""
    rows = {
        f"{row['workload']}: {row['system']}": {legend: row[name] for name, legend in PARTS.items()}
        for row in data["rows"]
        if row["tokens"] != "absent"
    }
    title = "Percent of the KV pool by what it holds, while requests wait (virtual time)"
    return stacked(title, rows, list(PARTS.values()))
