"""Drives an OpenAI-compatible server with a planned workload, open or closed loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from octavo.bench.figures import Outcome, RequestRecord
from octavo.bench.http_stream import Endpoint, Exchange, HttpClient
from octavo.bench.prompts import PROBE_WORDS, TokenLine, probe_request, prompt_text
from octavo.bench.workload import PlannedRequest
from octavo.errors import ConfigError, UnavailableError

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
DONE = b"[DONE]"
MAX_ERROR_CHARS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which server and how it is asked. ``ignore_eos`` keeps lengths as planned."""

    url: str
    model: str
    api: str = "completions"
    api_key: str = ""
    ignore_eos: bool = True
    temperature: float = 0.0
    timeout_s: float = 600.0


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def has_content(self) -> bool:
        delta = self.delta
        return bool(self.text or (delta and (delta.content or delta.reasoning_content)))


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


@dataclass(slots=True)
class RunResult:
    """The records of a run. ``num_uncounted`` requests gave no usage: their chunks were counted.

    ``max_lag_s`` is how late this client itself was at worst; it is part of that request's TTFT.
    """

    records: list[RequestRecord] = field(default_factory=list)
    num_uncounted: int = 0
    max_lag_s: float = 0.0
    token_line: TokenLine = field(default_factory=TokenLine)


