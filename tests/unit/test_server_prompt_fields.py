"""Fields about the prompt, the endpoints that show it, and what stands beside an answer."""

from __future__ import annotations

from typing import Any

from served import HELLO, Served, check_error, events


def test_a_prompt_is_cut_to_its_last_tokens(play: Any) -> None:
    async def test(here: Served) -> None:
        ids = here.state.tokenizer.encode("One two three four five six")
        kept = (await here.complete(prompt=ids[-3:], echo=True)).json()
        cut = await here.complete(prompt=ids, truncate_prompt_tokens=3, echo=True)
        assert cut.json()["choices"] == kept["choices"]
        assert cut.json()["usage"]["prompt_tokens"] == 3
        whole = await here.complete(prompt="Hello", truncate_prompt_tokens=99, echo=True)
        assert whole.json()["choices"][0]["text"].startswith("Hello")
        chat = await here.chat(truncate_prompt_tokens=2, return_token_ids=True)
        assert chat.json()["prompt_token_ids"] == here.state.template().encode(HELLO)[-2:]
        check_error(await here.chat(truncate_prompt_tokens=0), 400, "truncate_prompt_tokens")

    play(test)


def test_token_ids_are_those_of_prompt_and_answer(play: Any) -> None:
    async def test(here: Served) -> None:
        tokenizer = here.state.tokenizer
        body = (await here.chat(return_token_ids=True, n=2)).json()
        assert body["prompt_token_ids"] == here.state.template().encode(HELLO)
        for choice in body["choices"]:
            assert tokenizer.decode(choice["token_ids"]) == choice["message"]["content"]
        found: dict[int, list[int]] = {0: [], 1: []}
        prompts = []
        for chunk in events(await here.chat(return_token_ids=True, n=2, stream=True))[:-1]:
            (choice,) = chunk["choices"]
            found[choice["index"]] += choice.get("token_ids", [])
            prompts += [choice["prompt_token_ids"]] if "prompt_token_ids" in choice else []
        assert list(found.values()) == [choice["token_ids"] for choice in body["choices"]]
        assert prompts == [body["prompt_token_ids"]] * 2
        both = {"prompt": ["Hello", "Other"], "return_token_ids": True}
        whole = (await here.complete(**both)).json()["choices"]
        assert [c["prompt_token_ids"] for c in whole] == [
            tokenizer.encode("Hello"), tokenizer.encode("Other"),
        ]  # fmt: skip
        streamed: dict[int, list[int]] = {0: [], 1: []}
        for chunk in events(await here.complete(**both, stream=True))[:-1]:
            (choice,) = chunk["choices"]
            streamed[choice["index"]] += choice["token_ids"]
        assert list(streamed.values()) == [choice["token_ids"] for choice in whole]
        plain = (await here.complete()).json()["choices"][0]
        assert not {"token_ids", "prompt_token_ids"} & set(plain)

    play(test)


def test_a_salt_parts_prefixes_and_changes_no_answer(play: Any) -> None:
    async def test(here: Served) -> None:
        long = {"prompt": "Tell me a tale. " * 20}

        async def ask(salt: str | None) -> tuple[Any, int]:
            body = (await here.complete(**long, cache_salt=salt)).json()
            return body["choices"], body["usage"]["prompt_tokens_details"]["cached_tokens"]

        cold, nothing = await ask("mine")
        assert nothing == 0
        warm, hit = await ask("mine")
        assert hit > 50
        for salt in ("yours", None):
            other, missed = await ask(salt)
            assert (other, missed) == (cold, 0)
        assert warm == cold
        for bad in ("", "x" * 257, 5):
            check_error(await here.complete(cache_salt=bad), 400, "cache_salt")

    play(test)


def test_how_a_chat_ends_can_be_chosen(play: Any) -> None:
    async def test(here: Served) -> None:
        begun = [*HELLO, {"role": "assistant", "content": "Well, I"}]
        template = here.state.template()
        shown = {"return_token_ids": True}
        chat = await here.chat(messages=begun, continue_final_message=True, **shown)
        assert chat.json()["prompt_token_ids"] == template.encode(begun, continue_final=True)
        bare = await here.chat(add_generation_prompt=False, **shown)
        ids = template.encode(HELLO, add_generation_prompt=False)
        assert bare.json()["prompt_token_ids"] == ids
        assert len(ids) < len(template.encode(HELLO))
        check_error(await here.chat(continue_final_message=True), 400, "messages")
        both = {"continue_final_message": True, "add_generation_prompt": True}
        check_error(await here.chat(messages=begun, **both), 400, "continue_final_message")
        check_error(await here.chat(chat_template_kwargs={"x": 1}), 400, "chat_template_kwargs.x")

    play(test)


def test_a_template_applied_is_the_prompt(play: Any) -> None:
    async def test(here: Served) -> None:
        begun = [*HELLO, {"role": "assistant", "content": "Well, I"}]
        for options in (
            {"messages": HELLO},
            {"messages": HELLO, "add_generation_prompt": False},
            {"messages": begun, "continue_final_message": True},
        ):
            text = (await here.post("/apply-template", **options)).json()["prompt"]
            ids = (await here.post("/tokenize", **options)).json()["tokens"]
            assert (await here.post("/detokenize", tokens=ids)).json() == {"prompt": text}

    play(test)


def test_the_prefix_cache_can_be_forgotten(play: Any) -> None:
    async def test(here: Served) -> None:
        async def hit() -> int:
            body = (await here.complete(prompt="Tell me a tale. " * 20)).json()
            cached: int = body["usage"]["prompt_tokens_details"]["cached_tokens"]
            return cached

        assert await hit() == 0
        assert await hit() > 50
        assert (await here.post("/reset_prefix_cache")).status_code == 200
        assert await hit() == 0

    play(test)


def test_timings_stand_beside_usage(play: Any) -> None:
    async def test(here: Served) -> None:
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        found = [
            (await here.chat()).json(),
            (await here.complete()).json(),
            (await here.messages()).json(),
            (await here.respond()).json(),
            events(await here.chat(**usage))[-2],
            events(await here.complete(**usage))[-2],
        ]
        for body in found:
            assert body["usage"]
            timings = body["timings"]
            assert 0 < timings["first_token_ms"] <= timings["total_ms"]

    play(test)
