"""Published test doubles: fake runner, oracle, journal, engine driver and the simulator.

Nothing here is imported by the product.
"""

from octavo.testing.clairvoyant import clairvoyant, clairvoyant_tree
from octavo.testing.engine_driver import EngineDriver, make_request
from octavo.testing.fake_runner import FakeRunner, FakeRunnerError, make_info, run_alone
from octavo.testing.journal import JournalEntry, SimulationError
from octavo.testing.oracle import PagedOracle

__all__ = [
    "EngineDriver",
    "FakeRunner",
    "FakeRunnerError",
    "JournalEntry",
    "PagedOracle",
    "SimulationError",
    "clairvoyant",
    "clairvoyant_tree",
    "make_info",
    "make_request",
    "run_alone",
]
