from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.console import Console
from octavo.cli.main import build_parser, main
from octavo.cli.options import engine_config, port_number, positive_integer, size_in_bytes
from octavo.cli.progress import ProgressLine
from octavo.cli.serve import bind, make_runtime_dir, model_name, url_of, write_private
from octavo.config import EngineConfig
from octavo.errors import ConfigError

HEAVY = ("numpy", "zmq", "msgspec", "uvicorn", "starlette", "jinja2", "tokenizers", "asyncio",
         "huggingface_hub", "rich", "octavo._native")  # fmt: skip


def octavo(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "octavo.cli.main", *argv],
        capture_output=True, text=True, timeout=60, check=False, **options,
    )  # fmt: skip


def loaded_modules(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(' '.join(sys.modules))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    return set(output.splitlines()[-1].split())


@pytest.mark.parametrize(
    "statement",
    [
        "from octavo.cli.main import build_parser; build_parser().format_help()",
        "import octavo.cli.serve, octavo.cluster.supervisor",
    ],
)
def test_help_and_supervisor_import_nothing_heavy(statement: str) -> None:
    assert not loaded_modules(statement) & set(HEAVY)


def test_help_names_every_command_and_option_is_documented() -> None:
    parser = build_parser()
    text = parser.format_help()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    assert set(commands.choices) >= {
        "serve",
        "run",
        "pull",
        "list",
        "rm",
        "bench",
        "kv",
        "doctor",
        "version",
    }
    for name, command in commands.choices.items():
        assert name in text
        for action in command._actions:
            assert action.help or isinstance(action, argparse._SubParsersAction), action.dest


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "serve" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("octavo ")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("2k", 2048), ("512MiB", 512 << 20), ("1.5g", 3 << 29), ("3 GB", 3 << 30),
     ("7b", 7)],
)  # fmt: skip
def test_sizes(text: str, value: int) -> None:
    assert size_in_bytes(text) == value


@pytest.mark.parametrize("text", ["", "0", "-1", "1x", "GiB", "1e9", "nan", "0.0m"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        size_in_bytes(text)


@pytest.mark.parametrize("text", ["-1", "65536", "http", "1.5", "²"])
def test_bad_ports(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        port_number(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "٣"])
def test_bad_counts(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        positive_integer(text)


def test_options_become_configuration() -> None:
    assert engine_config(build_parser().parse_args(["serve"])) == EngineConfig()
    argv = ["run", "m.gguf", "hi", "--kv-memory", "1g", "--max-model-len", "99", "--block-size",
            "32", "--num-threads", "2", "--max-num-seqs", "3", "--max-num-batched-tokens", "77",
            "--policy", "reserve", "--backend", "reference", "--kv-dtype", "int8",
            "--activation", "f32"]  # fmt: skip
    config = engine_config(build_parser().parse_args(argv))
    assert config.model.model == "m.gguf"
    assert config.model.max_model_len == 99
    assert (config.model.num_threads, config.model.backend) == (2, "reference")
    assert config.model.activation == "f32"
    assert (config.cache.kv_bytes, config.cache.block_size) == (1 << 30, 32)
    assert config.cache.kv_dtype == "int8"
    assert config.scheduler.max_num_seqs == 3
    assert config.scheduler.max_num_batched_tokens == 77
    assert config.scheduler.policy == "reserve"


def test_a_busy_port_is_one_line_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = octavo("serve", "no such model", "--port", str(port))
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        f"octavo: error: port {port} on 127.0.0.1 is in use; choose another with --port"
    ]
    assert result.stdout == ""


def test_an_impossible_host_is_named() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1 port 0 .*--host"):
        bind("192.0.2.1", 0)
    with pytest.raises(ConfigError, match="--host is empty"):
        bind("", 0)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a..b", "x" * 300, "[::1]", "192.0.2.1"])
def test_the_cause_of_a_bad_host_is_a_few_words(host: str) -> None:
    with pytest.raises(ConfigError) as raised:
        bind(host, 0)
    cause = raised.value.message.removeprefix(f"cannot listen on {host} port 0 (")
    assert cause.split(")")[0] in ("no such host", "Cannot assign requested address")
    assert cause.count("(") == 0


@pytest.mark.parametrize("command", ["serve", "run", "pull"])
def test_an_unknown_model_is_the_last_line(command: str) -> None:
    port = ["--port", "0"] if command == "serve" else []
    prompt = ["hi"] if command == "run" else []
    result = octavo(command, "./no-such-model", *prompt, *port)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("octavo: error: no model './no-such-model'")
    assert "Traceback" not in result.stderr


def test_a_bad_model_file_is_the_last_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\0" * 20)
    result = octavo("serve", str(bad), "--port", "0")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("octavo: error: ")
    assert "Traceback" not in result.stderr


def test_removing_what_is_not_there(tmp_path: Path) -> None:
    environment = {**os.environ, "OCTAVO_CACHE_DIR": str(tmp_path)}
    result = octavo("rm", "smollm2", env=environment)
    assert result.returncode == 1
    assert "was not pulled" in result.stderr


def test_the_list_shows_what_was_and_what_can_be_pulled(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    from octavo.weights import CATALOG
    from octavo.weights.hub import StoredModel

    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path))
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(CATALOG)
    assert all("not pulled" in line for line in lines)
    stored = StoredModel(name="smollm2", path=tmp_path, licence="MIT", size_bytes=3 << 20)
    monkeypatch.setattr("octavo.cli.models.list_models", lambda: [stored])
    main(["list"])
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.split() == ["smollm2", "3", "MiB", "MIT", str(tmp_path)]
    assert [line.split()[0] for line in rest] == [name for name in CATALOG if name != "smollm2"]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "out of memory; lower --kv-memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory; lower --kv-memory"),
        (OSError(errno.ENOSPC, "No space left on device", "x.gguf"),
         "No space left on device (x.gguf); free some space"),
        (PermissionError(errno.EACCES, "Permission denied", "m"), "Permission denied (m); check"),
        (OSError("odd"), "odd; see `octavo doctor`"),
    ],
)  # fmt: skip
def test_the_systems_refusals_are_one_line(
    error: BaseException, line: str, monkeypatch: Any, capsys: Any
) -> None:
    def refused(_: object) -> int:
        raise error

    monkeypatch.setattr("octavo.cli.run.fetch", refused)
    assert main(["run", "smollm2", "hi"]) == 1
    (printed,) = capsys.readouterr().err.splitlines()
    assert printed.startswith(f"octavo: error: {line}")


