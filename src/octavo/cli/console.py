"""What a start-up prints: stages with times, one box, and the root cause as the last line."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from octavo import __version__
from octavo.cli.progress import ProgressLine

MIB = 1 << 20


class Console:
    """Turns the children's status lines into text for the operator."""

    def __init__(self, *, url: str, names: Sequence[str], has_key: bool) -> None:
        self._url = url
        self._names = names
        self._has_key = has_key
        self._engine: Mapping[str, object] | None = None
        self._api: Mapping[str, object] | None = None
        self._boxed = False
        self._progress = ProgressLine()

    def on_status(self, child: str, status: Mapping[str, object]) -> None:
        """One status line of a child."""
        event = status["event"]
        if event == "download":
            self._progress.show(status)
        elif event == "stage":
            self._say(f"{_number(status['took']):8.2f} s  {status['name']}")
        elif event == "ready":
            self._on_ready(child, status)
        elif event == "hung":
            silent_s = _number(status["silent_s"])
            self._say(
                f"the {child} process made no progress for {silent_s:.0f} s with work waiting; "
                "it is killed"
            )
        elif event == "exited" and self._boxed:
            self._say(f"the {child} process ended (code {status['code']})")

    def finish(self, cause: str) -> None:
        """The end: the root cause, if there was one, last."""
        self._progress.end()
        if cause:
            print(f"octavo: error: {cause}", file=sys.stderr, flush=True)
        else:
            self._say("stopped; nothing was lost")

    def _say(self, text: str) -> None:
        self._progress.end()
        print(text, file=sys.stderr, flush=True)

    def _on_ready(self, child: str, status: Mapping[str, object]) -> None:
        if child == "engine":
            self._engine = status
        else:
            self._api = status
        if self._boxed:
            self._say(f"the {child} process is ready again ({status['seconds']} s)")
        elif self._engine is not None and self._api is not None:
            self._boxed = True
            self._progress.end()
            print(self.box(self._engine, self._api), flush=True)

    def box(self, engine: Mapping[str, object], api: Mapping[str, object]) -> str:
        """Everything that an operator wants to know, and a command to try."""
        blocks, size = int(_number(engine["num_blocks"])), int(_number(engine["block_size"]))
        pool_mib = _number(engine["kv_bytes"]) / MIB
        rows = [
            ("URL", f"{self._url}/v1"),
            ("model", ", ".join(self._names)),
            ("context", f"{engine['context']} tokens"),
            ("concurrency", f"{engine['concurrency']} sequences"),
            ("KV pool", f"{blocks} blocks x {size} = {blocks * size} tokens, {pool_mib:.0f} MiB"),
            ("numerics", str(engine["fingerprint"])),
            ("sampling", _sampling_text(api["generation_config"])),
        ]
        lines = [f"{name:<12} {value}" for name, value in rows]
        title = f" Octavo {__version__} is ready "
        width = max(len(line) for line in [*lines, title])
        top = "┌" + title.center(width + 2, "─") + "┐"
        body = [f"│ {line:<{width}} │" for line in lines]
        return "\n".join([top, *body, "└" + "─" * (width + 2) + "┘", self.curl()])

    def curl(self) -> str:
        """A command to copy and paste."""
        key = " -H 'authorization: Bearer KEY'" if self._has_key else ""
        body = (
            f'{{"model": "{self._names[0]}", "messages": '
            '[{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}'
        )
        return (
            f"curl {self._url}/v1/chat/completions -H 'content-type: application/json'{key} "
            f"-d '{body}'"
        )


def _number(value: object) -> float:
    assert isinstance(value, (int, float)), "children report numbers here"
    return float(value)


def _sampling_text(config: object) -> str:
    if not isinstance(config, dict) or not config:
        return "the model recommends nothing: temperature 1, no filters"
    return ", ".join(f"{name} {value}" for name, value in config.items())
