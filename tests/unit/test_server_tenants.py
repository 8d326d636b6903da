"""Whose key it is: tenants from the edge to the queue, their caches apart; priority and timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.api_keys import split_key, tenants_of
from octavo.cli.serve import read_keys
from octavo.core.request import Request
from octavo.errors import ConfigError, OverloadedError
from octavo.server.edge import ApiKeys
from served import CHAT, COMPLETIONS, HELLO, Served, served


@pytest.fixture
def play(smollm2_text: Any) -> Callable[..., None]:
    def run(test: Callable[[Served], Coroutine[Any, Any, None]], **engine: Any) -> None:
        async def main() -> None:
            async with served(smollm2_text, **engine) as here:
                await test(here)

        asyncio.run(main())

    return run


def with_key(here: Served, key: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer {key}"}}


def record(here: Served) -> list[Request]:
    """Every request that reaches the engine's client from now on, as the engine gets it."""
    submit, seen = here.client.submit, []

    def spy(request: Request, *, timeout_s: float) -> Any:
        stream = submit(request, timeout_s=timeout_s)
        seen.append(stream.request)
        return stream

    here.client.submit = spy  # type: ignore[method-assign]
    return seen


def test_a_key_says_who_is_served(play: Any) -> None:
    async def test(here: Served) -> None:
        here.state.api_keys = ApiKeys(["red=one", "blue=two", "red=three", "four"])
        seen = record(here)
        body = {"messages": HELLO, "max_tokens": 2}
        for key in ("one", "two", "three", "four"):
            answer = await here.http.post(CHAT, json=body, **with_key(here, key))
            assert answer.status_code == 200
        body = {"prompt": ["a", "b"], "max_tokens": 2}
        await here.http.post(COMPLETIONS, json=body, **with_key(here, "two"))
        tenants = [request.tenant for request in seen]
        assert tenants == ["red", "blue", "red", "default", "blue", "blue"]
        # A name is no key, and neither is name and key together.
        for key in ("red", "red=one", ""):
            answer = await here.http.post(CHAT, json=body, **with_key(here, key))
            assert answer.status_code == 401

    play(test)


def test_tenants_share_no_cached_block(play: Any) -> None:
    async def test(here: Served) -> None:
        here.state.api_keys = ApiKeys(["red=one", "blue=two"])
        body = {"prompt": "word " * 60, "max_tokens": 1}

        async def cached(key: str) -> int:
            answer = await here.http.post(COMPLETIONS, json=body, **with_key(here, key))
            count: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            return count

        assert await cached("one") == 0
        assert await cached("one") > 30
        assert await cached("two") == 0
        assert await cached("two") > 30

    play(test)


def test_what_shows_all_tenants_is_for_the_admin(play: Any) -> None:
    async def test(here: Served) -> None:
        async def status(path: str, key: str) -> httpx.Response:
            return await here.http.get(path, **with_key(here, key))

        paths = ("/debug/kv", "/debug/requests", "/debug/requests/r")
        here.state.api_keys = ApiKeys(["red=one", "blue=two", "admin=three"])
        for path in paths:
            refused = await status(path, "one")
            assert refused.status_code == 403
            assert refused.json()["error"]["code"] == "admin_key_required"
            assert (await status(path, "three")).status_code == (404 if path[-1] == "r" else 200)
            assert (await here.http.get(path)).status_code == 401
        for key, code in (("one", 403), ("three", 200)):
            reset = await here.http.post("/reset_prefix_cache", **with_key(here, key))
            assert reset.status_code == code
        assert (await status("/metrics", "one")).status_code == 200
        # Two keys of one tenant: there is nobody to hide from.
        here.state.api_keys = ApiKeys(["one", "two"])
        for path in paths:
            assert (await status(path, "two")).status_code in (200, 404)

    play(test)


@pytest.mark.parametrize(
    ("text", "tenant", "key"),
    [
        ("secret", "default", "secret"),
        ("team-1=secret", "team-1", "secret"),
        ("team=a=b==", "team", "a=b=="),
        # What another tool made in base64 is no name without a key.
        ("c2VjcmV0IQ==", "default", "c2VjcmV0IQ=="),
        ("c2VjcmV0ISE=", "default", "c2VjcmV0ISE="),
        ("no name=key", "default", "no name=key"),
        ("=key", "default", "=key"),
    ],
)
def test_names_and_keys(text: str, tenant: str, key: str) -> None:
    assert split_key(text) == (tenant, key)


def test_keys_that_are_none_are_refused() -> None:
    for text in ("", "  "):
        with pytest.raises(ConfigError, match="--api-key is empty"):
            split_key(text)
    assert tenants_of(["a=k", "a=k", "a=l", "m"]) == {"k": "a", "l": "a", "m": "default"}
    with pytest.raises(ConfigError, match="a and b have the same key"):
        tenants_of(["a=k", "b=k"])


def test_keys_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nred=one\n\n  blue=two \n")
    assert read_keys(path) == ["red=one", "blue=two"]
    path.write_text("# none\n")
    with pytest.raises(ConfigError, match="holds no key"):
        read_keys(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "missing")


