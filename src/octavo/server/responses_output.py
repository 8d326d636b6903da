"""A response's output: the items of an answer as they stand now, and the events that tell of it.

reasoning      output_item.added → content_part.added → reasoning_text.delta* → .done
               → content_part.done → output_item.done
message        the same with output_text
function_call  output_item.added → function_call_arguments.delta* → .done → output_item.done
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from octavo.core.request import TokenLogprobs
from octavo.frontend import BranchDelta
from octavo.frontend.answer import AnswerForm, Part, Parts, new_id
from octavo.server.rendering import chat_logprobs
from octavo.text import Message
from octavo.text.messages import json_object

Event = tuple[str, dict[str, object]]

_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}
_TEXTS = {"reasoning": "reasoning_text", "text": "output_text"}


@dataclass(slots=True)
class _Item:
    part: Part
    id: str
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class Output:
    """The output of one response. ``top`` alternatives are reported per token, None: none."""

    def __init__(self, form: AnswerForm, *, top: int | None) -> None:
        self._form = form
        self._top = top
        self._reader = form.reader()
        self._parts = Parts()
        self._items: list[_Item] = []
        self._held: list[TokenLogprobs] = []
        self._num_given = 0

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of the reasoning so far."""
        return self._reader.num_reasoning_tokens

    def add(self, delta: BranchDelta) -> list[Event]:
        """Take a delta in; what there is to tell of it."""
        found: list[Event] = []
        pieces = self._reader.read(delta)
        logprobs = self._text_logprobs(delta.logprobs)
        if logprobs and not any(isinstance(piece, str) for piece in pieces):
            pieces.append("")
        for piece in pieces:
            part, text = self._parts.add(piece)
            if not self._items or self._items[-1].part is not part:
                found += self._close()
                found += self._open(part)
            item = self._items[-1]
            if part.kind == "text":
                item.logprobs += logprobs
                found.append(self._delta(item, text, logprobs))
                logprobs = []
            elif text:
                found.append(self._delta(item, text, []))
        return found

    def end(self, *, complete: bool) -> list[Event]:
        """Close what is open: the last item, which is an empty message where there is none."""
        found: list[Event] = []
        if not self._items:
            part, _ = self._parts.add("")
            found += self._open(part)
        return found + self._close(complete=complete)

    def items(self, *, complete: bool) -> list[dict[str, object]]:
        """All items; the last is complete only if ``complete``."""
        last = len(self._items) - 1
        return [
            self._rendered(item, "completed" if complete or at < last else "incomplete")
            for at, item in enumerate(self._items)
        ]

    def message(self) -> Message:
        """The answer as a message that a conversation goes on from."""
        parts = self._parts
        whole = [part for part in parts.calls if json_object(part.text) is not None]
        # What was cut off, or is no JSON, is no call that a template could write.
        broken = [f"{part.name} {part.text}" for part in parts.calls if part not in whole]
        text = "\n".join(filter(None, [parts.joined("text"), *broken]))
        message: Message = {"role": "assistant", "content": text}
        if reasoning := parts.joined("reasoning"):
            message["reasoning_content"] = reasoning
        if whole:
            message["tool_calls"] = [part.as_call() for part in whole]
        return message

    def _text_logprobs(self, entries: Sequence[TokenLogprobs]) -> list[TokenLogprobs]:
        """Of the tokens so far, what belongs to the text and has not been given out."""
        self._held += entries
        if self._reader.is_reasoning:
            return []
        skipped = max(0, self._reader.num_reasoning_tokens - self._num_given)
        ready, self._held = self._held[skipped:], []
        self._num_given += skipped + len(ready)
        return ready

    # -- events ------------------------------------------------------------------------------

    def _open(self, part: Part) -> list[Event]:
        item = _Item(part, new_id(_PREFIXES[part.kind]))
        self._items.append(item)
        empty = self._rendered(replace(item, part=replace(part, pieces=[])), "in_progress")
        has_content = part.kind != "call"
        if has_content:
            empty["content"] = []
        found: list[Event] = [
            ("output_item.added", {"output_index": len(self._items) - 1, "item": empty})
        ]
        if has_content:
            place = self._place(item)
            found.append(("content_part.added", {**place, "part": self._content(part.kind, "")}))
        return found

    def _delta(self, item: _Item, text: str, logprobs: Sequence[TokenLogprobs]) -> Event:
        values = {**self._place(item), "delta": text}
        if item.part.kind == "call":
            return "function_call_arguments.delta", values
        if item.part.kind == "text":
            values["logprobs"] = self._logprobs(logprobs)
        return f"{_TEXTS[item.part.kind]}.delta", values

    def _close(self, *, complete: bool = True) -> list[Event]:
        if not self._items:
            return []
        item, place = self._items[-1], self._place(self._items[-1])
        kind, text = item.part.kind, item.part.text
        rendered = self._rendered(item, "completed" if complete else "incomplete")
        end: Event = (
            "output_item.done", {"output_index": place["output_index"], "item": rendered}
        )  # fmt: skip
        if kind == "call":
            done = {**place, "name": item.part.name, "arguments": text}
            return [("function_call_arguments.done", done), end]
        part = self._content(kind, text, item.logprobs)
        values = {**place, "text": text}
        if kind == "text":
            values["logprobs"] = part["logprobs"]
        return [
            (f"{_TEXTS[kind]}.done", values), ("content_part.done", {**place, "part": part}), end,
        ]  # fmt: skip

    def _place(self, item: _Item) -> dict[str, object]:
        place: dict[str, object] = {"item_id": item.id, "output_index": len(self._items) - 1}
        return place if item.part.kind == "call" else {**place, "content_index": 0}

    # -- items -------------------------------------------------------------------------------

    def _rendered(self, item: _Item, status: str) -> dict[str, object]:
        part = item.part
        if part.kind == "call":
            return {
                "id": item.id, "type": "function_call", "status": status, "call_id": part.id,
                "name": part.name, "arguments": part.text,
            }  # fmt: skip
        content = [self._content(part.kind, part.text, item.logprobs)]
        if part.kind == "reasoning":
            return {
                "id": item.id, "type": "reasoning", "status": status, "summary": [],
                "content": content,
            }  # fmt: skip
        return {
            "id": item.id, "type": "message", "status": status, "role": "assistant",
            "content": content,
        }  # fmt: skip

    def _content(
        self, kind: str, text: str, entries: Sequence[TokenLogprobs] = ()
    ) -> dict[str, object]:
        if kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        logprobs = self._logprobs(entries)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> object:
        if self._top is None:
            return []
        return chat_logprobs(entries, self._form.tokenizer, top=self._top)["content"]
