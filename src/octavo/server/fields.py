"""The one table of request fields: honoured, refused by name, or accepted and ignored.

Nothing is silently ignored: a field that is not in the table is refused, a refused field is
refused unless it carries a value that asks for nothing (``null``, or one listed as neutral), and an
ignored one is on a closed list of fields that cannot change the text; the response names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from octavo.server.dialects import AsWrittenError
from octavo.server.typed_body import shown_name


class Endpoint(StrEnum):
    """The endpoints that share the table."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    RESPONSES = "responses"
    INPUT_TOKENS = "input_tokens"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    APPLY_TEMPLATE = "apply_template"
    EMBEDDINGS = "embeddings"
    SCORE = "score"
    SYSTEMONE = "systemone"


class Treatment(StrEnum):
    """What happens to a field."""

    HONOURED = "honoured"
    REFUSED = "refused"
    IGNORED = "ignored"


BOTH = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
MESSAGES = frozenset({Endpoint.MESSAGES})
ANTHROPIC = frozenset({Endpoint.MESSAGES, Endpoint.COUNT_TOKENS})
RESPONSES = frozenset({Endpoint.RESPONSES})
INPUT = frozenset({Endpoint.RESPONSES, Endpoint.INPUT_TOKENS})
TEXT = BOTH | MESSAGES | RESPONSES
CHAT = frozenset({Endpoint.CHAT})
COMPLETIONS = frozenset({Endpoint.COMPLETIONS})
TOKENIZE = frozenset({Endpoint.TOKENIZE})
DETOKENIZE = frozenset({Endpoint.DETOKENIZE})
# Endpoints that take a chat's messages.
TEMPLATE = CHAT | TOKENIZE | frozenset({Endpoint.APPLY_TEMPLATE})
EMBEDDINGS = frozenset({Endpoint.EMBEDDINGS})
SCORE = frozenset({Endpoint.SCORE})
SYSTEMONE = frozenset({Endpoint.SYSTEMONE})
# Endpoints that read something off the model instead of letting it answer.
PROBES = EMBEDDINGS | SCORE | SYSTEMONE
ALL = TEXT | ANTHROPIC | INPUT | TEMPLATE | DETOKENIZE | PROBES


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row. ``note`` says what it means, or why it is refused and what to do instead."""

    name: str
    treatment: Treatment
    note: str
    endpoints: frozenset[Endpoint] = BOTH
    neutral: tuple[object, ...] = ()


def _honoured(name: str, note: str, endpoints: frozenset[Endpoint] = BOTH) -> Field:
    return Field(name=name, treatment=Treatment.HONOURED, note=note, endpoints=endpoints)


def _refused(
    name: str, note: str, endpoints: frozenset[Endpoint] = BOTH, *, neutral: tuple[object, ...] = ()
) -> Field:
    return Field(
        name=name, treatment=Treatment.REFUSED, note=note, endpoints=endpoints, neutral=neutral
    )


def _ignored(name: str, note: str, endpoints: frozenset[Endpoint] = BOTH) -> Field:
    return Field(name=name, treatment=Treatment.IGNORED, note=note, endpoints=endpoints)


FIELDS = (
    _honoured("model", "a served name; absent means the served model", ALL),
    _honoured(
        "messages",
        "roles system, developer (means system), user, assistant (with tool_calls and "
        "reasoning_content), tool; content a text or text parts, which are joined by line ends; "
        "other keys of a message, such as name, are refused",
        TEMPLATE,
    ),
    _honoured("prompt", "text, list of texts, token ids, or list of token ids", COMPLETIONS),
    _honoured("prompt", "a text; else send messages", TOKENIZE),
    _honoured("add_special_tokens", "false leaves out the model's own beginning token", TOKENIZE),
    _honoured("tokens", "a list of token ids", DETOKENIZE),
    _honoured("max_tokens", "limit on generated tokens, 1 or more"),
    _honoured("max_completion_tokens", "the newer name of max_tokens", CHAT),
    _honoured("temperature", "0 (greedy) to 100", TEXT),
    _honoured("top_p", "over 0, up to 1", TEXT),
    _honoured("top_k", "0 or -1 is off", TEXT),
    _honoured("min_p", "0 to 1", TEXT),
    _honoured("n", "choices per prompt; the prompt is computed once"),
    _honoured(
        "best_of",
        "choices computed per prompt, of which the n with the highest mean logprob are returned, "
        "best first; usage counts all of them; not with stream, unless it equals n",
    ),
    _honoured(
        "use_beam_search",
        "search with best_of (else n) beams, 2 to 64, and return the n best; refused with stream, "
        "stop, logit_bias, penalties, top_k, top_p, min_p or a temperature other than 0; a seed "
        "changes nothing",
    ),
    _honoured(
        "length_penalty",
        "beam search: a sequence scores its summed logprob / length ** length_penalty, -10 to 10",
    ),
    _honoured(
        "early_stopping",
        'beam search: true ends it at best_of finished sequences, "never" when none can become '
        "better, false when none would be better at its length now",
    ),
    _honoured("stop", "a string or a list of strings"),
    _honoured("stop_token_ids", "token ids that end a choice", TEXT),
    _honoured("include_stop_str_in_output", "keep the stop string in the text", TEXT),
    _honoured("skip_special_tokens", "false shows control tokens in the text", TEXT),
    _honoured("seed", "64-bit integer; the same seed gives the same text", TEXT),
    _honoured("presence_penalty", "-2 to 2", TEXT),
    _honoured("frequency_penalty", "-2 to 2", TEXT),
    _honoured("repetition_penalty", "over 0, up to 10", TEXT),
    _honoured("logit_bias", "object of token id to bias, -100 to 100", TEXT),
    _honoured(
        "prompt_logprobs",
        "alternatives to tell for every token of the prompt but the first; such a prompt is "
        "computed whole, without cached prefixes; not with use_beam_search",
    ),
    _honoured(
        "allowed_token_ids",
        "nothing but these is sampled; not with bad_words or a structure of the answer",
        TEXT,
    ),
    _honoured(
        "bad_words",
        "texts that are not sampled in the tokens that spell them alone or behind a space; not "
        "with a structure of the answer",
        TEXT,
    ),
    _honoured(
        "min_tokens", "no end of a choice, stop strings included, before this many tokens", TEXT
    ),
    _honoured("ignore_eos", "go on past end-of-text", TEXT),
    _honoured("logprobs", "chat: true or false; completions: number of alternatives"),
    _honoured("top_logprobs", "alternatives per token; needs logprobs", CHAT),
    _honoured("top_logprobs", "needs include: message.output_text.logprobs", RESPONSES),
    _honoured(
        "truncate_prompt_tokens", "keep only so many tokens, the last, of a prompt", BOTH | PROBES
    ),
    _honoured("return_token_ids", "true adds prompt_token_ids and token_ids to the choices"),
    _honoured("cache_salt", "prompts share cached prefixes only within one salt", TEXT | PROBES),
    _honoured("continue_final_message", "go on from the assistant's last message", TEMPLATE),
    _honoured("add_generation_prompt", "false leaves out the head of an answer", TEMPLATE),
    _honoured(
        "chat_template_kwargs",
        "what the model's template reads by these names: true, false, a number or a word",
        TEMPLATE,
    ),
    _honoured(
        "echo",
        "put the prompt before the text, and with logprobs its own before theirs",
        COMPLETIONS,
    ),
    _honoured(
        "response_format",
        "text, json_object, or json_schema with a schema; the text then is one JSON value, written "
        "without free white space",
        CHAT,
    ),
    _honoured(
        "structured_outputs",
        "an object with one of json (a schema), regex, choice (a list of texts) or grammar (Lark); "
        "not with ignore_eos or min_tokens",
        TEXT,
    ),
    _honoured(
        "priority", "-1, 0 or 1: before, among or after the caller's other requests", TEXT | PROBES
    ),
    _honoured(
        "timeout", "seconds until the request is dropped: 504, or an error event", TEXT | PROBES
    ),
    _honoured("stream", "server-sent events", TEXT),
    _honoured("stream_options", "include_usage"),
    _honoured(
        "messages",
        "roles user, assistant, system; content a text or blocks: text, joined by line ends; of a "
        "user also tool_result; of the assistant also thinking and tool_use; a last message of the "
        "assistant is continued",
        ANTHROPIC,
    ),
    _honoured(
        "system",
        "a text or text blocks; a block that begins x-anthropic-billing-header is left out",
        ANTHROPIC,
    ),
    _honoured(
        "max_tokens",
        "required, 1 or more; where the context ends earlier, so does the answer, with the stop "
        "reason model_context_window_exceeded",
        MESSAGES,
    ),
    _honoured("stop_sequences", "a list of strings", MESSAGES),
    _honoured(
        "input",
        "a text, or a list of items: messages with roles user, assistant, system, developer (means "
        "system) and a text or text parts, which are joined by line ends; reasoning (its text), "
        "function_call, function_call_output",
        INPUT,
    ),
    _honoured("instructions", "a system message before the input, of this response only", INPUT),
    _honoured("previous_response_id", "a stored response, whose conversation goes on", INPUT),
    _honoured("max_output_tokens", "limit on generated tokens, 1 or more", RESPONSES),
    _honoured("store", "false keeps nothing; else it is kept in memory, bounded", RESPONSES),
    _honoured(
        "background",
        "answer at once and make the response after; needs store; with stream its events are kept "
        "with it, to be read from any of them",
        RESPONSES,
    ),
    _honoured(
        "include",
        "message.output_text.logprobs (not with tools); reasoning.encrypted_content, of which "
        "there is none",
        RESPONSES,
    ),
    _honoured("metadata", "at most 16 strings; repeated in the response", RESPONSES),
    _honoured(
        "text",
        "format: text, json_object, or json_schema with a schema, which binds the text",
        RESPONSES,
    ),
    _honoured(
        "input",
        "text, list of texts, token ids, or list of token ids; the embedding of each is the served "
        "model's final hidden state (after the last norm) of its last token, scaled to length 1",
        EMBEDDINGS,
    ),
    _honoured("encoding_format", "float, or base64 of little-endian float32 values", EMBEDDINGS),
    _honoured("dimensions", "the vector's first values only, scaled to length 1 again", EMBEDDINGS),
    _honoured(
        "text_1",
        "as input of embeddings: one for all of text_2, or as many; a score is the cosine of the "
        "two texts' embeddings, -1 to 1",
        SCORE,
    ),
    _honoured("text_2", "as input of embeddings", SCORE),
    _honoured(
        "state",
        "a text, which each question is appended to, or a chat's messages, of which each question "
        "is the next turn of the user; computed once for all questions",
        SYSTEMONE,
    ),
    _honoured(
        "questions",
        "objects with question (a text) and labels (texts, at most 128 in all): a label's logprob "
        "is the sum over its own tokens, appended after the question, at temperature 1",
        SYSTEMONE,
    ),
    _ignored("text", "changes no prompt", INPUT - RESPONSES),
    _refused("truncation", "nothing is cut from a prompt", INPUT, neutral=("disabled",)),
    _honoured(
        "reasoning",
        "effort: as reasoning_effort in chat; summary is ignored, and named so: what is thought is "
        "told in full",
        INPUT,
    ),
    _refused("conversation", "use previous_response_id", INPUT),
    _refused("prompt", "prompt templates are not kept here", RESPONSES),
    _refused("context_management", "nothing is edited out of a prompt", RESPONSES, neutral=([],)),
    _refused("moderation", "nothing is moderated", RESPONSES),
    _refused(
        "stream_options",
        "events carry no obfuscation",
        RESPONSES,
        neutral=({"include_obfuscation": False}, {}),
    ),
    _honoured(
        "tools",
        "at most 128 functions; a model whose template knows no tools is told of them in the "
        "system's text; not with a structure of the answer unless tool_choice is none",
        TEMPLATE,
    ),
    _honoured(
        "tool_choice",
        "none (the model is told of no function), auto, required, or a function by name, which "
        "binds the answer",
        TEMPLATE,
    ),
    _honoured("parallel_tool_calls", "false: at most one call; later ones stay text", TEMPLATE),
    _honoured(
        "tools",
        "at most 128 functions: name, description, input_schema; tools that Anthropic runs or "
        "defines are refused; else as in chat",
        ANTHROPIC,
    ),
    _honoured(
        "tool_choice",
        "type none (the model is told of no function), auto, any, or tool with a name, which binds "
        "the answer; disable_parallel_tool_use: later calls stay text",
        ANTHROPIC,
    ),
    _honoured(
        "tools",
        "at most 128 functions, as in chat; tools that the protocol's hosts run are left out, and "
        "named as ignored",
        INPUT,
    ),
    _honoured(
        "tool_choice",
        "none, auto, required, or type function with a name, which binds the answer",
        INPUT,
    ),
    _honoured("parallel_tool_calls", "false: at most one call; later ones stay text", INPUT),
    _refused("mcp_servers", "servers of tools are not called here", ANTHROPIC, neutral=([],)),
    _refused("container", "nothing is run here", ANTHROPIC),
    _honoured(
        "thinking",
        "type enabled, adaptive or disabled: sets enable_thinking and thinking of the model's "
        "template, which may read them; where it reads none, and for budget_tokens and display, "
        "it is ignored, and named so",
        ANTHROPIC,
    ),
    _honoured(
        "output_config",
        "format: json_schema with a schema, which binds the text; effort: see thinking",
        ANTHROPIC,
    ),
    _refused("context_management", "nothing is edited out of a prompt", ANTHROPIC, neutral=({},)),
    _refused("functions", "use tools", CHAT, neutral=([],)),
    _refused("function_call", "use tool_choice", CHAT, neutral=("none",)),
    _refused("modalities", "only text is supported", CHAT, neutral=(["text"],)),
    _refused("audio", "only text is supported", CHAT),
    _refused("prediction", "predicted outputs are not supported", CHAT),
    _honoured(
        "reasoning_effort",
        "none, minimal, low, medium, high, xhigh or max: sets enable_thinking, thinking and "
        "reasoning_effort of the model's template, which may read them; where it reads none, the "
        "field is ignored, and named so",
        TEMPLATE,
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
    _ignored("user", "names the end user", BOTH | RESPONSES | PROBES),
    _ignored("metadata", "free-form labels", BOTH | MESSAGES),
    _ignored("prompt_cache_retention", "prefixes are kept while there is room", CHAT | RESPONSES),
    _ignored("prompt_cache_options", "prefixes are cached without them", CHAT | RESPONSES),
    _ignored("max_tool_calls", "counts calls of tools that hosts run; none is", RESPONSES),
    _ignored("cache_control", "prefixes are cached without it; in blocks too", ANTHROPIC),
    _ignored("inference_geo", "there is one place", ANTHROPIC),
    _ignored("speed", "there is one speed", ANTHROPIC),
    _ignored("diagnostics", "about the cache, which changes no text", ANTHROPIC),
    _ignored("user_profile_id", "names the end user", ANTHROPIC),
    _ignored("workspace_id", "names the end user", ANTHROPIC),
    _ignored("safety_identifier", "names the end user", CHAT | RESPONSES),
    _ignored("prompt_cache_key", "a routing hint; prefixes are found without it", CHAT | RESPONSES),
    _ignored("service_tier", "there is one tier", CHAT | MESSAGES | RESPONSES),
)

_BY_ENDPOINT = {
    endpoint: {field.name: field for field in FIELDS if endpoint in field.endpoints}
    for endpoint in Endpoint
}


def check_fields(body: Mapping[str, object], endpoint: Endpoint) -> list[str]:
    """Apply the table to a body's names. Returns the ignored fields that are present.

    Raises:
        InvalidRequestError: an unknown field, or a refused one that asks for something.
    """
    table = _BY_ENDPOINT[endpoint]
    ignored = []
    for name, value in body.items():
        field = table.get(name)
        if field is None:
            shown = shown_name(name)
            raise AsWrittenError(f'unknown field "{shown}"', param=shown)
        if field.treatment is Treatment.REFUSED and not _asks_nothing(field, value):
            raise AsWrittenError(f"{name} is refused: {field.note}", param=name)
        if field.treatment is Treatment.IGNORED:
            ignored.append(name)
    return ignored


def _asks_nothing(field: Field, value: object) -> bool:
    return value is None or any(
        type(value) is type(neutral) and value == neutral for neutral in field.neutral
    )
