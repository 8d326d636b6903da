"""A model's own sampling defaults: what its generation config (or GGUF header) recommends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from octavo.core.sampling_params import SamplingParams
from octavo.errors import InvalidRequestError, ModelFileError
from octavo.text import Tokenizer
from octavo.weights.tensor import ModelFile

_GGUF_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_INTEGERS = frozenset({"top_k"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDefaults:
    """``shown`` holds what differs from Octavo's own defaults, by field name."""

    sampling: SamplingParams
    shown: dict[str, object]
    eos_token_ids: tuple[int, ...]


def model_defaults(model: ModelFile, tokenizer: Tokenizer) -> ModelDefaults:
    """The defaults of an opened model.

    Raises:
        ModelFileError: one of them is no number, or out of its range.
    """
    shown: dict[str, object] = {}
    for name, value in _recommended(model).items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelFileError(f"the model's default for {name} is not a number")
        shown[name] = int(value) if name in _INTEGERS else float(value)
    try:
        sampling = replace(SamplingParams(), **shown)  # type: ignore[arg-type]
    except InvalidRequestError as error:
        raise ModelFileError(f"the model's sampling defaults are unusable: {error}") from None
    return ModelDefaults(
        sampling=sampling, shown=shown, eos_token_ids=tuple(tokenizer.eos_token_ids)
    )


def _recommended(model: ModelFile) -> Mapping[str, object]:
    if model.kind == "gguf":
        return {
            field: model.metadata[key] for key, field in _GGUF_KEYS.items() if key in model.metadata
        }
    config = model.metadata.get("generation_config") or {}
    if config.get("do_sample") is False:
        return {"temperature": 0.0}
    names = _GGUF_KEYS.values()
    return {name: config[name] for name in names if config.get(name) is not None}
