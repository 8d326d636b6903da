"""The endpoints that share the field table, and sets of them that share rows."""

from __future__ import annotations

from enum import StrEnum


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
