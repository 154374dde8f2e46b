"""The environment in which a program trains under a plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ebbtide.errors import DoesNotFitError
from ebbtide.fitting.plan import Plan
from ebbtide.units import format_bytes

PLAN = "EBBTIDE_PLAN"
_STARTUP = Path(__file__).parent / "startup"
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_EXPANDABLE = "expandable_segments:True"


def environment(path: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """`inherited` with what a program needs to train under the plan at `path`.

    Raises:
        UsageError: there is no plan in the file.
        DoesNotFitError: the plan says itself that it does not fit.
    """
    plan = Plan.load(path)
    if not plan.fits:
        raise DoesNotFitError(
            f"The plan {path} does not fit its budget of {format_bytes(plan.budget_bytes)}."
        )
    # Ebbtide itself may have been found through sys.path alone.
    root = Path(__file__).parents[2]
    search = [str(_STARTUP), str(root), *inherited.get("PYTHONPATH", "").split(os.pathsep)]
    changed = {
        **inherited,
        PLAN: str(path.resolve()),
        "PYTHONPATH": os.pathsep.join(each for each in search if each),
    }
    if plan.decision.expandable_segments:
        # The older name wins where both are set, so the one in use is extended.
        name = next((each for each in _ALLOCATOR if inherited.get(each)), _ALLOCATOR[-1])
        given = inherited.get(name, "")
        if "expandable_segments" not in given:
            changed[name] = f"{given},{_EXPANDABLE}" if given else _EXPANDABLE
    return changed
