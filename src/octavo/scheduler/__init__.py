"""Which sequences run in the next step, and who waits, is admitted or preempted."""

from octavo.scheduler.admission import POLICIES, AdmissionPolicy, admission_policy
from octavo.scheduler.scheduler import ScheduledStep, Scheduler, SchedulerCounters
from octavo.scheduler.sequence import RequestState, Sequence, Status
from octavo.scheduler.waiting_queue import WaitingQueue

__all__ = [
    "POLICIES",
    "AdmissionPolicy",
    "RequestState",
    "ScheduledStep",
    "Scheduler",
    "SchedulerCounters",
    "Sequence",
    "Status",
    "WaitingQueue",
    "admission_policy",
]
