"""What ``/v1/responses`` remembers: answers and their conversations, in memory and bounded.

An entry belongs to the tenant that made it; to every other tenant it does not exist. The oldest
finished entries make room for new ones; those still running are few and stay.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.types import Message

from octavo.errors import OverloadedError, ResponseNotFoundError
from octavo.server.replies import encode_json
from octavo.text import Message as ChatMessage
from octavo.text.messages import texts_of

MAX_RESPONSES = 1024
MAX_RESPONSES_BYTES = 32 << 20
MAX_BACKGROUND = 64

RUNNING = frozenset({"queued", "in_progress"})


@dataclass(slots=True, kw_only=True)
class StoredResponse:
    """One answer. ``body`` is its object, ``messages`` the conversation up to and with it.

    The first ``num_input`` messages are what it was made from. ``log`` are its events so far, where
    they are kept; ``grown`` is set with each. ``cancelled`` stops one that is made in the
    background; ``deleted`` ones are not stored again.
    """

    owner: str
    body: dict[str, object] = field(default_factory=dict)
    messages: Sequence[ChatMessage] = ()
    num_input: int = 0
    log: list[bytes] | None = None
    background: bool = False
    deleted: bool = False
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def running(self) -> bool:
        """Whether it is still being made."""
        return self.body["status"] in RUNNING

    @property
    def num_bytes(self) -> int:
        """What it is counted with."""
        texts = 4 * sum(map(len, texts_of(list(self.messages))))
        return texts + len(encode_json(self.body)) + sum(map(len, self.log or ()))

    def tell(self, data: bytes) -> None:
        """An event of the response, for whoever reads them."""
        if self.log is not None:
            self.log.append(data)
            self.grown.set()

    async def until_cancelled(self) -> Message:
        """Stands for the client's connection, which a background answer does not have."""
        await self.cancelled.wait()
        return {"type": "http.disconnect"}


class ResponseStore:
    """Owns the entries, and the tasks that make some of them."""

    def __init__(
        self, *, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_RESPONSES_BYTES
    ) -> None:
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[str, StoredResponse] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, response_id: str, owner: str) -> StoredResponse:
        """An entry.

        Raises:
            ResponseNotFoundError: there is none of that owner.
        """
        entry = self._entries.get(response_id)
        if entry is None or entry.owner != owner:
            raise ResponseNotFoundError(
                "no such response is stored: it was not, was deleted, or made room for newer ones; "
                "send the conversation itself",
                param="response_id",
            )
        return entry

    def put(self, response_id: str, entry: StoredResponse) -> None:
        """Store an entry, or what it has become; older ones make room.

        Raises:
            OverloadedError: too many answers are being made in the background.
        """
        if not entry.running:
            entry.ended.set()
            entry.grown.set()
        if entry.deleted:
            return
        others = [one for key, one in self._entries.items() if one.running and key != response_id]
        if entry.running and len(others) >= MAX_BACKGROUND:
            raise OverloadedError(
                f"{MAX_BACKGROUND} responses run in the background, which is the limit; retry later"
            )
        self._drop(response_id)
        self._entries[response_id] = entry
        self._sizes[response_id] = entry.num_bytes
        self.num_bytes += self._sizes[response_id]
        self._make_room()

    def delete(self, response_id: str, owner: str) -> None:
        """Forget an entry; one that is being made is cancelled.

        Raises:
            ResponseNotFoundError: there is none of that owner.
        """
        entry = self.get(response_id, owner)
        entry.deleted = True
        entry.cancelled.set()
        self._drop(response_id)

    def run(self, task: asyncio.Task[None]) -> None:
        """Keep a task until it ends."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _drop(self, response_id: str) -> None:
        if self._entries.pop(response_id, None) is not None:
            self.num_bytes -= self._sizes.pop(response_id)

    def _make_room(self) -> None:
        for response_id in list(self._entries):
            if len(self) <= self.max_responses and self.num_bytes <= self.max_bytes:
                return
            if not self._entries[response_id].running:
                self._drop(response_id)
