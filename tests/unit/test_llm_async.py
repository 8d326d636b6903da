"""``AsyncLLM``: the answers of ``LLM``, many tasks at once, cancelled by closing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.config import CacheConfig, SchedulerConfig
from octavo.errors import DeadlineExceededError, InvalidRequestError, UnavailableError
from octavo.llm.local_engine import LocalEngine
from oracles.hf_writer import write_hf_directory

HELLO = [{"role": "user", "content": "ab"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_hf_directory(path, "llama")
    return path


def options(**scheduler: Any) -> dict[str, Any]:
    return {
        "backend": "reference",
        "scheduler": SchedulerConfig(**{"max_num_seqs": 8, "check_every_n_steps": 1, **scheduler}),
        "cache": CacheConfig(num_blocks=64),
    }


@asynccontextmanager
async def opened(folder: Path, **scheduler: Any) -> AsyncIterator[AsyncLLM]:
    async with AsyncLLM(str(folder), **options(**scheduler)) as llm:
        yield llm
        # What was cancelled is let go of within a step or two.
        await until(llm, lambda local: not (local.core.has_work() or local.inboxes))
        broken = await llm._room.ask(
            lambda local: local.core.check_invariants() + local.core.violations
        )
        assert broken == []
        assert (await llm.stats()).num_running == 0
        assert await llm._room.ask(lambda local: local.core.ledger().held) == 0


async def until(llm: AsyncLLM, is_so: Callable[[LocalEngine], bool]) -> None:
    while not await llm._room.ask(is_so):  # noqa: ASYNC110 - the engine's thread tells nobody
        await asyncio.sleep(0.001)


def seeded(seed: int, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"seed": seed, "max_tokens": 6, "ignore_eos": True, **changes})


def play(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def ids_of(outputs: Any) -> list[int]:
    return [t async for out in outputs for delta in out.branches for t in delta.token_ids]


async def said_by(outputs: Any) -> str:
    deltas = [one async for output in outputs for said in output.deltas for one in said]
    return "".join(delta["content"] for delta in deltas)


def test_every_call_gives_what_llm_gives(folder: Path) -> None:
    async def test() -> None:
        with LLM(str(folder), **options()) as plain:
            whole = plain.generate(["abc", [1, 2]], [seeded(1, n=2), seeded(2)], priority=1)
            told = plain.chat(HELLO, seeded(3), tools=TOOLS)
            said = plain.chat(HELLO, seeded(3))
            vectors = [e.values for e in plain.embed(["abc", "de"], dimensions=4)]
            scores = plain.score("abc", ["abc", "de"])
            labels = plain.systemone("abc", [("d", ["a", "bc"]), ("e", ["f"])])
        async with opened(folder) as llm:
            found = await asyncio.gather(
                llm.generate(["abc", [1, 2]], [seeded(1, n=2), seeded(2)], priority=1),
                llm.chat(HELLO, seeded(3), tools=TOOLS),
                llm.embed(["abc", "de"], dimensions=4),
                llm.score("abc", ["abc", "de"]),
                llm.systemone("abc", [("d", ["a", "bc"]), ("e", ["f"])]),
                ids_of(llm.stream("abc", seeded(1))),
                ids_of(llm.stream_chat(HELLO, seeded(3))),
                said_by(llm.stream_chat(HELLO, seeded(3), tools=TOOLS)),
            )
            assert [d.token_ids for d in found[0]] == [d.token_ids for d in whole]
            assert found[1][0].token_ids == told[0].token_ids != said[0].token_ids
            assert found[1][0].message == told[0].message
            # The reference backend's floats depend on the batch's shape a little.
            for mine, theirs in zip(found[2], vectors, strict=True):
                assert mine.values == pytest.approx(theirs, abs=1e-5)
            assert found[3] == pytest.approx(scores, abs=1e-5)
            for mine, theirs in zip(found[4], labels, strict=True):
                assert [s.token_ids for s in mine] == [s.token_ids for s in theirs]
                assert [s.logprob for s in mine] == pytest.approx([s.logprob for s in theirs])
            assert tuple(found[5]) == whole[0].token_ids
            assert tuple(found[6]) == said[0].token_ids
            assert told[0].message == {"role": "assistant", "content": found[7]}

    play(test)


def test_closing_a_generator_or_cancelling_a_task_frees_its_blocks(folder: Path) -> None:
    async def test() -> None:
        async with opened(folder) as llm:
            async with aclosing(llm.stream("abc", seeded(1, max_tokens=200))) as stream:
                first = await anext(stream)
                assert first.usage.completion_tokens == 1
            task = asyncio.create_task(llm.generate(["x"] * 20, seeded(2, max_tokens=200)))
            await until(llm, lambda local: bool(local.core.scheduler.running))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(llm, lambda local: not local.core.scheduler.running)
            assert (await llm.stats()).counters["requests_aborted"] > 1

    play(test)


def test_more_prompts_than_the_queue_holds(folder: Path) -> None:
    async def test() -> None:
        async with opened(folder, max_waiting=3) as llm:
            many = await llm.generate([[1 + i % 40] for i in range(40)], seeded(0, max_tokens=2))
            assert [done.prompt_token_ids for done in many] == [(1 + i % 40,) for i in range(40)]
            assert (await llm.stats()).counters["requests_refused"] == 0

    play(test)


def test_failures_are_raised_where_they_belong(folder: Path) -> None:
    async def test() -> None:
        async with opened(folder) as llm:
            with pytest.raises(InvalidRequestError):
                llm.stream([True])
            good = asyncio.create_task(llm.generate("abc", seeded(1)))
            with pytest.raises(DeadlineExceededError):
                await llm.generate("abc", seeded(1, max_tokens=200), timeout_s=1e-3)
            with pytest.raises(InvalidRequestError, match="n is 20"):
                await llm.generate("abc", seeded(1, n=20))
            assert len((await good)[0].token_ids) == 6

    play(test)


def test_closing_ends_what_runs_and_takes_no_more(folder: Path) -> None:
    async def test() -> None:
        llm = AsyncLLM(str(folder), **options())
        stream = llm.stream("abc", seeded(1, max_tokens=200))
        await anext(stream)
        await asyncio.to_thread(llm.close)
        llm.close()
        with pytest.raises(UnavailableError, match="was closed"):
            await ids_of(stream)
        with pytest.raises(UnavailableError, match="is closed"):
            await llm.generate("abc")

    play(test)


def test_the_two_faces_have_the_same_calls_and_parameters() -> None:
    def calls(face: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in vars(face).items()
            if callable(member) and not name.startswith("_")
        }

    assert calls(AsyncLLM) == calls(LLM)
