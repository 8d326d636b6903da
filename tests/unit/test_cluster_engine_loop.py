from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from octavo.cluster.engine_host import EngineHost
from octavo.cluster.engine_loop import LEASE_S, EngineLoop
from octavo.cluster.engine_process import welcome_of
from octavo.cluster.messages import (
    AbortMessage,
    Beat,
    Control,
    ControlReply,
    FrontendMessage,
    Hello,
    Lease,
    Outputs,
    Stats,
    StopBranchMessage,
    SubmitMessage,
    Welcome,
)
from octavo.cluster.wire import (
    WireError,
    decode_engine_message,
    decode_frontend_message,
    encode,
)
from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.request import FinishReason, Request, Submit
from octavo.core.sampling_params import SamplingParams
from octavo.engine import EngineCore
from octavo.testing.fake_runner import FakeRunner, make_info


@dataclass
class Wire:
    inbox: list[tuple[bytes, bytes]] = field(default_factory=list)
    sent: list[tuple[bytes, Any]] = field(default_factory=list)
    timeouts: list[float | None] = field(default_factory=list)
    dead: set[bytes] = field(default_factory=set)

    def receive(self, timeout_s: float | None) -> list[tuple[bytes, bytes]]:
        self.timeouts.append(timeout_s)
        frames, self.inbox = self.inbox, []
        return frames

    def send(self, peer: bytes, frame: bytes) -> bool:
        if peer in self.dead:
            return False
        self.sent.append((peer, decode_engine_message(frame)))
        return True

    def close(self) -> None:
        pass


class Room:
    def __init__(self) -> None:
        self.wire = Wire()
        self.now = 100.0
        info = make_info()
        self.runner = FakeRunner(info)
        self.core = EngineCore(self.runner, SchedulerConfig(), CacheConfig(), epoch=7)
        self.loop = EngineLoop(
            self.core,
            self.wire,
            welcome_of(self.core, info, SchedulerConfig()),
            host=EngineHost(self.core, progress=lambda: self.core.progress),
            clock=lambda: self.now,
        )

    def say(self, message: FrontendMessage, peer: bytes = b"a") -> None:
        self.wire.inbox.append((peer, encode(message)))
        self.loop.run_once()

    def hello(self, peer: bytes = b"a", epoch: int = 1) -> None:
        self.say(Hello(client_epoch=epoch), peer)

    def got(self, kind: type, peer: bytes = b"a") -> list[Any]:
        return [m for to, m in self.wire.sent if to == peer and isinstance(m, kind)]

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.loop.run_once()


def submit(name: str = "r", *, epoch: int = 1, **sampling: Any) -> SubmitMessage:
    options = {"max_tokens": 400, "seed": 1, **sampling}
    request = Request(
        request_id=name, prompt_token_ids=(1, 2, 3), sampling=SamplingParams(**options)
    )
    return SubmitMessage(client_epoch=epoch, submit=Submit(request=request))


def test_hello_is_welcomed_and_another_protocol_is_not() -> None:
    room = Room()
    room.hello()
    assert room.got(Welcome)[0].engine_epoch == 7
    assert room.got(Stats)
    room.say(Hello(client_epoch=2, version=99), b"b")
    assert room.got(Welcome, b"b") == []


def test_idle_is_a_wait_without_end() -> None:
    room = Room()
    room.hello()
    room.say(submit(max_tokens=2))
    room.turns(5)
    assert room.wire.timeouts[-1] is None
    assert room.got(Stats)[-1].num_running == 0
    room.wire.timeouts.clear()
    room.say(submit("s"))
    room.turns(2)
    assert room.wire.timeouts[-1] == 0.0


def test_the_heartbeat_rests_from_the_turn_of_the_last_step() -> None:
    room = Room()
    room.hello()
    room.say(submit(max_tokens=2))
    while room.core.has_work():
        assert room.loop._heartbeat._awake.is_set()
        room.loop.run_once()
    assert not room.loop._heartbeat._awake.is_set()


