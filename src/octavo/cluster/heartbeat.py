"""Tells frontends how far a long step is while it runs: readiness comes from progress (P6).

A step holds the engine's thread, so a second thread reads the runner's work counter and has it
sent. The two take turns with the socket: the beat's thread may use it only while a step runs, the
engine's thread only while none does, and a lock lies between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

BEAT_S = 0.25


class Heartbeat:
    """Owns the thread. ``progress`` is read and ``send`` called on it, only during a step."""

    def __init__(self, progress: Callable[[], int], send: Callable[[int], None]) -> None:
        self._progress = progress
        self._send = send
        self._lock = threading.Lock()
        self._awake = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._num_steps = 0
        self._in_step = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, so that it keeps nothing of the engine alive."""
        self._ending.set()
        self._awake.set()
        self._thread.join()

    def __enter__(self) -> None:
        """A step begins: hand the socket over until it ends.

        No lock: the beat's thread does not touch the socket before it sees both, in this order.
        """
        self._num_steps += 1
        self._in_step = True
        if not self._awake.is_set():
            self._awake.set()

    def __exit__(self, *_: object) -> None:
        """The step has ended, well or not."""
        with self._lock:
            self._in_step = False

    def rest(self) -> None:
        """There is no work: the thread waits without using the CPU."""
        self._awake.clear()

    def _run(self) -> None:
        seen = -1
        while True:
            self._awake.wait()
            if self._ending.wait(BEAT_S):
                return
            with self._lock:
                # Short steps report by themselves: only one that lasts is spoken for.
                if self._in_step and self._num_steps == seen:
                    self._send(self._progress())
                seen = self._num_steps
