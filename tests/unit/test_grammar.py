"""Grammars against the real tokenizer: what a mask allows, what is refused, what is kept."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from octavo.core.grammar import Grammar, GrammarReady, validate_grammar
from octavo.core.sampling_params import SamplingParams
from octavo.errors import InvalidRequestError, OverloadedError
from octavo.grammar import GrammarCompiler, TokenTable
from octavo.grammar.compiler import MAX_PENDING
from octavo.grammar.matcher import MAX_STEP_ITEMS, Matcher
from octavo.text.tool_formats import tool_format
from octavo.text.tool_parser import ToolDelta, ToolParser
from octavo.worker import token_table

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def json_schema(schema: object) -> Grammar:
    return Grammar(kind="json_schema", text=json.dumps(schema), field="response_format")


@pytest.fixture(scope="module")
def table(smollm2_text) -> TokenTable:
    return token_table(smollm2_text[1])


@pytest.fixture(scope="module")
def compiler(table: TokenTable) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(table)
    yield compiler
    compiler.close()


def ready(compiler: GrammarCompiler) -> list[GrammarReady]:
    events: list[GrammarReady] = []
    for _ in range(6000):
        events += compiler.take_ready()
        if not compiler.num_pending:
            return events
        time.sleep(0.005)
    raise TimeoutError


def opened(compiler: GrammarCompiler, grammar: Grammar) -> Matcher:
    if compiler.open(grammar) is None:
        assert [(e.grammar, e.error) for e in ready(compiler)] == [(grammar, "")]
    state = compiler.open(grammar)
    assert state is not None
    return state


def refusal(compiler: GrammarCompiler, grammar: Grammar) -> str:
    assert compiler.open(grammar) is None
    (event,) = ready(compiler)
    assert event.error
    assert compiler.open(grammar) is None
    ready(compiler)
    return event.error


def allows(state: Matcher, token: int) -> bool:
    return bool(state.mask()[token >> 3] >> (token & 7) & 1)


def spells(state: Matcher, table: TokenTable, text: str) -> bool:
    """Whether every token of ``text`` is allowed in turn, and the end after the last."""
    for token in table.encode(text):
        if not allows(state, token):
            return False
        state.accept(token)
    return state.is_complete or allows(state, table.eos_token_ids[0])


CASES = [
    (json_schema(PERSON), ['{"name": "Zoë", "age": 3}'], ['{"name": 3', '{"age"', "[", "x"]),
    (json_schema({"type": "object"}), ['{"a": [1, {"b": null}]}'], ["[1]", "no"]),
    (json_schema({"enum": ["a", 1, None]}), ['"a"', "1", "null"], ['"b"', "2"]),
    (Grammar(kind="regex", text=r"[a-c]{2}-\d+"), ["ab-12", "cc-7"], ["abc", "ab-", "d"]),
    (
        Grammar(kind="choice", choices=("yes", 'n"o\n', "日本")),
        ["yes", 'n"o\n', "日本"],
        ["ye", "no"],
    ),
    (Grammar(kind="lark", text='start: "a" start "b" | "c"'), ["aacbb", "c"], ["ab", "acbb"]),
]


CALL = '{"name": "f", "arguments": {"a": 1}}'


@pytest.mark.parametrize(("grammar", "good", "bad"), CASES, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("thoughts", [(), ("<think>", "</think>"), ("", "</think>")])
@pytest.mark.parametrize("family", ["<tool_call>", "[TOOL_CALLS]", "none"])
def test_a_call_may_stand_in_the_answers_place(
    compiler: GrammarCompiler, table: TokenTable, grammar: Grammar, good: list[str],
    bad: list[str], thoughts: tuple[str, ...], family: str,
) -> None:  # fmt: skip
    form = tool_format("{{ tools }}" + family)
    functions = [{"name": "f", "parameters": {"type": "object"}}]
    calls = form.grammar(functions, parallel=True)
    both = replace(grammar, calls=calls, thoughts=thoughts)
    before = f"{thoughts[0]}\nWhy?\n{thoughts[1]}\n\n" if thoughts else ""
    one = form.begin + CALL + form.end
    for text in [*good, one]:
        assert spells(opened(compiler, both), table, before + text), text
    for text in [*bad, one + one[:9] + "x", one.replace("f", "g")]:
        alone = spells(opened(compiler, grammar), table, text)
        assert spells(opened(compiler, both), table, before + text) == alone, text


@pytest.mark.parametrize(("grammar", "good", "bad"), CASES, ids=lambda value: str(value)[:30])
def test_a_mask_allows_what_the_grammar_spells(
    compiler: GrammarCompiler, table: TokenTable, grammar: Grammar, good: list[str], bad: list[str]
) -> None:
    for text in good:
        assert spells(opened(compiler, grammar), table, text), text
    for text in bad:
        assert not spells(opened(compiler, grammar), table, text), text


def test_a_mask_is_the_slow_obvious_one(compiler: GrammarCompiler, table: TokenTable) -> None:
    """For a finite language: a token is allowed iff it goes on along some word of it."""
    words = ("alpha", "alps", "beta max", "bet")
    pattern = "|".join(map(re.escape, words))
    for grammar in (Grammar(kind="choice", choices=words), Grammar(kind="regex", text=pattern)):
        for head in ("", "al", "bet", "beta"):
            state = opened(compiler, grammar)
            for token in table.encode(head):
                state.accept(token)
            rest = [word[len(head) :] for word in words if word.startswith(head)]
            for token in range(table.vocab_size):
                if table.is_special(token):
                    expected = token in table.eos_token_ids and "" in rest
                else:
                    text = table.token_bytes(token).decode("utf-8", "replace")
                    expected = bool(text) and any(word.startswith(text) for word in rest)
                # Where one text alone can follow, only its usual tokens are allowed.
                assert expected or not allows(state, token), (head, token)


def test_a_fork_goes_its_own_way(compiler: GrammarCompiler, table: TokenTable) -> None:
    first = opened(compiler, Grammar(kind="regex", text="[ab]x|[ab]y"))
    (a,), (x,), (y,) = (table.encode(text) for text in "axy")
    first.accept(a)
    second = first.fork()
    assert second.mask() == first.mask()
    first.accept(x)
    assert first.is_complete
    assert not second.is_complete
    second.accept(y)
    assert second.is_complete


def test_what_is_not_allowed_ends_in_a_failure(
    compiler: GrammarCompiler, table: TokenTable
) -> None:
    state = opened(compiler, Grammar(kind="regex", text="abc"))
    state.accept(table.encode("z")[0])
    assert state.failure
    assert not any(state.mask())
    assert not state.is_complete
    assert state.fork().failure == state.failure


HOSTILE = [
    Grammar(kind="regex", text="(a"),
    Grammar(kind="regex", text="(?=a)b"),
    Grammar(kind="regex", text="(" * 30_000 + ")" * 30_000),
    Grammar(kind="regex", text="(a|b|c|d|e)*" * 2000),
    Grammar(kind="lark", text="start: nowhere"),
    Grammar(kind="lark", text="start: " + "(" * 30_000 + '"a"' + ")" * 30_000),
    Grammar(kind="json_schema", text='{"type":"array","items":' * 2000 + "{}" + "}" * 2000),
    Grammar(kind="json_schema", text="[1"),
    Grammar(kind="json_schema", text="false"),
    json_schema({"type": "strange"}),
    json_schema({"$ref": "http://127.0.0.1:1/schema"}),
    json_schema({"$ref": "file:///etc/passwd"}),
    json_schema({"enum": []}),
    json_schema({"$ref": "#"}),
]
EXPENSIVE = [
    Grammar(kind="regex", text="(a*)*b" * 500),
    Grammar(kind="regex", text="(.*a.{1000}){10}"),
    Grammar(kind="regex", text="((a{1,1000}){1,1000}){1,1000}"),
    json_schema({"type": "object", "properties": {"a": {"$ref": "#"}}}),
    json_schema({"enum": [f"value {i}" for i in range(4000)]}),
    json_schema({"type": "array", "minItems": 100_000, "items": {"type": "string"}}),
]


@pytest.mark.parametrize("grammar", HOSTILE, ids=lambda grammar: grammar.text[:24])
def test_a_bad_grammar_is_refused_in_one_line(compiler: GrammarCompiler, grammar: Grammar) -> None:
    error = refusal(compiler, grammar)
    assert "\n" not in error
    assert len(error) <= 301
    assert "<state>" not in error
    assert compiler.num_pending == 0


@pytest.mark.parametrize(("grammar", "error"), [
    (Grammar(kind="regex", text="(" * 500 + "a" + ")" * 500),
     "invalid regular expression: exceed the maximum number of nested parentheses/brackets (250)"),
    (Grammar(kind="regex", text="a" * 200 + "/(b"),
     'invalid regular expression: unclosed group, at "(b"'),
    (Grammar(kind="regex", text="x(?=" + "y" * 99 + ")"),
     "invalid regular expression: look-around, including look-ahead and look-behind, is not "
     'supported, at "(?=yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy…"'),
    (Grammar(kind="lark", text='start: "x" /a{2,1}/'),
     "invalid regular expression: invalid repetition count range, the start must be <= the end, "
     'at "{2,1}"'),
    (json_schema({"type": "string", "pattern": "(a\nb"}),
     "invalid regular expression: unclosed group"),
    (json_schema({"$ref": "file:///etc/passwd"}),
     "a $ref leads out of the schema, and nothing is fetched; put what it means in $defs"),
    (json_schema({"$ref": "#/x"}),
     "Pointer '/x' does not exist; a $ref must lead to a place in the schema"),
    (json_schema({"not": {}}), 'Unimplemented keys: ["not"]; leave them out'),
    (json_schema({"type": "string", "format": "odd"}),
     "Unknown format: odd; leave it out, or say it with pattern"),
    (Grammar(kind="lark", text='start: "(" %json {"not": {}}'),
     'Unimplemented keys: ["not"]; leave them out'),
    (Grammar(kind="lark", text='start: "(" %json {"$ref": "file:///x"}'),
     "a $ref leads out of the schema"),
    (Grammar(kind="lark", text='start: "(" %json {"pattern": "b(", "type": "string"}'),
     'invalid regular expression: unclosed group, at "("'),
], ids=lambda given: getattr(given, "text", given)[:24])  # fmt: skip
def test_a_refusal_says_what_is_wrong_and_what_to_do(
    compiler: GrammarCompiler, grammar: Grammar, error: str
) -> None:
    assert refusal(compiler, grammar).startswith(error)


@pytest.mark.parametrize("grammar", EXPENSIVE, ids=lambda grammar: grammar.text[:24])
def test_an_expensive_grammar_ends_one_way_or_the_other(
    compiler: GrammarCompiler, grammar: Grammar
) -> None:
    if compiler.open(grammar) is None:
        (event,) = ready(compiler)
        if event.error:
            return
    state = compiler.open(grammar)
    assert state is not None
    assert any(state.mask())


TWOS = [f"r{i}: r{i + 1} r{i + 1}" for i in range(25)]
TENS = [f"{a}: " + " ".join([b] * 10) for a, b in ("ab", "bc", "cd", "de")]


@pytest.mark.parametrize("text", ["\n".join(["start: r0", *TWOS, 'r25: "a"']),
                                  'start: ("a"{1000}){1000}'])  # fmt: skip
def test_what_meets_a_limit_soon_is_refused_with_it(compiler: GrammarCompiler, text: str) -> None:
    assert str(MAX_STEP_ITEMS) in refusal(compiler, Grammar(kind="lark", text=text))


def test_what_meets_a_limit_late_ends_with_it(compiler: GrammarCompiler, table: TokenTable) -> None:
    text = "\n".join(["start: a", *TENS, 'e: "a"?'])
    state = opened(compiler, Grammar(kind="lark", text=text))
    (token,) = table.encode("a")
    for _ in range(500):
        if any(state.mask()):
            state.accept(token)
    assert str(MAX_STEP_ITEMS) in state.failure


@pytest.mark.parametrize("text", ["xyz", "abx"])
def test_what_the_vocabulary_cannot_spell_is_refused_or_ends(text: str) -> None:
    letters = ["", "a", "b"]
    table = TokenTable(
        vocab_size=3, encode=lambda text: [letters.index(c) for c in text if c in letters],
        token_bytes=lambda i: letters[i].encode(), is_special=lambda i: i == 0,
        eos_token_ids=(0,),
    )  # fmt: skip
    compiler = GrammarCompiler(table)
    grammar = Grammar(
        kind="lark", text=f"start: {' '.join(map(json.dumps, text[:2]))} /{text[2:]}/"
    )
    assert "no token" in refusal(compiler, grammar)
    compiler.close()


def test_a_refusal_is_in_our_words_and_short(compiler: GrammarCompiler) -> None:
    one_of = json_schema({"oneOf": [{"type": "integer"}, {"type": "number"}]})
    assert refusal(compiler, one_of) == "oneOf is not supported here; use anyOf"
    said = refusal(compiler, Grammar(kind="regex", text="(?=a)" + "b" * 900))
    assert said.count("b") < 200
    assert "look-around" in said


def test_many_grammars_stay_within_their_bytes(table: TokenTable) -> None:
    compiler = GrammarCompiler(table, max_cache_bytes=2 << 20)
    grammars = [Grammar(kind="choice", choices=(f"number {i}",)) for i in range(40)]
    for grammar in grammars:
        opened(compiler, grammar)
        assert 0 < compiler.cache_bytes <= 2 << 20
    assert compiler.num_compiled == 40
    assert compiler.open(grammars[-1]) is not None
    assert compiler.open(grammars[0]) is None
    ready(compiler)
    compiler.close()


def test_too_many_at_once_are_refused(table: TokenTable) -> None:
    compiler = GrammarCompiler(table)
    grammars = [Grammar(kind="choice", choices=(f"{i}",)) for i in range(MAX_PENDING + 1)]
    for grammar in grammars[:-1]:
        assert compiler.open(grammar) is None
    # The same one again is no further work.
    assert compiler.open(grammars[0]) is None
    with pytest.raises(OverloadedError):
        compiler.open(grammars[-1])
    assert len(ready(compiler)) == MAX_PENDING
    compiler.close()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"kind": "yaml", "text": "x"}, "grammar"),
        ({"kind": "regex"}, "grammar"),
        ({"kind": "regex", "text": "a" * 70_000}, "grammar"),
        ({"kind": "choice"}, "grammar"),
        ({"kind": "choice", "choices": ("a", "")}, "grammar"),
        ({"kind": "choice", "choices": ("a",) * 1025, "field": "structured_outputs"},
         "structured_outputs"),
    ],
)  # fmt: skip
def test_limits_are_held_before_anything_is_compiled(fields: dict, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        validate_grammar(Grammar(**fields))
    assert caught.value.param == param


@pytest.mark.parametrize("field", [{"ignore_eos": True}, {"min_tokens": 3}])
def test_what_contradicts_a_grammar_is_refused(field: dict) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(grammar=Grammar(kind="regex", text="a"), max_tokens=9, **field)
    assert caught.value.param in field


FUNCTIONS = [
    {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    {"name": "now"},
]


@pytest.mark.parametrize("sign", ["<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", ""])
@pytest.mark.parametrize("parallel", [False, True])
def test_the_grammar_of_a_family_is_what_its_parser_reads(
    compiler: GrammarCompiler, table: TokenTable, sign: str, parallel: bool
) -> None:
    family = tool_format("{{ tools }}" + sign)
    grammar = Grammar(kind="lark", text=family.grammar(FUNCTIONS, parallel=parallel))
    arguments = ['{"city": "Oslo"}', '{"city": "Æ", "days": 3}']
    calls = [f'{{"name": "get_weather", "{family.key}": {text}}}' for text in arguments]
    one, two = (
        f"{family.begin}{calls[0]}{family.end}",
        "\n".join(f"{family.begin}{call}{family.end}" for call in calls)
        if family.repeats
        else f"{family.begin}{family.joint.join(calls)}{family.end}",
    )
    assert spells(opened(compiler, grammar), table, one)
    assert spells(opened(compiler, grammar), table, two) == parallel
    for bad in (one.replace("city", "town"), one.replace("get_weather", "format_disk"), "Hello"):
        assert not spells(opened(compiler, grammar), table, bad)
    parser = ToolParser(family, {"get_weather", "now"})
    pieces = [*parser.feed(two if parallel else one), *parser.finish()]
    assert [p.name for p in pieces if isinstance(p, ToolDelta) and p.name] == (
        ["get_weather"] * (1 + parallel)
    )
    assert not any(isinstance(p, str) and p.strip() for p in pieces)


@pytest.mark.parametrize(
    "inner",
    [
        json_schema(PERSON),
        Grammar(kind="regex", text='\\{"name": "A", "age": 1\\}'),
        Grammar(kind="choice", choices=('{"name": "A", "age": 1}', "none")),
        Grammar(kind="lark", text='start: "{" BODY "}"\nBODY: /"name": "A", "age": [0-9]/'),
    ],
)
def test_reasoning_may_come_before_any_grammar(
    compiler: GrammarCompiler, table: TokenTable, inner: Grammar
) -> None:
    answer, thought = '{"name": "A", "age": 1}', 'Well, {"name": 3, so\n\n'
    may = replace(inner, thoughts=("<think>", "</think>"))
    must = replace(inner, thoughts=("", "</think>"))
    for text, fits in (
        (answer, (True, True, False)),
        (f"<think>{thought}</think>\n\n{answer}", (False, True, True)),
        (f"{thought}</think>{answer}", (False, False, True)),
        (f"<think>{thought}</think>{thought}", (False, False, False)),
    ):
        found = tuple(spells(opened(compiler, g), table, text) for g in (inner, may, must))
        assert found == fits, text