def test_strangers_are_not_served() -> None:
    room = Room()
    room.say(submit())
    room.hello()
    room.say(submit(epoch=5))
    room.turns(3)
    assert not room.core.requests.states


def test_only_the_owner_may_cancel_or_stop() -> None:
    room = Room()
    room.hello(b"a", 1)
    room.hello(b"b", 2)
    room.say(submit(), b"a")
    room.say(AbortMessage(client_epoch=2, request_ids=["r"]), b"b")
    room.say(StopBranchMessage(client_epoch=2, request_id="r", branch=0), b"b")
    room.say(submit(epoch=2), b"b")
    room.turns(2)
    assert "r" in room.core.requests.states
    assert room.got(Outputs, b"b")[-1].outputs[0].error == "the request id is in use"
    room.say(AbortMessage(client_epoch=1, request_ids=["r", "unknown"]), b"a")
    assert not room.core.requests.states


def test_a_silent_frontend_loses_its_requests_within_the_lease() -> None:
    room = Room()
    room.hello(b"a", 1)
    room.hello(b"b", 2)
    room.say(submit("ra"), b"a")
    room.say(submit("rb", epoch=2), b"b")
    for _ in range(5):
        room.now += LEASE_S / 4
        room.say(Lease(client_epoch=2), b"b")
    assert list(room.core.requests.states) == ["rb"]
    last = room.got(Outputs)[-1].outputs[0]
    assert (last.request_id, last.finish_reason) == ("ra", FinishReason.ABORT)
    assert all(pool.num_free for pool in room.core.kv.pools)


def test_leases_that_waited_out_a_long_step_count() -> None:
    room = Room()
    room.hello()
    room.say(submit())
    room.now += 10 * LEASE_S
    room.say(Lease(client_epoch=1))
    assert "r" in room.core.requests.states


def test_an_unreachable_frontend_loses_its_requests_at_once() -> None:
    room = Room()
    room.hello()
    room.say(submit())
    room.wire.dead.add(b"a")
    room.turns(3)
    assert not room.core.requests.states


def test_a_new_connection_of_the_same_frontend_replaces_the_old() -> None:
    room = Room()
    room.hello(b"a", 1)
    room.say(submit())
    room.hello(b"b", 1)
    assert not room.core.requests.states
    room.say(submit(), b"b")
    assert "r" in room.core.requests.states


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_token_ids": ()},
        {"prompt_token_ids": (1, -1)},
        {"prompt_token_ids": (1000,)},
        {"sampling": SamplingParams(logit_bias=((5000, 1.0),))},
        {"adapter": "none such"},
    ],
)
def test_impossible_requests_are_refused_not_run(change: dict[str, Any]) -> None:
    room = Room()
    room.hello()
    message = submit()
    request = replace(message.submit.request, **change)
    room.say(SubmitMessage(client_epoch=1, submit=Submit(request=request)))
    room.turns(2)
    outputs = [output for message in room.got(Outputs) for output in message.branch_outputs()]
    assert outputs[0].finish_reason is FinishReason.ERROR
    assert outputs[0].error_code == "invalid_request_error"
    assert not room.core.requests.states


@pytest.mark.parametrize(
    ("name", "value"), [("n", 0), ("n", 1000), ("temperature", -1.0), ("temperature", float("nan"))]
)
def test_impossible_sampling_is_a_malformed_frame(name: str, value: float) -> None:
    room = Room()
    room.hello()
    frame = msgspec.msgpack.decode(encode(submit()))
    frame["submit"]["request"]["sampling"][name] = value
    room.wire.inbox.append((b"a", msgspec.msgpack.encode(frame)))
    room.loop.run_once()
    assert not room.core.requests.states
    with pytest.raises(WireError, match=name):
        decode_frontend_message(msgspec.msgpack.encode(frame))


def test_tokens_to_resume_from_are_checked_too() -> None:
    room = Room()
    room.hello()
    request = submit().submit.request
    bad = Submit(request=request, epoch=1, branch_tokens=((1, 99999),))
    room.say(SubmitMessage(client_epoch=1, submit=bad))
    assert room.got(Outputs)[-1].outputs[0].finish_reason is FinishReason.ERROR


