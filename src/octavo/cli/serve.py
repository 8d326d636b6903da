"""``octavo serve``: this process becomes the idle supervisor of an engine and an API process."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from octavo.api_keys import tenants_of
from octavo.cli.console import Console
from octavo.cli.options import engine_config
from octavo.cluster.supervisor import ChildSpec, Supervisor
from octavo.environment import environment
from octavo.errors import ConfigError

# The path of a Unix socket may not be longer; mkdtemp adds 15 characters, the name 12.
MAX_TEMP_DIR_CHARS = 75
DRAIN_MARGIN_S = 5.0
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def serve(arguments: argparse.Namespace) -> int:
    """Bind, start the children, supervise. Returns the exit code.

    Raises:
        ConfigError: the address cannot be bound, or the API keys are no keys.
    """
    listener = bind(arguments.host, arguments.port)
    api_keys = [*arguments.api_key, *filter(None, [environment("OCTAVO_API_KEY")])]
    if arguments.api_key_file is not None:
        api_keys += read_keys(Path(arguments.api_key_file))
    tenants_of(api_keys)
    if arguments.host not in LOOPBACK and not api_keys:
        print(
            f"octavo: warning: {arguments.host} is reachable by others and there is no --api-key",
            file=sys.stderr,
        )
    names = list(dict.fromkeys([model_name(arguments.model), *arguments.served_model_name]))
    console = Console(url=url_of(listener, arguments.host), names=names, has_key=bool(api_keys))
    runtime_dir = make_runtime_dir()
    try:
        write_private(runtime_dir / "engine.json", asdict(engine_config(arguments)))
        write_private(
            runtime_dir / "api.json",
            {
                "model": arguments.model,
                "model_names": names,
                "api_keys": api_keys,
                "allowed_hosts": [*arguments.allowed_host, arguments.host],
                "drain_s": arguments.drain_timeout,
                "request_timeout_s": arguments.request_timeout,
            },
        )
        specs = child_specs(runtime_dir, listener.fileno(), drain_s=arguments.drain_timeout)
        code, cause = Supervisor(specs, on_status=console.on_status).run()
    finally:
        shutil.rmtree(runtime_dir, ignore_errors=True)
    console.finish(cause)
    return code


def read_keys(path: Path) -> list[str]:
    """The keys in a file: one a line, blank lines and comments left out.

    Raises:
        ConfigError: it cannot be read, or holds none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file {path} cannot be read ({error})") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"--api-key-file {path} holds no key; write one a line")
    return keys


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, before anything slow is done.

    Raises:
        ConfigError: naming the port or host, and the option that changes it.
    """
    if not host:
        raise ConfigError("--host is empty; 0.0.0.0 listens on every address")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, UnicodeError) as error:
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is in use; choose another with --port"
            ) from None
        # A name that cannot be resolved has a number below 0, and an odd one none.
        reason = os.strerror(number) if number is not None and number > 0 else "no such host"
        raise ConfigError(
            f"cannot listen on {host} port {port} ({reason}); choose others with --host and --port"
        ) from None


def url_of(listener: socket.socket, host: str) -> str:
    """The URL that a client on this machine uses."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    port = listener.getsockname()[1]
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def model_name(model: str) -> str:
    """The name that a model is served under: an alias or hub id, or a path's last part."""
    path = Path(model)
    return path.name.removesuffix(".gguf") if path.exists() else model


def make_runtime_dir() -> Path:
    """A fresh directory, mode 0700, whose path leaves room for a socket's name."""
    base = tempfile.gettempdir()
    parent = base if len(base) <= MAX_TEMP_DIR_CHARS else None
    return Path(tempfile.mkdtemp(prefix="octavo-", dir=parent or "/tmp"))  # noqa: S108


def write_private(path: Path, value: object) -> None:
    """JSON that only this user can read: it may hold keys."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(value, file)


def child_specs(runtime_dir: Path, listen_fd: int, *, drain_s: float) -> Sequence[ChildSpec]:
    """The API process, which drains first, and the engine process."""

    def argv(module: str, config: str) -> list[str]:
        return [
            sys.executable, "-m", module,
            "--runtime-dir", str(runtime_dir), "--config", str(runtime_dir / config),
        ]  # fmt: skip

    api = ChildSpec(
        name="api",
        argv=[*argv("octavo.server.api_process", "api.json"), "--listen-fd", str(listen_fd)],
        after=("engine", "resolved"),
        peer="engine",
        drain_s=drain_s + DRAIN_MARGIN_S,
        pass_fds=(listen_fd,),
    )
    engine = ChildSpec(name="engine", argv=argv("octavo.cluster.engine_process", "engine.json"))
    return [api, engine]
