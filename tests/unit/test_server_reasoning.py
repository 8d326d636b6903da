"""Reasoning in a chat: split off, counted, beside tools and structure, and how it is asked for."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.grammar import Grammar
from octavo.errors import InvalidRequestError
from octavo.frontend.answer import AnswerForm, Parts
from octavo.frontend.conversation import Conversation, settle
from octavo.frontend.tools import CHAT_TOOLS
from octavo.server.conversation import read_tools
from octavo.server.endpoints import Endpoint
from octavo.server.field_check import check_fields
from octavo.server.reasoning_effort import effort_variables, read_effort
from octavo.server.typed_body import TypedBody
from octavo.text import ChatTemplate
from octavo.text.reasoning import reasoning_format
from octavo.text.tool_formats import tool_format
from served import LEAST, Served, events

THOUGHT, SAID = "I wonder. é 日本\n\nSo", "Hello, you."
ANSWER = f"<think>\n{THOUGHT}\n</think>\n\n{SAID}"
BOUND = {"structured_outputs": {"choice": [ANSWER]}, "max_tokens": 60}
TURN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
HEAD = "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def think(tokenizer: Any, **options: Any) -> AnswerForm:
    return AnswerForm(tokenizer=tokenizer, family=reasoning_format("<think>"), **options)


def num_tokens(here: Served, text: str) -> int:
    return len(here.state.tokenizer.encode(text, add_special_tokens=False))


def test_a_chat_and_its_stream(play: Any) -> None:
    async def test(here: Served) -> None:
        whole = (await here.chat(**BOUND)).json()
        message = whole["choices"][0]["message"]
        assert message["reasoning_content"] == THOUGHT
        assert message["content"] == SAID
        assert whole["choices"][0]["finish_reason"] == "stop"
        counted = whole["usage"]["completion_tokens_details"]["reasoning_tokens"]
        thought = ANSWER.removesuffix(SAID).rstrip()
        assert counted >= num_tokens(here, thought) - 2
        assert counted <= whole["usage"]["completion_tokens"] - num_tokens(here, SAID)
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, last, done = events(await here.chat(**BOUND, **usage))
        assert done == "[DONE]"
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == THOUGHT
        assert "".join(d.get("content", "") for d in deltas) == SAID
        assert sum("reasoning_content" in delta for delta in deltas) > 2
        details = last["usage"]["completion_tokens_details"]
        assert details["reasoning_tokens"] == counted
        plain = (await here.chat(max_tokens=20)).json()
        assert plain["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
        assert "reasoning_content" not in plain["choices"][0]["message"]

    play(test)


def test_several_choices_and_an_end_too_soon(play: Any) -> None:
    async def test(here: Served) -> None:
        body = (await here.chat(**{**BOUND, "max_tokens": 4}, n=2)).json()
        for choice in body["choices"]:
            assert choice["finish_reason"] == "length"
            assert choice["message"]["content"] == ""
        usage = body["usage"]
        assert usage["completion_tokens"] == 8
        assert usage["completion_tokens_details"]["reasoning_tokens"] == 8

    play(test)


def test_what_is_counted_does_not_depend_on_the_cut(smollm2_text: Any) -> None:
    tokenizer = smollm2_text[1]
    ids = tokenizer.encode(ANSWER, add_special_tokens=False)
    form = think(tokenizer)
    found = set()
    for cuts in combinations(range(len(ids) + 1), 2):
        reader, parts, sent = form.reader(), Parts(), 0
        for end in (*cuts, len(ids)):
            # Text may come later than its tokens.
            text = tokenizer.decode(ids[:end]) if end < len(ids) else ANSWER
            text = text.rstrip("\ufffd")
            held = text[sent:] if end % 2 or end == len(ids) else ""
            sent += len(held)
            start = 0 if end == cuts[0] else cuts[0] if end == cuts[1] else cuts[1]
            for piece in reader.read_text(held, ids[start:end], is_last=end == len(ids)):
                parts.add(piece)
        found.add((parts.joined("reasoning"), parts.joined("text"), reader.num_reasoning_tokens))
    end = ANSWER.index("</think>") + len("</think>")
    counted = next(n for n in range(len(ids)) if len(tokenizer.decode(ids[:n])) >= end)
    assert found == {(THOUGHT, SAID, counted)}


def test_reasoning_before_calls(smollm2_text: Any) -> None:
    body = TypedBody({"tools": [{"type": "function", "function": {"name": "f"}}]})
    tools = read_tools(body, tool_format("{{ tools }}<tool_call>"), CHAT_TOOLS)
    answer = f"Hm. {CALL} is no call.\n</think>\n\nWell.\n{CALL}"
    form = think(smollm2_text[1], tools=tools, opened=True)
    for pieces in ([answer], list(answer)):
        reader, parts = form.reader(), Parts()
        for at, piece in enumerate(pieces, 1):
            for part in reader.read_text(piece, (), is_last=at == len(pieces)):
                parts.add(part)
        kinds = [(part.kind, part.text) for part in parts.all]
        assert kinds == [
            ("reasoning", f"Hm. {CALL} is no call."), ("text", "Well.\n"), ("call", '{"a": 1}'),
        ]  # fmt: skip
        assert reader.num_calls == 1


SHREDS = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": ',
         "{", "}", "}}", '"', "\\", "[", "```json\n", "\n", "<", "a"]
    ),
    max_size=14,
)  # fmt: skip


@pytest.mark.parametrize("family", ["{{ tools }}<tool_call>", "{{ tools }}[TOOL_CALLS]", "none"])
@given(shreds=SHREDS, opened=st.booleans())
def test_whatever_is_said_is_read_the_same_in_any_pieces(
    smollm2_text: Any, family: str, shreds: list[str], opened: bool
) -> None:
    """A markup that breaks off, or is none, is text; it is never an error."""
    body = TypedBody({"tools": [{"type": "function", "function": {"name": "f"}}]})
    tools = read_tools(body, tool_format(family), CHAT_TOOLS)
    form = think(smollm2_text[1], tools=tools, opened=opened)
    answer = "".join(shreds)
    found = []
    for pieces in ([answer], list(answer), shreds or [""]):
        reader, parts = form.reader(), Parts()
        for at, piece in enumerate(pieces or [""], 1):
            for part in reader.read_text(piece, (), is_last=at == len(pieces or [""])):
                parts.add(part)
        found.append([(part.kind, part.name, part.text) for part in parts.all])
        assert reader.num_calls == len(parts.calls)
    assert found[0] == found[1] == found[2]


def test_a_prompt_may_have_begun_it(smollm2_text: Any) -> None:
    tokenizer = smollm2_text[1]
    template = ChatTemplate(TURN + HEAD, tokenizer)
    ask = [{"role": "user", "content": "Say </think> and <think>"}]

    def form(source: ChatTemplate, **options: Any) -> AnswerForm:
        talk = Conversation(**{"messages": ask, **options})
        return talk.answer_form(source, talk.encode(source))

    assert form(template).opened
    shut = ChatTemplate(TURN + HEAD.replace("<think>\n", "<think>\n\n</think>\n\n"), tokenizer)
    assert not form(shut).opened
    assert form(shut).goes_on
    assert not form(shut, add_generation_prompt=False).goes_on
    for said, opened, goes_on in (
        ("<think> Hm", True, False), ("<think>Hm</think> So", False, True), ("", False, False),
    ):  # fmt: skip
        begun = [*ask, {"role": "assistant", "content": said}]
        found = form(template, messages=begun, continue_final=True)
        assert (found.opened, found.goes_on) == (opened, goes_on)


def test_a_structured_answer_leaves_room_to_think(smollm2_text: Any) -> None:
    tokenizer = smollm2_text[1]
    sampling = smollm2_sampling(Grammar(kind="regex", text="[0-9]+"))
    plain, _ = settle(sampling, AnswerForm(tokenizer=tokenizer))
    assert plain.grammar.thoughts == ()
    may, _ = settle(sampling, think(tokenizer))
    assert may.grammar.thoughts == ("<think>", "</think>")
    must, _ = settle(sampling, think(tokenizer, opened=True))
    assert must.grammar.thoughts == ("", "</think>")
    closed, _ = settle(sampling, think(tokenizer, goes_on=True))
    assert closed.grammar.thoughts == ()


def smollm2_sampling(grammar: Grammar) -> Any:
    from octavo.core.sampling_params import SamplingParams

    return SamplingParams(grammar=grammar)


@pytest.mark.parametrize(
    ("body", "reads", "told", "ignored"),
    [
        ({}, (), {}, []),
        ({"reasoning_effort": "high"}, (), {}, ["reasoning_effort"]),
        ({"reasoning_effort": "high"}, ("enable_thinking",), {"enable_thinking": True}, []),
        ({"reasoning_effort": "none"}, ("thinking",), {"thinking": False}, []),
        ({"reasoning_effort": "low"}, ("reasoning_effort",), {"reasoning_effort": "low"}, []),
        ({"reasoning_effort": "none"}, ("reasoning_effort",), {}, ["reasoning_effort"]),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, ("thinking",), {"thinking": True},
         []),
        ({"reasoning": {"effort": None}}, (), {}, []),
        ({"thinking": {"type": "disabled"}}, ("enable_thinking",), {"enable_thinking": False}, []),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, (), {},
         ["thinking"]),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
         ("reasoning_effort",), {"reasoning_effort": "max"}, []),
        ({"output_config": {"effort": "low"}}, (), {}, ["output_config.effort"]),
    ],
)  # fmt: skip
def test_effort(smollm2_text: Any, body: dict, reads: tuple, told: dict, ignored: list) -> None:
    switches = "".join(f"{{{{ {name} }}}}" for name in reads)
    template = ChatTemplate(TURN + switches, smollm2_text[1])
    assert effort_variables(read_effort(TypedBody(body)), template) == (told, ignored)


EFFORT_AT = {
    "reasoning_effort": Endpoint.CHAT, "reasoning": Endpoint.RESPONSES,
    "thinking": Endpoint.MESSAGES, "output_config": Endpoint.MESSAGES,
}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"mode": 1}}, "reasoning.mode"),
        ({"reasoning": "high"}, "reasoning"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": "9"}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": []}}, "output_config.effort"),
    ],
)
def test_effort_refused(body: dict, param: str) -> None:
    endpoint = EFFORT_AT[next(iter(body))]
    with pytest.raises(InvalidRequestError) as caught:
        check_fields({**LEAST[endpoint], **body}, endpoint)
    assert caught.value.param == param


def test_earlier_reasoning_is_the_templates(play: Any) -> None:
    async def test(here: Served) -> None:
        here.state.chat_template = ChatTemplate(
            TURN.replace("{{ m.content }}", "{{ m.reasoning_content }}|{{ m.content }}"),
            here.state.tokenizer,
        )
        turns = [{"role": "assistant", "content": "b", "reasoning_content": "a"}]
        asked = await here.http.post("/apply-template", json={"messages": turns})
        assert "a|b" in asked.json()["prompt"]
        turns[0]["reasoning_content"] = 5  # type: ignore[assignment]
        refused = await here.chat(messages=turns)
        assert refused.json()["error"]["param"] == "messages[0].reasoning_content"

    play(test)
