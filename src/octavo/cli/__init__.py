"""The ``octavo`` command: ``octavo.cli.main``. Sub-commands import what they need when they run."""
