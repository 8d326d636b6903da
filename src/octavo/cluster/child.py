"""What every child process owes its supervisor: die with it, and say how it is doing.

Two inherited pipes: the *death pipe* (read end; it reaches end-of-file when the supervisor is
gone, however it went) and the *status pipe* (write end; one JSON object per line).
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

EXIT_ORPHANED = 70


class ChildChannel:
    """The child's side of both pipes; -1 stands for a pipe that is not there."""

    def __init__(self, *, death_fd: int, status_fd: int, runtime_dir: Path) -> None:
        self._death_fd = death_fd
        self._status_fd = status_fd
        self._runtime_dir = runtime_dir
        self._started = time.monotonic()

    def report(self, event: str, **fields: object) -> None:
        """Tell the supervisor; ``seconds`` since the start of the process is added."""
        seconds = round(time.monotonic() - self._started, 3)
        line = json.dumps({"event": event, "seconds": seconds, **fields}) + "\n"
        if self._status_fd >= 0:
            with contextlib.suppress(OSError):
                os.write(self._status_fd, line.encode())

    def die_with_supervisor(self) -> None:
        """Start the watcher: an orphan leaves at once, whatever its main thread does."""
        if self._death_fd >= 0:
            threading.Thread(target=self._watch, name="death-pipe", daemon=True).start()

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(self._death_fd, 64):
                pass
        shutil.rmtree(self._runtime_dir, ignore_errors=True)
        # Whatever this process started goes with it; the supervisor made it a group's leader.
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(EXIT_ORPHANED)


def run_child(channel: ChildChannel, main: Callable[[], int], *, name: str) -> int:
    """Run a child's ``main``; report what stops it as ``fatal``. Returns the exit code.

    ``name`` begins each line that it logs, at the level that the environment asks for.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    channel.die_with_supervisor()
    # The supervisor prints the cause last; only the child can know whether it is a user's error.
    from octavo.environment import log_level
    from octavo.errors import OctavoError

    try:
        logging.basicConfig(level=log_level(), format=f"{name}: %(message)s")
        return main()
    except OctavoError as error:
        channel.report("fatal", error=error.message)
    except MemoryError:
        channel.report("fatal", error="out of memory; lower --kv-memory or --max-model-len")
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        channel.report("fatal", error=f"internal error: {type(error).__name__}: {error}")
    finally:
        # What was set aside for good is to be freed at the end all the same.
        gc.unfreeze()
    return 1


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)
