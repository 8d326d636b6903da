"""Read-only memory maps of regular files."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from octavo.errors import ModelFileError


def map_file(path: Path) -> mmap.mmap:
    """Map a whole regular file read-only.

    Raises:
        ModelFileError: it is missing, unreadable, empty or not a regular file.
    """
    try:
        # O_NONBLOCK: opening a FIFO must not hang.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise ModelFileError(
            f"{path}: cannot be opened ({cause}); check the path and its permissions"
        ) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{path}: not a regular file; give a model file")
        if status.st_size == 0:
            raise ModelFileError(f"{path}: the file is empty; fetch it again")
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(
            f"{path}: cannot be mapped ({error.strerror}); check free memory"
        ) from None
    finally:
        os.close(descriptor)
