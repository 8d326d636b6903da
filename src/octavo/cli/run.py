"""``octavo run``: one answer, or a chat, in this process."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace

from octavo.cli.models import fetch
from octavo.cli.options import engine_config
from octavo.core.sampling_params import SamplingParams
from octavo.errors import ContextLengthError, InvalidRequestError
from octavo.llm import LLM

Message = dict[str, str]

COMMANDS = {"/clear": "forgets the conversation"}
# A line that begins so is meant as a command; a path has another slash.
_COMMAND = re.compile(r"/[A-Za-z]\w*(?!\S)")


def run(arguments: argparse.Namespace) -> int:
    """Load the model, then answer or chat. Returns the exit code."""
    prompt = _prompt(arguments)
    # Before anything is fetched: an impossible option needs no download.
    config = engine_config(arguments)
    _sampling(arguments, SamplingParams())
    path = fetch(arguments.model)
    options = asdict(config.model) | {"model": str(path)}
    with LLM(**options, scheduler=config.scheduler, cache=config.cache) as llm:
        sampling = _sampling(arguments, llm.default_sampling)
        if prompt is not None:
            _answer(llm, [{"role": "user", "content": prompt}], sampling)
        else:
            _chat(llm, sampling)
    return 0


def _prompt(arguments: argparse.Namespace) -> str | None:
    """The prompt; all of standard input when it is ``-``; None means chat."""
    prompt: str | None = arguments.prompt
    if prompt is None and " " in arguments.model:
        raise InvalidRequestError(
            "the first argument names the model; try: octavo run smollm2 'your prompt'"
        )
    if prompt == "-":
        prompt = sys.stdin.read()
    if prompt is not None and not prompt.strip():
        raise InvalidRequestError("the prompt is empty; give some text", param="prompt")
    return prompt


def _sampling(arguments: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    temperature = defaults.temperature if arguments.temperature is None else arguments.temperature
    return replace(
        defaults, temperature=temperature, max_tokens=arguments.max_tokens, seed=arguments.seed
    )


def _answer(llm: LLM, messages: list[Message], sampling: SamplingParams) -> str:
    """Print an answer as it comes; returns it."""
    parts = []
    for output in llm.stream_chat(messages, sampling):
        for delta in output.branches:
            parts.append(delta.text)
            print(delta.text, end="", flush=True)
    print(flush=True)
    return "".join(parts)


def _chat(llm: LLM, sampling: SamplingParams) -> None:
    """Read, answer, remember. Ctrl-C stops an answer; Ctrl-D ends the chat."""
    messages: list[Message] = []
    for text in _lines():
        command = _COMMAND.match(text.strip())
        if command is None:
            messages.append({"role": "user", "content": text})
            _chat_turn(llm, messages, sampling)
        elif text.strip() == "/clear":
            messages.clear()
        else:
            known = ", ".join(f"{name} {what}" for name, what in COMMANDS.items())
            print(f"no command {text.strip()[:64]!r}; known: {known}", file=sys.stderr)


def _lines() -> Iterator[str]:
    """What the user types, or what standard input holds, line by line; empty lines say nothing."""
    terminal = sys.stdin.isatty()
    if terminal:
        print("Chat: /clear forgets the conversation, Ctrl-D ends it.", file=sys.stderr)
    while True:
        try:
            text = input(">>> " if terminal else "")
        except EOFError:
            if terminal:
                print(file=sys.stderr)
            return
        if text.strip():
            yield text


def _chat_turn(llm: LLM, messages: list[Message], sampling: SamplingParams) -> None:
    try:
        answer = _answer(llm, messages, sampling)
    except KeyboardInterrupt:
        print("\n(stopped)", file=sys.stderr)
        messages.pop()
    except ContextLengthError as error:
        print(f"{error.message}; /clear starts anew", file=sys.stderr)
        messages.pop()
    else:
        messages.append({"role": "assistant", "content": answer})
