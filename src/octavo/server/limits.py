"""The one table of limits: everything that is bounded, by how much, and what happens beyond.

``octavo_limit{resource}`` and ``octavo_limit_used{resource}`` show the rows of ``RESOURCES``; the
documentation page is generated from both tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config import SchedulerConfig
from octavo.core.grammar import MAX_GRAMMAR_CHARS, MAX_GRAMMAR_CHOICES
from octavo.core.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from octavo.frontend.client import SLOW_CLIENT_S
from octavo.frontend.journal import MAX_JOURNAL_REQUESTS, MAX_JOURNAL_TOKENS
from octavo.frontend.stream import BUFFER_BYTES
from octavo.grammar.matcher import MAX_STEP_ITEMS
from octavo.server.edge import MAX_BODIES_BYTES, MAX_BODY_BYTES
from octavo.server.http_protocol import (
    BODY_TIMEOUT_S,
    HEAD_TIMEOUT_S,
    MAX_CONNECTIONS,
    MAX_EXTENSION_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    MAX_RAW_BODY_BYTES,
    WRITE_TIMEOUT_S,
)
from octavo.server.http_server import KEEP_ALIVE_S
from octavo.server.json_body import MAX_DEPTH, MAX_RUN, MAX_STRUCTURE
from octavo.server.lingering import LINGER_BYTES, LINGER_S
from octavo.server.prompts import MAX_MESSAGES, MAX_PROMPT_IDS, MAX_PROMPTS
from octavo.server.response_store import MAX_BACKGROUND, MAX_RESPONSES, MAX_RESPONSES_BYTES
from octavo.server.state import REQUEST_TIMEOUT_S

_SCHEDULER = SchedulerConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One row. ``option`` changes it, where one does; ``value`` "" is sized at start."""

    name: str
    value: float | str
    unit: str
    beyond: str
    option: str = ""


RESOURCES = (
    Limit(
        name="connections", value=MAX_CONNECTIONS, unit="open sockets",
        beyond="a new one is closed at once",
    ),
    Limit(
        name="request_body_bytes", value=MAX_BODIES_BYTES, unit="bytes of bodies being read",
        beyond="429 and close",
    ),
    Limit(
        name="stored_responses", value=MAX_RESPONSES, unit="responses kept",
        beyond="the oldest makes room",
    ),
    Limit(
        name="stored_response_bytes", value=MAX_RESPONSES_BYTES, unit="bytes of responses kept",
        beyond="the oldest makes room",
    ),
    Limit(
        name="journal_requests", value=MAX_JOURNAL_REQUESTS, unit="requests in flight",
        beyond="429",
    ),
    Limit(
        name="journal_tokens", value=MAX_JOURNAL_TOKENS, unit="tokens of requests in flight",
        beyond="429",
    ),
    Limit(
        name="waiting_requests", value=_SCHEDULER.max_waiting, unit="requests queued",
        beyond="429; twice as many where tenants have less than their equal share",
    ),
    Limit(
        name="running_sequences", value=_SCHEDULER.max_num_seqs, unit="sequences in a batch",
        beyond="they wait", option="--max-num-seqs",
    ),
    Limit(
        name="kv_pool_bytes", value="fits free memory", unit="bytes",
        beyond="requests wait, or are preempted and computed again", option="--kv-memory",
    ),
)  # fmt: skip

# Of one request or connection: there is no use to show, only a bound to keep.
PER_REQUEST = (
    Limit(
        name="time to the answer", value=REQUEST_TIMEOUT_S, unit="s",
        beyond="504, or an error event in a stream", option="--request-timeout",
    ),
    Limit(
        name="prompt and answer", value="the model's context", unit="tokens",
        beyond="400 context_length_exceeded", option="--max-model-len",
    ),
    Limit(name="choices (prompts x n, or x best_of)", value=MAX_N, unit="", beyond="400"),
    Limit(name="body", value=MAX_BODY_BYTES, unit="bytes", beyond="413 and close"),
    Limit(name="chunk extensions and trailers of a body", value=MAX_EXTENSION_BYTES, unit="bytes",
          beyond="413 and close"),
    Limit(name="body with the framing of its chunks", value=MAX_RAW_BODY_BYTES, unit="bytes",
          beyond="413 and close"),
    Limit(name="JSON nesting", value=MAX_DEPTH, unit="levels", beyond="400"),
    Limit(name="JSON strings and brackets", value=MAX_STRUCTURE, unit="", beyond="400"),
    Limit(name="JSON strings with no bracket between", value=MAX_RUN, unit="", beyond="400"),
    Limit(name="background responses", value=MAX_BACKGROUND, unit="being made", beyond="429"),
    Limit(name="messages", value=MAX_MESSAGES, unit="", beyond="400"),
    Limit(name="prompts in a list", value=MAX_PROMPTS, unit="", beyond="400"),
    Limit(name="token ids in a prompt, or to be made text", value=MAX_PROMPT_IDS, unit="",
          beyond="400"),
    Limit(name="stop strings", value=MAX_STOP_STRINGS, unit="", beyond="400"),
    Limit(name="length of a stop string", value=MAX_STOP_STRING_CHARS, unit="characters",
          beyond="400"),
    Limit(name="stop_token_ids", value=MAX_STOP_TOKEN_IDS, unit="ids", beyond="400"),
    Limit(name="logit_bias", value=MAX_LOGIT_BIAS, unit="entries", beyond="400"),
    Limit(name="characters of a grammar or schema", value=MAX_GRAMMAR_CHARS, unit="", beyond="400"),
    Limit(name="texts of a choice", value=MAX_GRAMMAR_CHOICES, unit="", beyond="400"),
    Limit(name="a grammar's work for one token", value=MAX_STEP_ITEMS, unit="items of its parser",
          beyond="400, or an error event in a stream"),
    Limit(name="an open number in an answer bound by a schema", value=15,
          unit="digits, and 9 behind the point",
          beyond="not written; bounds that the schema has stay as they are"),
    Limit(name="logprobs, top_logprobs", value=MAX_LOGPROBS, unit="alternatives", beyond="400"),
    Limit(name="request head", value=MAX_HEAD_BYTES, unit="bytes", beyond="431 and close"),
    Limit(name="request headers", value=MAX_HEADERS, unit="", beyond="431 and close"),
    Limit(name="pipelined requests", value=MAX_PIPELINED, unit="waiting",
          beyond="those are answered, then 429 and close"),
    Limit(name="connection closed for sending", value="", unit="",
          beyond="a client that is gone: its request is cancelled"),
    Limit(name="time to send a head", value=HEAD_TIMEOUT_S, unit="s", beyond="408 and close"),
    Limit(name="time to send a body", value=BODY_TIMEOUT_S, unit="s", beyond="408 and close"),
    Limit(name="what a refused client still sends", value=LINGER_BYTES, unit="bytes",
          beyond="the connection is cut"),
    Limit(name="how long it is listened to", value=LINGER_S, unit="s",
          beyond="the connection is cut"),
    Limit(name="idle connection", value=KEEP_ALIVE_S, unit="s", beyond="it is closed"),
    Limit(name="time to take what was sent", value=WRITE_TIMEOUT_S, unit="s",
          beyond="the connection is dropped, its request cancelled"),
    Limit(name="output not yet taken", value=BUFFER_BYTES, unit="bytes",
          beyond="generation pauses"),
    Limit(name="pause of a stream", value=SLOW_CLIENT_S, unit="s",
          beyond="the request is cancelled"),
)  # fmt: skip
