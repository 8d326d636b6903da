"""Which sequences run in the next step, and who waits, is admitted or preempted."""

from octavo.scheduler.beam_search import Beam, BeamSearch, shared_tokens
from octavo.scheduler.scheduled_step import ScheduledStep
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import RequestState, Sequence, Status

__all__ = [
    "Beam",
    "BeamSearch",
    "RequestState",
    "ScheduledStep",
    "Scheduler",
    "Sequence",
    "Status",
    "shared_tokens",
]
