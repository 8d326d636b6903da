"""From a ``Grammar`` to llguidance: its notation, its limits, its view of the vocabulary.

Imported on the compiler's thread only: importing llguidance takes a quarter of a second.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from octavo.core.grammar import Grammar
from octavo.grammar.matcher import MAX_STEP_ITEMS
from octavo.grammar.number_bounds import bound_numbers
from octavo.grammar.token_table import TokenTable

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_TRIED_TOKENS = 8
_LIMITS = LLParserLimits(
    max_grammar_size=200_000, initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000,
    step_max_items=MAX_STEP_ITEMS, max_lexer_states=50_000,
)  # fmt: skip
# Python's own spelling of JSON, which models write most readily; free white space would let a
# small model pad for ever.
_JSON_OPTIONS: JsonCompileOptions = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
}


def new_matcher(tokenizer: LLTokenizer, grammar: Grammar) -> LLMatcher:
    """A matcher at the start of ``grammar``; ``is_error`` says whether it was refused.

    The first mask builds most of the lexer's states, and a few tokens show what meets a limit soon:
    better here than in a step.
    """
    matcher = LLMatcher(tokenizer, _source(grammar), log_level=0, limits=_LIMITS)
    matcher.compute_bitmask()
    trial = matcher.deep_copy()
    for _ in range(_TRIED_TOKENS):
        mask = int.from_bytes(trial.compute_bitmask(), "little") % (1 << tokenizer.vocab_size)
        if trial.is_stopped() or not trial.consume_token(mask.bit_length() - 1):
            break
    return trial if trial.is_error() else matcher


def _source(grammar: Grammar) -> str:
    """The grammar in llguidance's own notation, with what may stand before or for the answer."""
    answer = _answer(grammar)
    if not (grammar.thoughts or grammar.calls):
        return answer
    head = f"start: {_thoughts(grammar)} {'(@answer | @calls)' if grammar.calls else '@answer'}"
    if grammar.thoughts:
        head += f"\nthought[suffix={json.dumps(grammar.thoughts[1])}]: /(?s:.*)/"
    is_json = grammar.kind in ("json_schema", "regex")
    inner = json.loads(answer)["grammars"][0] if is_json else {"lark_grammar": answer}
    parts = [{"lark_grammar": head}, {**inner, "name": "answer"}]
    if grammar.calls:
        parts.append({"lark_grammar": grammar.calls, "name": "calls"})
    return json.dumps({"grammars": parts})


def _thoughts(grammar: Grammar) -> str:
    if not grammar.thoughts:
        return ""
    begin = grammar.thoughts[0]
    thought = "thought /[ \\n]{0,8}/"
    return f"({json.dumps(begin)} {thought})?" if begin else thought


def _answer(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_schema":
            schema = json.dumps(bound_numbers(json.loads(grammar.text)))
            return str(LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_OPTIONS))
        case "regex":
            return str(LLMatcher.grammar_from_regex(grammar.text))
        case "choice":
            quoted = " | ".join(
                json.dumps(choice, ensure_ascii=False) for choice in grammar.choices
            )
            return str(LLMatcher.grammar_from_lark(f"start: {quoted}"))
    return str(LLMatcher.grammar_from_lark(grammar.text))


class _Vocabulary:
    """What ``TokenizerWrapper`` wants of a tokenizer."""

    def __init__(self, table: TokenTable) -> None:
        ids = range(table.vocab_size)
        self.eos_token_id = table.eos_token_ids[0]
        self.bos_token_id = None
        self.tokens = [table.token_bytes(i) for i in ids]
        self.special_token_ids = [i for i in ids if table.is_special(i)]
        self._encode = table.encode

    def __call__(self, text: bytes) -> list[int]:
        return self._encode(text.decode())


def new_tokenizer(table: TokenTable) -> LLTokenizer:
    """llguidance's trie over the vocabulary (a tenth of a second for 50,000 tokens)."""
    wrapper = TokenizerWrapper(_Vocabulary(table))
    return LLTokenizer(wrapper, n_vocab=table.vocab_size, eos_token=list(table.eos_token_ids))
