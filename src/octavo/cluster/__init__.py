"""Processes and the sockets between them: supervisor, engine process, messages.

This package imports nothing by itself, so that the idle supervisor stays small; name the module
that you need:

- ``octavo.cluster.messages``: what crosses the sockets, and its version;
- ``octavo.cluster.wire``: encoding under a size cap;
- ``octavo.cluster.transport``: the engine's end of a socket;
- ``octavo.cluster.engine_loop`` and ``engine_process``: one engine core as a process;
- ``octavo.cluster.child``: what every child process owes its supervisor;
- ``octavo.cluster.supervisor``: starts, restarts, drains.
"""
