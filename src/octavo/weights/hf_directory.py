"""A Hugging Face model directory as a ``ModelFile`` with canonical tensor names.

Read are config.json, generation_config.json, tokenizer.json, tokenizer_config.json,
chat_template.jinja and the safetensors files. Nothing in a directory is ever executed: pickled
weights and configurations that bring their own code (``auto_map``) are refused by name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from octavo.errors import ModelFileError
from octavo.weights.digest import file_digest
from octavo.weights.safetensors import open_safetensors, parse_json
from octavo.weights.tensor import LogicalTensor

MAX_JSON_BYTES: Final = 1 << 26

_ARCHITECTURES: Final = ("llama", "qwen2")
_PICKLES: Final = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_TEMPLATE: Final = "chat_template.jinja"
_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_TOP_NAMES: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER: Final = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,3})\.(.+)\.(weight|bias)")
# A table that old exports stored beside the weights; it follows from the configuration.
_DERIVED: Final = re.compile(r"model\.layers\.[0-9]+\.self_attn\.rotary_emb\.inv_freq")


@dataclass(frozen=True)
class HfDirectory:
    """An opened directory (a ``ModelFile``)."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, LogicalTensor]
    weight_files: tuple[Path, ...]
    kind: str = field(default="hf", init=False)

    @cached_property
    def digest(self) -> str:
        """BLAKE2b over the digests of config.json and every weight file, names included."""
        digest = hashlib.blake2b(digest_size=32, person=b"octavo-hf")
        for file in (self.path / "config.json", *self.weight_files):
            digest.update(f"{len(file.name)}:{file.name}:{file_digest(file)};".encode())
        return digest.hexdigest()


def open_hf_directory(path: Path) -> HfDirectory:
    """Open and check a model directory.

    ``metadata`` has "config", "generation_config" and "tokenizer_config" (parsed; empty when the
    file is not there), and, when there, "tokenizer_json" and "chat_template" (text).

    Raises:
        ModelFileError: a file is missing, malformed or unsupported, or wants to run code.
    """
    metadata = _read_metadata(path)
    _check_config(path, metadata)
    files = _weight_files(path)
    stored: dict[str, LogicalTensor] = {}
    for file in files:
        for name, tensor in open_safetensors(file).items():
            if name in stored:
                raise ModelFileError(f"{path}: two files hold the tensor {name!r}")
            stored[name] = tensor
    _check_index(path, stored)
    tied = bool(metadata["config"].get("tie_word_embeddings", False))
    tensors = {tensor.name: tensor for tensor in _canonical(path, stored, tied)}
    return HfDirectory(path, metadata, tensors, tuple(files))


def _read_metadata(path: Path) -> dict[str, Any]:
    if not (path / "config.json").is_file():
        raise ModelFileError(
            f"{path}: no config.json; give a GGUF file or a Hugging Face model directory"
        )
    metadata: dict[str, Any] = {}
    for name in ("config", "generation_config", "tokenizer_config"):
        data = _read(path / f"{name}.json")
        metadata[name] = {} if data is None else parse_json(data, f"{path / name}.json")
    for key, file_name in (("tokenizer_json", "tokenizer.json"), ("chat_template", _TEMPLATE)):
        data = _read(path / file_name)
        if data is not None:
            try:
                metadata[key] = data.decode("utf-8")
            except UnicodeDecodeError:
                raise ModelFileError(f"{path / file_name}: not UTF-8; fetch it again") from None
    if "chat_template" not in metadata:
        template = _default_template(metadata["tokenizer_config"].get("chat_template"))
        if template is not None:
            metadata["chat_template"] = template
    return metadata


def _default_template(value: object) -> str | None:
    """The template in tokenizer_config.json: a text, or the one named "default" of several."""
    if isinstance(value, str):
        return value
    for entry in value if isinstance(value, list) else []:
        if isinstance(entry, dict) and entry.get("name") == "default":
            return _default_template(entry.get("template"))
    return None


def _read(file: Path) -> bytes | None:
    try:
        if not file.is_file():
            return None
        size = file.stat().st_size
        if size > MAX_JSON_BYTES:
            raise ModelFileError(f"{file}: has {size} bytes, the limit is {MAX_JSON_BYTES}")
        return file.read_bytes()
    except OSError as error:
        raise ModelFileError(
            f"{file}: cannot be read ({error.strerror}); check its permissions"
        ) from None


def _check_config(path: Path, metadata: Mapping[str, Any]) -> None:
    for name in ("config", "tokenizer_config"):
        if "auto_map" in metadata[name]:
            raise ModelFileError(
                f"{path / name}.json: 'auto_map' asks to run code from the directory, which is "
                "never done; use a model of a built-in architecture"
            )
    config = metadata["config"]
    if "quantization_config" in config:
        raise ModelFileError(
            f"{path}: 'quantization_config' is not supported; use F32, F16 or BF16 weights, or GGUF"
        )
    if "model_type" not in config:
        raise ModelFileError(
            f"{path / 'config.json'}: the key 'model_type' is missing; take config.json from the "
            "model's publisher"
        )
    if config.get("model_type") not in _ARCHITECTURES:
        raise ModelFileError(
            f"{path}: architecture {config.get('model_type')!r} is not supported; "
            f"supported are: {', '.join(_ARCHITECTURES)}"
        )


def _weight_files(path: Path) -> list[Path]:
    if (path / _INDEX).is_file():
        return [path / name for name in sorted(set(_weight_map(path).values()))]
    files = sorted(path.glob("*.safetensors"))
    if path / _SINGLE in files:
        return [path / _SINGLE]
    if len(files) > 1:
        raise ModelFileError(f"{path}: several safetensors files without {_INDEX}; add it")
    if files:
        return files
    pickled = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
    if pickled:
        raise ModelFileError(
            f"{path}: {pickled[0]} is a pickle, which can run code and is never loaded; "
            "convert the weights to safetensors"
        )
    raise ModelFileError(f"{path}: no *.safetensors files; fetch the model again")


def _weight_map(path: Path) -> dict[str, str]:
    index = path / _INDEX
    weight_map = parse_json(_read(index) or b"", str(index)).get("weight_map")
    good = isinstance(weight_map, dict) and all(
        isinstance(name, str) and re.fullmatch(r"[\w.-]+\.safetensors", name)
        for name in weight_map.values()
    )
    if not good or not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{index}: 'weight_map' must map tensors to files in the directory")
    return weight_map


def _check_index(path: Path, stored: Mapping[str, LogicalTensor]) -> None:
    if (path / _INDEX).is_file():
        missing = sorted(set(_weight_map(path)) ^ set(stored))
        if missing:
            raise ModelFileError(
                f"{path}: tensor {missing[0]!r} is in {_INDEX} or in the files, but not in both; "
                "fetch the model again"
            )


def _canonical(
    path: Path, stored: Mapping[str, LogicalTensor], tied: bool
) -> Iterator[LogicalTensor]:
    for name, tensor in stored.items():
        if _DERIVED.fullmatch(name) or (tied and name == "lm_head.weight"):
            continue
        canonical = _TOP_NAMES.get(name) or _layer_name(name)
        if canonical is None:
            raise ModelFileError(f"{path}: unknown tensor {name!r}; the model is not supported")
        yield LogicalTensor(canonical, tensor.type, tensor.shape, tensor.data)


def _layer_name(name: str) -> str | None:
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in _LAYER_NAMES:
        return None
    return f"blk.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"
