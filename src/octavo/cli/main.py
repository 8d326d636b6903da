"""Arguments in, exit code out. Nothing heavy is imported before a sub-command needs it.

A failure ends with one line on standard error that names the cause and the remedy.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Callable, Sequence

from octavo import __version__
from octavo.bench import add_arguments as add_bench_arguments
from octavo.cli.options import (
    add_engine_options,
    add_kv_options,
    add_model_argument,
    add_sampling_options,
    add_server_options,
)
from octavo.errors import OctavoError

Command = Callable[[argparse.Namespace], int]

EXIT_INTERRUPTED = 130
OUT_OF_MEMORY = "out of memory; lower --kv-memory or --max-model-len, or use a smaller model"
_REMEDIES = {
    errno.ENOSPC: "free some space, or set OCTAVO_CACHE_DIR",
    errno.EACCES: "check who may read and write it",
    errno.EPERM: "check who may read and write it",
    errno.EROFS: "set OCTAVO_CACHE_DIR to a folder that can be written",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close some programs: the system has no file handles left",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    parser = build_parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and not _takes_prompt(arguments, rest):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    command: Command | None = arguments.command
    if command is None:
        parser.print_help()
        return 2
    try:
        return command(arguments)
    except OctavoError as error:
        print(f"octavo: error: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("octavo: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left, as `head` does; there is nobody to tell.
        sys.stderr.close()
        return 1
    except MemoryError:
        print(f"octavo: error: {OUT_OF_MEMORY}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"octavo: error: {_system_text(error)}", file=sys.stderr)
        return 1


def _takes_prompt(arguments: argparse.Namespace, rest: Sequence[str]) -> bool:
    """Take ``rest`` as the prompt of ``run MODEL --option … PROMPT``, which argparse misses."""
    if len(rest) > 1 or rest[0].startswith("-") or vars(arguments).get("prompt", "") is not None:
        return False
    arguments.prompt = rest[0]
    return True


def _system_text(error: OSError) -> str:
    """What the system refused, and what to do about it."""
    if error.errno == errno.ENOMEM:
        return OUT_OF_MEMORY
    where = f" ({error.filename})" if error.filename else ""
    remedy = _REMEDIES.get(error.errno or 0, "see `octavo doctor` for what this machine offers")
    return f"{error.strerror or error}{where}; {remedy}"


def build_parser() -> argparse.ArgumentParser:
    """Every command and option."""
    parser = argparse.ArgumentParser(
        prog="octavo", description="Serve language models from a paged KV cache."
    )
    parser.add_argument("--version", action="version", version=f"octavo {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    serve = commands.add_parser("serve", help="start an OpenAI-compatible server")
    add_model_argument(serve)
    add_server_options(serve)
    add_engine_options(serve)
    serve.set_defaults(command=_serve)

    run = commands.add_parser("run", help="answer a prompt, or chat when there is none")
    add_model_argument(run)
    run.add_argument(
        "prompt", nargs="?", help="what to ask (default: chat by lines; - reads stdin)"
    )
    add_sampling_options(run)
    add_engine_options(run)
    run.set_defaults(command=_run)

    pull = commands.add_parser("pull", help="fetch a model into the user's cache")
    add_model_argument(pull)
    pull.set_defaults(command=_pull)

    listing = commands.add_parser("list", help="show the models that were or can be pulled")
    listing.set_defaults(command=_list)

    remove = commands.add_parser("rm", help="delete a pulled model")
    remove.add_argument("model", metavar="MODEL", help="its name in `octavo list`")
    remove.set_defaults(command=_remove)

    bench = commands.add_parser("bench", help="measure the engine, or any server")
    add_bench_arguments(bench, add_engine_options=_add_model_and_engine)
    bench.set_defaults(command=_bench)

    kv = commands.add_parser("kv", help="show who owns which KV block of a running server")
    add_kv_options(kv)
    kv.set_defaults(command=_kv)

    doctor = commands.add_parser("doctor", help="examine this machine and name the next step")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.set_defaults(command=_doctor)

    version = commands.add_parser("version", help="print the version")
    version.set_defaults(command=_version)
    return parser


def _add_model_and_engine(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    add_engine_options(parser)


def _serve(arguments: argparse.Namespace) -> int:
    from octavo.cli.serve import serve

    return serve(arguments)


def _run(arguments: argparse.Namespace) -> int:
    from octavo.cli.run import run

    return run(arguments)


def _pull(arguments: argparse.Namespace) -> int:
    from octavo.cli.models import pull_model

    return pull_model(arguments.model)


def _list(_arguments: argparse.Namespace) -> int:
    from octavo.cli.models import print_models

    return print_models()


def _remove(arguments: argparse.Namespace) -> int:
    from octavo.cli.models import delete_model

    return delete_model(arguments.model)


def _bench(arguments: argparse.Namespace) -> int:
    from octavo.bench import run
    from octavo.cli.options import engine_config

    return run(arguments, engine_config)


def _kv(arguments: argparse.Namespace) -> int:
    from octavo.cli.kv import kv

    return kv(arguments)


def _doctor(arguments: argparse.Namespace) -> int:
    from octavo.cli.doctor import doctor

    return doctor(as_json=arguments.json)


def _version(_arguments: argparse.Namespace) -> int:
    print(f"octavo {__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
