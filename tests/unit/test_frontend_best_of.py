"""``best_of``: nothing until all branches ended, then the likeliest, renumbered."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.core.request import BranchOutput, FinishReason, Request, TokenLogprobs
from octavo.core.sampling_params import SamplingParams, refuse_stream
from octavo.errors import InvalidRequestError
from octavo.frontend import OutputProcessor


def opened(tokenizer: Any, **sampling: Any) -> OutputProcessor:
    processor = OutputProcessor(tokenizer, new_seed=lambda: 1)
    params = SamplingParams(max_tokens=9, **sampling)
    processor.open(Request(request_id="r", prompt_token_ids=(1, 2), sampling=params))
    return processor


def output(branch: int, logprobs: list[float], *, position: int = 0, **extra: Any) -> BranchOutput:
    tokens = tuple(range(40 + 10 * branch, 40 + 10 * branch + len(logprobs)))
    return BranchOutput(
        request_id="r",
        branch=branch,
        epoch=0,
        position=position,
        token_ids=tokens,
        logprobs=tuple(TokenLogprobs(*pair) for pair in zip(tokens, logprobs, strict=True)),
        **extra,
    )


END = {"finish_reason": FinishReason.LENGTH}


def test_the_best_are_returned_best_first_when_all_have_ended(smollm2_text: Any) -> None:
    processor = opened(smollm2_text[1], n=2, best_of=4)
    early = processor.process(
        [output(2, [-2.0]), output(0, [-1.0, -2.0]), output(1, [-0.5], **END)]
    )
    assert early.outputs == []
    assert processor.process([output(2, [-1.0], position=1, **END)]).outputs == []
    # A sum of -3 over two tokens beats -1.75 over one; equal means go to the lower branch.
    last = processor.process(
        [output(0, [-1.0], position=2, **END), output(3, [-1.75], **END)]
    ).outputs[0]
    assert last.finished
    assert [(d.branch, d.token_ids[0]) for d in last.branches] == [(0, 50), (1, 40)]
    assert all(delta.logprobs == () for delta in last.branches)
    assert last.usage.completion_tokens == 7


def test_logprobs_are_kept_where_they_were_asked_for(smollm2_text: Any) -> None:
    processor = opened(smollm2_text[1], n=1, best_of=2, logprobs=0)
    result = processor.process([output(0, [-3.0], **END), output(1, [-2.0], **END)])
    (delta,) = result.outputs[0].branches
    assert (delta.branch, delta.logprobs) == (0, (TokenLogprobs(50, -2.0),))


def test_a_branch_without_tokens_is_the_last_choice(smollm2_text: Any) -> None:
    processor = opened(smollm2_text[1], n=1, best_of=2)
    result = processor.process([output(0, [], **END), output(1, [-9.0], **END)])
    assert result.outputs[0].branches[0].token_ids == (50,)


def test_a_failed_branch_fails_the_request_at_once(smollm2_text: Any) -> None:
    processor = opened(smollm2_text[1], n=1, best_of=2)
    result = processor.process(
        [output(0, [], finish_reason=FinishReason.ERROR, error="lost", error_code="x")]
    )
    assert result.failures["r"].message == "lost"
    assert [each.request_id for each in result.outputs] == ["r"]


def test_best_of_equal_to_n_is_plain(smollm2_text: Any) -> None:
    processor = opened(smollm2_text[1], n=2, best_of=2)
    assert processor.process([output(1, [-2.0])]).outputs[0].branches[0].branch == 1


@pytest.mark.parametrize(("n", "best_of"), [(3, 2), (1, 0), (1, 129), (1, True), (1, 1.0)])
def test_impossible_values_are_refused_by_name(n: int, best_of: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(n=n, best_of=best_of)
    assert caught.value.param == "best_of"


def test_streaming_is_refused_only_where_something_is_ranked() -> None:
    refuse_stream(SamplingParams(n=2))
    refuse_stream(SamplingParams(n=2, best_of=2))
    with pytest.raises(InvalidRequestError) as caught:
        refuse_stream(SamplingParams(n=2, best_of=3))
    assert caught.value.param == "stream"
    assert "best_of (3) above n (2)" in caught.value.message
