"""What a streamed token costs the API process: processor time, all its threads, set-up included.

python benchmarks/http_cost.py [--streams 32] [--tokens 250] [--rounds 3] [--api chat]

The engine is a fake one (a step every 20 ms gives each stream a token); sockets, processes and
HTTP are real, and this client runs beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from octavo.bench.http_stream import Endpoint, Exchange, HttpClient
from octavo.testing.processes import ServerProcess, fake_serve_argv, running_server
from octavo.weights.hub import pull

STEP_S = 0.02
ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello there."}]}),
    "completions": ("/v1/completions", {"prompt": "Hello there."}),
}


def processor_s(pid: int) -> tuple[float, float]:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / ticks, int(fields[12]) / ticks


async def stream_all(url: str, api: str, *, streams: int, tokens: int) -> list[Exchange]:
    """Run the streams together, to their ends."""
    http = HttpClient(Endpoint.parse(url), headers={}, timeout_s=300)
    path, ask = ASKS[api]
    bodies = [
        {**ask, "max_tokens": tokens, "ignore_eos": True, "stream": True, "seed": seed}
        for seed in range(streams)
    ]
    return await asyncio.gather(*(http.post(path, json.dumps(body).encode()) for body in bodies))


def measure(server: ServerProcess, api: str, *, streams: int, tokens: int) -> dict[str, float]:
    """One round."""
    pid = server.children["api_process"]
    user, system = processor_s(pid)
    started = time.monotonic()
    exchanges = asyncio.run(stream_all(server.url, api, streams=streams, tokens=tokens))
    seconds = time.monotonic() - started
    assert all(one.status == 200 and not one.fault for one in exchanges)
    now_user, now_system = processor_s(pid)
    per_token = 1e6 / (streams * tokens)
    return {
        "user_us": round((now_user - user) * per_token, 1),
        "system_us": round((now_system - system) * per_token, 1),
        "total_us": round((now_user + now_system - user - system) * per_token, 1),
        "events_per_token": round(sum(len(one.events) for one in exchanges) / streams / tokens, 3),
        "seconds": round(seconds, 2),
    }


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--api", choices=ASKS, action="append")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        blocks = options.streams * (options.tokens // 16 + 4)
        argv = fake_serve_argv(folder, pull("smollm2"), step_s=STEP_S, num_blocks=blocks)
        with running_server(folder, argv) as server:
            server.wait_ready()
            rounds = [
                {"api": api} | measure(server, api, streams=options.streams, tokens=options.tokens)
                for _ in range(options.rounds)
                for api in options.api or ASKS
            ]
    print(json.dumps({"streams": options.streams, "rounds": rounds}, indent=1))


if __name__ == "__main__":
    main()