# -- doctor ------------------------------------------------------------------------------------


def test_the_doctor_examines_this_machine(capsys: Any) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["native"]["isas"]
    assert found["native"]["barrier_ns"] > 0
    assert found["native"]["read_gbs"] > 0
    assert found["native"]["int8_gops"] > 0
    assert found["memory_available_bytes"] > 0
    assert found["cache"]["free_bytes"] > 0
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for name in ("processor", "kernels", "barrier", "memory read", "int8 peak", "huge pages",
                 "compiler", "cache", "models"):  # fmt: skip
        assert name in text
    assert text.splitlines()[-1].startswith("next step")


def test_the_doctor_names_what_to_do_next(tmp_path: Path) -> None:
    from octavo.cli.doctor import huge_pages, next_step

    found: dict[str, Any] = {
        "native": {"usable": False}, "compiler": "", "huge_pages": "never", "models": [],
    }  # fmt: skip
    assert "C++ compiler" in next_step(found)
    found |= {"compiler": "g++"}
    assert next_step(found).startswith("build the native backend")
    found |= {"native": {"usable": True, "barrier_ns": 1e6}, "machine": {"cores": 8}}
    assert "--num-threads below 8" in next_step(found)
    found |= {"native": {"usable": True, "barrier_ns": 200.0}}
    assert "huge pages" in next_step(found)
    found |= {"huge_pages": "madvise"}
    assert next_step(found).endswith("octavo pull smollm2")
    found |= {"models": ["a", "smollm2"]}
    assert next_step(found).endswith("octavo serve smollm2")
    setting = tmp_path / "enabled"
    assert huge_pages(setting) == "unknown"
    setting.write_text("always madvise [never]\n")
    assert huge_pages(setting) == "never"


def test_a_doctor_without_the_native_backend_says_so(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "octavo.backends.native", None)
    assert main(["doctor"]) == 1
    assert "not usable" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "x"])
def test_a_request_timeout_is_more_than_nothing(text: str) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", f"--request-timeout={text}"])


def test_an_interrupt_is_no_traceback(monkeypatch: Any, capsys: Any) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("octavo.cli.models.print_models", interrupted)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "octavo: interrupted\n"


def test_the_runtime_directory_is_private(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = make_runtime_dir()
    assert folder.parent == tmp_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    write_private(folder / "x.json", {"key": 1})
    assert stat.S_IMODE((folder / "x.json").stat().st_mode) == 0o600
    assert json.loads((folder / "x.json").read_text()) == {"key": 1}
    long = tmp_path / ("d" * 90)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    short = make_runtime_dir()
    assert len(str(short)) < 90
    short.rmdir()


def test_names_and_urls(tmp_path: Path) -> None:
    file = tmp_path / "My.Model.gguf"
    file.touch()
    assert model_name(str(file)) == "My.Model"
    assert model_name("smollm2") == "smollm2"
    assert model_name("owner/name") == "owner/name"
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener, "0.0.0.0") == f"http://127.0.0.1:{port}"
        assert url_of(listener, "::") == f"http://[::1]:{port}"


