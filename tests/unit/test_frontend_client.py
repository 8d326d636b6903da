from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from client_world import PROMPT, World, read, request, run, until, world
from octavo.cluster.messages import (
    AbortMessage,
    Beat,
    Hello,
    Lease,
    Outputs,
    StopBranchMessage,
    SubmitMessage,
)
from octavo.cluster.wire import decode_frontend_message, encode
from octavo.core.request import BranchOutput, FinishReason
from octavo.errors import DeadlineExceededError, EngineError, OverloadedError, UnavailableError
from octavo.frontend import AsyncEngineClient


def test_a_stream_ends_and_leaves_nothing(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1]) as here:
            tokens, text = await read(here.client.submit(request(n=3), timeout_s=9))
            assert {branch: len(ids) for branch, ids in tokens.items()} == dict.fromkeys(
                range(3), 24
            )
            assert text[0] == smollm2_text[1].decode(tokens[0])
            await until(lambda: here.kept() == (0,) * 5)

    run(test())


@pytest.mark.parametrize("seed", range(4))
def test_deaths_of_the_engine_change_no_token(smollm2_text: Any, seed: int) -> None:
    async def test() -> None:
        rng = random.Random(seed)
        asks = [
            request(prompt=tuple(range(50 + i, 80 + 2 * i)), seed=i, n=1 + i % 3) for i in range(6)
        ]
        async with world(smollm2_text[1]) as here:
            calm = [await read(here.client.submit(ask, timeout_s=60)) for ask in asks]
        async with world(smollm2_text[1], step_s=0.0005) as here:
            readers = [
                asyncio.create_task(read(here.client.submit(ask, timeout_s=60))) for ask in asks
            ]
            for death in range(3):
                target = 60 * death + rng.randint(1, 60)
                await until(lambda target=target: here.delivered() >= target)
                here.engine.kill()
                with pytest.raises(UnavailableError):
                    here.client.submit(asks[0], timeout_s=9)
                here.engine.revive()
                await until(lambda: here.client.ready)
            stormy = await asyncio.gather(*readers)
            assert stormy == calm
            assert here.client.engine_restarts == 3
            replayed = [m for m in here.messages(SubmitMessage) if m.submit.epoch > 0]
            assert any(any(m.submit.branch_tokens) for m in replayed)
            await until(lambda: here.kept() == (0,) * 5)

    run(test())


def test_a_request_that_kills_the_engine_is_dropped_by_name(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1], poison=666, step_s=0.001) as here:
            innocent = [request(prompt=(7, 8, 9 + i), max_tokens=200) for i in range(4)]
            readers = [
                asyncio.create_task(read(here.client.submit(ask, timeout_s=60))) for ask in innocent
            ]
            await asyncio.sleep(0.02)
            pill = here.client.submit(request(prompt=(666, 667)), timeout_s=60)
            victim = asyncio.create_task(read(pill))
            with pytest.raises(EngineError, match=pill.request_id):
                await victim
            assert here.engine.deaths == 4
            for tokens, _ in await asyncio.gather(*readers):
                assert len(tokens[0]) == 200

    run(test())


@pytest.mark.parametrize("moment", range(0, 12, 2))
def test_cancel_in_every_phase_gives_all_back(smollm2_text: Any, moment: int) -> None:
    async def test() -> None:
        async with world(smollm2_text[1]) as here:
            stream = here.client.submit(request(n=2, max_tokens=500), timeout_s=9)
            for _ in range(moment):
                await asyncio.sleep(0)
            stream.cancel()
            stream.cancel()
            await read(stream)
            await until(lambda: here.kept() == (0,) * 5)
            assert len(here.messages(AbortMessage)) == 1

    run(test())


def test_leaving_the_generator_cancels(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1]) as here:
            outputs = here.client.generate(request(max_tokens=500))
            await anext(outputs)
            await outputs.aclose()  # type: ignore[attr-defined]
            await until(lambda: here.kept() == (0,) * 5)

    run(test())


