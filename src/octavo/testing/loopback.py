"""An engine loop on the event loop of a test, behind ``Transport``: it can die and come back.

Everything but the socket is real: messages are encoded and decoded, peers say hello, leases run.
"""

from __future__ import annotations

import asyncio
import time

from octavo.cluster.engine_host import EngineHost
from octavo.cluster.engine_loop import EngineLoop
from octavo.cluster.engine_process import welcome_of
from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.runner import RunnerInfo
from octavo.engine import EngineCore
from octavo.frontend.transport import Receiver
from octavo.grammar import GrammarCompiler
from octavo.testing.fake_runner import FakeRunner
from octavo.testing.mortal_runner import MortalRunner

PEER = b"loopback"


class LoopbackEngine:
    """``Transport`` and ``EngineTransport`` in one; steps the engine while ``run`` runs.

    ``step_s`` slows the engine down; the tokens ``poison`` and ``curse`` kill it (see
    ``MortalRunner``). ``kill`` drops the engine with all it knows; ``revive`` starts another
    epoch, with ``info`` as it is then. While ``full`` is set nothing can be sent to it.
    """

    def __init__(
        self,
        info: RunnerInfo,
        *,
        scheduler: SchedulerConfig | None = None,
        step_s: float = 0.0,
        poison: int = -1,
        curse: int = -1,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.info = info
        self.step_s = step_s
        self.poison = poison
        self.curse = curse
        self.full = False
        self.deaths = 0
        self.sent: list[bytes] = []
        self._grammars = grammars
        self._scheduler = scheduler or SchedulerConfig()
        self._receiver: Receiver | None = None
        self._inbox: list[tuple[bytes, bytes]] = []
        self._outbox: list[bytes] = []
        self._epoch = 0
        self._alive = False
        self._loop: EngineLoop | None = None
        self.engine: EngineCore | None = None
        self.runner: MortalRunner | None = None

    # -- the frontend's side -----------------------------------------------------------------

    def start(self, receiver: Receiver) -> None:
        """See ``Transport.start``."""
        self._receiver = receiver
        self.revive()

    def send(self, frame: bytes) -> bool:
        """See ``Transport.send``; ``sent`` keeps every frame."""
        if self.full:
            return False
        if self._alive:
            self.sent.append(frame)
            self._inbox.append((PEER, frame))
        return self._alive

    def close(self) -> None:
        """See ``Transport.close``."""
        self._alive = False

    # -- the test's side ---------------------------------------------------------------------

    def revive(self) -> None:
        """A new engine process, so to speak."""
        assert self._receiver is not None
        self._epoch += 1
        self._inbox, self._outbox = [], []
        self.runner = MortalRunner(FakeRunner(self.info), poison=self.poison, curse=self.curse)
        runner = self.runner
        core = EngineCore(
            runner, self._scheduler, CacheConfig(), epoch=self._epoch, grammars=self._grammars
        )
        self.engine = core
        self._loop = EngineLoop(
            core,
            _Side(self._inbox, self._outbox),
            welcome_of(core, self.info, self._scheduler),
            host=EngineHost(core, progress=lambda: runner.progress, grammars=self._grammars),
            clock=time.monotonic,
        )
        self._alive = True
        self._receiver.connected()

    def kill(self) -> None:
        """What was in flight is lost."""
        assert self._receiver is not None
        self._alive = False
        self._receiver.disconnected()

    async def run(self) -> None:
        """Step until cancelled."""
        while True:
            self.turn()
            await asyncio.sleep(self.step_s)

    def turn(self) -> None:
        """One turn of the engine loop, and the delivery of what it sent."""
        if not self._alive or self._loop is None or self._receiver is None:
            return
        try:
            self._loop.run_once()
        except SystemExit:
            self.deaths += 1
            self.kill()
            self.revive()
            return
        frames = list(self._outbox)
        self._outbox.clear()
        for frame in frames:
            self._receiver.frame_received(frame)


class _Side:
    """``EngineTransport`` over two lists."""

    def __init__(self, inbox: list[tuple[bytes, bytes]], outbox: list[bytes]) -> None:
        self._inbox = inbox
        self._outbox = outbox

    def receive(self, timeout_s: float | None) -> list[tuple[bytes, bytes]]:
        frames = list(self._inbox)
        self._inbox.clear()
        return frames

    def send(self, peer: bytes, frame: bytes) -> bool:
        self._outbox.append(frame)
        return True

    def close(self) -> None:
        pass
