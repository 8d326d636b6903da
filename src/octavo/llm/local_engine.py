"""An engine core in this process: what ``LLM`` and ``AsyncLLM`` have in common.

The engine core, the journal and the text state are the ones that the server uses; only the
sockets are missing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from octavo.config import EngineConfig
from octavo.core.request import Abort, Request
from octavo.engine import EngineCore
from octavo.errors import OctavoError, OverloadedError
from octavo.frontend import OutputProcessor, RequestOutput
from octavo.grammar import MAX_PENDING, GrammarCompiler
from octavo.worker import LoadedModel, load_runner, token_table

COMPILE_POLL_S = 0.001


@dataclass(slots=True)
class Inbox:
    """Outputs of one request that its reader has not taken yet."""

    outputs: deque[RequestOutput] = field(default_factory=deque)
    failure: OctavoError | None = None
    finished: bool = False

    @property
    def has_news(self) -> bool:
        """Whether there is something to take."""
        return bool(self.outputs) or self.failure is not None

    def put(self, output: RequestOutput, failure: OctavoError | None) -> None:
        """Add an output, or the failure that it stands for."""
        if failure is None:
            self.outputs.append(output)
            self.finished = self.finished or output.finished
        else:
            self.failure = failure

    def take(self) -> Iterator[RequestOutput]:
        """Empty the inbox; a failure comes after all that preceded it."""
        while self.outputs:
            yield self.outputs.popleft()
        if self.failure is not None:
            raise self.failure


class LocalEngine:
    """Owns the loaded model, the engine core and the inboxes of its requests. One thread's."""

    def __init__(self, config: EngineConfig) -> None:
        """Load the model.

        Raises:
            ModelFileError: the model is missing, malformed or unsupported.
            ConfigError: an option is impossible, or memory is too small.
        """
        self.model: LoadedModel = load_runner(config)
        self.grammars = GrammarCompiler(token_table(self.model.tokenizer))
        self.core = EngineCore(
            self.model.runner, config.scheduler, config.cache, epoch=1, grammars=self.grammars
        )
        self.processor = OutputProcessor(self.model.tokenizer)
        self.inboxes: dict[str, Inbox] = {}
        self._max_waiting = config.scheduler.max_waiting

    def close(self) -> None:
        """Free weights, KV pool and threads. Idempotent."""
        self.grammars.close()
        self.model.runner.close()

    def submit(self, request: Request) -> Inbox | None:
        """Hand a request to the engine; None when it must wait for others to make room."""
        if self.core.scheduler.waiting.num_fresh >= self._max_waiting:
            return None
        if request.sampling.grammar is not None and self.grammars.num_pending >= MAX_PENDING:
            return None
        try:
            entry = self.processor.open(request)
        except OverloadedError:
            if not self.inboxes:
                raise
            return None
        inbox = self.inboxes[request.request_id] = Inbox()
        self.core.handle(entry.submission(), time.monotonic())
        return inbox

    def step(self) -> None:
        """One step of the engine; what it gave goes to the inbox of whose it is."""
        for ready in self.grammars.take_ready():
            self.core.handle(ready, time.monotonic())
        if not self.core.has_work():
            # All that runs here waits for its grammar.
            time.sleep(COMPILE_POLL_S)
        processed = self.processor.process(self.core.step(time.monotonic()))
        for stop in processed.stops:
            self.core.handle(stop, time.monotonic())
        for output in processed.outputs:
            if output.request_id in self.inboxes:
                failure = processed.failures.get(output.request_id)
                self.inboxes[output.request_id].put(output, failure)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Cancel requests that were submitted and not forgotten."""
        ids = list(request_ids)
        for request_id in ids:
            self.core.handle(Abort(request_id=request_id), time.monotonic())
            self.forget(request_id)
        if ids and not self.inboxes:
            # Nobody else will step the engine, which still has to say that these ended.
            self.step()

    def forget(self, request_id: str) -> None:
        """Let go of a request that ended."""
        del self.inboxes[request_id]
        self.processor.close(request_id)
