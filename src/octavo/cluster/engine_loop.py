"""One engine core behind a socket: who owns which request, leases, snapshots.

    receive (blocks while idle: no timer, no CPU) → handle events → step → send outputs
        → cancel what silent frontends own → snapshot

A frontend says ``Hello``, gets a ``Welcome`` and then owns what it submits. It sends a ``Lease``
a few times a second while it owns something; one that falls silent loses its requests.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from octavo.cluster.fault_log import FaultLog, Faulty
from octavo.cluster.heartbeat import Heartbeat
from octavo.cluster.messages import (
    PROTOCOL_VERSION,
    AbortMessage,
    Beat,
    Control,
    ControlReply,
    EngineMessage,
    FrontendMessage,
    Hello,
    Lease,
    Outputs,
    Stats,
    StopBranchMessage,
    SubmitMessage,
    Welcome,
)
from octavo.cluster.transport import EngineTransport
from octavo.cluster.wire import WireError, decode_frontend_message, encode
from octavo.core.request import (
    Abort,
    BranchOutput,
    Event,
    FinishReason,
    StopBranch,
    Submit,
    TokenRun,
)
from octavo.core.sampling_params import validate_sampling_params
from octavo.errors import InvalidRequestError, OctavoError

LEASE_S = 1.0
STATS_INTERVAL_S = 0.25
COMPILE_POLL_S = 0.002
LEASE_EXPIRED = "lease expired"
MAX_PEERS = 64
MAX_ENDED = 4096

logger = logging.getLogger(__name__)


class Engine(Faulty, Protocol):
    """What the loop needs of an engine core."""

    def handle(self, event: Event, now: float) -> None:
        """Take an event; what it causes is emitted by the next step."""

    def advance(self, now: float) -> tuple[list[BranchOutput], TokenRun | None]:
        """Run one step: outputs, and in one piece the tokens of branches that have none there."""

    def has_work(self) -> bool:
        """Whether a step would do something."""


class Host(Protocol):
    """What the loop needs of the process around the core."""

    def snapshot(self) -> Stats:
        """What metrics and readiness are told."""

    def control(self, verb: str) -> dict[str, object]:
        """Answer a ``Control``."""

    def progress(self) -> int:
        """The runner's work counter; called on another thread while a step runs."""

    def after_step(self, seconds: float) -> None:
        """A step took ``seconds``."""

    def take_ready(self) -> Sequence[Event]:
        """Events of the process itself: grammars that have been compiled."""

    @property
    def is_compiling(self) -> bool:
        """Whether ``take_ready`` will have something soon; no message wakes the loop for it."""


@dataclass(slots=True)
class Peer:
    """A frontend. ``last_seen`` is on the loop's clock; ``requests`` is what it owns."""

    epoch: int
    last_seen: float
    requests: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Owned:
    """A request in the engine: who asked, which attempt, which branches still run."""

    peer_id: bytes
    epoch: int
    open_branches: set[int]


_NOBODY = Owned(b"", -1, set())


