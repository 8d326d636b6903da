"""The reference backend: numpy, obvious and slow. The other backends are measured against it."""

from octavo.backends.reference.executor import ReferenceBackend, ReferenceExecutor

__all__ = ["ReferenceBackend", "ReferenceExecutor"]
