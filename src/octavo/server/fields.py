"""The one table of request fields: honoured, refused by name, or accepted and ignored.

Nothing is silently ignored: a field that is not in the table is refused, a refused field is
refused unless it carries a value that asks for nothing (``null``, or one listed as neutral), and an
ignored one is on a closed list of fields that cannot change the text; the response names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from octavo.core import sampling_params as limits
from octavo.core.request import PRIORITIES
from octavo.frontend import tools
from octavo.server import request_shapes as shapes
from octavo.server.endpoints import (
    ALL,
    ANTHROPIC,
    BOTH,
    CHAT,
    COMPLETIONS,
    DETOKENIZE,
    EMBEDDINGS,
    INPUT,
    MESSAGES,
    PROBES,
    RESPONSES,
    SCORE,
    SYSTEMONE,
    TEMPLATE,
    TEXT,
    TOKENIZE,
    Endpoint,
)
from octavo.text.shapes import (
    BOOLEAN,
    COMPONENTS,
    OBJECT,
    Shape,
    integer,
    number,
    over,
    record,
    text,
    word,
)


class Treatment(StrEnum):
    """What happens to a field."""

    HONOURED = "honoured"
    REFUSED = "refused"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row. ``note`` says what it means, or why it is refused and what to do instead.

    ``shape`` is the schema of its value, which is the table's word on types and limits; null is
    taken too, and means absent, but at the endpoints where the field is ``required``. ``neutral``
    are the values of a refused field that ask for nothing.
    """

    name: str
    treatment: Treatment
    shape: Shape
    note: str
    endpoints: frozenset[Endpoint] = BOTH
    required: frozenset[Endpoint] = frozenset()
    neutral: tuple[object, ...] = ()


def _honoured(name: str, shape: Shape, note: str, *, at: frozenset[Endpoint] = BOTH) -> Field:
    return Field(name=name, treatment=Treatment.HONOURED, shape=shape, note=note, endpoints=at)


def _required(name: str, shape: Shape, note: str, *, at: frozenset[Endpoint]) -> Field:
    return replace(_honoured(name, shape, note, at=at), required=at - TOKENIZE)


def _refused(
    name: str, note: str, endpoints: frozenset[Endpoint] = BOTH, *, neutral: tuple[object, ...] = ()
) -> Field:
    return Field(
        name=name, treatment=Treatment.REFUSED, shape=word(None, *neutral), note=note,
        endpoints=endpoints, neutral=neutral,
    )  # fmt: skip


def _ignored(name: str, shape: Shape, note: str, *, at: frozenset[Endpoint]) -> Field:
    return Field(name=name, treatment=Treatment.IGNORED, shape=shape, note=note, endpoints=at)


def ignored_places(shape: Shape, place: str) -> Iterator[str]:
    """Where in a field of this shape a member is ignored, as in "tools[].strict"."""
    match shape:
        case {"$comment": _}:
            yield place
        case {"$ref": str(name)} if shape != tools.JSON_SCHEMA:
            yield from ignored_places(COMPONENTS[name.rpartition("/")[2]], place)
        case {"anyOf": list(kinds)}:
            for kind in kinds:
                yield from ignored_places(kind, place)
        case {"items": dict(items)}:
            yield from ignored_places(items, f"{place}[]")
        case {"properties": dict(members)}:
            for name, member in members.items():
                yield from ignored_places(member, f"{place}.{name}")


_COUNT = integer(1, limits.MAX_TOKENS)
_TOP = integer(0, limits.MAX_LOGPROBS)

