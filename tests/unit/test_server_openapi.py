"""``/openapi.json`` is a valid document, and true: the server takes and refuses what it says."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import jsonschema_rs
import openapi_spec_validator
import pytest

from field_samples import beside
from octavo.server import FIELDS, Treatment
from octavo.server.app import ALL_OPERATIONS
from octavo.server.endpoints import Endpoint
from octavo.server.openapi import openapi_document
from served import LEAST, PATHS, Served

DOCUMENT: Any = openapi_document(ALL_OPERATIONS)
# Values of every kind, of which a field takes few.
ODD: list[Any] = [
    True, False, 0, 1, -1, 1.5, 1 << 40, -(1 << 40), "", "x", [], {}, [1], ["x"], [""], [[]], [{}],
    {"x": 1}, {"type": "x"}, {"type": "text"},
]  # fmt: skip
# Why a server refuses what its schema allows: what it serves, and what does not go together.
BEYOND_A_SCHEMA = re.compile(
    "is not served here|has no name|only a last message|not read by this model|together [0-9]+,|"
    "disagree|choices at once|exceeds max_tokens|--request-timeout|deadline (had )?passed|"
    "response is stored|"
    "a token id of|vocabulary's last id|is empty|dimensions is [0-9]+; the limit"
)


def schema_of(endpoint: Endpoint) -> Any:
    post = DOCUMENT["paths"][PATHS[endpoint]]["post"]
    return post["requestBody"]["content"]["application/json"]["schema"]


def validator(schema: Any) -> Any:
    return jsonschema_rs.validator_for({**schema, "components": DOCUMENT["components"]})


def bounds(shape: Any) -> list[Any]:
    """The last values within a shape's bounds, and the first beyond them."""
    found = []
    step = 1 if "integer" in shape.get("type", ()) else 0.001
    for key, away in (("minimum", -step), ("maximum", step), ("exclusiveMinimum", step)):
        if key in shape:
            found += [shape[key], shape[key] + away]
    for key in ("minLength", "maxLength"):
        found += ["x" * (shape[key] + more) for more in (-1, 0, 1) if key in shape]
    return found + shape.get("enum", [])


def test_the_document_is_valid() -> None:
    assert list(openapi_spec_validator.OpenAPIV31SpecValidator(DOCUMENT).iter_errors()) == []


def test_it_is_served(play: Any) -> None:
    async def test(here: Served) -> None:
        response = await here.http.get("/openapi.json")
        assert response.json() == json.loads(json.dumps(DOCUMENT))

    play(test)


def test_every_path_takes_its_methods_and_no_other(play: Any) -> None:
    async def test(here: Served) -> None:
        for path, methods in DOCUMENT["paths"].items():
            for method in ("get", "post", "delete", "put", "patch"):
                response = await here.http.request(
                    method, path.format(response_id="r", name="n", request_id="q")
                )
                assert (response.status_code != 405) == (method in methods), path
                assert (
                    method not in methods
                    or str(response.status_code) in methods[method]["responses"]
                )

    play(test)


@pytest.mark.parametrize("endpoint", sorted(PATHS))
def test_every_field_of_the_table_is_a_property(endpoint: Endpoint) -> None:
    name = schema_of(endpoint)["$ref"].rpartition("/")[2]
    body = DOCUMENT["components"]["schemas"][name]
    rows = {field.name: field for field in FIELDS if endpoint in field.endpoints}
    assert body["properties"].keys() == rows.keys()
    assert body["additionalProperties"] is False
    for name, row in rows.items():
        said = body["properties"][name]["description"]
        assert said.startswith("" if row.treatment is Treatment.HONOURED else row.treatment)
        assert said.endswith(row.note)


@pytest.mark.parametrize("endpoint", sorted(PATHS))
def test_what_the_schema_refuses_the_server_refuses_by_name(play: Any, endpoint: Endpoint) -> None:
    is_valid = validator(schema_of(endpoint)).is_valid
    assert is_valid(LEAST[endpoint])
    counts = {True: 0, False: 0}

    async def test(here: Served) -> None:
        for field in FIELDS:
            if endpoint not in field.endpoints:
                continue
            for value in [*ODD, *bounds(field.shape)]:
                body = {**LEAST[endpoint], **beside(field, endpoint), field.name: value}
                valid = is_valid(body)
                counts[valid] += 1
                response = await here.post(PATHS[endpoint], **body)
                if not valid:
                    assert response.status_code == 400, (field.name, value)
                    assert field.name in response.text, (field.name, value)
                elif response.status_code != 200:
                    assert BEYOND_A_SCHEMA.search(response.text), (field.name, value, response.text)
        while here.client.num_active:  # noqa: ASYNC110 - made in the background
            await asyncio.sleep(0)

    play(test)
    assert min(counts.values()) > 2
