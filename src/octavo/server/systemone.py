"""``POST /v1/systemone``: one state, many questions, each answered by scoring its labels.

The state is computed once and shared by all questions (prefix hits), a question once for all of
its labels (branches); a label is scored by the log-probability of its tokens.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.probe import MAX_LABEL_TOKENS, MAX_LABELS, Probe
from octavo.core.request import Request
from octavo.errors import InvalidRequestError
from octavo.frontend.readings import LabelScore, Reading
from octavo.server.call import Call, read_body, read_call
from octavo.server.endpoints import Endpoint
from octavo.server.engine_request import probe_request
from octavo.server.probing import run_probes
from octavo.server.prompts import MAX_MESSAGES
from octavo.server.rendering import finite_logprob, usage_object
from octavo.server.replies import Exchange, ignored_header, send_json
from octavo.server.state import ServerState
from octavo.server.typed_body import TypedBody, check_length
from octavo.text import read_messages
from octavo.text.members import wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class _Questions(Call):
    """``labels`` of each request."""

    labels: Sequence[Sequence[str]]


async def systemone(state: ServerState, http: Exchange) -> None:
    """The scores of every question's labels, and the likeliest."""
    call = await read_call(state, http, _parse)
    answer = await run_probes(state, http, call)
    if answer is None:
        return
    pairs = enumerate(zip(answer.readings, call.labels, strict=True))
    body = {
        "id": f"systemone-{uuid.uuid4().hex}",
        "object": "systemone",
        "created": int(time.time()),
        "model": call.model,
        "answers": [_answer(index, *pair) for index, pair in pairs],
        "usage": usage_object(answer.usage),
        "timings": answer.timings,
    }
    await send_json(http.send, body, headers=ignored_header(call.ignored))


def _answer(index: int, reading: Reading, labels: Sequence[str]) -> dict[str, object]:
    scores = reading.label_scores(labels)
    # The first of equals.
    best = max(scores, key=lambda score: score.logprob)
    return {"index": index, "label": best.label, "labels": [_label(score) for score in scores]}


def _label(score: LabelScore) -> dict[str, object]:
    return {
        "label": score.label,
        "logprob": finite_logprob(score.logprob),
        "probability": score.probability,
        "num_tokens": len(score.token_ids),
    }


def _parse(state: ServerState, values: dict[str, object]) -> _Questions:
    body, model, ignored = read_body(state, values, Endpoint.SYSTEMONE)
    requests, labels = [], []
    for index, question in enumerate(body.raw("questions")):
        where = f"questions[{index}]"
        names = question["labels"]
        requests.append(_request(state, body, question["question"], labels=names, where=where))
        labels.append(names)
    if (count := sum(map(len, labels))) > MAX_LABELS:
        raise InvalidRequestError(
            f"the questions have {count} labels together; the limit is {MAX_LABELS}",
            param="questions",
        )
    return _Questions(
        requests=requests,
        model=model,
        ignored=ignored,
        labels=labels,
    )


def _request(
    state: ServerState, body: TypedBody, question: str, *, labels: Sequence[str], where: str
) -> Request:
    encode = state.tokenizer.encode
    tokens = tuple(tuple(encode(label, add_special_tokens=False)) for label in labels)
    param = f"{where}.labels"
    if len(set(labels)) != len(labels):
        raise wrong(param, "names a label twice")
    if (longest := max(map(len, tokens))) > MAX_LABEL_TOKENS:
        raise InvalidRequestError(
            f"{param}: a label has {longest} tokens; the limit is {MAX_LABEL_TOKENS}", param=param
        )
    if len(tokens) > (most := state.token_limits().max_num_seqs):
        raise wrong(param, f"has {len(tokens)} entries; the limit is {most} (--max-num-seqs)")
    prompt = _prompt(state, body.raw("state"), question)
    probe = Probe(labels=tokens)
    return probe_request(state, body, prompt, probe=probe, name="state")


def _prompt(state: ServerState, given: object, question: str) -> list[int]:
    """The state with one question: text after text, or a conversation's next turn."""
    if isinstance(given, str):
        if not given + question:
            raise wrong("state", "and question are both empty")
        return state.tokenizer.encode(given + question)
    if not isinstance(given, list):
        raise wrong("state", "must be a text or a list of messages")
    check_length(given, "state", MAX_MESSAGES)
    messages = [*given, {"role": "user", "content": question}]
    return state.template().encode(read_messages(messages))
