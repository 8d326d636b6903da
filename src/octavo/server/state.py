"""What every handler shares: one value, built once by the API process (or a test)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.core.sampling_params import SamplingParams
from octavo.errors import InvalidRequestError, ModelNotFoundError, UnavailableError
from octavo.frontend import AsyncEngineClient
from octavo.server.edge import ApiKeys, BodyReader
from octavo.server.http_protocol import MAX_CONNECTIONS
from octavo.server.response_store import ResponseStore
from octavo.server.sampling_fields import TokenLimits
from octavo.server.text_thread import TextThread
from octavo.text import ChatTemplate, Tokenizer
from octavo.text.members import shown_name

if TYPE_CHECKING:
    from octavo.server.metrics import Metrics

REQUEST_TIMEOUT_S = 600.0


@dataclass(slots=True, kw_only=True)
class ServerState:
    """The engine client, the model's text side, and what the operator chose.

    ``model_names`` are the served names, the first one being the model's own. ``defaults`` are the
    model's sampling defaults, ``generation_config`` the same as the model wrote them.
    ``request_ids`` are the clients' ids of the engine's requests.
    """

    client: AsyncEngineClient
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    model_names: Sequence[str]
    defaults: SamplingParams
    generation_config: dict[str, object]
    metrics: Metrics
    eos_token_ids: tuple[int, ...] = ()
    api_keys: ApiKeys = field(default_factory=lambda: ApiKeys(()))
    text_thread: TextThread = field(default_factory=TextThread)
    bodies: BodyReader = field(default_factory=BodyReader)
    responses: ResponseStore = field(default_factory=ResponseStore)
    request_ids: dict[str, str | None] = field(default_factory=dict)
    request_timeout_s: float = REQUEST_TIMEOUT_S
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    num_connections: Callable[[], int] = lambda: 0

    def limits(self) -> dict[str, tuple[float, float]]:
        """Every bounded resource that is known now: name → (used, limit); see ``limits.py``."""
        found: dict[str, tuple[float, float]] = {
            "connections": (self.num_connections(), MAX_CONNECTIONS),
            "request_body_bytes": (self.bodies.held, self.bodies.max_total_bytes),
            "stored_responses": (len(self.responses), self.responses.max_responses),
            "stored_response_bytes": (self.responses.num_bytes, self.responses.max_bytes),
            **self.client.limits(),
        }
        welcome, stats = self.client.welcome, self.client.stats
        if welcome is not None:
            pool = welcome.kv_pool_bytes
            used = 0.0 if stats is None else stats.gauges["kv_usage"] * pool
            waiting = 0 if stats is None else stats.num_waiting
            running = 0 if stats is None else stats.num_running
            found["kv_pool_bytes"] = (used, pool)
            found["waiting_requests"] = (waiting, welcome.max_waiting)
            found["running_sequences"] = (running, welcome.max_num_seqs)
        return found

    def check_accepting(self) -> None:
        """Whether new work is taken.

        Raises:
            UnavailableError: starting, recovering or draining.
        """
        if self.draining:
            raise UnavailableError("the server is shutting down; retry elsewhere or later")
        if self.client.welcome is None:
            raise UnavailableError("the engine is starting or recovering; retry later")

    def check_model(self, name: str | None) -> str:
        """The served name that a request means.

        Raises:
            ModelNotFoundError: it is not served.
        """
        if name is None:
            return self.model_names[0]
        if name not in self.model_names:
            shown = shown_name(name)
            served = ", ".join(self.model_names)
            what = f'the model "{shown}" is not served here' if name else "the model has no name"
            raise ModelNotFoundError(f"{what}; served: {served}", param="model")
        return name

    def token_limits(self) -> TokenLimits:
        """The bounds of one choice, as the engine said when it came up.

        Raises:
            UnavailableError: it has just gone.
        """
        welcome = self.client.welcome
        if welcome is None:
            raise UnavailableError("the engine is recovering; retry later")
        return TokenLimits(
            context=welcome.max_model_len,
            pool=welcome.max_request_tokens,
            max_num_seqs=welcome.max_num_seqs,
        )

    def template(self) -> ChatTemplate:
        """The model's chat template.

        Raises:
            InvalidRequestError: it has none.
        """
        if self.chat_template is None:
            raise InvalidRequestError("this model has no chat template; use /v1/completions")
        return self.chat_template
