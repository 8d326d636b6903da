from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.request import BranchOutput, FinishReason, Request, TokenLogprobs
from octavo.core.sampling_params import SamplingParams
from octavo.errors import (
    ContextLengthError,
    DeadlineExceededError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
)
from octavo.frontend import OutputProcessor
from octavo.frontend.output_processor import failure_of

TEXT = "Ünïcode 🎉 and 漢字, then STOP here; more text follows the stop."


class Run:
    """One request through a processor, outputs cut as the test likes."""

    def __init__(self, tokenizer: Any, **sampling: Any) -> None:
        self.processor = OutputProcessor(tokenizer, new_seed=lambda: 1)
        self.entry = self.processor.open(
            Request(
                request_id="r",
                prompt_token_ids=(1, 2),
                sampling=SamplingParams(max_tokens=100, **sampling),
            )
        )
        self.position: dict[int, int] = {}
        self.stops: list[Any] = []
        self.deltas: list[Any] = []
        self.usage: Any = None
        self.finished = False

    def feed(self, tokens: list[int], *, branch: int = 0, **extra: Any) -> None:
        position = self.position.get(branch, 0)
        self.position[branch] = position + len(tokens)
        result = self.processor.process(
            [
                BranchOutput(
                    request_id="r",
                    branch=branch,
                    epoch=self.entry.epoch,
                    position=position,
                    token_ids=tuple(tokens),
                    logprobs=tuple(TokenLogprobs(token, -1.0) for token in tokens),
                    **extra,
                )
            ]
        )
        self.stops += result.stops
        for output in result.outputs:
            self.deltas += output.branches
            self.usage = output.usage
            self.finished = output.finished

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)


@given(cuts=st.lists(st.integers(0, 60), max_size=8))
def test_any_split_gives_the_text_up_to_the_stop(smollm2_text: Any, cuts: list[int]) -> None:
    tokenizer = smollm2_text[1]
    ids = tokenizer.encode(TEXT)
    run = Run(tokenizer, stop=("STOP",))
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(ids)], strict=True):
        if not run.finished:
            run.feed(ids[start:end])
    assert run.text == TEXT[: TEXT.index("STOP")]
    assert run.deltas[-1].finish_reason is FinishReason.STOP
    assert run.deltas[-1].stop_reason == "STOP"
    assert len(run.stops) == 1
    kept = tokenizer.decode(list(run.entry.branches[0].token_ids))
    assert kept.endswith("STOP")
    counted = sum(len(delta.token_ids) for delta in run.deltas)
    assert counted == run.usage.completion_tokens == len(run.entry.branches[0].token_ids)
    assert counted == sum(len(delta.logprobs) for delta in run.deltas)


def test_without_a_stop_the_text_is_whole(smollm2_text: Any) -> None:
    tokenizer = smollm2_text[1]
    ids = tokenizer.encode(TEXT)
    run = Run(tokenizer, stop=("never", "follows the stop.!"))
    for token in ids[:-1]:
        run.feed([token])
    run.feed(ids[-1:], finish_reason=FinishReason.LENGTH)
    assert run.text == TEXT
    assert run.finished
    assert run.deltas[-1].finish_reason is FinishReason.LENGTH


def test_a_stop_token_counts_but_is_not_shown(smollm2_text: Any) -> None:
    tokenizer = smollm2_text[1]
    ids = tokenizer.encode("one two three")
    run = Run(tokenizer)
    run.feed(ids, finish_reason=FinishReason.STOP, stop_token_id=ids[-1])
    assert run.text == "one two"
    assert run.usage.completion_tokens == len(ids)
    assert run.deltas[-1].stop_reason == ids[-1]


def test_a_stop_token_is_shown_on_request(smollm2_text: Any) -> None:
    tokenizer = smollm2_text[1]
    ids = tokenizer.encode("one two three")
    run = Run(tokenizer, include_stop_str_in_output=True)
    run.feed(ids, finish_reason=FinishReason.STOP, stop_token_id=ids[-1])
    assert run.text == "one two three"


def test_branches_end_apart(smollm2_text: Any) -> None:
    tokenizer = smollm2_text[1]
    ids = tokenizer.encode("alpha beta gamma")
    run = Run(tokenizer, n=2)
    run.feed(ids, branch=1, finish_reason=FinishReason.LENGTH)
    assert not run.finished
    run.feed(ids[:1], branch=0, finish_reason=FinishReason.STOP)
    assert run.finished
    assert run.usage.completion_tokens == len(ids) + 1


