"""One server per module, and the vendors' SDKs as its clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest

from octavo.testing.processes import ServerProcess, running_server
from served import KEY


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """The server that the module's ``server_argv(folder, model)`` starts."""
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, request.module.server_argv(folder, smollm2_path)) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def sdk(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture(scope="module")
def claude(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key=KEY, max_retries=0, _strict_response_validation=True
    ) as client:
        yield client
