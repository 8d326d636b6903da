"""What ``/openapi.json`` says, asked of a server of real processes: what fits, and what does not.

No answer is a fault of the server, each is one that the document knows, in its shape, and a body
that does not fit is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis.strategies import data

from octavo.testing.processes import ServerProcess, fake_serve_argv

schemathesis = pytest.importorskip("schemathesis")
from schemathesis.checks import CHECKS  # noqa: E402
from schemathesis.core.errors import UnsupportedSchema  # noqa: E402

NAMES = (
    "status_code_conformance", "content_type_conformance",
    "response_headers_conformance", "response_schema_conformance", "negative_data_rejection",
)  # fmt: skip
# Their bodies are small, so that drawing them is quick; the others are drawn in the slow run.
QUICK = (
    "/detokenize", "/v1/embeddings", "/v1/score", "/v1/models/{name}",
    "/v1/responses/{response_id}", "/v1/responses/{response_id}/input_items",
)  # fmt: skip
MODES = ("positive", "negative")
FEW = [
    (path, mode)
    for path in QUICK
    for mode in MODES
    # Any text is a name: nothing that does not fit can be asked of a path without a query.
    if mode == "positive" or not path.endswith("}")
]


def server_argv(folder: Path, model: Path) -> list[str]:
    return fake_serve_argv(folder, model, num_blocks=40, grammars_of=str(model))


@pytest.fixture(scope="module")
def operations(server: ServerProcess) -> dict[str, Any]:
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    return {found.ok().label: found.ok() for found in document.get_all_operations()}


def ask(operation: Any, mode: str, *, max_examples: int) -> int:
    """Send so many cases; how many were sent."""
    checks = [CHECKS.get_one(name) for name in NAMES]
    count = undrawn = 0
    cases = operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode))

    @seed(20)
    @settings(
        max_examples=max_examples, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(data=data())
    def send(data: Any) -> None:
        nonlocal count, undrawn
        try:
            case = data.draw(cases)
        except UnsupportedSchema:
            # Of what may be wrong, the library knows some that it cannot draw: another is drawn.
            undrawn += 1
            reject()
        count += 1
        response = case.call(timeout=30)
        # 504 is the answer to a case with a tiny deadline of its own.
        assert response.status_code < 500 or response.status_code == 504
        case.validate_response(response, checks=checks)

    send()
    assert undrawn < count
    return count


def check_idle(server: ServerProcess) -> None:
    assert server.metric("octavo_engine_restarts_total") == 0
    assert server.metric("octavo_orphan_blocks") == 0
    assert server.metric("octavo_engine_invariant_violations_total") == 0


@pytest.mark.parametrize(("path", "mode"), FEW)
def test_a_few(server: ServerProcess, operations: dict[str, Any], path: str, mode: str) -> None:
    for label, operation in operations.items():
        if label.split()[1] == path:
            assert ask(operation, mode, max_examples=8) > 0
    check_idle(server)


# Drawing one body of a conversation takes a second or more.
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("mode", MODES)
def test_many(server: ServerProcess, operations: dict[str, Any], mode: str) -> None:
    counts = {
        label: ask(operation, mode, max_examples=20)
        for label, operation in operations.items()
        if mode == "positive" or operation.body or operation.query
    }
    assert counts["POST /v1/chat/completions"] > 10
    check_idle(server)
