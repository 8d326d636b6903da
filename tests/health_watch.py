"""How long a server lets another client wait, measured in a process of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any

from octavo.bench.http_stream import Endpoint

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
PAUSE_S = 0.005


def watch_health(url: str, started: Event, stop: Event, results: Any) -> None:
    """In a process of its own: how long /health took, and how late this process itself woke."""
    endpoint = Endpoint.parse(url)
    answers, own = [], []
    while not stop.is_set():
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection((endpoint.host, endpoint.port)) as connection,
        ):
            while not stop.is_set():
                answers.append(ask_health(connection))
                started.set()
                start = time.monotonic()
                time.sleep(PAUSE_S)
                own.append(time.monotonic() - start - PAUSE_S)
    results.put((answers, own))


def ask_health(connection: socket.socket) -> float:
    start, answer = time.monotonic(), b""
    connection.sendall(HEALTH)
    while not answer.endswith(b'"alive"}'):
        data = connection.recv(4096)
        if not data:
            raise ConnectionResetError
        answer += data
    return time.monotonic() - start


@contextmanager
def watched(url: str) -> Iterator[dict[str, list[float]]]:
    """Afterwards "health" holds the seconds of each answer, "watcher" how late the watcher woke."""
    context = multiprocessing.get_context("spawn")
    started, stop, results = context.Event(), context.Event(), context.Queue()
    watcher = context.Process(target=watch_health, args=(url, started, stop, results))
    watcher.start()
    assert started.wait(60), "the watcher did not start"
    found: dict[str, list[float]] = {}
    yield found
    stop.set()
    found["health"], found["watcher"] = results.get(timeout=30)
    watcher.join(30)


def percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[len(values) * percent // 100]
