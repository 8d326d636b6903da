"""The guides' own servers and Python, run as a reader would run them (on the small model)."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.testing.processes import running_server, serve_argv

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
URL = "http://127.0.0.1:8000"


def blocks(guide: str, language: str) -> list[str]:
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("guide", ["responses-agents", "messages-clients"])
def test_a_guide_does_what_it_says(guide: str, tmp_path: Path, smollm2_path: Path) -> None:
    serve, *exports = blocks(guide, "sh")[0].splitlines()
    words = shlex.split(serve)
    assert words[:3] == ["octavo", "serve", "qwen2.5-coder-1.5b"]
    [script] = blocks(guide, "python")
    with running_server(tmp_path, serve_argv(str(smollm2_path), *words[3:])) as server:
        server.wait_ready()
        named = [part.split("=", 1) for line in exports for part in line.split()[1:]]
        env = {name: value.replace(URL, server.url) for name, value in named}
        assert server.url in "".join(env.values())
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) > 1


@pytest.mark.skipif(shutil.which("curl") is None, reason="the guides' commands need curl")
@pytest.mark.parametrize("guide", ["chat-front-ends", "embeddings-and-labels"])
def test_what_a_guide_has_one_type_is_answered(
    guide: str, tmp_path: Path, smollm2_path: Path
) -> None:
    serve, *others = blocks(guide, "sh")
    words = shlex.split(serve)
    assert words[:3] == ["octavo", "serve", "smollm2"]
    typed = [block for block in others if block.startswith("curl")]
    assert typed
    argv = serve_argv(str(smollm2_path), "--served-model-name", "smollm2", *words[3:])
    with running_server(tmp_path, argv) as server:
        server.wait_ready()
        for block in typed:
            script = "set -e\n" + block.replace(URL, server.url).replace("curl ", "curl -sf ")
            done = subprocess.run(
                ["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert "{" in done.stdout
