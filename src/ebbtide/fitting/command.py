"""Plan a target in a process of its own."""

from __future__ import annotations

from ebbtide.errors import VirtualGpuError
from ebbtide.fitting.plan import Plan
from ebbtide.workloads.request import Request
from ebbtide.workloads.runner import Progress, running

_CHILD = "ebbtide.fitting.child"


def plan_target(request: Request, progress: Progress | None = None) -> Plan:
    """The plan for what `request` names, on its first GPU and within its budget.

    Raises:
        DoesNotFitError: nothing fits.
        EbbtideError: the workload failed.
    """
    with running(request, progress, _CHILD) as messages:
        for message in messages:
            if message["event"] == "plan":
                return Plan.load(message["path"])
    raise VirtualGpuError("The process that planned the target ended without a plan.")