class EngineLoop:
    """Owns the peers and the request → peer map; the engine core owns everything else."""

    def __init__(
        self,
        engine: Engine,
        transport: EngineTransport,
        welcome: Welcome,
        *,
        host: Host,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._transport = transport
        self._welcome = welcome
        self._host = host
        self._clock = clock
        self._faults = FaultLog(clock)
        self._heartbeat = Heartbeat(host.progress, self._beat)
        self._peers: dict[bytes, Peer] = {}
        self._owned: dict[str, Owned] = {}
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._last_stats = float("-inf")
        self._stats_due = True
        self._leases_due = float("-inf")
        self._lanes: object = None
        self._owner = b""

    def run(self) -> None:
        """Serve for ever; a signal handler ends it by raising."""
        self._heartbeat.start()
        try:
            while True:
                self.run_once()
        finally:
            self._heartbeat.close()

    def run_once(self) -> None:
        """One turn of the loop."""
        for peer, frame in self._transport.receive(self._timeout()):
            self._on_frame(peer, frame)
        now = self._clock()
        # Now, not after the step: a long step leaves leases unread in the socket.
        if now > self._leases_due:
            self._expire_leases(now)
        for event in self._host.take_ready():
            self._engine.handle(event, now)
        # What waits for its grammar is no work, but has a deadline.
        if self._owned or self._engine.has_work():
            now = self._step(now)
        if not (self._owned or self._engine.has_work()):
            # Also after the last step: the next wait may be without end.
            self._heartbeat.rest()
        if now - self._last_stats >= STATS_INTERVAL_S or not self._owned:
            self._send_stats(now)

    def _step(self, now: float) -> float:
        """One step, and what time it is then."""
        with self._heartbeat:
            outputs, run = self._engine.advance(now)
        self._faults.note(self._engine)
        self._emit(outputs, run)
        self._stats_due = True
        after = self._clock()
        self._host.after_step(after - now)
        return after

    def _beat(self, progress: int) -> None:
        """Called on the heartbeat's thread, with the socket handed over to it."""
        beat = Beat(engine_epoch=self._welcome.engine_epoch, progress=progress)
        for peer_id in self._peers:
            self._send(peer_id, beat)

    def _timeout(self) -> float | None:
        if self._engine.has_work():
            return 0.0
        if self._host.is_compiling:
            return COMPILE_POLL_S
        return STATS_INTERVAL_S if self._stats_due or self._owned else None

    def _on_frame(self, peer_id: bytes, frame: bytes) -> None:
        try:
            message = decode_frontend_message(frame)
        except WireError as error:
            logger.warning("a peer is dropped: %s", error)
            self._drop(peer_id, "malformed frame")
            return
        if isinstance(message, Hello):
            self._on_hello(peer_id, message)
            return
        peer = self._peers.get(peer_id)
        if peer is None or peer.epoch != message.client_epoch:
            return
        peer.last_seen = self._clock()
        self._on_message(peer_id, peer, message)

    def _on_hello(self, peer_id: bytes, hello: Hello) -> None:
        if hello.version != PROTOCOL_VERSION:
            logger.warning("a peer speaks protocol %d, not %d", hello.version, PROTOCOL_VERSION)
            return
        known = self._peers.get(peer_id)
        if known is None or known.epoch != hello.client_epoch:
            for other, peer in list(self._peers.items()):
                if other == peer_id or peer.epoch == hello.client_epoch:
                    self._drop(other, "superseded")
            if len(self._peers) >= MAX_PEERS:
                self._drop(min(self._peers, key=lambda key: self._peers[key].last_seen), "too many")
            self._peers[peer_id] = Peer(epoch=hello.client_epoch, last_seen=self._clock())
        self._send(peer_id, self._welcome)
        self._send(peer_id, self._host.snapshot())

    def _on_message(self, peer_id: bytes, peer: Peer, message: FrontendMessage) -> None:
        match message:
            case SubmitMessage():
                self._on_submit(peer_id, peer, message.submit)
            case AbortMessage():
                for request_id in message.request_ids:
                    self._note_end(request_id, peer_id)
                    self._cancel(request_id, peer_id, "cancelled")
            case StopBranchMessage():
                if self._owns(peer_id, message.request_id):
                    stop = StopBranch(request_id=message.request_id, branch=message.branch)
                    self._engine.handle(stop, self._clock())
            case Control():
                body, epoch = self._host.control(message.verb), self._welcome.engine_epoch
                reply = ControlReply(engine_epoch=epoch, call_id=message.call_id, body=body)
                self._send(peer_id, reply)
            case Hello() | Lease():
                pass

    def _on_submit(self, peer_id: bytes, peer: Peer, submit: Submit) -> None:
        request_id = submit.request.request_id
        if submit.epoch <= self._known_epoch(request_id, peer_id):
            return
        try:
            if request_id in self._owned and not self._owns(peer_id, request_id):
                raise InvalidRequestError("the request id is in use", param="request_id")
            self._check(submit)
            # A later epoch of a known id replaces the attempt that it follows.
            open_branches = set(range(submit.request.sampling.num_branches)) - set(
                submit.finished_branches
            )
            self._owned[request_id] = Owned(peer_id, submit.epoch, open_branches)
            peer.requests.add(request_id)
            self._engine.handle(submit, self._clock())
        except InvalidRequestError as error:
            self._refuse(peer_id, submit, error)
        self._stats_due = True

    def _known_epoch(self, request_id: str, peer_id: bytes) -> int:
        """The last attempt of a peer's request that was taken, -1 for none.

        What is not newer is a duplicate or a straggler: it must not touch what runs, nor run
        again what has ended.
        """
        if self._owns(peer_id, request_id):
            return self._owned[request_id].epoch
        return self._ended.get(request_id, -1)

    def _check(self, submit: Submit) -> None:
        """What would otherwise make the data plane fault: a socket is not to be believed."""
        request, vocab_size = submit.request, self._welcome.vocab_size
        tokens = [request.prompt_token_ids, *submit.branch_tokens]
        if (
            not request.prompt_token_ids
            or len(submit.branch_tokens) > request.sampling.num_branches
        ):
            raise InvalidRequestError("an empty prompt or too many branches", param="prompt")
        if set(submit.finished_branches) >= set(range(request.sampling.num_branches)):
            raise InvalidRequestError("every branch has ended already", param="n")
        if any(ids and (min(ids) < 0 or max(ids) >= vocab_size) for ids in tokens):
            raise InvalidRequestError(
                f"token ids must be between 0 and {vocab_size - 1}", param="prompt"
            )
        validate_sampling_params(request.sampling, vocab_size=vocab_size)

    def _refuse(self, peer_id: bytes, submit: Submit, error: OctavoError) -> None:
        output = BranchOutput(
            request_id=submit.request.request_id,
            branch=0,
            epoch=submit.epoch,
            position=0,
            finish_reason=FinishReason.ERROR,
            error=error.message,
            error_code=error.code or error.error_type,
            error_param=error.param,
        )
        self._send(peer_id, Outputs(engine_epoch=self._welcome.engine_epoch, outputs=[output]))

    def _emit(self, outputs: list[BranchOutput], run: TokenRun | None) -> None:
        runner = b"" if run is None else self._owner_of(run)
        if run is not None and not runner:
            outputs, run = outputs + run.outputs(), None
        by_peer: dict[bytes, list[BranchOutput]] = {runner: []} if runner else {}
        for output in outputs:
            owned = self._owned.get(output.request_id)
            if owned is not None and owned.epoch == output.epoch:
                by_peer.setdefault(owned.peer_id, []).append(output)
                if output.finish_reason is not None:
                    self._note_finish(owned, output)
        epoch = self._welcome.engine_epoch
        for peer_id, mine in by_peer.items():
            told = run if peer_id == runner else None
            if not self._send(peer_id, Outputs(engine_epoch=epoch, outputs=mine, run=told)):
                self._drop(peer_id, "unreachable")

    def _owner_of(self, run: TokenRun) -> bytes:
        """The peer that all branches of a run belong to, b"" if they belong to several.

        Asked once as long as they are the same: whoever is let go of is no part of the next.
        """
        if run.lanes is not self._lanes:
            owned = [self._owned.get(lane[0], _NOBODY) for lane in run.lanes]
            owners = {one.peer_id for one in owned}
            are_known = [one.epoch for one in owned] == [lane[2] for lane in run.lanes]
            self._owner = owners.pop() if are_known and len(owners) == 1 else b""
            self._lanes = run.lanes
        return self._owner

    def _note_finish(self, owned: Owned, output: BranchOutput) -> None:
        """A branch ended; a request whose last one did has no owner any more."""
        owned.open_branches.discard(output.branch)
        if not owned.open_branches:
            self._note_end(output.request_id, owned.peer_id)
            self._forget(output.request_id)

    def _note_end(self, request_id: str, peer_id: bytes) -> None:
        """Remember for a while that a request ended or was cancelled by its owner."""
        if self._owns(peer_id, request_id):
            self._ended[request_id] = self._owned[request_id].epoch
            self._ended.move_to_end(request_id)
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)

    def _owns(self, peer_id: bytes, request_id: str) -> bool:
        owned = self._owned.get(request_id)
        return owned is not None and owned.peer_id == peer_id

    def _cancel(self, request_id: str, peer_id: bytes, reason: str) -> None:
        if self._owns(peer_id, request_id):
            self._forget(request_id)
            self._engine.handle(Abort(request_id=request_id, reason=reason), self._clock())
            self._stats_due = True

    def _forget(self, request_id: str) -> None:
        owned = self._owned.pop(request_id, None)
        if owned is not None and owned.peer_id in self._peers:
            self._peers[owned.peer_id].requests.discard(request_id)

    def _drop(self, peer_id: bytes, reason: str) -> None:
        peer = self._peers.pop(peer_id, None)
        if peer is None:
            return
        for request_id in sorted(peer.requests):
            self._cancel(request_id, peer_id, reason)

    def _expire_leases(self, now: float) -> None:
        """Drop what silent peers own; nobody can be silent for too long before ``_leases_due``."""
        for peer_id, peer in list(self._peers.items()):
            if peer.requests and now - peer.last_seen > LEASE_S:
                logger.warning("a frontend is silent: %d requests cancelled", len(peer.requests))
                self._expire(peer_id, peer)
        heard = [peer.last_seen for peer in self._peers.values() if peer.requests]
        self._leases_due = min(heard, default=now) + LEASE_S

    def _expire(self, peer_id: bytes, peer: Peer) -> None:
        """Cancel and say so: a frontend that only stalled resubmits from its journal."""
        outputs = [
            BranchOutput(
                request_id=request_id,
                branch=0,
                epoch=-1,
                position=0,
                finish_reason=FinishReason.ABORT,
                error=LEASE_EXPIRED,
            )
            for request_id in sorted(peer.requests)
        ]
        self._drop(peer_id, LEASE_EXPIRED)
        self._send(peer_id, Outputs(engine_epoch=self._welcome.engine_epoch, outputs=outputs))

    def _send_stats(self, now: float) -> None:
        # While a grammar is compiled the loop turns often and has nothing new to say.
        idle = not (self._engine.has_work() or self._host.is_compiling)
        if not self._stats_due or (not idle and now - self._last_stats < STATS_INTERVAL_S):
            return
        self._last_stats = now
        self._stats_due = not idle
        snapshot = self._host.snapshot()
        for peer_id in list(self._peers):
            if not self._send(peer_id, snapshot):
                self._drop(peer_id, "unreachable")

    def _send(self, peer_id: bytes, message: EngineMessage) -> bool:
        try:
            frame = encode(message)
        except WireError:
            logger.exception("a message for a frontend is too large")
            return False
        return self._transport.send(peer_id, frame)