class LoadClient:
    """Sends what was planned, when it was planned."""

    def __init__(self, target: Target, *, n: int = 1, seed: int = 0) -> None:
        if target.api not in PATHS:
            raise ConfigError(f"--api is '{target.api}'; choose one of {', '.join(PATHS)}")
        self._target = target
        self._n = n
        self._seed = seed
        headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        self._http = HttpClient(
            Endpoint.parse(target.url), headers=headers, timeout_s=target.timeout_s
        )
        self._line = TokenLine()

    async def run(self, planned: Sequence[PlannedRequest], *, concurrency: int) -> RunResult:
        """Run a workload; ``concurrency`` > 0 is a closed loop and ignores planned times."""
        bodies = [self._body(request) for request in planned]
        if concurrency:
            sent = await self._closed(planned, bodies, concurrency)
        else:
            sent = await self._open(planned, bodies)
        result = RunResult(token_line=self._line)
        for scheduled_s, exchange in sent:
            record, is_counted = read_record(exchange, scheduled_s=scheduled_s, n=self._n)
            result.records.append(record)
            result.num_uncounted += record.went_well and not is_counted
            result.max_lag_s = max(result.max_lag_s, exchange.start_s - scheduled_s)
        return result

    async def calibrate(self) -> TokenLine:
        """Learn how many tokens the server makes of a word; warms it up besides.

        Raises:
            UnavailableError: the server does not answer, or refuses a plain request.
        """
        probes = []
        for words in PROBE_WORDS:
            exchange = await self._http.post(self._path, self._body(probe_request(words)))
            record, is_counted = read_record(exchange, scheduled_s=0.0, n=self._n)
            if not record.went_well:
                raise UnavailableError(
                    f"{self._target.url} does not serve a plain request: {record.error}; "
                    "check --url, --model and --api"
                )
            probes.append((words, record.prompt_tokens if is_counted else words))
        self._line = TokenLine.through(probes)
        return self._line

    async def fetch_text(self, path: str) -> str | None:
        """A page of the server, None when there is none."""
        exchange = await self._http.get(path)
        if exchange.status != 200 or exchange.fault:
            return None
        return exchange.body.decode("utf-8", "replace")

    @property
    def _path(self) -> str:
        return PATHS[self._target.api]

    def _body(self, request: PlannedRequest) -> bytes:
        text = prompt_text(request, self._line)
        body: dict[str, object] = {
            "model": self._target.model,
            "max_tokens": request.output_tokens,
            "temperature": self._target.temperature,
            "seed": self._seed * 1_000_003 + request.index + 1,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._target.api == "chat":
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        if self._target.ignore_eos:
            body["ignore_eos"] = True
        if self._n > 1:
            body["n"] = self._n
        return msgspec.json.encode(body)

    async def _open(
        self, planned: Sequence[PlannedRequest], bodies: Sequence[bytes]
    ) -> list[tuple[float, Exchange]]:
        start = time.perf_counter()

        async def send(request: PlannedRequest, body: bytes) -> tuple[float, Exchange]:
            scheduled = start + request.at_s
            await asyncio.sleep(max(0.0, scheduled - time.perf_counter()))
            return scheduled, await self._post(request, body)

        return await asyncio.gather(*map(send, planned, bodies))

    async def _closed(
        self, planned: Sequence[PlannedRequest], bodies: Sequence[bytes], concurrency: int
    ) -> list[tuple[float, Exchange]]:
        todo = iter(zip(planned, bodies, strict=True))
        sent: list[tuple[float, Exchange]] = []

        async def stream() -> None:
            # All streams draw from one iterator: the next request goes to whoever is free.
            for request, body in todo:
                scheduled = time.perf_counter()
                sent.append((scheduled, await self._post(request, body)))

        await asyncio.gather(*(stream() for _ in range(concurrency)))
        return sent

    async def _post(self, request: PlannedRequest, body: bytes) -> Exchange:
        return await self._http.post(self._path, body, cancel_after=request.cancel_after)


def read_record(exchange: Exchange, *, scheduled_s: float, n: int) -> tuple[RequestRecord, bool]:
    """What an exchange says, and whether the server itself counted the tokens."""
    stream = _Stream(exchange)
    usage = stream.usage
    record = RequestRecord(
        scheduled_s=scheduled_s,
        end_s=exchange.end_s,
        outcome=stream.outcome,
        error=stream.error,
        content_s=tuple(stream.content_s),
        prompt_tokens=usage.prompt_tokens if usage else 0,
        cached_tokens=stream.cached_tokens,
        # A cancelled stream ends before its usage: every piece of content is a token at least.
        output_tokens=usage.completion_tokens if usage else len(stream.content_s),
        n=n,
    )
    return record, usage is not None or stream.outcome is Outcome.CANCELLED


class _Stream:
    """Reads an exchange's events: content stamps, usage, and how it ended."""

    def __init__(self, exchange: Exchange) -> None:
        self.content_s: list[float] = []
        self.usage: _Usage | None = None
        self.outcome = Outcome.FAILED
        self.error = ""
        self._has_end = False
        try:
            for stamp, payload in exchange.events:
                self._take(stamp, payload)
        except msgspec.MsgspecError:
            self.error = "an event is no chunk of the API"
        self._conclude(exchange)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the server read from its prefix cache, as far as it says."""
        details = self.usage.prompt_tokens_details if self.usage else None
        return (details.cached_tokens or 0) if details else 0

    def _take(self, stamp: float, payload: bytes) -> None:
        if payload == DONE:
            self._has_end = True
            return
        event = msgspec.json.decode(payload, type=_Event)
        if event.error is not None:
            text = msgspec.json.encode(event.error)
            self.error = self.error or f"error event: {_message(text)}"
        self.usage = event.usage or self.usage
        for choice in event.choices:
            if choice.has_content:
                self.content_s.append(stamp)
            self._has_end = self._has_end or choice.finish_reason is not None

    def _conclude(self, exchange: Exchange) -> None:
        if exchange.was_cancelled:
            self.outcome = Outcome.CANCELLED
        elif exchange.fault == "timed out":
            self.outcome, self.error = Outcome.TIMED_OUT, exchange.fault
        elif exchange.fault:
            self.error = exchange.fault
        elif exchange.status != 200:
            self.outcome = Outcome.REFUSED if exchange.status else Outcome.FAILED
            self.error = f"HTTP {exchange.status}: {_message(bytes(exchange.body))}"
        elif not exchange.is_event_stream:
            self.error = "the response is no event stream"
        elif not self.error and not self._has_end:
            self.error = f"the stream ended early, after {len(self.content_s)} pieces"
        elif not self.error:
            self.outcome = Outcome.DONE


def _message(body: bytes) -> str:
    """The message of an API error, or the start of whatever came instead."""
    try:
        found = msgspec.json.decode(body)
        while isinstance(found, dict) and isinstance(found.get("error"), dict):
            found = found["error"]
        if isinstance(found, dict) and isinstance(found.get("message"), str):
            return str(found["message"])[:MAX_ERROR_CHARS]
    except msgspec.MsgspecError:
        pass
    return " ".join(body.decode("utf-8", "replace").split())[:MAX_ERROR_CHARS] or "no message"
