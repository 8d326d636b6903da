from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx

from octavo.server.edge import MAX_BODY_BYTES, ApiKeys
from served import CHAT, COMPLETIONS, HELLO, Served, check_error, events

# -- answers -----------------------------------------------------------------------------------


def test_chat_answers(play: Any) -> None:
    async def test(here: Served) -> None:
        body = (await here.chat(n=2, logprobs=True, user="me")).json()
        assert body["object"] == "chat.completion"
        assert body["model"] == "tiny"
        assert [choice["index"] for choice in body["choices"]] == [0, 1]
        assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}
        assert all(len(c["logprobs"]["content"]) == 5 for c in body["choices"])
        usage = body["usage"]
        assert usage["completion_tokens"] == 10
        assert usage["total_tokens"] == usage["prompt_tokens"] + 10
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
        assert here.engine.engine is not None
        assert here.engine.engine.stats().counters["forks"] == 1

    play(test)


def test_a_stream_is_the_answer_in_pieces(play: Any) -> None:
    async def test(here: Served) -> None:
        whole = (await here.chat(n=2)).json()
        response = await here.chat(n=2, stream=True, stream_options={"include_usage": True})
        *chunks, last, done = events(response)
        assert done == "[DONE]"
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
        assert all(chunk["usage"] is None for chunk in chunks)
        texts, finishes, seen = {0: "", 1: ""}, {0: [], 1: []}, set()
        for chunk in chunks:
            (choice,) = chunk["choices"]
            index = choice["index"]
            if index not in seen:
                seen.add(index)
                assert choice["delta"] == {"role": "assistant", "content": ""}
            texts[index] += choice["delta"].get("content", "")
            if choice["finish_reason"] is not None:
                finishes[index].append(choice["finish_reason"])
        assert texts == {c["index"]: c["message"]["content"] for c in whole["choices"]}
        assert finishes == {0: ["length"], 1: ["length"]}

    play(test)


def test_a_stream_without_include_usage_has_none(play: Any) -> None:
    async def test(here: Served) -> None:
        chunks = events(await here.chat(stream=True))[:-1]
        assert all("usage" not in chunk for chunk in chunks)

    play(test)


def test_completions_take_every_shape_of_prompt(play: Any) -> None:
    async def test(here: Served) -> None:
        ids = here.state.tokenizer.encode("Hello")
        one = (await here.complete()).json()["choices"]
        same = (await here.complete(prompt=ids)).json()["choices"]
        assert one == same
        many = (await here.complete(prompt=["Hello", "Other"], n=2)).json()
        assert [choice["index"] for choice in many["choices"]] == [0, 1, 2, 3]
        assert many["choices"][0]["text"] == one[0]["text"]
        lists = (await here.complete(prompt=[ids, "Other"], n=2)).json()
        assert lists["choices"] == many["choices"]
        assert many["usage"]["completion_tokens"] == 20

    play(test)


def test_a_plain_stream_has_the_chunks_of_one_with_more_in_it(play: Any) -> None:
    async def test(here: Served) -> None:
        asked = {"prompt": ["One", "Two"], "n": 2, "stream": True, "stop": "zz", "max_tokens": 9}
        plain = events(await here.complete(**asked))[:-1]
        more = events(await here.complete(**asked, logprobs=0))[:-1]

        def told(chunks: list[Any], index: int) -> tuple[str, list[str]]:
            found = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
            reasons = [choice["finish_reason"] for choice in found if choice["finish_reason"]]
            return "".join(choice["text"] for choice in found), reasons

        for index in range(4):
            text, reasons = told(plain, index)
            assert (text, reasons) == told(more, index)
            assert text
            assert reasons == ["length"]
        assert all(chunk["choices"][0]["logprobs"] is None for chunk in plain)
        keys = {(tuple(chunk), tuple(chunk["choices"][0])) for chunk in (*plain, *more)}
        assert len(keys) == 1

    play(test)


def test_completions_stream_and_echo(play: Any) -> None:
    async def test(here: Served) -> None:
        whole = (await here.complete(prompt=["One", "Two"], echo=True)).json()["choices"]
        assert whole[1]["text"].startswith("Two")
        chunks = events(await here.complete(prompt=["One", "Two"], echo=True, stream=True))[:-1]
        texts = ["", ""]
        for chunk in chunks:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"]
        assert texts == [choice["text"] for choice in whole]

    play(test)