def test_priority_and_timeout_reach_the_engine(play: Any) -> None:
    async def test(here: Served) -> None:
        seen = record(here)
        assert (await here.chat(priority=-1, timeout=30)).status_code == 200
        assert (await here.complete(priority=1, timeout=0.5)).status_code == 200
        assert (await here.chat(priority=None, timeout=None)).status_code == 200
        assert [request.priority for request in seen] == [-1, 1, 0]
        allowed = [round(r.deadline - r.arrival_time, 6) for r in seen if r.deadline is not None]
        assert allowed == [30, 0.5, here.state.request_timeout_s]

    play(test)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", 2), ("priority", -2), ("priority", 0.5), ("priority", True),
        ("priority", "high"), ("priority", 1 << 70),
        ("timeout", 0), ("timeout", -1), ("timeout", 601), ("timeout", True),
        ("timeout", "10"), ("timeout", 1e400),
    ],
)  # fmt: skip
def test_bad_values_are_refused_before_anything_is_allocated(
    play: Any, field: str, value: object
) -> None:
    async def test(here: Served) -> None:
        seen = record(here)
        for ask in (here.chat, here.complete):
            if value == 1e400:
                body = '{"messages": [], "prompt": "a", "timeout": 1e400}'
                path = CHAT if ask == here.chat else COMPLETIONS
                headers = {"content-type": "application/json"}
                answer = await here.http.post(path, content=body, headers=headers)
            else:
                answer = await ask(**{field: value})
            assert answer.status_code == 400
            if value != 1e400:
                assert answer.json()["error"]["param"] == field
        assert seen == []

    play(test)


def test_a_timeout_is_504_without_a_token_and_an_event_after_one(play: Any) -> None:
    async def test(here: Served) -> None:
        late = await here.chat(timeout=1e-6)
        assert late.status_code == 504
        assert late.json()["error"]["code"] == "deadline_exceeded"
        assert late.headers["retry-after"]
        stream = await here.chat(timeout=0.3, stream=True, max_tokens=900)
        assert stream.status_code == 200
        assert '"code":"deadline_exceeded"' in stream.text
        assert "[DONE]" not in stream.text
        await here.settle()
        assert here.engine.engine is not None
        assert not here.engine.engine.requests.states

    play(test, step_s=0.01)


def test_requests_are_found_by_the_clients_id(play: Any) -> None:
    """An engine's id has its row; a client's, which may be used often, the rows of all with it."""

    async def test(here: Served) -> None:
        body = {"prompt": ["a", "b"], "max_tokens": 900, "stream": True, "ignore_eos": True}
        named = {"x-request-id": "mine"}
        post = here.http.post
        asked = [asyncio.ensure_future(post(COMPLETIONS, json=body, headers=named)) for _ in "12"]
        other = asyncio.ensure_future(post(COMPLETIONS, json=body))
        while len(here.state.request_ids) < 6:  # noqa: ASYNC110
            await asyncio.sleep(0)
        listed = (await here.http.get("/debug/requests")).json()
        found = (await here.http.get("/debug/requests/mine")).json()
        assert len(listed) == 6
        mine = {key for key, row in listed.items() if row["x_request_id"] == "mine"}
        assert found.keys() == mine
        assert len(mine) == 4
        one = next(iter(mine))
        row = (await here.http.get(f"/debug/requests/{one}")).json()
        assert row["x_request_id"] == "mine"
        assert row.keys() == listed[one].keys()
        for task in (*asked, other):
            assert (await task).headers["x-request-id"]
        assert here.state.request_ids == {}

    play(test)


def test_no_clients_id_outlives_its_request(play: Any) -> None:
    async def test(here: Served) -> None:
        submit, refused = here.client.submit, [False, True]

        def refuses_the_second(request: Request, *, timeout_s: float) -> Any:
            if refused.pop(0):
                raise OverloadedError("full")
            return submit(request, timeout_s=timeout_s)

        here.client.submit = refuses_the_second  # type: ignore[method-assign]
        answer = await here.http.post(COMPLETIONS, json={"prompt": ["a", "b"], "max_tokens": 2})
        assert answer.status_code == 429
        assert here.state.request_ids == {}
        here.client.submit = submit  # type: ignore[method-assign]
        body = {"prompt": "a", "max_tokens": 900, "ignore_eos": True}
        for more in ({"timeout": 0.1}, {"timeout": 0.1, "stream": True}):
            await here.http.post(COMPLETIONS, json=body | more)
            assert here.state.request_ids == {}
        await here.http.post("/v1/embeddings", json={"input": "a"})
        assert here.state.request_ids == {}
        queued = await here.http.post(
            "/v1/responses", json={"input": "a", "background": True, "max_output_tokens": 900}
        )
        assert len(here.state.request_ids) == 1
        await here.http.post(f"/v1/responses/{queued.json()['id']}/cancel")
        await here.settle()
        assert here.state.request_ids == {}

    play(test, step_s=0.01)
