"""The engine core: events in, one pure step at a time, outputs out."""

from octavo.engine.dump import GroupSnapshot, KVSnapshot
from octavo.engine.engine_core import EngineCore
from octavo.engine.stats import EngineStats

__all__ = [
    "EngineCore",
    "EngineStats",
    "GroupSnapshot",
    "KVSnapshot",
]
