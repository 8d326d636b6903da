"""The model behind ``--speculate draft:MODEL``: opened before the pool is sized, loaded after."""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.backends.program import Backend, BackendOptions, CacheLayout
from octavo.core.runner import KVGroupSpec
from octavo.errors import ConfigError
from octavo.models import ModelSpec, build_program, cache_layout, kv_groups, model_spec
from octavo.text import Tokenizer
from octavo.weights import ModelFile, open_model
from octavo.weights.hub import resolve_model
from octavo.worker.drafter import Drafter


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A small model that fits a large one. ``layout`` still has the blocks of nobody's pool."""

    model: ModelFile
    spec: ModelSpec
    layout: CacheLayout
    groups: tuple[KVGroupSpec, ...]

    @property
    def weight_bytes(self) -> int:
        """What its file holds."""
        return sum(tensor.data.nbytes for tensor in self.model.tensors.values())

    def join(self, groups: tuple[KVGroupSpec, ...]) -> tuple[KVGroupSpec, ...]:
        """The large model's groups with blocks that hold the KV of both.

        Raises:
            ConfigError: the two models' attention spans differ, so their blocks would too.
        """
        if [group.window for group in groups] != [group.window for group in self.groups]:
            raise ConfigError(
                "--speculate: the draft model's layers attend to other spans than the model's; "
                "choose a smaller model of the same family",
                param="speculate",
            )
        return tuple(
            replace(group, block_bytes=group.block_bytes + own.block_bytes)
            for group, own in zip(groups, self.groups, strict=True)
        )

    def load(self, backend: Backend, num_blocks: int, options: BackendOptions) -> Drafter:
        """Pack the weights and allocate ``num_blocks``, the number of the large model's."""
        program = build_program(self.spec)
        layout = replace(self.layout, num_blocks=num_blocks)
        # A row may bring one token that the last step left out.
        options = replace(options, max_tokens=2 * options.max_tokens)
        return Drafter(backend.load(program, self.model.tensors, layout, options=options))


def open_draft_model(
    name: str, backend: Backend, tokenizer: Tokenizer, *, large: ModelSpec, layout: CacheLayout
) -> DraftModel | None:
    """A model that drafts for ``large`` with its tokenizer and pool layout; None without a name.

    Raises:
        ModelFileError: its files are malformed or unsupported.
        ConfigError: it speaks another vocabulary, or its attention spans differ.
    """
    if not name:
        return None
    model = open_model(resolve_model(name))
    spec = model_spec(model)
    own = Tokenizer.from_model(model.kind, model.metadata, spec.vocab_size)
    if (own.digest, spec.vocab_size) != (tokenizer.digest, large.vocab_size):
        raise ConfigError(
            f"--speculate draft:{name}: its vocabulary is not the model's; choose a smaller model "
            "of the same family",
            param="speculate",
        )
    own_layout = cache_layout(
        spec, block_size=layout.block_size, num_blocks=1, kv_dtype=layout.kv_dtype
    )
    return DraftModel(model, spec, own_layout, kv_groups(build_program(spec), own_layout, backend))
