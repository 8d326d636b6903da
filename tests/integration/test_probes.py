"""Embeddings and label scores of the real model: what they are made of, in any company."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.config import CacheConfig, SchedulerConfig

STATE = (
    "The lighthouse stands on a cliff north of the village. Its keeper is called Anna, she is "
    "sixty years old and has kept the flame for half of her life. Every evening she climbs the "
    "stairs, and every morning she puts the flame out again."
)
QUESTIONS = [
    ("\nQuestion: What is the keeper's name?\nAnswer:", [" Anna", " Bob", " Elizabeth Taylor"]),
    ("\nQuestion: Is the keeper young or old?\nAnswer: The keeper is", [" old", " young"]),
    ("\nQuestion: Where does the lighthouse stand?\nAnswer: On a", [" cliff", " boat", " roof"]),
]
TEXTS = ["A kitten is resting on a rug.", STATE, "Share prices fell.", "The cat sat on the mat."]


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), cache=CacheConfig(num_blocks=256)) as loaded:
        yield loaded
        assert loaded.engine.violations == []


def test_a_label_scores_what_its_tokens_score_when_they_are_said(llm: LLM) -> None:
    """Against the plain twin: one request per label and token, a bias that leaves no choice."""
    for (question, labels), scores in zip(QUESTIONS, llm.systemone(STATE, QUESTIONS), strict=True):
        for label, score in zip(labels, scores, strict=True):
            tokens = llm.tokenizer.encode(label, add_special_tokens=False)
            assert list(score.token_ids) == tokens
            prompt, said = llm.tokenizer.encode(STATE + question), []
            for token in tokens:
                one = SamplingParams(
                    max_tokens=1, temperature=0, logprobs=0, logit_bias=((token, 100.0),)
                )
                [done] = llm.generate([prompt], one)
                assert done.token_ids == (token,)
                said.append(done.logprobs[0].logprob)
                prompt = [*prompt, token]
            assert score.logprob == math.fsum(said)
        assert math.fsum(score.probability for score in scores) == pytest.approx(1)
        assert max(scores, key=lambda score: score.logprob) is scores[0]


def test_the_state_is_computed_once(llm: LLM) -> None:
    llm.engine.reset_prefix_cache()
    before = llm.stats().counters
    llm.systemone(STATE, QUESTIONS)
    after = llm.stats().counters
    spent = {name: after[name] - before[name] for name in after}
    sizes = [len(llm.tokenizer.encode(STATE + question)) for question, _ in QUESTIONS]
    state = len(llm.tokenizer.encode(STATE)) // 16 * 16
    labels = [
        len(llm.tokenizer.encode(label, add_special_tokens=False)) - 1
        for _, names in QUESTIONS
        for label in names
    ]
    # Every question's own end, and of a label all tokens but the last; the state of the first.
    most = state + sum(size - state for size in sizes) + sum(labels)
    assert spent["computed_tokens"] <= most
    assert spent["prefix_hit_tokens"] >= 2 * state
    assert spent["forks"] == 2 + 1 + 2


def test_embeddings_are_the_same_bits_in_any_company(llm: LLM, smollm2_path: Path) -> None:
    together = [each.values for each in llm.embed(TEXTS)]
    again = llm.embed(TEXTS[1])[0]
    assert again.cached_tokens > 0
    assert again.values == together[1]
    small = SchedulerConfig(max_num_batched_tokens=7, max_num_seqs=3)
    cache = CacheConfig(num_blocks=8, block_size=32, prefix_cache=False)
    with LLM(str(smollm2_path), scheduler=small, cache=cache, num_threads=1) as other:
        assert [each.values for each in other.embed(TEXTS)] == together
        assert other.systemone(STATE, QUESTIONS) == llm.systemone(STATE, QUESTIONS)
    assert all(math.hypot(*vector) == pytest.approx(1, abs=1e-6) for vector in together)
    assert len(together[0]) == 576


def test_what_is_alike_scores_higher(llm: LLM) -> None:
    cat, state, prices = llm.score(TEXTS[3], [TEXTS[0], TEXTS[1], TEXTS[2]])
    assert cat > max(state, prices)
    assert llm.score("the same", ["the same"]) == [pytest.approx(1, abs=1e-6)]


def test_fewer_dimensions_are_the_first_ones_scaled(llm: LLM) -> None:
    whole = llm.embed("Hello")[0].values
    short = llm.embed("Hello", dimensions=64)[0].values
    length = math.hypot(*whole[:64])
    assert list(short) == pytest.approx([value / length for value in whole[:64]], abs=1e-6)


def test_probes_survive_preemption(llm: LLM) -> None:
    step, steps = llm.engine.step, iter(range(10_000))

    def disturbed(now: float) -> object:
        running = llm.engine.scheduler.running
        if next(steps) % 3 == 1 and running:
            llm.engine.scheduler.preempt(running[-1])
        return step(now)

    expected = [e.values for e in llm.embed(TEXTS)], llm.systemone(STATE, QUESTIONS)
    llm.engine.reset_prefix_cache()
    llm.engine.set_token_budget(16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm.engine, "step", disturbed)
        before = llm.stats().counters["preemptions"]
        found = [e.values for e in llm.embed(TEXTS)], llm.systemone(STATE, QUESTIONS)
        assert llm.stats().counters["preemptions"] > before
    llm.engine.set_token_budget(512)
    assert found == expected
