"""How far one executor's predictions are from another's, over one long text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo.backends.program import Backend, BackendOptions, Executor
from octavo.models import build_program, cache_layout, model_spec
from octavo.text import Tokenizer
from octavo.weights import open_model
from oracles.step_batches import Row, step

TEXT = Path(__file__).resolve().parent.parent / "data" / "founding_documents.txt"
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Over the predicted tokens: perplexities, share of equal argmax, mean KL(reference || other).

    KL is in nats.
    """

    num_tokens: int
    reference_perplexity: float
    perplexity: float
    top1_agreement: float
    mean_kl: float

    @property
    def perplexity_ratio(self) -> float:
        """The other's perplexity by the reference's."""
        return self.perplexity / self.reference_perplexity


def text_tokens(model_path: Path) -> list[int]:
    """The fixed text in the model's own tokens."""
    model = open_model(model_path)
    tokenizer = Tokenizer.from_model(model.kind, model.metadata)
    return tokenizer.encode(TEXT.read_text(encoding="utf-8"))


def load(
    backend: Backend,
    model_path: Path,
    num_tokens: int,
    options: BackendOptions,
    *,
    kv_dtype: str = "bf16",
) -> Executor:
    """An executor with a pool for one sequence of ``num_tokens``."""
    model = open_model(model_path)
    spec = model_spec(model)
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    layout = cache_layout(spec, block_size=BLOCK_SIZE, num_blocks=num_blocks, kv_dtype=kv_dtype)
    return backend.load(build_program(spec), model.tensors, layout, options=options)


def logits_in_chunks(
    executor: Executor, tokens: Sequence[int], chunk: int
) -> Iterator[NDArray[np.float32]]:
    """Logits [chunk, V] of every position, in order, as one sequence through the paged cache."""
    table = list(range(-(-len(tokens) // BLOCK_SIZE)))
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        row = Row(tokens=part, table=table, start=start, logits_at=range(len(part)))
        logits = executor.forward(step([row])).logits
        assert logits is not None
        yield logits


def compare(
    reference: Iterable[NDArray[np.float32]],
    other: Iterable[NDArray[np.float32]],
    tokens: Sequence[int],
) -> Comparison:
    """Compare what two equally chunked ``logits_in_chunks`` predict for each next token."""
    loss = np.zeros(2)
    agreed, divergence, position = 0, 0.0, 0
    for first, second in zip(reference, other, strict=True):
        for expected, actual in zip(first, second, strict=True):
            position += 1
            if position == len(tokens):
                break
            p, q = _log_softmax(expected), _log_softmax(actual)
            loss -= (p[tokens[position]], q[tokens[position]])
            agreed += int(np.argmax(expected) == np.argmax(actual))
            divergence += float(np.exp(p) @ (p - q))
    count = len(tokens) - 1
    perplexities = np.exp(loss / count)
    return Comparison(
        num_tokens=count,
        reference_perplexity=float(perplexities[0]),
        perplexity=float(perplexities[1]),
        top1_agreement=agreed / count,
        mean_kl=divergence / count,
    )


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    return shifted - np.log(np.exp(shifted).sum())
