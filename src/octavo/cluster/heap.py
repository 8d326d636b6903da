"""What Python's cycle collector is told once a process has loaded."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 20_000


def settle_heap() -> None:
    """Set what was loaded aside for good and look at new objects seldom.

    Steps and streams make thousands of objects a second that reference counts free. Sweeping the
    young ones after every 700 finds nothing, and now and then a sweep of everything (the
    tokenizer alone is a hundred thousand objects) would hold up a step for tens of milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
