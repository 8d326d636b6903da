"""One line that is redrawn while something is fetched; silent when nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Mapping

MIB = 1 << 20
BAR_CHARS = 24


class ProgressLine:
    """Draws on standard error when that is a terminal."""

    def __init__(self) -> None:
        self._drawn = False
        self._licence_said = False

    def show(self, status: Mapping[str, object]) -> None:
        """Draw: the fields of ``PullProgress``."""
        if not self._licence_said:
            self._licence_said = True
            print(f"licence of the model: {status['licence']}", file=sys.stderr, flush=True)
        if not sys.stderr.isatty():
            return
        done, total = status["done_bytes"], status["total_bytes"]
        assert isinstance(done, int), "bytes"
        assert isinstance(total, int), "bytes"
        self._drawn = True
        print(f"\r\x1b[K{status['stage']} {_bar(done, total)}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line, so that text can follow."""
        if self._drawn:
            self._drawn = False
            print(file=sys.stderr, flush=True)


def _bar(done: int, total: int) -> str:
    if total <= 0:
        return f"{done / MIB:.1f} MiB"
    share = min(1.0, done / total)
    filled = round(share * BAR_CHARS)
    bar = "#" * filled + "." * (BAR_CHARS - filled)
    return f"[{bar}] {share:4.0%} of {total / MIB:.1f} MiB"
