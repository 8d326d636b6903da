"""ModelSpec: what varies between the decoders that Octavo runs, and the checks on it.

``octavo.models.gguf_header`` and ``octavo.models.hf_config`` fill it from either kind of file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, SupportsFloat, SupportsIndex

from octavo.backends.program import RopeSpec
from octavo.errors import ModelFileError

ARCHITECTURES = ("llama", "qwen2")

# Bounds that no real decoder comes near; they stop a malformed header from sizing an allocation.
MAX_DIMENSION = 1 << 20
MAX_LAYERS = 1024
MAX_CONTEXT = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shapes and constants of one decoder. Sizes are counts of elements."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    rms_eps: float
    rope: RopeSpec
    qkv_bias: bool
    output_bias: bool
    tied_head: bool


class Header:
    """Typed reads from a header; every failure is a ``ModelFileError`` that names the key.

    What has been read is remembered, so that a key that nobody reads can be refused in the end.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values = values
        self._source = source
        self._read: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether the key stands there with a value."""
        return self.raw(key) is not None

    def raw(self, key: str) -> object:
        """The value as it stands; None when absent."""
        self._read.add(key)
        return self._values.get(key)

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise ModelFileError(f"{self._source} key '{key}' is not a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise ModelFileError(f"{self._source} key '{key}' is not true or false")
        return value

    def integer(self, key: str, default: int | None = None, *, limit: int = MAX_DIMENSION) -> int:
        """An integer from 1 to ``limit``."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            raise ModelFileError(f"{self._source} key '{key}' is not an integer")
        number = int(value)
        if not 1 <= number <= limit:
            raise ModelFileError(
                f"{self._source} key '{key}' is {number}; it must be between 1 and {limit}"
            )
        return number

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, SupportsFloat):
            raise ModelFileError(f"{self._source} key '{key}' is not a number")
        number = float(value)
        if not (math.isfinite(number) and number > 0.0):
            raise ModelFileError(f"{self._source} key '{key}' is {number}; it must be above 0")
        return number

    def refuse_unknown(
        self, harmless: Collection[str], neutral: Mapping[str, object], *, prefix: str = ""
    ) -> None:
        """Hold every key that starts with ``prefix`` and was not read against what is known of it.

        ``harmless`` keys cannot change the layers. A key of ``neutral`` may stand there with the
        value at which it changes nothing. An absent value says nothing.

        Raises:
            ModelFileError: a key is unknown, or asks for what is not implemented.
        """
        for key, value in self._values.items():
            name = key.removeprefix(prefix)
            if not key.startswith(prefix) or value is None or key in self._read or name in harmless:
                continue
            if name not in neutral:
                raise ModelFileError(f"{self._source} key '{key}' is not supported")
            if value != neutral[name]:
                raise ModelFileError(
                    f"{self._source} key '{key}' is {value!r}; only {neutral[name]!r} is supported"
                )

    def section(self, key: str) -> Header:
        """A nested mapping; an empty one when absent."""
        value = self.raw(key) or {}
        if not isinstance(value, Mapping):
            raise ModelFileError(f"{self._source} key '{key}' is not an object")
        return Header(value, f"{self._source} {key}")

    def _value(self, key: str, default: object) -> object:
        self._read.add(key)
        value = self._values.get(key, default)
        if value is None:
            raise ModelFileError(f"{self._source} key '{key}' is missing")
        return value


def checked(spec: ModelSpec) -> ModelSpec:
    """The same spec, once its numbers agree with each other.

    Raises:
        ModelFileError: naming the numbers that do not.
    """
    if spec.num_heads % spec.num_kv_heads:
        raise ModelFileError(
            f"{spec.num_heads} attention heads cannot share {spec.num_kv_heads} KV heads evenly"
        )
    if spec.head_dim % 2:
        raise ModelFileError(f"head size {spec.head_dim} is odd; rotary embedding needs pairs")
    return spec