def test_duplicates_change_nothing(smollm2_text: Any) -> None:
    tokenizer = smollm2_text[1]
    ids = tokenizer.encode(TEXT)
    rng = random.Random(5)
    processor = OutputProcessor(tokenizer, new_seed=lambda: 1)
    processor.open(Request(request_id="r", prompt_token_ids=(1,), sampling=SamplingParams()))
    text, sent = "", 0
    while sent < len(ids):
        start = rng.randint(0, sent)
        end = rng.randint(start, min(len(ids), sent + 3))
        result = processor.process(
            [
                BranchOutput(
                    request_id="r", branch=0, epoch=0, position=start,
                    token_ids=tuple(ids[start:end]),
                )
            ]
        )  # fmt: skip
        sent = max(sent, end)
        text += "".join(d.text for output in result.outputs for d in output.branches)
    assert text == TEXT


def test_a_gap_is_reported_once_and_nothing_after_it_is_taken(smollm2_text: Any) -> None:
    processor = OutputProcessor(smollm2_text[1], new_seed=lambda: 1)
    processor.open(Request(request_id="r", prompt_token_ids=(1,), sampling=SamplingParams()))
    lost = [
        BranchOutput(request_id="r", branch=0, epoch=0, position=position, token_ids=(5,))
        for position in (2, 3, 0)
    ]
    result = processor.process(lost)
    assert result.gaps == ["r"]
    assert result.outputs == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("context_length_exceeded", ContextLengthError),
        ("invalid_request_error", InvalidRequestError),
        ("overloaded", OverloadedError),
        ("deadline_exceeded", DeadlineExceededError),
        ("engine_error", EngineError),
        ("cancelled", EngineError),
        (None, EngineError),
    ],
)
def test_a_dropped_branch_is_an_error_of_its_class(code: str | None, kind: type) -> None:
    failure = failure_of(
        BranchOutput(
            request_id="r", branch=0, epoch=0, position=0,
            finish_reason=FinishReason.ERROR, error="why", error_code=code,
        )
    )  # fmt: skip
    assert type(failure) is kind
    assert failure.message == "why"


def test_closing_leaves_nothing_behind(smollm2_text: Any) -> None:
    run = Run(smollm2_text[1])
    run.feed([5, 6])
    run.processor.close("r")
    run.processor.close("r")
    assert len(run.processor) == 0
    assert len(run.processor.journal) == 0


def test_an_output_without_text_costs_its_own_request(smollm2_text: Any) -> None:
    processor = OutputProcessor(smollm2_text[1], new_seed=lambda: 1)
    for name in "abc":
        processor.open(Request(request_id=name, prompt_token_ids=(1,), sampling=SamplingParams()))

    def output(name: str, position: int, token: int, **more: Any) -> BranchOutput:
        return BranchOutput(
            request_id=name, branch=0, epoch=0, position=position, token_ids=(token,), **more
        )

    result = processor.process(
        [
            output("a", 0, 50),
            output("b", 0, 10**6, finish_reason=FinishReason.LENGTH),
            output("b", 1, 51),
            output("c", 0, 52),
        ]
    )
    assert list(result.failures) == ["b"]
    assert isinstance(result.failures["b"], EngineError)
    by_name = {output.request_id: output.branches[0] for output in result.outputs}
    assert by_name["a"].token_ids == (50,)
    assert by_name["c"].token_ids == (52,)
    assert by_name["b"].finish_reason is FinishReason.ERROR


def test_a_full_journal_costs_the_request_that_does_not_fit(smollm2_text: Any) -> None:
    processor = OutputProcessor(smollm2_text[1], new_seed=lambda: 1)
    processor.journal.max_tokens = 4
    for name in "ab":
        processor.open(Request(request_id=name, prompt_token_ids=(1,), sampling=SamplingParams()))
    outputs = [
        BranchOutput(request_id=name, branch=0, epoch=0, position=0, token_ids=tokens)
        for name, tokens in (("a", (50, 51, 52)), ("b", (50, 51)))
    ]
    result = processor.process(outputs)
    assert isinstance(result.failures["a"], OverloadedError)
    assert [output.request_id for output in result.outputs] == ["a", "b"]
    assert processor.journal.num_tokens == 4
