"""Writes tests/data/tokenizer_goldens.json: ids and prompts as transformers makes them.

Run in an environment with the ``oracle`` extra:

    python tests/oracles/make_tokenizer_goldens.py smollm2=SMOLLM2.gguf qwen=QWEN.gguf

transformers drops one step of smollm's pre-tokenizer when it reads a GGUF file (the digits of the
published tokenizer.json stand alone before the byte-level regex); it is put back here.

The corpus is tests/data/tokenizer_corpus.json: texts ("texts") and conversations ("chats").
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

DATA = Path(__file__).parents[1] / "data"


def main() -> None:
    """One entry per model: "ids" per text, "prompts" and "prompt_ids" per conversation."""
    corpus = json.loads((DATA / "tokenizer_corpus.json").read_text("utf-8"))
    goldens = {}
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        file = Path(path)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        if name == "smollm2":
            digits = pre_tokenizers.Digits(individual_digits=True)
            bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
        prompts = [
            tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            for chat in corpus["chats"]
        ]
        texts = [*corpus["texts"], *prompts]
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        count = len(corpus["texts"])
        goldens[name] = {"ids": ids[:count], "prompts": prompts, "prompt_ids": ids[count:]}
    out = DATA / "tokenizer_goldens.json"
    out.write_text(json.dumps(goldens, separators=(",", ":")) + "\n", "ascii")


if __name__ == "__main__":
    main()
