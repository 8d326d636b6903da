"""Benchmarks: ``octavo bench throughput | latency | serve | step``, as JSON or as a table.

Importing this package is cheap; what a benchmark needs is imported when it runs.
"""

from octavo.bench.command import add_arguments, run

__all__ = ["add_arguments", "run"]
