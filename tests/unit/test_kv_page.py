"""``/debug/kv`` and ``octavo kv``: what is said of each block, and how it is drawn."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import pytest
from rich.console import Console

from octavo.cli.kv import MAP_CHARS, MAP_LINES, block_map, read_page, view
from octavo.cli.main import main
from octavo.core.sampling_params import SamplingParams
from octavo.errors import ConfigError, UnavailableError
from octavo.server.kv_page import BLOCKS_PER_PIECE, kv_page
from octavo.testing import make_info
from octavo.testing.engine_driver import EngineDriver, make_request


def driver_with(num_blocks: int = 12, **info: Any) -> EngineDriver:
    """Two branches that share a whole block, their own tails, and a prefix that nobody holds."""
    driver = EngineDriver(make_info(block_size=4, num_blocks=num_blocks, **info))
    driver.submit(make_request("gone", [9] * 8, sampling=SamplingParams(max_tokens=1, seed=1)))
    driver.run()
    sampling = SamplingParams(n=2, max_tokens=8, seed=1)
    driver.submit(make_request("r", [1, 2, 3, 4, 5], sampling=sampling))
    driver.step()
    driver.step()
    return driver


def pieces_of(driver: EngineDriver) -> list[bytes]:
    """As if the snapshot had crossed the engine's socket."""
    body = {"snapshot": driver.core.debug_kv(), "snapshot_s": 1e-5}
    return list(kv_page(msgspec.msgpack.decode(msgspec.msgpack.encode(body))))


def page_of(driver: EngineDriver) -> Any:
    return json.loads(b"".join(pieces_of(driver)))


def test_every_block_has_a_state_owners_fill_and_ref_count() -> None:
    driver = driver_with()
    lease = driver.core.kv.lease(driver.core.scheduler.running[0].kv)
    page = page_of(driver)
    (group,) = page["groups"]
    assert [row["block"] for row in group["blocks"]] == list(range(12))
    assert group["states"] == {"cached": 2, "owned": 3, "free": 7}
    by_owners = {tuple(row["owners"]): row for row in group["blocks"] if row["owners"]}
    assert set(by_owners) == {("r/0", "r/1"), ("r/0",), ("r/1",)}
    shared = by_owners["r/0", "r/1"]
    leases = {owners: row["leases"] for owners, row in by_owners.items()}
    assert sorted(leases.values()) == [0, 1, 1]
    assert (shared["ref_count"], shared["fill"], shared["indexed"]) == (3, 4, True)
    assert {row["fill"] for owners, row in by_owners.items() if len(owners) == 1} == {2}
    assert [row["fill"] for row in group["blocks"] if row["state"] == "cached"] == [4, 4]
    assert page["requests"]["r"]["shared"] == page["tenants"]["default"]["shared"] > 0
    assert sum(page["ledger"][term] for term in ("used", "shared", "tail_waste")) == 3 * 32
    for seq in list(driver.core.scheduler.running):
        driver.core.scheduler.finish(seq)
    (group,) = page_of(driver)["groups"]
    draining = [row for row in group["blocks"] if row["state"] == "draining"]
    assert [(row["owners"], row["ref_count"], row["leases"]) for row in draining] == [
        ([], 1, 1)
    ] * 2
    assert sorted(row["fill"] for row in draining) == [2, 4]
    driver.core.kv.end_lease(lease)


def test_a_large_pool_goes_out_in_small_pieces() -> None:
    driver = driver_with(num_blocks=4 * BLOCKS_PER_PIECE + 1, windows=(None, 5))
    pieces = pieces_of(driver)
    assert max(map(len, pieces)) < 200 * BLOCKS_PER_PIECE
    page = json.loads(b"".join(pieces))
    assert [group["window"] for group in page["groups"]] == [None, 5]
    assert [len(group["blocks"]) for group in page["groups"]] == [4 * BLOCKS_PER_PIECE + 1] * 2


# -- the terminal ------------------------------------------------------------------------------


def drawn(page: Any) -> str:
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(view(page))
    return capture.get()


def test_the_view_names_states_blocks_tenants_and_requests() -> None:
    text = drawn(page_of(driver_with()))
    for words in (
        "12 blocks x 4 tokens",
        "0 orphans",
        "cached cold",
        "tail waste",
        "default",
        "r ",
    ):
        assert words in text
    assert "s" in text.partition("draining )\n")[2].splitlines()[0]
    letters = text.partition("draining )\n")[2].splitlines()[0].strip()
    assert {letter: letters.count(letter) for letter in "socd."} == {
        "s": 1, "o": 2, "c": 2, "d": 0, ".": 7
    }  # fmt: skip


def test_many_requests_and_windows_still_fit() -> None:
    page = page_of(driver_with(windows=(None, 5)))
    page["requests"] = {f"r{index}": page["requests"]["r"] for index in range(20)}
    text = drawn(page)
    assert "... and 4 more" in text
    assert "window 5" in text


def test_a_map_of_many_blocks_keeps_its_size() -> None:
    block = {"state": "owned", "ref_count": 1, "leases": 0}
    blocks = [block] * 3 * MAP_CHARS * MAP_LINES
    text = block_map(blocks).plain
    assert "(3 per letter" in text
    assert text.count("o" * MAP_CHARS) == MAP_LINES


@contextmanager
def serving(status: int, body: bytes) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A server that always answers the same; yields its URL and what it was asked."""
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["authorization"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    body = b"".join(pieces_of(driver_with()))
    with serving(200, body) as (url, asked):
        assert main(["kv", "--url", f"{url}/v1/", "--json", "--api-key", "k"]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(body)
        # Standard output is no terminal: one plain view.
        assert main(["kv", "--url", url]) == 0
    assert asked == [("/debug/kv", "Bearer k"), ("/debug/kv", None)]
    text = capsys.readouterr().out
    assert "12 blocks x 4 tokens" in text
    assert "\x1b" not in text


def test_a_terminal_is_drawn_anew_until_interrupted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(Console, "is_terminal", True)
    body = b"".join(pieces_of(driver_with()))
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("octavo.cli.kv.time.sleep", nap)
    with serving(200, body) as (url, asked):
        assert main(["kv", "--url", url, "--interval", "0.5"]) == 130
    assert naps == [0.5] * 3
    assert len(asked) == 3
    assert "octavo: interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [(401, ConfigError, "--api-key"), (403, ConfigError, "tenant admin"),
     (503, UnavailableError, "503"), (200, UnavailableError, "no Octavo server")],
)  # fmt: skip
def test_bad_answers_are_named(status: int, error: type[Exception], words: str) -> None:
    with serving(status, b"<html>") as (url, _), pytest.raises(error, match=words):
        read_page(url, "")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://"])
def test_bad_urls_are_named(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        read_page(url, "")


@pytest.mark.parametrize(("url", "key"), [("http://127.0.0.1:9", ""), ("http://x:y", ""),
                                          ("http://127.0.0.1:9", "a\nb")])  # fmt: skip
def test_nobody_there_is_named(url: str, key: str) -> None:
    with pytest.raises(UnavailableError, match="no server answers") as told:
        read_page(url, key)
    assert "octavo serve" in told.value.message
    assert "Errno" not in told.value.message
