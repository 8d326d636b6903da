"""The whole application in the test's own event loop, over a loopback engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import httpx

from octavo.core.sampling_params import SamplingParams
from octavo.frontend import AsyncEngineClient, OutputProcessor
from octavo.grammar import GrammarCompiler
from octavo.server import ServerState, build_app
from octavo.server.endpoints import Endpoint
from octavo.server.metrics import Metrics
from octavo.testing.fake_runner import make_info
from octavo.testing.loopback import LoopbackEngine
from octavo.worker import token_table

KEY = "test-key"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello there."}]
QUESTIONS = [{"question": " Is it dry?", "labels": [" yes", " no, it is not"]}]
PATHS = {
    Endpoint.CHAT: CHAT,
    Endpoint.COMPLETIONS: COMPLETIONS,
    Endpoint.MESSAGES: "/v1/messages",
    Endpoint.COUNT_TOKENS: "/v1/messages/count_tokens",
    Endpoint.RESPONSES: "/v1/responses",
    Endpoint.INPUT_TOKENS: "/v1/responses/input_tokens",
    Endpoint.TOKENIZE: "/tokenize",
    Endpoint.DETOKENIZE: "/detokenize",
    Endpoint.APPLY_TEMPLATE: "/apply-template",
    Endpoint.EMBEDDINGS: "/v1/embeddings",
    Endpoint.SCORE: "/v1/score",
    Endpoint.SYSTEMONE: "/v1/systemone",
}
# The least that an endpoint takes.
LEAST: dict[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {"messages": HELLO, "max_tokens": 5, "seed": 1},
    Endpoint.COMPLETIONS: {"prompt": "Hello", "max_tokens": 5, "seed": 1},
    Endpoint.MESSAGES: {"messages": HELLO, "max_tokens": 5, "seed": 1},
    Endpoint.COUNT_TOKENS: {"messages": HELLO},
    Endpoint.RESPONSES: {"input": "Hello there.", "max_output_tokens": 5, "seed": 1},
    Endpoint.INPUT_TOKENS: {"input": "Hello there."},
    Endpoint.TOKENIZE: {"messages": HELLO},
    Endpoint.DETOKENIZE: {"tokens": [1]},
    Endpoint.APPLY_TEMPLATE: {"messages": HELLO},
    Endpoint.EMBEDDINGS: {"input": "Hello there."},
    Endpoint.SCORE: {"text_1": "Hello there.", "text_2": "Good day."},
    Endpoint.SYSTEMONE: {"state": "It rains.", "questions": QUESTIONS},
}


table_of = cache(token_table)


class Served:
    def __init__(self, text: Any, **engine: Any) -> None:
        _, tokenizer, template = text
        options = {"vocab_size": 49152, "num_blocks": 128, "max_model_len": 1024}
        info = make_info(**{key: engine.pop(key, value) for key, value in options.items()})
        self.grammars = GrammarCompiler(table_of(tokenizer))
        self.engine = LoopbackEngine(info, grammars=self.grammars, **engine)
        self.client = AsyncEngineClient(self.engine, OutputProcessor(tokenizer), client_epoch=4)
        self.state = ServerState(
            client=self.client,
            tokenizer=tokenizer,
            chat_template=template,
            model_names=["tiny", "alias"],
            defaults=SamplingParams(top_k=7),
            generation_config={"top_k": 7},
            metrics=Metrics(
                self.client,
                model="tiny",
                is_draining=lambda: self.state.draining,
                limits=lambda: self.state.limits(),  # noqa: PLW0108
            ),
            eos_token_ids=tokenizer.eos_token_ids,
        )
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(build_app(self.state, allowed_hosts=["ok.example"])),
            base_url="http://localhost",
            timeout=30,
        )

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def ask(self, endpoint: Endpoint, **body: Any) -> httpx.Response:
        return await self.post(PATHS[endpoint], **{**LEAST[endpoint], **body})

    async def chat(self, **body: Any) -> httpx.Response:
        return await self.ask(Endpoint.CHAT, **body)

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.ask(Endpoint.COMPLETIONS, **body)

    async def messages(self, **body: Any) -> httpx.Response:
        return await self.ask(Endpoint.MESSAGES, **body)

    async def respond(self, **body: Any) -> httpx.Response:
        return await self.ask(Endpoint.RESPONSES, **body)

    async def settle(self) -> None:
        """Let the engine say that it is idle."""
        for _ in range(8):
            await asyncio.sleep(0)

    async def metrics(self) -> dict[str, float]:
        text = (await self.http.get("/metrics")).text
        return {
            line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if not line.startswith("#")
        }


@contextlib.asynccontextmanager
async def served(text: Any, **engine: Any) -> AsyncIterator[Served]:
    here = Served(text, **engine)
    here.client.start()
    runner = asyncio.create_task(here.engine.run())
    try:
        while not here.client.ready:  # noqa: ASYNC110
            await asyncio.sleep(0)
        yield here
        assert here.client.num_active == 0
    finally:
        runner.cancel()
        here.client.close()
        await here.http.aclose()


def events(response: httpx.Response) -> list[Any]:
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = [part for part in response.text.split("\n\n") if part and not part.startswith(":")]
    assert all(chunk.startswith("data: ") for chunk in chunks)
    return [chunk[6:] if chunk == "data: [DONE]" else json.loads(chunk[6:]) for chunk in chunks]


def check_error(response: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] is None or isinstance(error["code"], str)
    if param is not None:
        assert error["param"] == param, error
    assert not re.search(r"/\w+/\w+/|0x[0-9a-f]{6}|Traceback|<[\w.]+ object", error["message"])
    assert len(error["message"]) < 400
    assert response.headers["x-request-id"]
    return error


def check_place(response: httpx.Response, field: str) -> dict[str, Any]:
    """An error of a field, or of what stands at a place in it."""
    error = check_error(response, 400)
    assert re.split(r"[.[]", error["param"])[0] == field, error
    return error
