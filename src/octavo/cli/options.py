"""The options of the commands, and the configuration that they make."""

from __future__ import annotations

import argparse
import re

from octavo.config import (
    ACTIVATIONS,
    KV_DTYPES,
    POLICIES,
    PROPOSERS,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from octavo.errors import ConfigError

DEFAULT_MODEL = "smollm2"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_DRAIN_S = 30.0
DEFAULT_REQUEST_TIMEOUT_S = 600.0

_MODEL, _CACHE, _SCHEDULER = ModelConfig(), CacheConfig(), SchedulerConfig()
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def size_in_bytes(text: str) -> int:
    """``512MiB``, ``2g``, ``1073741824`` → bytes; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no size; write for example 512MiB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def positive_integer(text: str) -> int:
    """An integer of 1 or more."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' must be an integer of 1 or more")
    return int(text)


def port_number(text: str) -> int:
    """0 (any free port) to 65535."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"'{text}' must be a port number, 0 to 65535")
    return int(text)


def seconds(text: str) -> float:
    """A number of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"'{text}' must be a number of seconds")
    return value


def positive_seconds(text: str) -> float:
    """A number over 0."""
    value = seconds(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"'{text}' must be more than 0 seconds")
    return value


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """MODEL."""
    parser.add_argument(
        "model",
        nargs="?",
        default=DEFAULT_MODEL,
        metavar="MODEL",
        help="alias, GGUF file, Hugging Face directory or hub id (default: %(default)s)",
    )


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """What sizes the engine."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--kv-memory", type=size_in_bytes, metavar="SIZE",
        help="memory of the KV pool, e.g. 2GiB (default: fits free memory and cgroup limits)",
    )  # fmt: skip
    group.add_argument(
        "--max-model-len", type=positive_integer, metavar="TOKENS",
        help="context of one request (default: the model's, as far as the pool holds it)",
    )  # fmt: skip
    group.add_argument(
        "--block-size", type=positive_integer, default=_CACHE.block_size, metavar="TOKENS",
        help="tokens per KV block (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--kv-dtype", choices=KV_DTYPES, default=_CACHE.kv_dtype,
        help="of the KV cache; int8 holds twice the tokens, less exactly (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--max-num-seqs", type=positive_integer, default=_SCHEDULER.max_num_seqs, metavar="N",
        help="sequences in one batch (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--max-num-batched-tokens", type=positive_integer, metavar="N",
        default=_SCHEDULER.max_num_batched_tokens,
        help="tokens computed in one step (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--policy", choices=POLICIES, default=_SCHEDULER.policy,
        help="how much KV growth is promised at admission (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--speculate", default=_SCHEDULER.speculate, metavar="PROPOSER",
        help=f"who drafts tokens ahead: {', '.join(PROPOSERS)} (default: %(default)s); "
        "answers stay the same",
    )  # fmt: skip
    group.add_argument(
        "--num-draft-tokens", type=positive_integer, metavar="N",
        help="most draft tokens per sequence and step, with --speculate "
        f"(default: {_SCHEDULER.num_draft_tokens})",
    )  # fmt: skip
    group.add_argument(
        "--num-threads", type=int, default=0, metavar="N",
        help="threads that compute (default 0: as many as the cores this process may use)",
    )  # fmt: skip
    group.add_argument(
        "--activation", choices=ACTIVATIONS, default=_MODEL.activation,
        help="what weights are multiplied with; f32 is slower, more exact (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--backend", choices=("native", "reference"), default=_MODEL.backend,
        help="native, or the slow numpy reference (default: %(default)s)",
    )  # fmt: skip


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """What concerns HTTP."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", default=DEFAULT_HOST, help="address to bind (default: %(default)s)"
    )
    group.add_argument(
        "--port", type=port_number, default=DEFAULT_PORT,
        help="port to bind; 0 takes a free one (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--api-key", action="append", default=[], metavar="[NAME=]KEY",
        help="require this key; NAME is the tenant that it speaks for; may be given several times "
        "(also: OCTAVO_API_KEY)",
    )  # fmt: skip
    group.add_argument(
        "--api-key-file", metavar="FILE", help="further keys, one a line; # begins a comment"
    )
    group.add_argument(
        "--served-model-name", action="append", default=[], metavar="NAME",
        help="a further name that clients may use for the model; may be given several times",
    )  # fmt: skip
    group.add_argument(
        "--allowed-host", action="append", default=[], metavar="HOST",
        help="a further Host name to accept besides localhost and addresses",
    )  # fmt: skip
    group.add_argument(
        "--request-timeout", type=positive_seconds, metavar="SECONDS",
        default=DEFAULT_REQUEST_TIMEOUT_S,
        help="when a request that has not ended is dropped (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--drain-timeout", type=seconds, default=DEFAULT_DRAIN_S, metavar="SECONDS",
        help="how long running requests may take to end at shutdown (default: %(default)s)",
    )  # fmt: skip


def add_kv_options(parser: argparse.ArgumentParser) -> None:
    """Which server's pool is shown, and how."""
    parser.add_argument(
        "--url", default=f"http://{DEFAULT_HOST}:{DEFAULT_PORT}", help="default: %(default)s"
    )
    parser.add_argument("--api-key", default="", help="also: OCTAVO_API_KEY")
    parser.add_argument("--once", action="store_true", help="print one view and end")
    parser.add_argument("--json", action="store_true", help="print /debug/kv as it comes and end")
    parser.add_argument(
        "--interval", type=positive_seconds, default=1.0, metavar="SECONDS",
        help="time between two views (default: %(default)s)",
    )  # fmt: skip


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """What concerns one answer."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--temperature", type=float, help="0 is greedy (default: the model's)")
    group.add_argument("--max-tokens", type=positive_integer, help="limit of the answer's tokens")
    group.add_argument("--seed", type=int, help="the same seed gives the same answer")


def engine_config(arguments: argparse.Namespace) -> EngineConfig:
    """The engine's configuration as the options say.

    Raises:
        ConfigError: a value is out of range, or an option would have no effect.
    """
    if arguments.num_draft_tokens and arguments.speculate == "off":
        raise ConfigError("--num-draft-tokens does nothing here: name who drafts by --speculate")
    return EngineConfig(
        model=ModelConfig(
            model=arguments.model,
            backend=arguments.backend,
            activation=arguments.activation,
            num_threads=arguments.num_threads,
            max_model_len=arguments.max_model_len,
        ),
        cache=CacheConfig(
            block_size=arguments.block_size,
            kv_bytes=arguments.kv_memory,
            kv_dtype=arguments.kv_dtype,
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=arguments.max_num_seqs,
            max_num_batched_tokens=arguments.max_num_batched_tokens,
            policy=arguments.policy,
            speculate=arguments.speculate,
            num_draft_tokens=arguments.num_draft_tokens or _SCHEDULER.num_draft_tokens,
        ),
    )
