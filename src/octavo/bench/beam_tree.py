"""A beam search without a model: forks, appends and releases of a random tree in the KV layer.

The next token's distribution is drawn anew for each beam and step: the likeliest token costs
Exp(``FIRST_NATS``) nats, each further one Exp(``GAP_NATS``) more. Of all beams' 2 · width likeliest
tokens the ``width`` best sums live on, as in a real search.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import accumulate

from octavo.bench.workload import PlannedRequest
from octavo.core.runner import KVGroupSpec, RunnerInfo
from octavo.kv import KVCacheManager, SequenceKV

FIRST_NATS = 0.5
GAP_NATS = 1.0


class BeamTree:
    """One search at a time; ``entries`` and ``owned`` sum its blocks over steps."""

    def __init__(self, *, width: int, block_size: int, context: int, seed: int) -> None:
        self._width = width
        self._rng = random.Random(f"{seed}/beam")
        num_blocks = 2 * width * (-(-context // block_size) + 1)
        info = RunnerInfo(
            vocab_size=2,
            max_model_len=context,
            block_size=block_size,
            num_blocks=num_blocks,
            groups=(KVGroupSpec(block_bytes=block_size),),
        )
        self.kv = KVCacheManager(info, prefix_cache=False, max_chunk=context)
        self.entries = 0
        self.owned = 0

    def search(self, request: PlannedRequest) -> None:
        """Prompt, then as many steps as the output has tokens."""
        root = self.kv.new_sequence(b"beam")
        self._append([root], request.prompt_tokens)
        beams = [(0.0, root)]
        for _ in range(request.output_tokens - 1):
            beams = self._select(beams)
            self._append([seq for _, seq in beams], 1)
            pool = self.kv.pools[0]
            self.entries += sum(len(seq.tables[0].blocks) for _, seq in beams)
            self.owned += pool.num_blocks - pool.num_free
        for _, seq in beams:
            self.kv.release(seq)

    def _append(self, sequences: list[SequenceKV], num_tokens: int) -> None:
        step = self.kv.begin()
        fits = [step.grow(seq, num_tokens) for seq in sequences]
        copies = step.seal()
        assert all(fits), "the pool holds every beam twice"
        assert copies is not None, "the pool holds every beam twice"
        for seq in sequences:
            self.kv.commit(seq, (), num_tokens)
        self.kv.end_step()

    def _select(self, beams: list[tuple[float, SequenceKV]]) -> list[tuple[float, SequenceKV]]:
        """The best continuations; a parent that has several is forked, one that has none ends."""
        candidates = []
        for index, (score, _) in enumerate(beams):
            gaps = [self._rng.expovariate(1 / GAP_NATS) for _ in range(2 * self._width - 1)]
            first = score - self._rng.expovariate(1 / FIRST_NATS)
            candidates += [(first - gap, index) for gap in (0.0, *accumulate(gaps))]
        chosen = sorted(candidates, reverse=True)[: self._width]
        children = Counter(index for _, index in chosen)
        heirs = {
            index: [seq, *(self.kv.fork(seq) for _ in range(children[index] - 1))]
            for index, (_, seq) in enumerate(beams)
            if children[index]
        }
        for index, (_, seq) in enumerate(beams):
            if not children[index]:
                self.kv.release(seq)
        return [(score, heirs[index].pop()) for score, index in chosen]
