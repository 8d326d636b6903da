"""The field table is true: every row does what it says, at every endpoint that it names."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from field_samples import IGNORED_SAMPLES, PREVIOUS, beside, sample_of
from octavo.server import FIELDS, Treatment
from octavo.server.endpoints import Endpoint
from octavo.server.fields import Field
from octavo.server.response_store import StoredResponse
from served import HELLO, PATHS, Served

ROWS = [
    pytest.param(field, endpoint, id=f"{endpoint}-{field.name}")
    for field in FIELDS
    for endpoint in sorted(field.endpoints)
]


@pytest.mark.parametrize(("field", "endpoint"), ROWS)
def test_the_field_table_is_true(play: Any, field: Field, endpoint: Endpoint) -> None:
    async def test(here: Served) -> None:
        async def ask(**body: Any) -> Any:
            return await here.ask(endpoint, **body)

        earlier = StoredResponse(owner="default", body={"status": "completed"}, messages=HELLO)
        here.state.responses.put(PREVIOUS, earlier)
        if field.treatment is Treatment.REFUSED:
            refused = await ask(**{field.name: {"anything": 1}})
            assert refused.status_code == 400
            error = refused.json()["error"]
            assert error["message"].startswith(f"{field.name} is refused: ")
            assert error.get("param", field.name) == field.name
            for value in (None, *field.neutral):
                assert (await ask(**{field.name: value})).status_code == 200
        elif field.treatment is Treatment.IGNORED:
            sample = IGNORED_SAMPLES.get(field.name, "x")
            response = await ask(**{field.name: sample})
            assert response.status_code == 200
            assert response.headers["x-octavo-ignored"].split(", ")[0] == field.name
        else:
            sample = sample_of(field, endpoint)
            response = await ask(**{**beside(field, endpoint), field.name: sample})
            assert response.status_code == 200, response.text
        while here.client.num_active:  # noqa: ASYNC110 - made in the background
            await asyncio.sleep(0)

    play(test)


def test_a_field_has_one_row_at_an_endpoint() -> None:
    pairs = [(field.name, endpoint) for field in FIELDS for endpoint in field.endpoints]
    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("endpoint", sorted(PATHS))
def test_a_field_that_is_no_row_is_refused(play: Any, endpoint: Endpoint) -> None:
    async def test(here: Served) -> None:
        known = {field.name for field in FIELDS if endpoint in field.endpoints}
        for name in ({field.name for field in FIELDS} - known) | {"temprature"}:
            refused = await here.ask(endpoint, **{name: None})
            assert refused.status_code == 400
            assert f'unknown field "{name}"' in refused.json()["error"]["message"]

    play(test)
