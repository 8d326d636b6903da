"""The native backend: packed weights, paged attention and sampling in C++, one call per step."""

from octavo.backends.native.backend import NativeBackend
from octavo.backends.native.executor import NativeExecutor
from octavo.backends.native.machine import default_num_threads, probe_machine

__all__ = ["NativeBackend", "NativeExecutor", "default_num_threads", "probe_machine"]
