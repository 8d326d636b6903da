"""Fixtures of the whole suite: real models, found or fetched once, outside the repository."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "dev", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", parent=settings.get_profile("dev"), max_examples=1000)
settings.load_profile("dev")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF file, fetched into the user's cache when it is not there."""
    from octavo.weights.hub import pull

    return pull("smollm2")


@pytest.fixture(scope="session")
def smollm2_text(smollm2_path: Path) -> Any:
    """(model file, tokenizer, chat template) of the default model."""
    from octavo.worker import open_text

    return open_text(str(smollm2_path))


@pytest.fixture(scope="session")
def qwen_path() -> Path:
    """The 1.5B model (slow tests only)."""
    from octavo.weights.hub import pull

    return pull("qwen2.5-coder-1.5b")


@pytest.fixture
def play(smollm2_text: Any) -> Callable[..., None]:
    """Runs a coroutine against the whole application over a loopback engine."""
    from served import served

    def run(test: Callable[[Any], Coroutine[Any, Any, None]], **engine: Any) -> None:
        async def main() -> None:
            async with served(smollm2_text, **engine) as here:
                await test(here)

        asyncio.run(main())

    return run