FIELDS = (
    _honoured("model", text(), "a served name; absent means the served model", at=ALL),
    _required(
        "messages", shapes.CHAT_MESSAGES,
        "roles system, developer (means system), user, assistant (with tool_calls and "
        "reasoning_content), tool; content a text or text parts, which are joined by line ends; "
        "other keys of a message, such as name, are refused", at=TEMPLATE,
    ),
    _required(
        "prompt", shapes.PROMPTS, "text, list of texts, token ids, or list of token ids",
        at=COMPLETIONS,
    ),
    _honoured("prompt", text(), "a text; else send messages", at=TOKENIZE),
    _honoured(
        "add_special_tokens", BOOLEAN, "false leaves out the model's own beginning token",
        at=TOKENIZE,
    ),
    _required("tokens", shapes.TOKEN_IDS, "a list of token ids", at=DETOKENIZE),
    _honoured("max_tokens", _COUNT, "limit on generated tokens"),
    _honoured("max_completion_tokens", _COUNT, "the newer name of max_tokens", at=CHAT),
    _honoured("temperature", number(0, 100), "0 is greedy", at=TEXT),
    _honoured("top_p", over(0, 1), "the likeliest tokens of so much probability", at=TEXT),
    _honoured("top_k", integer(-1, limits.MAX_TOKENS), "0 or -1 is off", at=TEXT),
    _honoured("min_p", number(0, 1), "none less likely than so much of the likeliest", at=TEXT),
    _honoured("n", integer(1, limits.MAX_N), "choices per prompt; the prompt is computed once"),
    _honoured(
        "best_of", integer(1, limits.MAX_N),
        "choices computed per prompt, of which the n with the highest mean logprob are returned, "
        "best first; usage counts all of them (of a beam search the n returned); not with stream, "
        "unless it equals n",
    ),
    _honoured(
        "use_beam_search", BOOLEAN,
        "search with best_of (else n) beams, 2 to 64, and return the n best; refused with "
        "stream, stop, logit_bias, penalties, top_k, top_p, min_p, bad_words, allowed_token_ids, a "
        "structure of the answer or a temperature other than 0; a seed changes nothing",
    ),
    _honoured(
        "length_penalty", number(-limits.MAX_LENGTH_PENALTY, limits.MAX_LENGTH_PENALTY),
        "beam search: a sequence scores its summed logprob / length ** length_penalty",
    ),
    _honoured(
        "early_stopping", word(True, False, "never"),
        'beam search: true ends it at best_of finished sequences, "never" when none can become '
        "better, false when none would be better at its length now",
    ),
    _honoured("stop", shapes.STOP, "a string or a list of strings"),
    _honoured("stop_token_ids", shapes.STOP_TOKEN_IDS, "token ids that end a choice", at=TEXT),
    _honoured("include_stop_str_in_output", BOOLEAN, "keep the stop string in the text", at=TEXT),
    _honoured("skip_special_tokens", BOOLEAN, "false shows control tokens in the text", at=TEXT),
    _honoured(
        "seed", integer(-limits.SEED_LIMIT, limits.SEED_LIMIT - 1),
        "the same seed gives the same text", at=TEXT,
    ),
    _honoured(
        "presence_penalty", number(-2, 2), "subtracted once from the logit of what was said",
        at=TEXT,
    ),
    _honoured(
        "frequency_penalty", number(-2, 2), "subtracted for every time that it was said", at=TEXT,
    ),
    _honoured(
        "repetition_penalty", over(0, 10),
        "divides the logit of what was read or said, multiplies a negative one", at=TEXT,
    ),
    _honoured("logit_bias", shapes.LOGIT_BIAS, "token id to what is added to its logit", at=TEXT),
    _honoured(
        "prompt_logprobs", _TOP,
        "alternatives to tell for every token of the prompt but the first; such a prompt is "
        "computed whole, without cached prefixes; not with use_beam_search",
    ),
    _honoured(
        "allowed_token_ids", shapes.ALLOWED_TOKEN_IDS,
        "nothing but these is sampled; not with bad_words or a structure of the answer", at=TEXT,
    ),
    _honoured(
        "bad_words", shapes.BAD_WORDS,
        "texts that are not sampled in the tokens that spell them alone or behind a space; not "
        "with a structure of the answer", at=TEXT,
    ),
    _honoured(
        "min_tokens", integer(0, limits.MAX_TOKENS),
        "no end of a choice, stop strings included, before this many tokens", at=TEXT,
    ),
    _honoured("ignore_eos", BOOLEAN, "go on past end-of-text", at=TEXT),
    _honoured("logprobs", BOOLEAN, "tell the logprob of every token", at=CHAT),
    _honoured("logprobs", _TOP, "alternatives per token", at=COMPLETIONS),
    _honoured("top_logprobs", _TOP, "alternatives per token; needs logprobs", at=CHAT),
    _honoured("top_logprobs", _TOP, "needs include: message.output_text.logprobs", at=RESPONSES),
    _honoured(
        "truncate_prompt_tokens", integer(1), "keep only so many tokens, the last, of a prompt",
        at=BOTH | PROBES,
    ),
    _honoured(
        "return_token_ids", BOOLEAN, "true adds prompt_token_ids and token_ids to the choices",
    ),
    _honoured(
        "cache_salt", text(1, shapes.MAX_SALT_CHARS),
        "prompts share cached prefixes only within one salt", at=TEXT | PROBES,
    ),
    _honoured(
        "continue_final_message", BOOLEAN, "go on from the assistant's last message", at=TEMPLATE,
    ),
    _honoured(
        "add_generation_prompt", BOOLEAN, "false leaves out the head of an answer", at=TEMPLATE,
    ),
    _honoured(
        "chat_template_kwargs", shapes.TEMPLATE_KWARGS,
        "what the model's template reads by these names: true, false, a number or a word",
        at=TEMPLATE,
    ),
    _honoured(
        "echo", BOOLEAN,
        "put the prompt before the text, and with logprobs its own before theirs; the first of "
        "them is null, for no token stands before it",
        at=COMPLETIONS,
    ),
    _honoured(
        "response_format", shapes.RESPONSE_FORMAT,
        "text, json_object, or json_schema with a schema; the text then is one JSON value, "
        "written without free white space", at=CHAT,
    ),
    _honoured(
        "structured_outputs", shapes.STRUCTURED_OUTPUTS,
        "an object with one of json (a schema), regex, choice (a list of texts) or grammar "
        "(Lark); not with ignore_eos or min_tokens", at=TEXT,
    ),
    _honoured(
        "priority", word(*PRIORITIES),
        "before (-1), among or after (1) the caller's other requests", at=TEXT | PROBES,
    ),
    _honoured(
        "timeout", over(0), "seconds until the request is dropped: 504, or an error event",
        at=TEXT | PROBES,
    ),
    _honoured("stream", BOOLEAN, "server-sent events", at=TEXT),
    _honoured("stream_options", shapes.STREAM_OPTIONS, "include_usage"),
    _required(
        "messages", shapes.MESSAGES,
        "roles user, assistant, system; content a text or blocks: text, joined by line ends; of "
        "a user also tool_result; of the assistant also thinking and tool_use; a last message of "
        "the assistant is continued", at=ANTHROPIC,
    ),
    _honoured(
        "system", shapes.SYSTEM,
        "a text or text blocks; a block that begins x-anthropic-billing-header is left out",
        at=ANTHROPIC,
    ),
    _required(
        "max_tokens", _COUNT,
        "where the context ends earlier, so does the answer, with the stop reason "
        "model_context_window_exceeded", at=MESSAGES,
    ),
    _honoured("stop_sequences", shapes.STOP, "a list of strings", at=MESSAGES),
    _required(
        "input", shapes.INPUT,
        "a text, or a list of items: messages with roles user, assistant, system, developer "
        "(means system) and a text or text parts, which are joined by line ends; reasoning (its "
        "text), function_call, function_call_output", at=INPUT,
    ),
    _honoured(
        "instructions", text(), "a system message before the input, of this response only",
        at=INPUT,
    ),
    _honoured(
        "previous_response_id", text(), "a stored response, whose conversation goes on", at=INPUT,
    ),
    _honoured("max_output_tokens", _COUNT, "limit on generated tokens", at=RESPONSES),
    _honoured(
        "store", BOOLEAN, "false keeps nothing; else it is kept in memory, bounded", at=RESPONSES,
    ),
    _honoured(
        "background", BOOLEAN,
        "answer at once and make the response after; needs store; with stream its events are "
        "kept with it, to be read from any of them", at=RESPONSES,
    ),
    _honoured(
        "include", shapes.INCLUDE,
        "message.output_text.logprobs (not with tools); reasoning.encrypted_content, of which "
        "there is none", at=RESPONSES,
    ),
    _honoured("metadata", shapes.METADATA, "repeated in the response", at=RESPONSES),
    _honoured(
        "text", shapes.TEXT_FORMAT,
        "format: text, json_object, or json_schema with a schema, which binds the text",
        at=RESPONSES,
    ),
    _required(
        "input", shapes.PROMPTS,
        "text, list of texts, token ids, or list of token ids; the embedding of each is the "
        "served model's final hidden state (after the last norm) of its last token, scaled to "
        "length 1", at=EMBEDDINGS,
    ),
    _honoured(
        "encoding_format", word("float", "base64"), "base64 is of little-endian float32 values",
        at=EMBEDDINGS,
    ),
    _honoured(
        "dimensions", integer(1), "the vector's first values only, scaled to length 1 again",
        at=EMBEDDINGS,
    ),
    _required(
        "text_1", shapes.PROMPTS,
        "as input of embeddings: one for all of text_2, or as many; a score is the cosine of the "
        "two texts' embeddings, -1 to 1", at=SCORE,
    ),
    _required("text_2", shapes.PROMPTS, "as input of embeddings", at=SCORE),
    _required(
        "state", shapes.STATE,
        "a text, which each question is appended to, or a chat's messages, of which each "
        "question is the next turn of the user; computed once for all questions", at=SYSTEMONE,
    ),
    _required(
        "questions", shapes.QUESTIONS,
        "objects with question (a text) and labels (texts, at most 128 in all): a label's "
        "logprob is the sum over its own tokens, appended after the question, at temperature 1",
        at=SYSTEMONE,
    ),
    _ignored("text", shapes.TEXT_FORMAT, "changes no prompt", at=INPUT - RESPONSES),
    _refused("truncation", "nothing is cut from a prompt", INPUT, neutral=("disabled",)),
    _honoured(
        "reasoning", shapes.REASONING,
        "effort: as reasoning_effort in chat; summary is ignored, and named so: what is thought "
        "is told in full", at=INPUT,
    ),
    _refused("conversation", "use previous_response_id", INPUT),
    _refused("prompt", "prompt templates are not kept here", RESPONSES),
    _refused("context_management", "nothing is edited out of a prompt", RESPONSES, neutral=([],)),
    _refused("moderation", "nothing is moderated", RESPONSES),
    _refused(
        "stream_options", "events carry no obfuscation", RESPONSES,
        neutral=({"include_obfuscation": False}, {}),
    ),
    _honoured(
        "tools", shapes.CHAT_TOOLS,
        "at most 128 functions; a model whose template knows no tools is told of them in the "
        "system's text; beside a structure of the answer, it is of that structure or a call",
        at=TEMPLATE,
    ),
    _honoured(
        "tool_choice", tools.CHAT_TOOLS.choice,
        "none (the model is told of no function), auto, required, or a function by name, which "
        "binds the answer; allowed_tools: as if there were no others", at=TEMPLATE,
    ),
    _honoured(
        "parallel_tool_calls", BOOLEAN, "false: at most one call; later ones stay text",
        at=TEMPLATE,
    ),
    _honoured(
        "tools", shapes.MESSAGES_TOOLS,
        "at most 128 functions: name, description, input_schema; tools that Anthropic runs or "
        "defines are refused; else as in chat", at=ANTHROPIC,
    ),
    _honoured(
        "tool_choice", tools.MESSAGES_TOOLS.choice,
        "type none (the model is told of no function), auto, any, or tool with a name, which "
        "binds the answer; disable_parallel_tool_use: later calls stay text", at=ANTHROPIC,
    ),
    _honoured(
        "tools", shapes.RESPONSES_TOOLS,
        "at most 128 functions, as in chat; tools that the protocol's hosts run are left out, "
        "and named as ignored", at=INPUT,
    ),
    _honoured(
        "tool_choice", tools.RESPONSES_TOOLS.choice,
        "none, auto, required, or type function with a name, which binds the answer; "
        "allowed_tools: as in chat", at=INPUT,
    ),
    _honoured(
        "parallel_tool_calls", BOOLEAN, "false: at most one call; later ones stay text", at=INPUT,
    ),
    _refused("mcp_servers", "servers of tools are not called here", ANTHROPIC, neutral=([],)),
    _refused("container", "nothing is run here", ANTHROPIC),
    _honoured(
        "thinking", shapes.THINKING,
        "type enabled, adaptive or disabled: sets enable_thinking and thinking of the model's "
        "template, which may read them; where it reads none, and for budget_tokens and display, "
        "it is ignored, and named so", at=ANTHROPIC,
    ),
    _honoured(
        "output_config", shapes.OUTPUT_CONFIG,
        "format: json_schema with a schema, which binds the text; effort: see thinking",
        at=ANTHROPIC,
    ),
    _refused("context_management", "nothing is edited out of a prompt", ANTHROPIC, neutral=({},)),
    _refused("functions", "use tools", CHAT, neutral=([],)),
    _refused("function_call", "use tool_choice", CHAT, neutral=("none",)),
    _refused("modalities", "only text is supported", CHAT, neutral=(["text"],)),
    _refused("audio", "only text is supported", CHAT),
    _refused("prediction", "predicted outputs are not supported", CHAT),
    _honoured(
        "reasoning_effort", word(*shapes.EFFORTS),
        "sets enable_thinking, thinking and reasoning_effort of the model's template, which may "
        "read them; where it reads none, the field is ignored, and named so", at=TEMPLATE,
    ),
    _refused("verbosity", "verbosity control is not supported", CHAT, neutral=("medium",)),
    _refused("web_search_options", "web search is not supported", CHAT),
    _refused("chat_template", "templates in requests are not supported", CHAT),
    _refused("suffix", "infilling is not supported", COMPLETIONS, neutral=("",)),
    _refused("guided_json", "use structured_outputs.json"),
    _refused("guided_regex", "use structured_outputs.regex"),
    _refused("guided_choice", "use structured_outputs.choice"),
    _refused("guided_grammar", "use structured_outputs.grammar"),
    _refused("store", "nothing is stored", CHAT, neutral=(False,)),
    _ignored("user", text(), "names the end user", at=BOTH | RESPONSES | PROBES),
    _ignored("metadata", shapes.METADATA, "free-form labels", at=BOTH),
    _ignored("metadata", record({}, {"user_id": text()}), "names the end user", at=MESSAGES),
    _ignored(
        "prompt_cache_retention", text(), "prefixes are kept while there is room",
        at=CHAT | RESPONSES,
    ),
    _ignored(
        "prompt_cache_options", OBJECT, "prefixes are cached without them", at=CHAT | RESPONSES,
    ),
    _ignored(
        "max_tool_calls", integer(), "counts calls of tools that hosts run; none is", at=RESPONSES,
    ),
    _ignored(
        "cache_control", tools.CACHE_CONTROL, "prefixes are cached without it; in blocks too",
        at=ANTHROPIC,
    ),
    _ignored("inference_geo", text(), "there is one place", at=ANTHROPIC),
    _ignored("speed", text(), "there is one speed", at=ANTHROPIC),
    _ignored("diagnostics", OBJECT, "about the cache, which changes no text", at=ANTHROPIC),
    _ignored("user_profile_id", text(), "names the end user", at=ANTHROPIC),
    _ignored("workspace_id", text(), "names the end user", at=ANTHROPIC),
    _ignored("safety_identifier", text(), "names the end user", at=CHAT),
    _ignored("safety_identifier", text(), "names the end user; repeated", at=RESPONSES),
    _ignored(
        "prompt_cache_key", text(), "a routing hint; prefixes are found without it", at=CHAT,
    ),
    _ignored("prompt_cache_key", text(), "as in chat; repeated", at=RESPONSES),
    _ignored("service_tier", text(), "there is one tier", at=CHAT | MESSAGES | RESPONSES),
)  # fmt: skip
