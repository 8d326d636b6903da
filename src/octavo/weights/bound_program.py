"""``bound_program.py PARENT PROGRAM ARGUMENT…``: become PROGRAM, and die with the process PARENT.

Run as a file, before a program that must not outlive who started it, even if that one is killed
without a chance to clean up. Linux keeps the bond over ``exec``; elsewhere there is none.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for the bond, see that it is not too late already, and become the program."""
    parent, program, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit(1)
    os.execv(program, [program, *arguments])  # noqa: S606 - what it starts is its caller's choice


if __name__ == "__main__":
    main()
