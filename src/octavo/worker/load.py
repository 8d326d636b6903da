"""From a model's name to a runner that is ready: open, plan, pack, allocate."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from octavo.backends.program import Backend, BackendOptions, CacheLayout
from octavo.config import MAX_THREADS, CacheConfig, EngineConfig
from octavo.core.runner import KVGroupSpec, RunnerInfo
from octavo.environment import environment
from octavo.errors import ConfigError, ModelFileError
from octavo.grammar import TokenTable
from octavo.models import ModelSpec, build_program, cache_layout, kv_groups, model_spec
from octavo.text import ChatTemplate, Tokenizer
from octavo.weights import ModelFile, drop_pages, open_model
from octavo.weights.hub import resolve_model
from octavo.worker.draft_model import open_draft_model
from octavo.worker.memory import available_bytes, pool_blocks
from octavo.worker.model_runner import ModelRunner

BACKENDS = ("native", "reference")
Stage = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A runner with the text side of its model and the facts that start-up prints.

    ``weight_bytes`` is what the file holds; ``kv_bytes`` the pool; ``stages`` (name, seconds).
    """

    runner: ModelRunner
    spec: ModelSpec
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    path: Path
    weight_bytes: int
    kv_bytes: int
    stages: tuple[tuple[str, float], ...]


def load_runner(config: EngineConfig, on_stage: Stage | None = None) -> LoadedModel:
    """Load a model that is on this machine already.

    ``on_stage`` is told each stage's name and seconds as it ends.

    Raises:
        ModelFileError: the model's files are malformed or unsupported.
        ConfigError: an option is impossible, or the machine has too little memory.
    """
    clock = _Stages(on_stage)
    path = resolve_model(config.model.model)
    model = open_model(path)
    spec = model_spec(model)
    clock.done("read header")
    tokenizer, template = _text_side(model, spec)
    clock.done("build tokenizer")
    backend = _backend(config.model.backend)
    program = build_program(spec)
    weight_bytes = sum(tensor.data.nbytes for tensor in model.tensors.values())
    layout = _one_block(config, spec)
    groups, name = kv_groups(program, layout, backend), config.scheduler.draft_model
    draft = open_draft_model(name, backend, tokenizer, large=spec, layout=layout)
    if draft is not None:
        weight_bytes += draft.weight_bytes
        groups = draft.join(groups)
    num_blocks, max_model_len = _pool(config, spec, groups, weight_bytes=weight_bytes)
    layout, options = replace(layout, num_blocks=num_blocks), _options(config)
    executor = backend.load(program, model.tensors, layout, options=options)
    drafter = draft.load(backend, num_blocks, options) if draft is not None else None
    clock.done("pack weights")
    info = RunnerInfo(
        vocab_size=spec.vocab_size,
        max_model_len=max_model_len,
        block_size=layout.block_size,
        num_blocks=layout.num_blocks,
        groups=groups,
        fingerprint=executor.fingerprint,
        model_digest=model.digest,
        tokenizer_digest=_text_digest(tokenizer, template),
        rope=spec.rope.name,
        kv_dtype=layout.kv_dtype,
    )
    drop_pages(tensor.data for tensor in model.tensors.values())
    clock.done("digest weights")
    return LoadedModel(
        runner=ModelRunner(
            executor,
            info,
            max_slots=config.scheduler.max_num_seqs,
            unsampled_ids=tokenizer.unnamed_ids,
            drafter=drafter,
        ),
        spec=spec,
        tokenizer=tokenizer,
        chat_template=template,
        path=path,
        weight_bytes=weight_bytes,
        kv_bytes=layout.num_blocks * sum(group.block_bytes for group in groups),
        stages=tuple(clock.seen),
    )


def open_text(name: str) -> tuple[ModelFile, Tokenizer, ChatTemplate]:
    """The text side of a model alone, for a process that computes nothing."""
    model = open_model(resolve_model(name))
    return model, *_text_side(model, model_spec(model))


def token_table(tokenizer: Tokenizer) -> TokenTable:
    """The vocabulary as grammars see it."""
    return TokenTable(
        vocab_size=tokenizer.vocab_size,
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
        token_bytes=tokenizer.token_bytes,
        is_special=tokenizer.is_special,
        eos_token_ids=tokenizer.eos_token_ids,
    )


