"""The engine core: events in, one pure step at a time, outputs out."""

from octavo.engine.dump import GroupSnapshot, KVSnapshot, TableSnapshot
from octavo.engine.engine_core import EngineCore
from octavo.engine.stats import EngineCounters, EngineStats

__all__ = [
    "EngineCore",
    "EngineCounters",
    "EngineStats",
    "GroupSnapshot",
    "KVSnapshot",
    "TableSnapshot",
]
