"""Public request traces, read from a path that the user gives.

Two formats: the Azure LLM inference traces (CSV: TIMESTAMP, ContextTokens, GeneratedTokens) and
Mooncake's (JSON lines: timestamp in ms, input_length, output_length, hash_ids of 512-token blocks).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, TextIO

import msgspec

from octavo.errors import ConfigError

MOONCAKE_BLOCK_TOKENS = 512
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line. Blocks of the prompt with equal ``hash_ids`` are equal text."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


_Length = Annotated[int, msgspec.Meta(ge=0)]


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: _Length
    output_length: _Length
    hash_ids: list[int] = []


def read_trace(path: Path, *, limit: int) -> list[TraceRequest]:
    """The first ``limit`` requests of a trace, times counted from the first.

    Raises:
        ConfigError: the file cannot be read, or a line is of neither format.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            read = _mooncake if path.suffix == ".jsonl" else _azure
            requests = list(islice(read(file, path.name), limit))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the trace {path.name} cannot be read: {error}") from error
    if not requests:
        raise ConfigError(f"the trace {path.name} holds no request")
    start = requests[0].at_s
    return [
        TraceRequest(r.at_s - start, max(1, r.prompt_tokens), max(1, r.output_tokens), r.hash_ids)
        for r in requests
    ]


def _azure(file: TextIO, name: str) -> Iterator[TraceRequest]:
    for number, row in enumerate(csv.DictReader(file), start=2):
        try:
            stamp, prompt, output = (row[column] for column in AZURE_COLUMNS)
            # Seven digits of a second: one more than datetime reads.
            whole, _, fraction = stamp.partition(".")
            at = datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
            if int(prompt) < 0 or int(output) < 0:
                raise ValueError("a length below 0")
            yield TraceRequest(at, int(prompt), int(output))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"line {number} of {name} is no trace line; its columns must be "
                f"{', '.join(AZURE_COLUMNS)}, its lengths 0 or more"
            ) from error


def _mooncake(file: TextIO, name: str) -> Iterator[TraceRequest]:
    for number, line in enumerate(file, start=1):
        try:
            found = msgspec.json.decode(line, type=_MooncakeLine)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"line {number} of {name} is no trace line: {error}") from error
        yield TraceRequest(
            found.timestamp / 1000,
            found.input_length,
            found.output_length,
            tuple(found.hash_ids),
        )