def test_control_is_answered() -> None:
    room = Room()
    room.hello()
    room.say(Control(client_epoch=1, call_id=3, verb="kv"))
    room.say(Control(client_epoch=1, call_id=4, verb="nonsense"))
    kv, nonsense = room.got(ControlReply)
    assert (kv.call_id, kv.body["snapshot"]["block_size"]) == (3, 16)
    assert kv.body["snapshot_s"] > 0
    assert (nonsense.call_id, nonsense.body) == (4, {"error": "unknown verb nonsense"})


def test_hostile_frames_drop_their_sender_and_nobody_else() -> None:
    room = Room()
    room.hello(b"good", 1)
    room.say(submit("good"), b"good")
    rng = random.Random(3)
    valid = encode(submit("evil", epoch=2))
    for round_ in range(300):
        room.hello(b"evil", 2)
        frame = bytearray(valid if round_ % 2 else rng.randbytes(rng.randint(0, 80)))
        if frame:
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        room.wire.inbox.append((b"evil", bytes(frame[: rng.randint(0, len(frame))])))
        room.loop.run_once()
        room.now += 0.001
        room.say(Lease(client_epoch=1), b"good")
    assert "good" in room.core.requests.states or room.got(Outputs, b"good")
    assert room.core.check_invariants() == []


def test_a_malformed_frame_cancels_what_its_sender_owned() -> None:
    room = Room()
    room.hello()
    room.say(submit())
    room.wire.inbox.append((b"a", b"\xc1"))
    room.loop.run_once()
    assert not room.core.requests.states


def again(*, epoch: int, n: int = 1, tokens: Any = (), ended: Any = ()) -> SubmitMessage:
    """An attempt at request "r"."""
    request = submit(n=n, max_tokens=6).submit.request
    attempt = Submit(request=request, epoch=epoch, branch_tokens=tokens, finished_branches=ended)
    return SubmitMessage(client_epoch=1, submit=attempt)


def outputs_of(room: Room) -> list[Any]:
    return [output for message in room.got(Outputs) for output in message.branch_outputs()]


@pytest.mark.parametrize("stale", [0, 1, 2])
def test_a_stale_or_repeated_submit_leaves_the_newer_attempt_alone(stale: int) -> None:
    room = Room()
    room.hello()
    room.say(again(epoch=2))
    room.say(again(epoch=stale))
    room.turns(10)
    mine = outputs_of(room)
    assert {output.epoch for output in mine} == {2}
    assert sum(len(output.token_ids) for output in mine) == 6
    assert mine[-1].finish_reason is FinishReason.LENGTH
    assert room.loop._owned == {}
    assert not any(peer.requests for peer in room.loop._peers.values())


@pytest.mark.parametrize("stale", [0, 1])
def test_a_submit_that_arrives_after_the_end_runs_nothing(stale: int) -> None:
    room = Room()
    room.hello()
    room.say(again(epoch=1))
    room.turns(10)
    before = outputs_of(room)
    room.say(again(epoch=stale))
    room.turns(5)
    assert outputs_of(room) == before
    assert not room.core.requests.states
    assert room.loop._owned == {}


def test_a_submit_that_arrives_after_its_abort_runs_nothing() -> None:
    room = Room()
    room.hello()
    room.say(again(epoch=1))
    room.say(AbortMessage(client_epoch=1, request_ids=["r"]))
    room.say(again(epoch=1))
    room.turns(2)
    assert not room.core.requests.states
    room.say(again(epoch=2))
    assert "r" in room.core.requests.states


def test_a_repeated_submit_does_not_revive_an_ended_branch() -> None:
    room = Room()
    room.hello()
    room.say(again(epoch=0, n=2))
    room.turns(2)
    room.say(StopBranchMessage(client_epoch=1, request_id="r", branch=1))
    room.say(again(epoch=0, n=2))
    room.turns(10)
    ends = [output.branch for output in outputs_of(room) if output.finish_reason is not None]
    assert sorted(ends) == [0, 1]
    assert room.loop._owned == {}