def test_a_stop_string_ends_the_branch_in_the_engine(smollm2_text: Any) -> None:
    async def test() -> None:
        tokenizer = smollm2_text[1]
        async with world(tokenizer) as here:
            _, text = await read(here.client.submit(request(max_tokens=100), timeout_s=9))
            stop = text[0][40:44]
            stream = here.client.submit(request(max_tokens=100, stop=(stop,)), timeout_s=9)
            _, cut = await read(stream)
            assert cut[0] == text[0][: text[0].index(stop)]
            assert len(here.messages(StopBranchMessage)) == 1
            await until(lambda: here.kept() == (0,) * 5)

    run(test())


def test_a_stop_string_waits_for_min_tokens(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1]) as here:
            _, text = await read(here.client.submit(request(max_tokens=40), timeout_s=9))
            # Every letter there is: any token would stop it.
            stops = tuple(sorted(set(text[0]))[:16])
            early, _ = await read(
                here.client.submit(request(max_tokens=40, stop=stops), timeout_s=9)
            )
            late, cut = await read(
                here.client.submit(request(max_tokens=40, min_tokens=20, stop=stops), timeout_s=9)
            )
            assert len(early[0]) < 20 < len(late[0]) <= 40
            assert text[0].startswith(cut[0])
            await until(lambda: here.kept() == (0,) * 5)

    run(test())


def test_lost_outputs_are_replayed_from_the_journal(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1]) as here:
            calm, _ = await read(here.client.submit(request(), timeout_s=9))
            stream = here.client.submit(request(), timeout_s=9)
            reader = asyncio.create_task(read(stream))
            await asyncio.sleep(0)
            # Outputs from nowhere that begin past what is journaled.
            core = here.engine.engine
            assert core is not None
            lost = BranchOutput(
                request_id=stream.request_id, branch=0, epoch=0, position=90, token_ids=(1,)
            )
            here.client.frame_received(encode(Outputs(engine_epoch=core.epoch, outputs=[lost])))
            tokens, _ = await reader
            assert tokens == calm
            assert [m.submit.epoch for m in here.messages(SubmitMessage)] == [0, 0, 1]

    run(test())


def test_a_lost_lease_is_a_replay_not_a_failure(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1], step_s=0.001) as here:
            calm, _ = await read(here.client.submit(request(max_tokens=60), timeout_s=9))
            stream = here.client.submit(request(max_tokens=60), timeout_s=9)
            reader = asyncio.create_task(read(stream))
            await asyncio.sleep(0.01)
            peer = next(iter(here.engine._loop._peers.values()))  # type: ignore[union-attr]
            peer.last_seen -= 5
            here.engine._loop._leases_due -= 5  # type: ignore[union-attr]
            tokens, _ = await reader
            assert tokens == calm
            assert len(here.messages(Hello)) >= 2

    run(test())


def test_leases_flow_only_while_something_runs(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1], step_s=0.02) as here:
            await asyncio.sleep(0.4)
            assert here.messages(Lease) == []
            await read(here.client.submit(request(max_tokens=40), timeout_s=9))
            assert len(here.messages(Lease)) >= 2

    run(test())


def test_a_slow_reader_pauses_its_request_and_misses_nothing(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1], num_blocks=512) as here:
            ask = request(max_tokens=1200, logprobs=0, n=2)
            calm, _ = await read(here.client.submit(ask, timeout_s=60))
            stream = here.client.submit(ask, timeout_s=60)
            await until(lambda: stream.paused_since is not None)
            core = here.engine.engine
            assert core is not None
            await until(lambda: not core.requests.states)
            tokens, _ = await read(stream)
            assert tokens == calm
            await until(lambda: here.kept() == (0,) * 5)

    run(test())


def test_a_reader_that_never_reads_is_cancelled_by_name(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1], num_blocks=512) as here:
            stream = here.client.submit(request(max_tokens=1200, logprobs=0, n=2), timeout_s=60)
            await until(lambda: stream.paused_since is not None)
            stream.paused_since -= 60  # type: ignore[operator]
            await until(lambda: here.client.num_active == 0)
            with pytest.raises(UnavailableError, match="did not read for 30 s"):
                await read(stream)

    run(test())


