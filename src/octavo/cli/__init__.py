"""The ``octavo`` command. Sub-commands import what they need when they run."""

from octavo.cli.main import main

__all__ = ["main"]
