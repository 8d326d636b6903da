"""Renders one response: its object in each of its states, its events, and what is stored of it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence

from octavo.core.request import FinishReason
from octavo.errors import OctavoError
from octavo.frontend import BranchDelta, RequestOutput, Usage
from octavo.frontend.answer import new_id
from octavo.server.generation import Choice, Generation
from octavo.server.response_store import StoredResponse
from octavo.server.responses_input import ResponseCall
from octavo.server.responses_output import Output
from octavo.server.sse import PING, named_event
from octavo.server.state import ServerState

_ERROR_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}
# Fields of the object that say nothing here, but that clients require.
_CONSTANT: dict[str, object] = {
    "max_tool_calls": None,
    "truncation": "disabled",
    "service_tier": "default",
}


class ResponseWriter:
    """Renders one answer. ``entry`` is what is kept of it, its events too where it has a log."""

    ping = PING
    done = b""

    def __init__(self, state: ServerState, call: ResponseCall, owner: str) -> None:
        assert call.form is not None, "a response has a form"
        self._state = state
        self._call = call
        has_log = call.background and call.stream
        self.entry = StoredResponse(
            owner=owner,
            background=call.background,
            num_input=len(call.messages),
            log=[] if has_log else None,
        )
        self._output = Output(call.form, top=call.sampling.logprobs)
        self._sequence = 0
        self._has_output = False
        self._created = False
        self.response_id = new_id("resp")
        self._base: dict[str, object] = {
            "id": self.response_id,
            "object": "response",
            "created_at": int(time.time()),
            "model": call.model,
            "store": call.store,
            "background": call.background,
            **_CONSTANT,
            **call.shown,
        }

    def keep(self, body: dict[str, object], *, has_ended: bool = False) -> None:
        """Store a state of the response, where it is to be stored.

        Raises:
            OverloadedError: too many are being made in the background.
        """
        if self._call.store:
            answer = self._output.message() if has_ended else {"role": "assistant", "content": ""}
            self.entry.body = body
            self.entry.messages = [*self._call.messages, answer]
            self._state.responses.put(self.response_id, self.entry)

    def response(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, object]:
        """The object of a call that is not streamed."""
        (choice,) = choices
        self._take_all(choice)
        body = self._ended(choice.finish_reason, generation)
        self.keep(body, has_ended=True)
        return body

    def cancelled(self, generation: Generation, choices: Sequence[Choice]) -> None:
        """Keep what there is of an answer that was cancelled."""
        (choice,) = choices
        self._take_all(choice)
        self.keep(self.body("cancelled", usage=generation.usage))

    def stopped(self, generation: Generation) -> None:
        """The same of one that was streamed."""
        self._output.end(complete=False)
        self._has_output = True
        self.keep(self.body("cancelled", usage=generation.usage))

    def _take_all(self, choice: Choice) -> None:
        self._has_output = True
        text, ids, logprobs = "".join(choice.text), choice.token_ids, choice.logprobs
        # However it ended, nothing follows.
        end = choice.finish_reason or FinishReason.ABORT
        self._output.add(BranchDelta(0, text, tuple(ids), tuple(logprobs), end))
        self._output.end(complete=False)

    def _ended(
        self, finish_reason: FinishReason | None, generation: Generation
    ) -> dict[str, object]:
        status = "completed" if finish_reason is FinishReason.STOP else "incomplete"
        body = self.body(status, usage=generation.usage)
        body["timings"] = generation.timings
        return body

    def body(
        self, status: str, *, usage: Usage | None = None, error: OctavoError | None = None
    ) -> dict[str, object]:
        """The response's object in one of its states."""
        why = {"reason": "max_output_tokens"} if status == "incomplete" else None
        fault = None
        if error is not None:
            code = _ERROR_CODES.get(error.http_status, "server_error")
            fault = {"code": code, "message": error.message}
        shown = self._output.items(complete=status == "completed") if self._has_output else []
        counts = None
        if usage is not None:
            counts = usage_object(usage, self._output.num_reasoning_tokens)
        return {
            **self._base,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": fault,
            "incomplete_details": why,
            "output": shown,
            "usage": counts,
        }

    # -- streamed ----------------------------------------------------------------------------

    def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The events of a response, in the protocol's order."""
        return generation.outputs(lambda _, output: b"".join(self._events(output, generation)))

    def failure(self, error: OctavoError) -> bytes:
        """See ``Framing``; the response has failed, and is kept so."""
        begun = self._begin()
        if self._has_output:
            self._output.end(complete=False)
        body = self.body("failed", error=error)
        last = self._event("failed", {"response": body})
        self.keep(body)
        return b"".join([*begun, last])

    def create(self) -> bytes:
        """The first event."""
        if self._created:
            return b""
        self._created = True
        status = "queued" if self._call.background else "in_progress"
        return self._event("created", {"response": self.body(status)})

    def _begin(self) -> list[bytes]:
        """What comes before the output, unless it has come."""
        if self._has_output:
            return []
        created = self.create()
        begun = self._event("in_progress", {"response": self.body("in_progress")})
        return [created, begun]

    def _events(self, output: RequestOutput, generation: Generation) -> list[bytes]:
        """What one output adds, as one write."""
        (delta,) = output.branches
        begun = self._begin()
        self._has_output = True
        found = self._output.add(delta)
        body = None
        if delta.finish_reason is not None:
            found += self._output.end(complete=delta.finish_reason is FinishReason.STOP)
            body = self._ended(delta.finish_reason, generation)
            found.append((str(body["status"]), {"response": body}))
        data = begun + [self._event(*event) for event in found]
        if body is not None:
            # After its last event, which is counted with what is kept.
            self.keep(body, has_ended=True)
        return data

    def _event(self, kind: str, values: dict[str, object]) -> bytes:
        kind = f"response.{kind}"
        data = named_event(kind, {"type": kind, "sequence_number": self._sequence, **values})
        self._sequence += 1
        self.entry.tell(data)
        return data


def usage_object(usage: Usage, num_reasoning_tokens: int) -> dict[str, object]:
    """Token counts with the details that clients read."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": num_reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