def test_a_deadline_without_an_engine_is_kept(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1], step_s=0.001) as here:
            stream = here.client.submit(request(max_tokens=500), timeout_s=0.05)
            here.engine.kill()
            with pytest.raises(DeadlineExceededError):
                await read(stream)

    run(test())


def test_a_deadline_in_the_engine_is_its_own_error(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1], step_s=0.005) as here:
            stream = here.client.submit(request(max_tokens=3000), timeout_s=0.1)
            with pytest.raises(DeadlineExceededError):
                await read(stream)
            await until(lambda: here.kept() == (0,) * 5)

    run(test())


def test_readiness_wants_progress(smollm2_text: Any) -> None:
    async def test() -> None:
        here = World(smollm2_text[1])
        clock = [0.0]
        here.client = AsyncEngineClient(
            here.engine, here.processor, client_epoch=1, clock=lambda: clock[0]
        )
        here.client.start()
        here.engine.turn()
        assert here.client.ready
        stream = here.client.submit(request(), timeout_s=600)
        clock[0] = 3.9
        assert here.client.ready
        clock[0] = 4.1
        assert not here.client.ready
        here.engine.turn()
        assert here.client.ready
        stream.cancel()
        here.client.close()

    run(test())


def test_hostile_frames_from_an_engine_are_dropped(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1]) as here:
            rng = random.Random(1)
            stream = here.client.submit(request(), timeout_s=9)
            reader = asyncio.create_task(read(stream))
            for _ in range(200):
                here.client.frame_received(rng.randbytes(rng.randint(0, 60)))
            bogus = BranchOutput(
                request_id="nobody", branch=3, epoch=0, position=0, finish_reason=FinishReason.STOP
            )
            here.client.frame_received(encode(Outputs(engine_epoch=404, outputs=[bogus])))
            tokens, _ = await reader
            assert len(tokens[0]) == 24

    run(test())


def test_one_that_dies_at_every_decode_step_is_dropped_and_nobody_else(smollm2_text: Any) -> None:
    async def test() -> None:
        asks = [request(prompt=(7, 8, 9 + i), max_tokens=120, seed=i) for i in range(3)]
        async with world(smollm2_text[1]) as here:
            calm = [await read(here.client.submit(ask, timeout_s=60)) for ask in asks]
        async with world(smollm2_text[1], curse=666) as here:
            readers = [
                asyncio.create_task(read(here.client.submit(ask, timeout_s=60))) for ask in asks
            ]
            await until(lambda: here.delivered() >= 30)
            cursed = here.client.submit(request(prompt=(666, 667)), timeout_s=60)
            victim = asyncio.create_task(read(cursed))
            with pytest.raises(EngineError, match=cursed.request_id):
                await victim
            assert here.engine.deaths == 4
            assert await asyncio.gather(*readers) == calm
            await until(lambda: here.kept() == (0,) * 5)

    run(test())


@pytest.mark.parametrize("change", [{"fingerprint": "other"}, {"model_digest": "other"}])
def test_an_engine_of_another_kind_continues_nothing(
    smollm2_text: Any, change: dict[str, str]
) -> None:
    async def test() -> None:
        async with world(smollm2_text[1], step_s=0.001) as here:
            stream = here.client.submit(request(max_tokens=500), timeout_s=60)
            reader = asyncio.create_task(read(stream))
            await until(lambda: here.delivered() >= 5)
            here.engine.kill()
            here.engine.info = replace(here.engine.info, **change)
            here.engine.revive()
            with pytest.raises(EngineError, match=f"{stream.request_id}.*other weights"):
                await reader
            tokens, _ = await read(here.client.submit(request(), timeout_s=60))
            assert len(tokens[0]) == 24
            await until(lambda: here.kept() == (0,) * 5)

    run(test())


