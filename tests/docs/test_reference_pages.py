"""The pages that are generated from tables are the tables' own, and the tables are true."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.cli.main import build_parser
from octavo.cli.options import DEFAULT_REQUEST_TIMEOUT_S
from octavo.server.limits import PER_REQUEST, RESOURCES
from octavo.server.reference_pages import main, pages
from octavo.server.state import REQUEST_TIMEOUT_S

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_page_is_current(name: str) -> None:
    """If this fails: python -m octavo.server.reference_pages docs"""
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name]


def test_the_command_writes_every_page(tmp_path: Path) -> None:
    main(str(tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == pages()


def test_tables_have_the_same_number_of_cells() -> None:
    for text in pages().values():
        counts = []
        for line in text.splitlines():
            if line.startswith("|"):
                counts.append(line.replace("\\|", "").count("|"))
            else:
                assert len(set(counts)) <= 1
                counts = []


def test_options_of_limits_exist() -> None:
    options = {limit.option for limit in (*RESOURCES, *PER_REQUEST)} - {""}
    argv = [part for option in sorted(options) for part in (option, "77")]
    arguments = build_parser().parse_args(["serve", *argv])
    assert arguments.request_timeout == 77
    assert arguments.max_num_seqs == 77


def test_the_deadlines_default_is_one() -> None:
    assert build_parser().parse_args(["serve"]).request_timeout == REQUEST_TIMEOUT_S
    assert DEFAULT_REQUEST_TIMEOUT_S == REQUEST_TIMEOUT_S