def test_completion_logprobs_are_parallel_lists(play: Any) -> None:
    async def test(here: Served) -> None:
        choice = (await here.complete(logprobs=2)).json()["choices"][0]
        lists = choice["logprobs"]
        assert {len(value) for value in lists.values()} == {5}
        assert lists["text_offset"][0] == 0
        assert lists["tokens"][0] in lists["top_logprobs"][0]

    play(test)


def test_a_stop_string_ends_the_text(play: Any) -> None:
    async def test(here: Served) -> None:
        text = (await here.complete(max_tokens=40)).json()["choices"][0]["text"]
        stop = text[30:34]
        choice = (await here.complete(max_tokens=40, stop=[stop])).json()["choices"][0]
        assert choice["text"] == text[: text.index(stop)]
        assert choice["finish_reason"] == "stop"

    play(test)


def test_defaults_come_from_the_model_and_are_overridden(play: Any) -> None:
    async def test(here: Served) -> None:
        from octavo.server.chat import parse_chat

        call = parse_chat(here.state, {"messages": HELLO})
        assert call.sampling.top_k == 7
        call = parse_chat(here.state, {"messages": HELLO, "top_k": -1})
        assert call.sampling.top_k == 0
        models = (await here.http.get("/v1/models")).json()["data"]
        assert models[0]["generation_config"] == {"top_k": 7}

    play(test)


def test_unknown_fields_are_refused_by_name(play: Any) -> None:
    async def test(here: Served) -> None:
        check_error(await here.chat(temprature=1), 400, "temprature")
        check_error(await here.complete(messages=HELLO), 400, "messages")
        check_error(await here.chat(**{"x\n\x00é" * 40: 1}), 400)
        check_error(await here.chat(stream_options={"include_usage": True}), 400, "stream_options")
        check_error(
            await here.chat(stream=True, stream_options={"foo": 1}), 400, "stream_options.foo"
        )
        odd = {"include_usage": "x"}
        name = "stream_options.include_usage"
        check_error(await here.chat(stream=True, stream_options=odd), 400, name)

    play(test)


# -- the edge ----------------------------------------------------------------------------------


def test_paths_methods_and_models(play: Any) -> None:
    async def test(here: Served) -> None:
        check_error(await here.http.get("/nowhere"), 404)
        for method, path, takes in (
            ("GET", CHAT, "POST"), ("POST", "/health", "GET, HEAD"),
            ("PUT", "/v1/responses/r", "GET, DELETE, HEAD"),
        ):  # fmt: skip
            refused = await here.http.request(method, path)
            check_error(refused, 405)
            assert refused.headers["allow"] == takes
        check_error(await here.http.get("/v1/models/other"), 404, "model")
        nameless = check_error(await here.http.get("/v1/models/"), 404, "model")
        assert nameless["message"] == "the model has no name; served: tiny, alias"
        check_error(await here.chat(model="gpt-4"), 404, "model")
        check_error(await here.chat(model="x\n" * 200), 404, "model")
        assert (await here.chat(model="alias")).json()["model"] == "alias"
        assert (await here.http.get("/v1/models/alias")).json()["root"] == "tiny"
        assert (await here.http.get("/version")).json()["version"]

    play(test)


def test_content_must_be_plain_json(play: Any) -> None:
    async def test(here: Served) -> None:
        async def raw(body: bytes, **headers: str) -> httpx.Response:
            named = {"content-type": "application/json"} | {
                key.replace("_", "-"): value for key, value in headers.items()
            }
            return await here.http.post(CHAT, content=body, headers=named)

        check_error(await raw(b"{}", content_type="text/plain"), 415)
        check_error(await raw(b"{}", content_type="application/jsonp"), 415)
        check_error(await raw(b"\x1f\x8b", content_encoding="gzip"), 415)
        check_error(await raw(b" " * (MAX_BODY_BYTES + 1)), 413)
        check_error(await raw(b'{"messages": NaN}'), 400)
        check_error(await raw(b'{"n": 1, "n": 2}'), 400, "n")
        accepted = await raw(
            json.dumps({"messages": HELLO, "max_tokens": 1}).encode(),
            content_type="Application/JSON; charset=utf-8",
        )
        assert accepted.status_code == 200

    play(test)


