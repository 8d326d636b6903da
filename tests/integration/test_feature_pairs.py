"""Features in pairs, on the real model: together they give the answer that the request has alone.

A covering array over everything that a request may ask for and a scheduler may do to it: every pair
of values that can be had together occurs in some row. Each row runs a request among others and is
compared, bit for bit, with the same request run alone with nothing on; counters show that what the
row names happened.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from octavo.backends.native import NativeExecutor
from octavo.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.core.grammar import Grammar
from octavo.core.request import Abort, FinishReason, Request, StopBranch
from octavo.core.sampling_params import SamplingParams, validate_sampling_params
from octavo.engine import EngineCore
from octavo.errors import InvalidRequestError
from octavo.frontend import OutputProcessor
from octavo.frontend.outputs import BranchDelta, Usage
from octavo.grammar import GrammarCompiler
from octavo.scheduler import Sequence
from octavo.scheduler.guess import Guess
from octavo.scheduler.speculation import Proposer
from octavo.worker import LoadedModel, load_runner, token_table
from oracles.requantize import requantize
from pairwise import Pair, Row, Setting, covering_rows, pairs_in, pairs_of

FACTORS = {
    "branches": ("one", "n", "best_of", "beam"),
    "sampling": ("greedy", "seeded"),
    "penalties": ("no", "yes"),
    "logprobs": ("no", "yes"),
    "logit_bias": ("no", "yes"),
    "grammar": ("no", "yes"),
    "stop": ("no", "yes"),
    "prefix": ("cold", "full", "partial"),
    "prompt": ("whole", "chunked"),
    "preempted": ("no", "yes"),
    "abort": ("nobody", "neighbour", "branch"),
    "speculate": ("off", "ngram", "suffix", "draft", "tree"),
    "priority": ("equal", "first"),
    "deadline": ("none", "near"),
    "block_size": ("16", "32"),
    "threads": ("2", "1"),
    "kv_dtype": ("bf16", "int8"),
}
# What cannot be had together, and why.
INCOMPATIBLE = {
    frozenset({("branches", "beam"), other}): why
    for other, why in {
        ("sampling", "seeded"): "refused: a beam search draws nothing",
        ("penalties", "yes"): "refused: it ranks by the model's own logprobs",
        ("logit_bias", "yes"): "refused: it ranks by the model's own logprobs",
        ("grammar", "yes"): "refused",
        ("stop", "yes"): "refused: it says nothing before its end",
        ("abort", "branch"): "a beam is no branch that could be stopped",
    }.items()
} | {
    frozenset({("branches", "one"), ("abort", "branch")}): "nothing would be left",
    frozenset({("branches", "best_of"), ("abort", "branch")}): "it would rank lower, by contract",
}
PROMPT = (
    "Repeat: red fox, blue hat, red fox, green car, red fox, blue hat, red fox, green car, red "
    "fox, blue hat, red fox, blue car, red fox, green hat, red fox, blue hat, red fox, green car, "
    "red fox, blue"
)
COPY = "one two three four five one two three four five one two three four five one two three"
WORDS = r"(red|fox|blue|hat)( (red|fox|blue|hat|green|car)){4,9}!"
FOCUS, COPIER, VICTIM = "focus", "copier", "victim"


@dataclass
class Answer:
    """What came of a request: a delta per branch with all of it, and its usage."""

    branches: dict[int, BranchDelta] = field(default_factory=dict)
    usage: Usage | None = None
    error: str | None = None


class Rig:
    """An engine of its own on a loaded model, and the text side of it."""

    def __init__(self, model: LoadedModel, grammars: GrammarCompiler, **options: Any) -> None:
        prefix_cache = options.pop("prefix_cache", True)
        scheduler = SchedulerConfig(
            max_num_seqs=16, policy="optimistic", check_every_n_steps=1, **options
        )
        self.tokenizer = model.tokenizer
        self.grammars = grammars
        self.engine = EngineCore(
            model.runner, scheduler, CacheConfig(prefix_cache=prefix_cache), epoch=1,
            grammars=grammars,
        )  # fmt: skip
        self.processor = OutputProcessor(self.tokenizer)
        self.answers: dict[str, Answer] = {}
        self.now = 0.0
        # The runner must not go on with the slots that it has for the engine before this one.
        self.engine.scheduler.generation = next(_GENERATIONS)

    def submit(self, name: str, tokens: list[int], sampling: SamplingParams, **fields: Any) -> None:
        validate_sampling_params(sampling, vocab_size=self.tokenizer.vocab_size)
        request = Request(
            request_id=name, prompt_token_ids=tuple(tokens), sampling=sampling,
            eos_token_ids=tuple(self.tokenizer.eos_token_ids), **fields,
        )  # fmt: skip
        self.answers[name] = Answer()
        self.engine.handle(self.processor.open(request).submission(), self.now)

    def run(self, at_step: Callable[[Rig], None] = lambda rig: None) -> None:
        while self.engine.has_work() or self.grammars.num_pending:
            for ready in self.grammars.take_ready():
                self.engine.handle(ready, self.now)
            if not self.engine.has_work():
                time.sleep(0.001)
                continue
            self.now += 1.0
            processed = self.processor.process(self.engine.step(self.now))
            for stop in processed.stops:
                self.engine.handle(stop, self.now)
            for output in processed.outputs:
                answer = self.answers[output.request_id]
                answer.usage, answer.error = output.usage, output.error
                for delta in output.branches:
                    held = answer.branches.get(delta.branch)
                    answer.branches[delta.branch] = held.followed_by(delta) if held else delta
            at_step(self)

    def sequences(self, name: str) -> list[Sequence]:
        state = self.engine.requests.states.get(name)
        return list(state.branches.values()) if state is not None else []

    @property
    def counters(self) -> dict[str, int]:
        return self.engine.stats().counters


_GENERATIONS = iter(range(1, 1 << 30))


class Bench:
    """Models by (block size, threads, KV dtype, whether another drafts), and requests alone."""

    def __init__(self, path: Path, small: Path, length: int) -> None:
        self._path, self._small, self.length = path, small, length
        self._grammars: GrammarCompiler | None = None
        self._models: list[LoadedModel] = []
        self.model = cache(self._load)
        self.alone = cache(self._alone)

    def _load(self, block_size: int, threads: int, kv_dtype: str, drafts: bool) -> LoadedModel:
        speculate = f"draft:{self._small}" if drafts else "off"
        loaded = load_runner(
            EngineConfig(
                model=ModelConfig(model=str(self._path), num_threads=threads, max_model_len=512),
                cache=CacheConfig(
                    block_size=block_size, num_blocks=4096 // block_size, kv_dtype=kv_dtype
                ),
                scheduler=SchedulerConfig(speculate=speculate),
            )
        )
        self._models.append(loaded)
        return loaded

    def rig(self, row: Row, **options: Any) -> Rig:
        drafts = row["speculate"] == "draft"
        model = self.model(int(row["block_size"]), int(row["threads"]), row["kv_dtype"], drafts)
        if self._grammars is None:
            self._grammars = GrammarCompiler(token_table(model.tokenizer))
        speculate = f"draft:{self._small}" if drafts else row["speculate"]
        # Few drafts to a path, so that the budget of a chunked row has room for several.
        length = 2 if row["speculate"] == "tree" else 4
        rig = Rig(model, self._grammars, speculate=speculate, num_draft_tokens=length, **options)
        rig.engine.scheduler.speculation.step_cost = 1000
        return rig

    def _alone(self, prompt: str, sampling: SamplingParams, kv_dtype: str = "bf16") -> Answer:
        """The request by itself in an engine with nothing on."""
        plain = {"block_size": "16", "threads": "2", "speculate": "off", "kv_dtype": kv_dtype}
        rig = self.rig(plain, prefix_cache=False)
        rig.submit(FOCUS, rig.tokenizer.encode(prompt), sampling)
        rig.run()
        return rig.answers[FOCUS]

    def close(self) -> None:
        if self._grammars is not None:
            self._grammars.close()
        for model in self._models:
            model.runner.close()


@pytest.fixture(scope="module")
def bench(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    small = requantize(smollm2_path, tmp_path_factory.mktemp("small") / "small.gguf", "Q4_0")
    made = Bench(smollm2_path, small, 14)
    yield made
    made.close()


def sampling_of(row: Row, bench: Bench) -> SamplingParams:
    """What the row's request asks for; a stop string is one that its answer has."""
    kv_dtype = row["kv_dtype"]
    branches: dict[str, Any] = {
        "one": {},
        "n": {"n": 3},
        "best_of": {"best_of": 3},
        "beam": {"use_beam_search": True, "best_of": 3, "n": 2},
    }[row["branches"]]
    chosen = SamplingParams(temperature=0.0, max_tokens=bench.length, seed=5, **branches)
    if row["sampling"] == "seeded":
        chosen = replace(chosen, temperature=0.8, top_p=0.95)
    if row["penalties"] == "yes":
        chosen = replace(
            chosen, presence_penalty=0.4, frequency_penalty=0.3, repetition_penalty=1.1
        )
    if row["logprobs"] == "yes":
        chosen = replace(chosen, logprobs=2)
    if row["logit_bias"] == "yes":
        first = (
            bench.alone(PROMPT, replace(chosen, grammar=None), kv_dtype).branches[0].token_ids[0]
        )
        chosen = replace(chosen, logit_bias=((first, -4.0), (198, 2.0)))
    if row["grammar"] == "yes":
        chosen = replace(chosen, grammar=Grammar(kind="regex", text=WORDS))
    if row["stop"] == "yes":
        said = bench.alone(PROMPT, chosen, kv_dtype).branches[0].text
        chosen = replace(chosen, stop=(late_piece(said),))
    return chosen