def test_a_stop_that_could_not_be_sent_is_sent_later(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1], num_blocks=512) as here:
            _, text = await read(here.client.submit(request(max_tokens=100), timeout_s=9))
            stop = text[0][40:44]
            stream = here.client.submit(request(max_tokens=4000, stop=(stop,)), timeout_s=9)
            await until(lambda: bool(here.client._submitted))
            here.engine.full = True
            await read(stream)
            core = here.engine.engine
            assert core is not None
            assert core.requests.states
            here.engine.full = False
            await until(lambda: here.kept() == (0,) * 5)
            assert core.counters.branches_stopped == 1

    run(test())


def test_an_abort_that_could_not_be_sent_is_sent_before_the_next_submit(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1], step_s=0.001) as here:
            stream = here.client.submit(request(max_tokens=3000), timeout_s=60)
            await until(lambda: here.delivered() >= 3)
            here.engine.full = True
            stream.cancel()
            with pytest.raises(OverloadedError):
                here.client.submit(request(), timeout_s=60)
            here.engine.full = False
            mark = len(here.engine.sent)
            tokens, _ = await read(here.client.submit(request(), timeout_s=60))
            assert len(tokens[0]) == 24
            first, second = (decode_frontend_message(f) for f in here.engine.sent[mark : mark + 2])
            assert isinstance(first, AbortMessage)
            assert isinstance(second, SubmitMessage)
            await until(lambda: here.kept() == (0,) * 5)

    run(test())


def test_a_dead_engine_has_no_numbers(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1], step_s=0.001) as here:
            here.client.submit(request(max_tokens=3000), timeout_s=60)
            await until(lambda: here.client.stats is not None and here.client.stats.num_running > 0)
            here.engine.kill()
            assert here.client.stats is None
            assert not here.client.ready

    run(test())


def test_a_long_step_is_ready_while_it_moves_and_not_when_it_hangs(smollm2_text: Any) -> None:
    async def test() -> None:
        here = World(smollm2_text[1])
        clock = [0.0]
        here.client = AsyncEngineClient(
            here.engine, here.processor, client_epoch=1, clock=lambda: clock[0]
        )
        here.client.start()
        here.engine.turn()
        stream = here.client.submit(request(), timeout_s=600)
        for layer in range(60):
            clock[0] += 1
            here.client.frame_received(encode(Beat(engine_epoch=1, progress=layer)))
            assert here.client.ready
        for _ in range(4):
            clock[0] += 1
            here.client.frame_received(encode(Beat(engine_epoch=1, progress=59)))
        assert not here.client.ready
        here.client.frame_received(encode(Beat(engine_epoch=404, progress=61)))
        assert not here.client.ready
        stream.cancel()
        here.client.close()

    run(test())


def test_the_limits_say_what_is_used(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1], step_s=0.001) as here:
            stream = here.client.submit(request(max_tokens=500), timeout_s=60)
            await until(lambda: here.delivered() >= 3)
            limits = here.client.limits()
            assert limits["journal_requests"][0] == 1
            assert limits["journal_tokens"][0] >= len(PROMPT) + 3
            assert all(used < limit for used, limit in limits.values())
            stream.cancel()
            assert [used for used, _ in here.client.limits().values()] == [0, 0]

    run(test())


def test_unreadable_output_costs_its_own_request(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1], step_s=0.002) as here:
            good = here.client.submit(request(max_tokens=60), timeout_s=60)
            bad = here.client.submit(request(max_tokens=3000, seed=4), timeout_s=60)
            reader = asyncio.create_task(read(good))
            await until(lambda: here.delivered() >= 4)
            entry = here.processor.journal.get(bad.request_id)
            core = here.engine.engine
            assert entry is not None
            assert core is not None
            unknown = BranchOutput(
                request_id=bad.request_id, branch=0, epoch=entry.epoch,
                position=len(entry.branches[0].token_ids), token_ids=(10**6,),
            )  # fmt: skip
            here.client.frame_received(encode(Outputs(engine_epoch=core.epoch, outputs=[unknown])))
            with pytest.raises(EngineError, match=f"{bad.request_id} is dropped"):
                await read(bad)
            tokens, _ = await reader
            assert len(tokens[0]) == 60
            await until(lambda: here.kept() == (0,) * 5)

    run(test())