def test_only_known_hosts_are_answered(play: Any) -> None:
    async def test(here: Served) -> None:
        async def host(name: str) -> httpx.Response:
            return await here.http.get("/version", headers={"host": name})

        for name in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8", "192.168.1.7",
                     "ok.example", "OK.example:80"):  # fmt: skip
            assert (await host(name)).status_code == 200, name
        for name in (
            "evil.example",
            "localhost.evil.example",
            "",
            "ok.example.evil",
            "127.0.0.1.x",
        ):
            check_error(await host(name), 403)

    play(test)


def test_keys_guard_every_route_but_the_public_ones(play: Any) -> None:
    async def test(here: Served) -> None:
        here.state.api_keys = ApiKeys(["alpha", "beta"])
        guarded = ["/v1/models", "/v1/models/tiny", "/version", "/metrics", "/debug/kv",
                   "/debug/requests"]  # fmt: skip
        for path in guarded:
            check_error(await here.http.get(path), 401)
            for odd in (path + "/", path + "//", "//" + path.lstrip("/"), path.upper()):
                assert (await here.http.get(f"http://localhost{odd}")).status_code in {401, 404}
            for key in ("Bearer alpha", "bearer beta"):
                answer = await here.http.get(path, headers={"authorization": key})
                assert answer.status_code == 200
            for key in ("alpha", "Bearer", "Bearer ", "Bearer alphab", "Basic alpha", "Bearer é"):
                denied = await here.http.get(
                    path,
                    headers={"authorization": key.encode()},  # type: ignore[dict-item]
                )
                assert check_error(denied, 401)["code"] == "invalid_api_key"
        for path in (CHAT, COMPLETIONS, "/tokenize", "/detokenize"):
            check_error(await here.http.post(path, json={}), 401)
        for path in ("/health", "/ready"):
            assert (await here.http.get(path)).status_code == 200

    play(test)


def test_draining_and_recovering_are_503_with_retry_after(play: Any) -> None:
    async def test(here: Served) -> None:
        here.state.draining = True
        refused = await here.chat()
        assert check_error(refused, 503)["code"] == "unavailable"
        assert refused.headers["retry-after"]
        assert (await here.http.get("/ready")).status_code == 503
        assert (await here.http.get("/health")).status_code == 200
        here.state.draining = False
        here.engine.kill()
        check_error(await here.chat(), 503)
        assert (await here.http.get("/ready")).status_code == 503
        here.engine.revive()
        while (await here.http.get("/ready")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await here.chat()).status_code == 200

    play(test)


def test_a_full_queue_is_429(play: Any) -> None:
    from octavo.config import SchedulerConfig

    async def test(here: Served) -> None:
        answers = await asyncio.gather(*(here.chat(max_tokens=50) for _ in range(12)))
        refused = [answer for answer in answers if answer.status_code != 200]
        assert refused
        for answer in refused:
            assert check_error(answer, 429)["code"] == "overloaded"
            assert answer.headers["retry-after"]

    play(test, scheduler=SchedulerConfig(max_num_seqs=2, max_waiting=3))


def test_a_deadline_without_a_token_is_504(play: Any) -> None:
    async def test(here: Served) -> None:
        here.state.request_timeout_s = 0.0
        assert check_error(await here.chat(), 504)["code"] == "deadline_exceeded"
        assert check_error(await here.chat(stream=True), 504)["code"] == "deadline_exceeded"

    play(test)


def test_a_failure_in_mid_stream_is_an_event_and_the_end(play: Any) -> None:
    async def test(here: Served) -> None:
        here.state.request_timeout_s = 0.15
        *chunks, last = events(await here.chat(stream=True, max_tokens=900))
        assert set(last["error"]) == {"message", "type", "param", "code"}
        assert last["error"]["code"] == "deadline_exceeded"
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)

    play(test, step_s=0.01)


def test_a_fault_of_the_engine_costs_the_request_and_no_other(play: Any) -> None:
    async def test(here: Served) -> None:
        await here.chat()
        here.engine.runner.inner.fail_next = True
        error = check_error(await here.chat(), 500)
        assert error["code"] == "engine_error"
        assert (await here.chat()).status_code == 200

    play(test)


def test_a_bug_of_ours_says_nothing_about_us(play: Any, monkeypatch: Any) -> None:
    async def test(here: Served) -> None:
        def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("secret /etc/passwd")

        monkeypatch.setattr(here.client, "submit", broken)
        error = check_error(await here.chat(), 500)
        assert "secret" not in error["message"]

    play(test)


