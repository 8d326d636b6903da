"""Safetensors and Hugging Face directories: exact on good ones, refused in one line otherwise."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.errors import ModelFileError
from octavo.text import ChatTemplate, Tokenizer
from octavo.weights import open_model
from octavo.weights.safetensors import open_safetensors
from oracles.hf_writer import LAYERS, tiny_config, tiny_weights, write_hf_directory

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "model.layers.1.self_attn.q_proj.weight": "blk.1.attn_q.weight",
    "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    "model.layers.1.post_attention_layernorm.weight": "blk.1.ffn_norm.weight",
    "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_a_directory_is_read_back(tmp_path, model_type, shards, dtype):
    folder = tmp_path / "m"
    weights = write_hf_directory(folder, model_type, dtype=dtype, shards=shards)
    model = open_model(folder)
    assert model.kind == "hf"
    assert model.metadata["config"] == tiny_config(model_type, tied=False)
    assert model.metadata["generation_config"] == {"temperature": 0.7}
    assert len(model.tensors) == len(weights)
    for stored_name, name in NAMES.items():
        tensor = model.tensors[name]
        assert tensor.name == name
        assert tensor.shape == weights[stored_name].shape
        assert np.array_equal(tensor.dequantize(), weights[stored_name])
    biases = [name for name in model.tensors if name.endswith("attn_k.bias")]
    assert len(biases) == (LAYERS if model_type == "qwen2" else 0)
    tokenizer = Tokenizer.from_model(model.kind, model.metadata)
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
    assert tokenizer.eos_token_ids == (63,)
    template = ChatTemplate.from_model(model.kind, model.metadata, tokenizer)
    assert "role" in template.render([{"role": "user", "content": "x"}])


def test_the_digest_covers_config_and_weights(tmp_path):
    folder = tmp_path / "m"
    write_hf_directory(folder, "llama", shards=2)
    digests = {open_model(folder).digest}
    config = tiny_config("llama", tied=False) | {"rms_norm_eps": 1e-6}
    (folder / "config.json").write_text(json.dumps(config))
    digests.add(open_model(folder).digest)
    file = folder / "model-1.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    digests.add(open_model(folder).digest)
    assert len(digests) == 3


def test_a_tied_head_is_left_out_even_if_it_is_stored(tmp_path):
    folder = tmp_path / "m"
    write_hf_directory(folder, "llama", tied=False)
    (folder / "config.json").write_text(json.dumps(tiny_config("llama", tied=True)))
    assert "output.weight" not in open_model(folder).tensors


def test_templates_beside_the_config(tmp_path):
    folder = tmp_path / "m"
    write_hf_directory(folder, "llama")
    several = [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert open_model(folder).metadata["chat_template"] == "d"
    (folder / "chat_template.jinja").write_text("file")
    assert open_model(folder).metadata["chat_template"] == "file"
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert "chat_template" not in open_model(folder).metadata


def edit(folder: Path, file: str, **changes: Any) -> None:
    path = folder / file
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(fields))


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def unknown_tensor(folder: Path) -> None:
    weights = tiny_weights("llama", tied=False) | {"model.layers.0.mystery.weight": np.ones(4)}
    save_file(weights, folder / "model.safetensors")


def second_file(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "b.safetensors").write_bytes(b"")


def index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


WHOLE_MAP = dict.fromkeys(tiny_weights("llama", tied=False), "model.safetensors")
BAD_DIRECTORIES = {
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "not a JSON object"),
    "config is cut": (lambda f: (f / "config.json").write_text('{"a'), "not valid JSON"),
    "config is deep": (lambda f: (f / "config.json").write_text("[" * 99999), "not valid JSON"),
    "key twice": (lambda f: (f / "config.json").write_text('{"a":1,"a":2}'), "'a' twice"),
    "code": (lambda f: edit(f, "config.json", auto_map={"AutoModel": "x.Y"}), "auto_map"),
    "tokenizer code": (lambda f: edit(f, "tokenizer_config.json", auto_map={}), "auto_map"),
    "architecture": (lambda f: edit(f, "config.json", model_type="mamba"), "'mamba'"),
    "no architecture": (lambda f: edit(f, "config.json", model_type=None), "None"),
    "quantised": (lambda f: edit(f, "config.json", quantization_config={}), "quantization_config"),
    "pickle": (pickle_only, "pytorch_model.bin is a pickle"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "safetensors files"),
    "unknown tensor": (unknown_tensor, "mystery"),
    "two files": (second_file, "several safetensors"),
    "index of nothing": (lambda f: index(f, {}), "weight_map"),
    "index climbs": (lambda f: index(f, WHOLE_MAP | {"x": "../x.safetensors"}), "weight_map"),
    "index names more": (lambda f: index(f, WHOLE_MAP | {"x": "model.safetensors"}), "'x'"),
    "index names less": (
        lambda f: index(f, {"lm_head.weight": "model.safetensors"}),
        "not in both",
    ),
    "missing shard": (lambda f: index(f, WHOLE_MAP | {"x": "y.safetensors"}), "y.safetensors"),
    "template is bytes": (lambda f: (f / "chat_template.jinja").write_bytes(b"\xff"), "not UTF-8"),
}


@pytest.mark.parametrize("name", BAD_DIRECTORIES)
def test_a_bad_directory_is_refused_in_one_line(tmp_path, name):
    damage, cause = BAD_DIRECTORIES[name]
    folder = tmp_path / "m"
    write_hf_directory(folder, "llama")
    damage(folder)
    with pytest.raises(ModelFileError, match=cause) as caught:
        open_model(folder)
    assert "\n" not in str(caught.value)


def test_a_pickle_is_never_unpickled(tmp_path, monkeypatch):
    import pickle

    monkeypatch.setattr(pickle, "load", lambda *_: pytest.fail("unpickled"))
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("unpickled"))
    folder = tmp_path / "m"
    write_hf_directory(folder, "llama")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    assert open_model(folder).tensors


def test_files_of_the_published_writer_are_read(tmp_path):
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float16)}
    save_file(arrays, tmp_path / "x.safetensors", metadata={"k": "v"})
    tensors = open_safetensors(tmp_path / "x.safetensors")
    for name, array in arrays.items():
        assert np.array_equal(tensors[name].dequantize(), array.astype(np.float32))


def container(header: object, data: bytes = b"\0" * 16) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | changes


BAD_FILES = {
    "empty": (b"", "empty"),
    "seven bytes": (b"\0" * 7, "truncated"),
    "header past the end": (struct.pack("<Q", 1 << 60) + b"{}", "truncated"),
    "not JSON": (container(b"{nope"), "not valid JSON"),
    "not UTF-8": (container(b"\xff\xff"), "not valid JSON"),
    "a list": (container([]), "not a JSON object"),
    "no tensors": (container({"__metadata__": {}}), "0 tensors"),
    "duplicate": (
        container(b'{"t":' + json.dumps(entry()).encode() + b',"t":{}}'),
        "'t' twice",
    ),
    "not an object": (container({"t": 3}), "malformed"),
    "refused type": (container({"t": entry(dtype="I64")}), "'I64'"),
    "type is a list": (container({"t": entry(dtype=[])}), "unsupported type"),
    "no shape": (container({"t": entry(shape=None)}), "dimensions"),
    "scalar": (container({"t": entry(shape=[])}), "dimensions"),
    "negative": (container({"t": entry(shape=[-2, -2])}), "dimensions"),
    "boolean": (container({"t": entry(shape=[True, 4])}), "dimensions"),
    "zero": (container({"t": entry(shape=[0, 2])}), "dimensions"),
    "one offset": (container({"t": entry(data_offsets=[0])}), "data_offsets"),
    "too short": (container({"t": entry(data_offsets=[0, 12])}), "needs 16 bytes"),
    "backwards": (container({"t": entry(data_offsets=[16, 0])}), "needs 16 bytes"),
    "past the end": (container({"t": entry()}, b"\0" * 8), "ends? at byte 16"),
    "bytes left over": (container({"t": entry()}, b"\0" * 20), "holds 20"),
    "hole": (container({"t": entry(data_offsets=[4, 20])}, b"\0" * 20), "hole"),
    "overlap": (
        container({"t": entry(), "u": entry(data_offsets=[8, 24])}, b"\0" * 24),
        "overlaps",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_container_is_refused(tmp_path, name):
    data, cause = BAD_FILES[name]
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=cause) as caught:
        open_safetensors(path)
    assert "\n" not in str(caught.value)


def test_mutations_give_tensors_or_a_refusal(tmp_path):
    folder = tmp_path / "m"
    write_hf_directory(folder, "llama", tied=True)
    data = (folder / "model.safetensors").read_bytes()
    header_end = 8 + int.from_bytes(data[:8], "little")
    rng = random.Random(4)
    path = tmp_path / "x.safetensors"
    outcomes = set()
    for i in range(400):
        mutated = bytearray(data[: rng.randrange(len(data))] if i % 4 == 0 else data)
        for _ in range(rng.choice((1, 3))):
            if mutated:
                mutated[rng.randrange(min(header_end, len(mutated)))] = rng.randrange(256)
        path.write_bytes(mutated)
        try:
            open_safetensors(path)
            outcomes.add("opened")
        except ModelFileError:
            outcomes.add("refused")
    assert outcomes == {"opened", "refused"}


def test_an_empty_configuration_names_what_it_lacks(tmp_path):
    folder = tmp_path / "m"
    write_hf_directory(folder, "llama")
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"config\.json: the key 'model_type' is missing"):
        open_model(folder)
