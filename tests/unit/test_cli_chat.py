"""The terminal chat with an engine that only repeats what it was asked."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.cli.run import _chat, _prompt
from octavo.core.sampling_params import SamplingParams


class Parrot:
    def __init__(self) -> None:
        self.heard: list[list[str]] = []

    def stream_chat(self, messages: Any, sampling: SamplingParams) -> Iterator[Any]:
        self.heard.append([message["content"] for message in messages])
        for word in messages[-1]["content"].split():
            yield SimpleNamespace(branches=[SimpleNamespace(text=word + "!")])


def chat(text: str, monkeypatch: Any) -> Parrot:
    parrot = Parrot()
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    _chat(parrot, SamplingParams())  # type: ignore[arg-type]
    return parrot


def test_piped_lines_are_turns_of_one_chat(monkeypatch: Any, capsys: Any) -> None:
    parrot = chat("hello\n\n  \nhow are you", monkeypatch)
    assert parrot.heard == [["hello"], ["hello", "hello!", "how are you"]]
    said = capsys.readouterr()
    assert said.out == "hello!\nhow!are!you!\n"
    assert said.err == ""


def test_commands_are_known_or_refused_by_name(monkeypatch: Any, capsys: Any) -> None:
    parrot = chat("one\n/bye\n/clear now\ntwo\n/clear\n/etc/hosts\n/ 2\n", monkeypatch)
    assert parrot.heard == [
        ["one"], ["one", "one!", "two"], ["/etc/hosts"], ["/etc/hosts", "/etc/hosts!", "/ 2"],
    ]  # fmt: skip
    assert capsys.readouterr().err.splitlines() == [
        f"no command '{name}'; known: /clear forgets the conversation"
        for name in ("/bye", "/clear now")
    ]


@pytest.mark.parametrize(("given", "prompt"), [(None, None), ("-", "all\nof it\n"), ("a", "a")])
def test_only_a_dash_reads_all_of_the_input(
    given: str | None, prompt: str | None, monkeypatch: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("all\nof it\n"))
    assert _prompt(SimpleNamespace(prompt=given, model="m")) == prompt  # type: ignore[arg-type]