@pytest.mark.parametrize("ended", [(0, 1), (0, 1, 7)])
def test_a_submit_without_a_branch_to_run_is_refused(ended: tuple[int, ...]) -> None:
    room = Room()
    room.hello()
    room.say(again(epoch=1, n=2, tokens=((1,), (2,)), ended=ended))
    room.turns(2)
    assert outputs_of(room)[0].error == "every branch has ended already"
    assert room.loop._owned == {}
    assert not room.core.requests.states


def test_a_newer_attempt_replaces_the_older() -> None:
    room = Room()
    room.hello()
    room.say(again(epoch=0))
    room.turns(1)
    seen = outputs_of(room)
    room.say(again(epoch=1, tokens=(seen[0].token_ids,)))
    room.turns(10)
    tokens = [
        token for output in outputs_of(room) if output.epoch == 1 for token in output.token_ids
    ]
    assert len(tokens) + len(seen[0].token_ids) == 6


def test_what_ended_is_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.cluster.engine_loop.MAX_ENDED", 3)
    room = Room()
    room.hello()
    for index in range(8):
        room.say(submit(f"r{index}", max_tokens=1))
        room.turns(2)
    assert list(room.loop._ended) == ["r5", "r6", "r7"]


def test_a_failed_step_is_logged_here_and_not_told_to_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    room = Room()
    room.hello()
    room.runner.fail_next = True
    room.say(again(epoch=0))
    room.turns(2)
    assert "RuntimeError: injected fault" in caplog.text
    assert "Traceback" in caplog.text
    error = outputs_of(room)[0].error
    assert "injected" not in error


def test_violations_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    room = Room()
    room.hello()
    room.say(submit())
    room.core._report(["I1: a block has no owner"])
    room.turns(1)
    assert "I1: a block has no owner" in caplog.text


def test_every_peer_hears_the_beat_of_a_long_step() -> None:
    room = Room()
    room.hello(b"a", 1)
    room.hello(b"b", 2)
    room.loop._beat(5)
    assert [beat.progress for beat in room.got(Beat, b"a") + room.got(Beat, b"b")] == [5, 5]


def test_a_step_that_lasts_is_heard_of_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.cluster.heartbeat.BEAT_S", 0.005)
    room = Room()
    room.hello()
    room.loop._heartbeat.start()
    execute = room.runner.execute

    def wait(plan: Any) -> Any:
        deadline = time.monotonic() + 20
        while len(room.got(Beat)) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return execute(plan)

    monkeypatch.setattr(FakeRunner, "execute", lambda _, plan: wait(plan))
    room.say(again(epoch=0))
    room.loop._heartbeat.close()
    assert len(room.got(Beat)) >= 3
    assert outputs_of(room)[0].token_ids


def test_the_welcome_names_the_weights() -> None:
    room = Room()
    room.hello()
    assert room.got(Welcome)[0].model_digest == "fake-weights"


def test_tokens_of_rows_that_go_on_come_in_one_piece() -> None:
    """As long as they are one peer's; what is said is the same."""

    def told(*owners: bytes) -> tuple[Room, list[Any]]:
        room = Room()
        for peer in set(owners):
            room.hello(peer, epoch=ord(peer))
        for index, peer in enumerate(owners):
            room.say(submit(f"r{index}", epoch=ord(peer), max_tokens=40), peer)
        room.turns(60)
        sent = [m for peer in sorted(set(owners)) for m in room.got(Outputs, peer)]
        return room, sent

    def tokens(messages: list[Any], name: str) -> list[int]:
        outputs = [output for message in messages for output in message.branch_outputs()]
        mine = [output for output in outputs if output.request_id == name]
        assert [output.position for output in mine] == list(range(40))
        return [token for output in mine for token in output.token_ids]

    _, one = told(b"a", b"a")
    _, two = told(b"a", b"b")
    assert sum(message.run is not None for message in one) > 30
    for name in ("r0", "r1"):
        assert tokens(one, name) == tokens(two, name)
    # Alone again, the one that came last ends with a run of its own.
    assert sum(message.run is not None for message in two) < 8