ENGINE = {"event": "ready", "seconds": 1.0, "context": 100, "concurrency": 4, "num_blocks": 10,
          "block_size": 16, "kv_bytes": 3 << 20, "fingerprint": "native/1"}  # fmt: skip


def test_the_box_says_what_an_operator_wants(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(url="http://127.0.0.1:1", names=["m", "alias"], has_key=True)
    console.on_status("engine", {"event": "stage", "name": "pack weights", "took": 0.5})
    console.on_status("engine", ENGINE)
    assert "┌" not in capsys.readouterr().out
    api = {"event": "ready", "seconds": 2.0, "generation_config": {"temperature": 0.7}}
    console.on_status("api", api)
    out = capsys.readouterr().out
    for text in (
        "http://127.0.0.1:1/v1",
        "m, alias",
        "100 tokens",
        "4 sequences",
        "10 blocks x 16 = 160 tokens, 3 MiB",
        "temperature 0.7",
        "authorization: Bearer",
    ):
        assert text in out  # fmt: skip
    lines = [line for line in out.splitlines() if line.startswith(("┌", "│", "└"))]
    assert len({len(line) for line in lines}) == 1
    console.on_status("engine", {"event": "exited", "code": -9})
    console.on_status("engine", ENGINE)
    err = capsys.readouterr().err
    assert "ended (code -9)" in err
    assert "ready again" in err
    console.finish("the cause")
    assert capsys.readouterr().err.splitlines()[-1] == "octavo: error: the cause"


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine()
    for done in (1, 2):
        line.show({"stage": "download", "done_bytes": done, "total_bytes": 2, "licence": "MIT"})
    line.end()
    assert capsys.readouterr().err == "licence of the model: MIT\n"


def test_ctrl_c_while_starting_stops_all(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo.cli.main", "serve", "./none", "--port", "0"],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode != 0 or "nothing was lost" in stderr


@pytest.mark.parametrize("value", ["-1", "257", "100000000000000000000"])
def test_a_number_of_threads_out_of_range_names_value_limit_and_option(
    value: str, capsys: Any
) -> None:
    assert main(["run", "./no-such-model", "hi", "--num-threads", value]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == f"octavo: error: --num-threads is {value}; it must be between 0 and 256"


def test_an_impossible_temperature_needs_no_model(capsys: Any) -> None:
    assert main(["run", "./no-such-model", "hi", "--temperature", "-1"]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == "octavo: error: temperature must be between 0 and 100, not -1.0"


def test_a_prompt_may_follow_the_options(monkeypatch: Any) -> None:
    seen = []
    monkeypatch.setattr("octavo.cli.run.run", lambda arguments: seen.append(arguments) or 0)
    assert main(["run", "m", "--temperature", "0", "hi there"]) == 0
    assert main(["run", "m", "hi there", "--temperature", "0"]) == 0
    assert [arguments.prompt for arguments in seen] == ["hi there"] * 2
    for argv in (["run", "m", "--seed", "1", "a", "b"], ["run", "m", "a", "b"],
                 ["run", "m", "--foo"], ["serve", "m", "--port", "0", "b"]):  # fmt: skip
        with pytest.raises(SystemExit):
            main(argv)
    assert len(seen) == 2


def test_run_loads_the_model_with_every_option_of_it(monkeypatch: Any) -> None:
    asked: dict[str, Any] = {}

    def load(**options: Any) -> None:
        asked.update(options)
        raise MemoryError

    monkeypatch.setattr("octavo.cli.run.fetch", Path)
    monkeypatch.setattr("octavo.cli.run.LLM", load)
    assert main(["run", "m", "hi", "--activation", "f32", "--num-threads", "1"]) == 1
    assert (asked["model"], asked["activation"], asked["num_threads"]) == ("m", "f32", 1)


def test_a_draft_length_without_a_proposer_is_refused() -> None:
    alone = build_parser().parse_args(["serve", "--num-draft-tokens", "4"])
    with pytest.raises(ConfigError, match="--speculate"):
        engine_config(alone)
    both = build_parser().parse_args(["serve", "--num-draft-tokens", "4", "--speculate", "ngram"])
    assert engine_config(both).scheduler.num_draft_tokens == 4
    assert engine_config(build_parser().parse_args(["serve"])).scheduler.num_draft_tokens == 7
