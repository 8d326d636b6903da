"""What the chat protocols share: a conversation becomes one request of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.server.sampling_fields import fit_max_tokens
from octavo.server.state import ServerState
from octavo.text import ChatTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a chat template is given: messages as ``read_messages`` makes them, and how to end."""

    messages: Sequence[Mapping[str, str]]
    add_generation_prompt: bool = True
    continue_final: bool = False
    variables: Mapping[str, object] = field(default_factory=dict)

    def encode(self, template: ChatTemplate) -> list[int]:
        """The prompt's token ids.

        Raises:
            InvalidRequestError: the template does not take it.
        """
        return template.encode(
            self.messages,
            add_generation_prompt=self.add_generation_prompt,
            continue_final=self.continue_final,
            variables=self.variables,
        )


def conversation_request(
    state: ServerState, token_ids: Sequence[int], sampling: SamplingParams
) -> Request:
    """The engine's request for a rendered conversation; without ``max_tokens`` the context bounds.

    Raises:
        OctavoError: it does not fit.
    """
    sampling = fit_max_tokens(
        sampling, num_prompt_tokens=len(token_ids), limits=state.token_limits(), default=None
    )
    return Request(
        request_id="",
        prompt_token_ids=tuple(token_ids),
        sampling=sampling,
        eos_token_ids=state.eos_token_ids,
    )
