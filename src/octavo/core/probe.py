"""A probe: a request that reads something off the model instead of letting it answer.

It is scheduled, cached, preempted, replayed and cancelled like any other request; what differs is
that its tokens are given, and what is reported besides them.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.sampling_params import SamplingParams
from octavo.errors import InvalidRequestError

MAX_LABELS = 128
MAX_LABEL_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What is read off after a prompt: exactly one of the two.

    ``labels``: branch i says the tokens ``labels[i]``, whatever the model would rather say, and
    reports their log-probabilities. ``hidden``: the final hidden state (normalised, as the head
    reads it) of the prompt's last token.

    Raises:
        InvalidRequestError: both or nothing is asked for, or labels are too many or too long.
    """

    labels: tuple[tuple[int, ...], ...] = ()
    hidden: bool = False

    def __post_init__(self) -> None:
        if self.hidden == bool(self.labels):
            raise InvalidRequestError("a probe asks for labels or for the hidden state")
        if len(self.labels) > MAX_LABELS:
            raise InvalidRequestError(
                f"there are {len(self.labels)} labels; the limit is {MAX_LABELS}", param="labels"
            )
        if not all(0 < len(label) <= MAX_LABEL_TOKENS for label in self.labels):
            raise InvalidRequestError(
                f"a label must have 1 to {MAX_LABEL_TOKENS} tokens", param="labels"
            )

    @property
    def sampling(self) -> SamplingParams:
        """The parameters that a request with this probe has."""
        return SamplingParams(
            n=max(1, len(self.labels)),
            max_tokens=max(map(len, self.labels), default=1),
            temperature=0.0,
            seed=0,
            ignore_eos=True,
            logprobs=0 if self.labels else None,
        )


def validate_probe(probe: Probe, sampling: SamplingParams, *, vocab_size: int) -> None:
    """Hold a probe against the request that it is part of.

    Raises:
        InvalidRequestError: the sampling parameters are not the probe's, or a token is unknown.
    """
    if sampling != probe.sampling:
        raise InvalidRequestError("a probe brings its own sampling parameters", param="probe")
    if any(min(label) < 0 or max(label) >= vocab_size for label in probe.labels):
        raise InvalidRequestError(
            f"a label's token id is outside the vocabulary of {vocab_size}", param="labels"
        )
