"""Which sequences run in the next step, and who waits, is admitted or preempted."""

from octavo.scheduler.admission import POLICIES, AdmissionPolicy, admission_policy
from octavo.scheduler.beam_search import Beam, BeamSearch, Hypothesis, shared_tokens
from octavo.scheduler.fair_queue import FairQueue
from octavo.scheduler.scheduled_step import ScheduledStep
from octavo.scheduler.scheduler import Scheduler, SchedulerCounters
from octavo.scheduler.sequence import RequestState, Sequence, Status

__all__ = [
    "POLICIES",
    "AdmissionPolicy",
    "Beam",
    "BeamSearch",
    "FairQueue",
    "Hypothesis",
    "RequestState",
    "ScheduledStep",
    "Scheduler",
    "SchedulerCounters",
    "Sequence",
    "Status",
    "admission_policy",
    "shared_tokens",
]
