"""What runs next.  Pure: standard library only, no torch, asyncio, threads or clock."""

from aioinfer.scheduling.plan import FROM_SLOT, BlockAssignment, SlotAssignment, StepPlan
from aioinfer.scheduling.scheduler import Scheduler, SchedulerLimits
from aioinfer.scheduling.sequence import Sequence, State

__all__ = [
    "FROM_SLOT",
    "BlockAssignment",
    "Scheduler",
    "SchedulerLimits",
    "Sequence",
    "SlotAssignment",
    "State",
    "StepPlan",
]