def _text_side(model: ModelFile, spec: ModelSpec) -> tuple[Tokenizer, ChatTemplate]:
    """The tokenizer, held against the model's vocabulary, and the chat template.

    An embedding may have more rows than there are tokens (padding): such an id is known, means
    nothing and is never sampled. A token without a row cannot be computed.
    """
    tokenizer = Tokenizer.from_model(model.kind, model.metadata, spec.vocab_size)
    if tokenizer.vocab_size > spec.vocab_size:
        raise ModelFileError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model only {spec.vocab_size} rows "
            "of embeddings; fetch the model again"
        )
    return tokenizer, ChatTemplate.from_model(model.kind, model.metadata, tokenizer)


class _Stages:
    def __init__(self, on_stage: Stage | None) -> None:
        self.seen: list[tuple[str, float]] = []
        self._on_stage = on_stage
        self._since = time.monotonic()

    def done(self, name: str) -> None:
        now = time.monotonic()
        self.seen.append((name, now - self._since))
        self._since = now
        if self._on_stage is not None:
            self._on_stage(*self.seen[-1])


def _backend(name: str) -> Backend:
    if name == "native":
        from octavo.backends.native import NativeBackend

        return NativeBackend()
    if name == "reference":
        from octavo.backends.reference import ReferenceBackend

        return ReferenceBackend()
    raise ConfigError(f"backend '{name}' is unknown; choose one of {', '.join(BACKENDS)}")


def _options(config: EngineConfig) -> BackendOptions:
    threads = config.model.num_threads
    if not threads and (text := environment("OCTAVO_NUM_THREADS")):
        if not (text.isascii() and text.isdigit() and int(text[:9]) <= MAX_THREADS):
            raise ConfigError(
                f"OCTAVO_NUM_THREADS is '{text}'; it must be between 0 and {MAX_THREADS}"
            )
        threads = int(text)
    return BackendOptions(
        num_threads=threads,
        isa=config.model.isa or environment("OCTAVO_ISA"),
        activation=config.model.activation,
        max_tokens=config.scheduler.max_num_batched_tokens,
    )


def _max_model_len(config: EngineConfig, spec: ModelSpec) -> int:
    asked = config.model.max_model_len
    if asked is None:
        return spec.context_length
    if not 2 <= asked <= spec.context_length:
        raise ConfigError(
            f"--max-model-len {asked} is outside 2…{spec.context_length}, the model's context"
        )
    return asked


def _one_block(config: EngineConfig, spec: ModelSpec) -> CacheLayout:
    """The shape of a block, before it is known how many there will be."""
    kv_dtype = config.cache.kv_dtype
    if kv_dtype == "bf16" and config.model.backend == "reference":
        kv_dtype = "f32"  # it has no narrower floats
    return cache_layout(spec, block_size=config.cache.block_size, num_blocks=1, kv_dtype=kv_dtype)


def _pool(
    config: EngineConfig, spec: ModelSpec, groups: tuple[KVGroupSpec, ...], *, weight_bytes: int
) -> tuple[int, int]:
    """The pool's blocks, and the context that they hold: a defaulted context shrinks to fit."""
    cache, max_model_len = config.cache, _max_model_len(config, spec)
    blocks = cache.num_blocks or _fitting_blocks(
        cache,
        block_bytes=sum(group.block_bytes for group in groups),
        free_bytes=available_bytes() - weight_bytes,
        wanted_tokens=max_model_len * config.scheduler.max_num_seqs,
    )
    pool_tokens = blocks * cache.block_size
    if max_model_len > pool_tokens:
        if config.model.max_model_len is not None:
            drafter = ", which the draft model shares" if config.scheduler.draft_model else ""
            raise ConfigError(
                f"--max-model-len {max_model_len} exceeds the KV pool of {pool_tokens} tokens; "
                f"lower it or raise --kv-memory{drafter}"
            )
        max_model_len = pool_tokens
    return blocks, max_model_len


def _fitting_blocks(
    cache: CacheConfig, *, block_bytes: int, free_bytes: int, wanted_tokens: int
) -> int:
    return pool_blocks(
        block_bytes=block_bytes,
        kv_bytes=cache.kv_bytes,
        free_bytes=free_bytes,
        wanted_blocks=-(-wanted_tokens // cache.block_size),
        min_blocks=2,
    )


def _text_digest(tokenizer: Tokenizer, template: ChatTemplate) -> str:
    return hashlib.blake2b(
        f"{tokenizer.digest}\0{template.digest}".encode(), digest_size=32
    ).hexdigest()
