"""``octavo kv``: who owns which block of a running server, drawn anew every second."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from octavo.cli.progress import MIB
from octavo.environment import environment
from octavo.errors import ConfigError, UnavailableError

TIMEOUT_S = 10.0
MAX_ROWS = 16
BAR_CHARS = 30
MAP_CHARS, MAP_LINES = 96, 4

# Terms of the ledger in the order in which they are drawn, and their colours.
TERMS = {
    "used": "green", "shared": "cyan", "provisional": "yellow", "tail_waste": "red",
    "padding": "red", "promised": "magenta", "cached_cold": "blue", "draining": "yellow",
    "free": "dim",
}  # fmt: skip
HELD = ("used", "shared", "provisional", "tail_waste", "promised", "cached_cold")
# State → its letter on the map and its colour; "shared" are owned blocks of several tables.
MAP = {
    "free": (".", "dim"), "owned": ("o", "green"), "shared": ("s", "cyan"),
    "cached": ("c", "blue"), "draining": ("d", "yellow"),
}  # fmt: skip

Page = Mapping[str, Any]


def kv(arguments: argparse.Namespace) -> int:
    """Show the pool of ``--url`` until interrupted; once with ``--once`` or without a terminal.

    Raises:
        OctavoError: the address is none, or no server of ours answers there.
    """
    key = arguments.api_key or environment("OCTAVO_API_KEY")
    if arguments.json:
        print(fetch(arguments.url, key).decode())
        return 0
    console = Console(highlight=False)
    if arguments.once or not console.is_terminal:
        console.print(view(read_page(arguments.url, key)))
        return 0
    with Live(view(read_page(arguments.url, key)), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(arguments.interval)
            live.update(view(read_page(arguments.url, key)), refresh=True)


def read_page(url: str, key: str) -> Page:
    """``/debug/kv``, parsed.

    Raises:
        OctavoError: see ``fetch``, or the answer is of something else.
    """
    try:
        return msgspec.json.decode(fetch(url, key), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UnavailableError(f"{url} is no Octavo server: {error}") from error


def fetch(url: str, key: str) -> bytes:
    """The text of ``/debug/kv``.

    Raises:
        ConfigError: ``url`` is no HTTP address.
        UnavailableError: nobody answers, or not with this page.
    """
    parts = urlsplit(url)
    makers = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    if parts.scheme not in makers or not parts.netloc:
        raise ConfigError(f"--url is '{url}'; write for example http://127.0.0.1:8000")
    try:
        with contextlib.closing(
            makers[parts.scheme](parts.netloc, timeout=TIMEOUT_S)
        ) as connection:
            path = parts.path.rstrip("/").removesuffix("/v1") + "/debug/kv"
            headers = {"authorization": f"Bearer {key}"} if key else {}
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body: bytes = response.read()
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UnavailableError(
            f"no server answers at {url} ({reason.lower()}); start one with octavo serve, or give "
            "its --url"
        ) from error
    if response.status == http.client.UNAUTHORIZED:
        raise ConfigError("the server wants a key; give --api-key or set OCTAVO_API_KEY")
    if response.status == http.client.FORBIDDEN:
        raise ConfigError("this shows all tenants; the key must be one of the tenant admin")
    if response.status != http.client.OK:
        raise UnavailableError(f"{url} answers {response.status} to GET /debug/kv")
    return body


# -- the view --------------------------------------------------------------------------------


def view(page: Page) -> RenderableType:
    """States of the pool, the map of its blocks, tenants and requests by what they hold."""
    ledger = page["ledger"]
    blocks = sum(group["num_blocks"] for group in page["groups"])
    head = (
        f"{blocks} blocks x {page['block_size']} tokens, {_mib(ledger['pool'])} MiB"
        f" | {ledger['orphan_blocks']} orphans | {page['prefix_roots']} prefix roots"
        f" | snapshot {1e6 * page['snapshot_s']:.0f} us"
    )
    parts: list[RenderableType] = [head, _states(ledger)]
    for group in page["groups"]:
        window = "" if group["window"] is None else f"window {group['window']} "
        parts.append(Text(window) + block_map(group["blocks"]))
    parts.append(_holdings("tenant", page["tenants"]))
    parts.append(_holdings("request", page["requests"]))
    return Group(*parts)


def _states(ledger: Mapping[str, int]) -> Table:
    table = _table("state", "MiB", "share", "")
    for term, colour in TERMS.items():
        share = ledger[term] / ledger["pool"]
        bar = "#" * round(share * BAR_CHARS) or ("|" if share else "")
        name = Text(term.replace("_", " "), style=colour)
        table.add_row(name, _mib(ledger[term]), f"{share:.1%}", Text(bar, style=colour))
    return table


def block_map(blocks: Sequence[Mapping[str, Any]]) -> Text:
    """A letter per block, or per run of blocks where there are too many: what most of it is."""
    run = -(-len(blocks) // (MAP_CHARS * MAP_LINES))
    text = Text(f"map ({run} per letter: " if run > 1 else "map (")
    for state, (letter, colour) in MAP.items():
        text.append(f"{letter} {state} ", style=colour)
    text.append(")")
    for index, start in enumerate(range(0, len(blocks), run)):
        most = Counter(map(_map_state, blocks[start : start + run])).most_common(1)[0][0]
        text.append("\n" if index % MAP_CHARS == 0 else "")
        text.append(*MAP[most])
    return text


def _map_state(block: Mapping[str, Any]) -> str:
    is_shared = block["state"] == "owned" and block["ref_count"] - block["leases"] > 1
    return "shared" if is_shared else str(block["state"])


def _holdings(title: str, rows: Mapping[str, Mapping[str, int]]) -> Table:
    """Who holds most comes first; the rest is one line."""
    table = _table(title, *(f"{term.replace('_', ' ')} MiB" for term in HELD))
    ordered = sorted(rows.items(), key=lambda row: (-sum(row[1].values()), row[0]))
    for name, terms in ordered[:MAX_ROWS]:
        table.add_row(Text(name), *(_mib(terms[term]) for term in HELD))
    if len(ordered) > MAX_ROWS:
        table.add_row(f"... and {len(ordered) - MAX_ROWS} more")
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index in (0, 3 * (not columns[-1])) else "right")
    return table


def _mib(size: int) -> str:
    return f"{size / MIB:.2f}"
