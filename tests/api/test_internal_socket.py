"""Foreign bytes on the engine's own socket, of a real server: nobody else notices."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import msgspec
import zmq

from octavo.cluster.messages import Hello, Lease, SubmitMessage
from octavo.cluster.transport import engine_address
from octavo.cluster.wire import MAX_FRAME_BYTES, encode
from octavo.core.request import Request, Submit
from octavo.core.sampling_params import SamplingParams
from octavo.testing.processes import ServerProcess, fake_serve_argv

ENGINE = "fake_engine_process"
ASK = {"prompt": [5, 6], "seed": 3, "max_tokens": 1500, "ignore_eos": True}


def server_argv(folder: Path, model: Path) -> list[str]:
    return fake_serve_argv(folder, model, step_s=0.003, num_blocks=256)


def address_of(server: ServerProcess) -> str:
    """Where the engine listens: only its own user can know."""
    argv = Path(f"/proc/{server.children[ENGINE]}/cmdline").read_bytes().split(b"\0")
    return engine_address(Path(argv[argv.index(b"--runtime-dir") + 1].decode()))


def valid_submit(epoch: int) -> bytes:
    request = Request(
        request_id="foreign", prompt_token_ids=(1, 2, 3), sampling=SamplingParams(seed=1)
    )
    return encode(SubmitMessage(client_epoch=epoch, submit=Submit(request=request)))


def frames(rng: random.Random) -> list[list[bytes]]:
    """Messages of one or more parts: random, truncated, replayed, old, oversized."""
    valid = [encode(Hello(client_epoch=9)), valid_submit(9), encode(Lease(client_epoch=9))]
    found: list[list[bytes]] = [[rng.randbytes(rng.randint(0, 200))] for _ in range(50)]
    found += [[frame[: rng.randint(0, len(frame) - 1)]] for frame in valid * 10]
    # Twice the same, of somebody who never said hello, and of an epoch that is not theirs.
    found += [[frame] for frame in (valid[1], valid[1], valid_submit(8), *valid, *valid)]
    found += [[encode(Hello(client_epoch=9, version=1))], [b"a", b"b"], [b""] * 40]
    found += [[msgspec.msgpack.encode({"type": "Unknown"})], [b"\x91" * 100_000]]
    rng.shuffle(found)
    return found


def attack(address: str, seed: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        for parts in frames(random.Random(seed)):
            # A frame that is refused costs its sender the connection's standing: a new one each.
            dealer = context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.LINGER, 500)
            dealer.connect(address)
            dealer.send_multipart(parts)
            dealer.close()
    finally:
        context.term()


def attack_without_zmq(address: str) -> None:
    """Bytes that are no ZMTP, and a connection that says nothing."""
    path = address.removeprefix("ipc://")
    for said in (b"", b"GET / HTTP/1.1\r\n\r\n", random.Random(1).randbytes(5000), b"\xff" * 64):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(said)


def attack_with_too_much(address: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 200)
    dealer.connect(address)
    dealer.send(b"\0" * (MAX_FRAME_BYTES + 1))
    dealer.close()
    context.term()


def rss_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


def test_foreign_frames_cost_nobody_else(server: ServerProcess) -> None:
    with server.client() as http:
        calm = http.post("/v1/completions", json=ASK).json()["choices"][0]["text"]
        children, before = server.children, rss_kib(server.children[ENGINE])
        address = address_of(server)
        with http.stream("POST", "/v1/completions", json={**ASK, "stream": True}) as response:
            lines = response.iter_lines()
            first = next(lines)
            for seed in range(3):
                attack(address, seed)
            attack_without_zmq(address)
            attack_with_too_much(address)
            events = [first, *filter(None, lines)]
    assert events[-1] == "data: [DONE]"
    chunks = [msgspec.json.decode(event[6:]) for event in events[:-1]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == calm
    assert server.children == children
    assert rss_kib(children[ENGINE]) - before < 32 * 1024
    assert server.metric("octavo_engine_restarts_total") == 0
    assert server.metric("octavo_engine_invariant_violations_total") == 0
    assert server.metric("octavo_orphan_blocks") == 0
    # Said by name where an operator looks, and no trace of it.
    assert "a peer is dropped: malformed frame" in server.output
    assert "Traceback" not in server.output
