"""``python -m octavo.testing.fake_serve OPTIONS.json``: ``octavo serve`` with a fake runner.

The supervisor, the API process and the sockets are the real ones.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from octavo.cli.serve import bind, child_specs, make_runtime_dir, url_of, write_private
from octavo.cluster.supervisor import ChildSpec, Supervisor

DRAIN_S = 5.0


def main(options_path: str) -> int:
    """Serve until a signal. Returns the exit code."""
    options = json.loads(Path(options_path).read_text(encoding="utf-8"))
    listener = bind("127.0.0.1", 0)
    runtime_dir = make_runtime_dir()
    api = {
        "model": options["model"],
        "model_names": ["fake"],
        "api_keys": [],
        "allowed_hosts": [],
        "drain_s": DRAIN_S,
        "hang_s": options["hang_s"],
    }
    write_private(runtime_dir / "api.json", api)
    specs = child_specs(runtime_dir, listener.fileno(), drain_s=DRAIN_S)
    engine_options = [
        part
        for name, value in options["engine"].items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    argv = [
        sys.executable, "-m", "octavo.testing.fake_engine_process",
        "--runtime-dir", str(runtime_dir), *engine_options,
    ]  # fmt: skip
    ready: set[str] = set()

    def on_status(child: str, status: dict[str, object]) -> None:
        _say(f"{child} {status}")
        if status["event"] == "ready":
            ready.add(child)
            if len(ready) == 2:
                _say(f"is ready at {url_of(listener, '127.0.0.1')}")

    try:
        engine = ChildSpec(name="engine", argv=argv)
        code, cause = Supervisor(
            [specs[0], engine], on_status=on_status, restart_budget=options["restart_budget"]
        ).run()
    finally:
        shutil.rmtree(runtime_dir, ignore_errors=True)
    _say(cause)
    return code


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