def late_piece(text: str) -> str:
    """The shortest piece, of three characters or more, that is first complete in the second half.

    There is one, however much the text repeats itself: all of it up to there.
    """
    half = len(text) // 2
    return next(
        text[at : at + width]
        for width in range(3, len(text))
        for at in range(max(0, half - width + 3), len(text) - width + 1)
        if text.find(text[at : at + width]) == at
    )


def known_paths(known: dict[tuple[str, int], tuple[int, ...]], seed: int) -> Proposer:
    """Three paths of answers that are known: the last is right, the others somewhere wrong."""
    rng = random.Random(seed)

    def propose(guess: Guess, seq: Sequence, limit: int) -> list[int]:
        guess.chance, guess.detour = 768, 1023
        right = known.get((seq.state.request.request_id, seq.branch), ())
        right = tuple(right[seq.num_output :][:limit])
        paths = [list(right) for _ in range(3 if right else 0)]
        for path in paths[:2]:
            path[rng.randrange(len(path))] = rng.randrange(1000)
        guess.others = paths[1:]
        return paths[0] if paths else []

    return propose


@dataclass
class Trouble:
    """What befalls the row's request while it runs, each once, and what was seen of it."""

    row: Row
    done: set[str] = field(default_factory=set)

    def __call__(self, rig: Rig) -> None:
        focus = rig.sequences(FOCUS)
        if not focus:
            return
        progress = max(seq.num_output for seq in focus)
        if self.row["abort"] == "neighbour" and progress and self._once("neighbour"):
            rig.engine.handle(Abort(request_id=VICTIM), rig.now)
        if self.row["abort"] == "branch" and progress and self._once("branch"):
            rig.engine.handle(StopBranch(request_id=FOCUS, branch=1), rig.now)
        if self.row["preempted"] == "yes" and progress >= 2 and self._once("preempted"):
            for seq in rig.sequences(FOCUS):
                if seq.kv is not None:
                    rig.engine.scheduler.preempt(seq)
            rig.engine.kv.evict(0, 1 << 20)

    def _once(self, what: str) -> bool:
        is_first = what not in self.done
        self.done.add(what)
        return is_first


