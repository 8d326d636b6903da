"""Work that would stall the event loop, done on one helper thread; small work stays here."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

SMALL = 16 << 10
LARGE = 128 << 10

_Result = TypeVar("_Result")


class TextThread:
    """Owns the thread. Small work joins the queue too while large work holds its locks."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="text")
        self._pending = 0
        self._untrimmed = False
        self._trim = _heap_trimmer()

    async def run(self, size: int, work: Callable[[], _Result]) -> _Result:
        """Run ``work``; ``size`` (bytes or characters of its input) decides where."""
        if size <= SMALL and not self._pending:
            return work()
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._pending -= 1
            self._untrimmed = self._untrimmed or size > LARGE
            if self._untrimmed and not self._pending:
                # Tokenising a huge text takes a hundred times its size for a moment; without
                # this the process would keep those pages for ever.
                self._untrimmed = False
                self._executor.submit(self._trim)


def _heap_trimmer() -> Callable[[], object]:
    """glibc's ``malloc_trim``; nothing where the C library has none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return lambda: None
    return lambda: trim(0)
