"""Read-only memory maps of regular files."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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


def drop_pages(views: Iterable[NDArray[np.uint8]]) -> None:
    """Take the maps behind ``views`` out of this process's memory, contents and views untouched.

    A backend that has packed the weights reads few of the file's bytes again; those come back from
    the page cache when they are.
    """
    maps = {id(found): found for view in views if (found := _map_of(view)) is not None}
    for found in maps.values():
        found.madvise(mmap.MADV_DONTNEED)


def _map_of(view: NDArray[np.uint8]) -> mmap.mmap | None:
    owner: object = view
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    return owner if isinstance(owner, mmap.mmap) else None