def warm_up(rig: Rig, row: Row, prompt: list[int]) -> int:
    """Put the row's part of the prompt into the prefix cache; how many tokens are to be read."""
    size = int(row["block_size"])
    cached = {"cold": 0, "full": 32, "partial": 32 + min(size // 2, 16)}[row["prefix"]]
    if cached:
        tokens = prompt[:cached] + [9] * (-cached % size)
        rig.submit("warm", tokens, SamplingParams(temperature=0.0, max_tokens=1))
        rig.run()
    return cached


def run_row(bench: Bench, row: Row) -> None:
    """Run the row's request among others and hold it against itself alone."""
    sampling, kv_dtype = sampling_of(row, bench), row["kv_dtype"]
    expected = bench.alone(PROMPT, sampling, kv_dtype)
    copy = SamplingParams(temperature=0.0, max_tokens=bench.length + 6)
    copied = bench.alone(COPY, copy, kv_dtype)
    rig = bench.rig(row, max_num_batched_tokens=24 if row["prompt"] == "chunked" else 512)
    if row["speculate"] == "tree":
        known = {(COPIER, 0): copied.branches[0].token_ids}
        whole = (
            bench.alone(PROMPT, replace(sampling, best_of=None, n=sampling.num_branches), kv_dtype)
            if row["branches"] == "best_of"
            else expected
        )
        for branch, delta in whole.branches.items():
            known[FOCUS, branch] = delta.token_ids
        rig.engine.scheduler.speculation.propose = known_paths(known, len(known))
    prompt = rig.tokenizer.encode(PROMPT)
    cached = warm_up(rig, row, prompt)
    deadline = rig.now + 9 if row["deadline"] == "near" else None
    victim = SamplingParams(temperature=0.9, max_tokens=40, seed=9, ignore_eos=True)
    rig.submit(COPIER, rig.tokenizer.encode(COPY), copy)
    rig.submit(VICTIM, prompt[::-1][:40], victim, deadline=deadline)
    focus_deadline = rig.now + 1000 if deadline else None
    priority = -1 if row["priority"] == "first" else 0
    rig.submit(FOCUS, prompt, sampling, priority=priority, deadline=focus_deadline)
    plans = watch(rig)
    first: list[str] = []

    trouble = Trouble(row)

    def at_step(rig: Rig) -> None:
        running = rig.engine.scheduler.running
        if running and not first:
            first.append(running[0].state.request.request_id)
        trouble(rig)

    rig.run(at_step)
    compare(row, rig.answers[FOCUS], expected)
    assert rig.answers[COPIER].branches[0].token_ids == copied.branches[0].token_ids
    assert rig.engine.check_invariants() == rig.engine.violations == []
    assert (first == [FOCUS]) == (row["priority"] == "first")
    happened(row, rig, cached=cached, chunks=sum(plans))


def compare(row: Row, found: Answer, expected: Answer) -> None:
    assert found.error is expected.error is None
    assert sorted(found.branches) == sorted(expected.branches)
    for branch, delta in expected.branches.items():
        mine = found.branches[branch]
        if row["abort"] == "branch" and branch == 1:
            count = len(mine.token_ids)
            assert count > 0
            assert mine.token_ids == delta.token_ids[:count]
            assert mine.logprobs == delta.logprobs[:count]
        else:
            assert mine == delta


def watch(rig: Rig) -> list[int]:
    """Unfinished prompt chunks of every step to come."""
    seen: list[int] = []
    plan = rig.engine.scheduler.plan

    def noted(step_id: int) -> Any:
        step = plan(step_id)
        if step is not None:
            ends = [(seq, seq.num_computed + count) for seq, count in step.rows]
            seen.append(sum(end < len(seq.token_ids) for seq, end in ends))
        return step

    rig.engine.scheduler.plan = noted  # type: ignore[method-assign]
    return seen


def happened(row: Row, rig: Rig, *, cached: int, chunks: int) -> None:
    """What the row names was not only asked for."""
    answer, counters = rig.answers[FOCUS], rig.counters
    deltas = list(answer.branches.values())
    assert len(deltas) == {"one": 1, "n": 3, "best_of": 1, "beam": 2}[row["branches"]]
    assert (counters["forks"] >= 2) == (row["branches"] != "one")
    assert (counters["cow_copies"] > 0) >= (row["branches"] != "one")
    assert (counters["beam_steps"] > 0) == (row["branches"] == "beam")
    assert all(bool(delta.logprobs) == (row["logprobs"] == "yes") for delta in deltas)
    if row["grammar"] == "yes" and deltas[0].finish_reason is FinishReason.STOP:
        assert row["stop"] == "yes" or re.fullmatch(WORDS, deltas[0].text)
    stopped = [delta for delta in deltas if isinstance(delta.stop_reason, str)]
    assert (len(stopped) > 0) == (row["stop"] == "yes")
    assert answer.usage is not None
    assert answer.usage.cached_tokens == cached
    assert (counters["partial_hits"] > 0) >= (row["prefix"] == "partial")
    assert (chunks > 0) == (row["prompt"] == "chunked")
    assert (counters["preemptions"] > 0) == (row["preempted"] == "yes")
    assert (counters["recomputed_tokens"] > 0) == (row["preempted"] == "yes")
    if row["stop"] == "no":
        assert counters["branches_stopped"] == (row["abort"] == "branch")
    assert counters["requests_aborted"] == (row["abort"] == "neighbour")
    expired = row["deadline"] == "near" and row["abort"] != "neighbour"
    assert counters["requests_expired"] == expired
    assert (rig.answers[VICTIM].error is None) == (row["abort"] != "neighbour" and not expired)
    assert (counters["draft_tokens_accepted"] > 0) == (row["speculate"] != "off")
    assert counters["draft_tokens"] >= counters["draft_tokens_accepted"]
    assert (counters["draft_paths_kept"] > 0) >= (row["speculate"] == "tree")
    runner = rig.engine._runner
    assert runner.info.block_size == int(row["block_size"])
    assert isinstance(runner.executor, NativeExecutor)
    assert runner.executor.info["num_threads"] == int(row["threads"])
    assert runner.executor.fingerprint.endswith(f"/kv-{row['kv_dtype']}")


PLAIN = {name: values[0] for name, values in FACTORS.items()}
ROWS = covering_rows(FACTORS, set(INCOMPATIBLE))
BLOCK_SIZES = {"block_size": ("16", "32", "64")}
TOO_LARGE = {frozenset({("block_size", "64"), ("prefix", "full")}): "the prompt has 60 tokens"}


@pytest.mark.parametrize(("text", "piece"), [("abcdefgh", "efg"), ("abcabcabcabc", "cabcabc")])
def test_a_stop_string_is_one_that_comes_late(text: str, piece: str) -> None:
    assert late_piece(text) == piece


def test_every_pair_that_can_be_had_is_had() -> None:
    """And what is left out is left out by name."""
    assert set().union(*map(pairs_in, ROWS)) == set(pairs_of(FACTORS)) - set(INCOMPATIBLE)


@pytest.mark.parametrize(
    "pair", [p for p, why in INCOMPATIBLE.items() if "refused" in why], ids=str
)
def test_what_is_refused_is_refused(bench: Bench, pair: Pair) -> None:
    with pytest.raises(InvalidRequestError):
        validate_sampling_params(sampling_of({**PLAIN, **dict(pair)}, bench), vocab_size=49152)


@pytest.mark.parametrize(
    "changed",
    [("sampling", "seeded"), ("penalties", "yes"), ("logit_bias", "yes"),
     ("grammar", "yes"), ("stop", "yes")],
    ids=str,
)  # fmt: skip
def test_what_a_request_asks_for_changes_its_answer(bench: Bench, changed: Setting) -> None:
    """Else a row that names it would say nothing."""
    answers = [
        bench.alone(PROMPT, sampling_of(row, bench)).branches[0].token_ids
        for row in (PLAIN, {**PLAIN, **dict([changed])})
    ]
    assert answers[0] != answers[1]


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_a_row_of_pairs(bench: Bench, row: Row) -> None:
    run_row(bench, row)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_other_rows_of_pairs(bench: Bench, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Longer answers, one more block size, the pairs in other company each time."""
    monkeypatch.setattr(bench, "length", 24 + seed)
    for row in covering_rows({**FACTORS, **BLOCK_SIZES}, {*INCOMPATIBLE, *TOO_LARGE}, seed=seed):
        run_row(bench, row)
