from __future__ import annotations

import asyncio
from typing import Any

from client_world import read, request, run, until, world
from octavo.frontend.client import TICK_S

# The bound until the first movement is a multiple of it.
HANG_S = 0.02


def test_an_engine_that_stops_with_work_is_told_of_and_one_at_rest_is_not(
    smollm2_text: Any,
) -> None:
    async def test() -> None:
        async with world(smollm2_text[1], hang_s=HANG_S) as here:
            await read(here.client.submit(request(), timeout_s=9))
            await asyncio.sleep(4 * TICK_S)
            assert here.hangs == []
            here.runner.cancel()
            await asyncio.sleep(4 * TICK_S)
            assert here.hangs == []
            stream = here.client.submit(request(), timeout_s=9)
            await until(lambda: len(here.hangs) >= 2)
            assert all(seconds > HANG_S for seconds in here.hangs)
            stream.cancel()

    run(test())


def test_a_welcome_is_owed_whether_there_is_a_connection_or_not(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1], hang_s=HANG_S) as here:
            here.runner.cancel()
            here.engine.kill()
            await until(lambda: bool(here.hangs))
            here.engine.revive()
            here.hangs.clear()
            await until(lambda: bool(here.hangs))
            # It answers after all.
            here.engine.turn()
            assert here.client.ready
            here.hangs.clear()
            await asyncio.sleep(4 * TICK_S)
            assert here.hangs == []

    run(test())


def test_totals_do_not_fall_when_the_engine_dies(smollm2_text: Any) -> None:
    async def test() -> None:
        async with world(smollm2_text[1]) as here:
            counters = here.client.counters
            for deaths in range(3):
                before = counters.totals().get("steps", 0)
                await read(here.client.submit(request(), timeout_s=9))
                await until(lambda least=before: counters.totals()["steps"] > least)
                here.engine.kill()
                assert counters.totals()["steps"] > before
                here.engine.revive()
                await until(lambda: here.client.ready)
                assert here.client.engine_restarts == deaths + 1

    run(test())
