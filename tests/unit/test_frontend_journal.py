from __future__ import annotations

import pytest

from octavo.core.request import BranchOutput, FinishReason, Request
from octavo.core.sampling_params import SamplingParams
from octavo.errors import OverloadedError
from octavo.frontend.journal import GapError, Journal


def request(request_id: str = "r", *, n: int = 1, seed: int | None = None) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=(1, 2, 3),
        sampling=SamplingParams(n=n, seed=seed, max_tokens=8),
    )


def output(position: int, tokens: tuple[int, ...], *, epoch: int = 0, branch: int = 0, end=None):
    return BranchOutput(
        request_id="r", branch=branch, epoch=epoch, position=position, token_ids=tokens,
        finish_reason=end,
    )  # fmt: skip


def journal(**limits: int) -> Journal:
    return Journal(draw_seed=lambda: 77, **limits)


def test_a_missing_seed_is_drawn_and_a_given_one_is_kept() -> None:
    book = journal()
    assert book.open(request("a")).request.sampling.seed == 77
    assert book.open(request("b", seed=5)).request.sampling.seed == 5


def test_a_submission_carries_what_was_delivered_and_what_ended() -> None:
    book = journal()
    entry = book.open(request(n=2))
    book.record("r", 0, (10, 11))
    book.record("r", 1, (20,))
    assert not book.finish_branch("r", 1)
    entry.epoch += 1
    submit = entry.submission()
    assert submit.branch_tokens == ((10, 11), (20,))
    assert submit.finished_branches == (1,)
    assert submit.epoch == 1
    assert book.finish_branch("r", 0)


@pytest.mark.parametrize("repeated", range(4))
def test_repeated_tokens_are_trimmed(repeated: int) -> None:
    book = journal()
    book.open(request())
    book.record("r", 0, (1, 2, 3))
    fresh = book.accept(output(3 - repeated, (*(1, 2, 3)[3 - repeated :], 4, 5)))
    assert fresh is not None
    assert (fresh.position, fresh.token_ids) == (3, (4, 5))


def test_stale_epochs_known_tokens_and_ended_branches_are_dropped() -> None:
    book = journal()
    entry = book.open(request())
    book.record("r", 0, (1, 2, 3))
    assert book.accept(output(0, (1, 2))) is None
    entry.epoch = 1
    assert book.accept(output(3, (9,))) is None
    assert book.accept(output(3, (9,), epoch=1, branch=7)) is None
    book.finish_branch("r", 0)
    assert book.accept(output(3, (9,), epoch=1)) is None
    book.close("r")
    assert book.accept(output(3, (9,), epoch=1)) is None


def test_a_finish_without_new_tokens_is_news() -> None:
    book = journal()
    book.open(request())
    book.record("r", 0, (1, 2, 3))
    fresh = book.accept(output(1, (2, 3), end=FinishReason.LENGTH))
    assert fresh is not None
    assert fresh.token_ids == ()
    assert fresh.finish_reason is FinishReason.LENGTH


def test_a_gap_is_an_error() -> None:
    book = journal()
    book.open(request())
    with pytest.raises(GapError):
        book.accept(output(1, (5,)))


def test_the_journal_is_bounded_and_empty_at_idle() -> None:
    book = journal(max_requests=2, max_tokens=7)
    book.open(request("a"))
    book.open(request("b"))
    with pytest.raises(OverloadedError, match="2 requests"):
        book.open(request("c"))
    book.close("a")
    book.close("b")
    book.close("b")
    assert (len(book), book.num_tokens) == (0, 0)


def test_prompt_and_output_tokens_are_bounded() -> None:
    book = journal(max_tokens=8)
    book.open(request("a"))
    book.record("a", 0, (5, 6))
    assert book.num_tokens == 5
    with pytest.raises(OverloadedError, match="hold 5 tokens; the limit is 8"):
        book.record("a", 0, (7, 8, 9, 10))
    book.open(request("b"))
    with pytest.raises(OverloadedError, match="hold 8 tokens; the limit is 8"):
        book.record("b", 0, (7,))
    book.close("a")
    assert book.num_tokens == 3
    book.record("b", 0, (7,))
    book.close("b")
    assert book.num_tokens == 0