def test_request_ids_are_kept_when_harmless(play: Any) -> None:
    async def test(here: Served) -> None:
        given = await here.http.get("/health", headers={"x-request-id": "abc-1.2_3"})
        assert given.headers["x-request-id"] == "abc-1.2_3"
        odd = await here.http.get("/health", headers={"x-request-id": "a b;c"})
        assert re.fullmatch(r"req_[0-9a-f]{32}", odd.headers["x-request-id"])

    play(test)


def test_tokens_and_text(play: Any) -> None:
    async def test(here: Served) -> None:
        tokens = (await here.post("/tokenize", prompt="Grüße 🎉")).json()
        assert tokens["count"] == len(tokens["tokens"])
        text = (await here.post("/detokenize", tokens=tokens["tokens"])).json()
        assert text == {"prompt": "Grüße 🎉"}
        chat = (await here.post("/tokenize", messages=HELLO)).json()["tokens"]
        assert chat == here.state.template().encode(HELLO)
        check_error(await here.post("/tokenize"), 400, "prompt")
        check_error(await here.post("/tokenize", prompt="a", messages=HELLO), 400, "prompt")
        check_error(await here.post("/detokenize", tokens=[-1]), 400, "tokens[0]")
        check_error(await here.post("/detokenize", tokens=["a"]), 400, "tokens[0]")
        check_error(await here.post("/tokenize", prompt="a", foo=1), 400, "foo")
        for name, value in (
            ("add_generation_prompt", False), ("continue_final_message", False),
            ("chat_template_kwargs", {}), ("reasoning_effort", "strange"), ("tools", []),
            ("tool_choice", "auto"), ("parallel_tool_calls", True),
        ):  # fmt: skip
            check_error(await here.post("/tokenize", prompt="a", **{name: value}), 400, name)
        odd = {"messages": HELLO, "add_special_tokens": False}
        check_error(await here.post("/tokenize", **odd), 400, "add_special_tokens")

    play(test)


def test_facts_of_the_pool(play: Any) -> None:
    async def test(here: Served) -> None:
        (info,) = [n for n in await here.metrics() if n.startswith("vllm:cache_config_info")]
        welcome = here.client.welcome
        assert welcome is not None
        for name, value in {
            "block_size": 16, "num_gpu_blocks": 128, "max_num_seqs": 64,
            "max_num_batched_tokens": 512, "cache_dtype": welcome.kv_dtype,
            "kv_layout": welcome.kv_layout,
        }.items():  # fmt: skip
            assert f'{name}="{value}"' in info
        assert re.fullmatch(r"\d+ layers x \d+ bytes", welcome.kv_layout)

    play(test)


def test_every_bounded_resource_shows_use_and_limit(play: Any) -> None:
    from octavo.server.limits import RESOURCES

    def shown(values: dict[str, float], name: str) -> dict[str, float]:
        prefix = f'{name}{{model_name="tiny",resource="'
        return {
            key.removeprefix(prefix).removesuffix('"}'): value
            for key, value in values.items()
            if key.startswith(prefix)
        }

    async def test(here: Served) -> None:
        await here.chat()
        while any(shown(await here.metrics(), "octavo_limit_used").values()):
            await here.settle()
        values = await here.metrics()
        used, limits = shown(values, "octavo_limit_used"), shown(values, "octavo_limit")
        assert set(used) == set(limits) == {limit.name for limit in RESOURCES}
        assert set(used.values()) == {0}
        for limit in RESOURCES:
            if isinstance(limit.value, int):
                assert limits[limit.name] == limit.value
        running = [asyncio.create_task(here.chat(max_tokens=300, n=2)) for _ in range(3)]
        async with here.state.bodies.reading(*a_body(b"{}" + b" " * 98)):
            while here.client.stats is None or not here.client.stats.num_running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            used = shown(await here.metrics(), "octavo_limit_used")
        await asyncio.gather(*running)
        assert used["request_body_bytes"] == 100
        assert used["journal_requests"] == 3
        for name in ("journal_tokens", "kv_pool_bytes", "running_sequences"):
            assert 0 < used[name] <= limits[name]
        assert here.state.bodies.held == 0

    # Slow enough that a snapshot of the engine comes while the requests run.
    play(test, step_s=0.005)


def a_body(data: bytes) -> tuple[Any, Any]:
    async def receive() -> Any:
        return {"type": "http.request", "body": data}

    return [(b"content-type", b"application/json")], receive
