"""What a client and a dashboard see of drafts."""

from __future__ import annotations

import asyncio
from typing import Any

from octavo.testing import clairvoyant
from served import Served, served

PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


def test_drafts_show_in_usage_and_metrics(smollm2_text: Any) -> None:
    async def ask(here: Served) -> None:
        plain = (await here.chat(max_tokens=13)).json()
        engine = here.engine.engine
        assert engine is not None
        engine.scheduler.speculation.propose = clairvoyant(here.engine.info, lambda: 2)
        drafted = (await here.chat(max_tokens=13)).json()
        assert drafted["choices"] == plain["choices"]
        details = plain["usage"]["completion_tokens_details"]
        assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (
            0,
            0,
        )
        # The first token, then 2 accepted of 7 drafts and one more, thrice; the last 3 tokens are
        # within what 2 drafts can bring.
        details = drafted["usage"]["completion_tokens_details"]
        counters = engine.stats().counters
        accepted, proposed = counters["draft_tokens_accepted"], counters["draft_tokens"]
        assert details["accepted_prediction_tokens"] == accepted == 8
        assert details["rejected_prediction_tokens"] == proposed - accepted > 0
        await here.settle()
        values = await here.metrics()
        named = 'model_name="tiny"'
        for name, count in (
            ("draft_tokens", proposed),
            ("accepted_tokens", accepted),
            ("drafts", counters["draft_rows"]),
        ):
            assert values[f"vllm:spec_decode_num_{name}_total{{{named}}}"] == count
        for position, count in ((0, 4), (1, 4), (2, 0)):
            assert values[f'{PER_POSITION}{{{named},position="{position}"}}'] == count

    async def main() -> None:
        async with served(smollm2_text) as here:
            await ask(here)

    asyncio.run(main())
