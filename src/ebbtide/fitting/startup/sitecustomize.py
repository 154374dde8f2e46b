"""Python runs this when it starts, in programs that ``ebbtide run`` starts: nothing else does."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_HERE = os.path.dirname(os.path.abspath(__file__))


def _the_one_behind() -> None:
    """Run the file of this name that Python would have found without us."""
    others = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]
    found = PathFinder.find_spec("sitecustomize", others)
    if found is not None and found.loader is not None:
        found.loader.exec_module(module_from_spec(found))


_the_one_behind()
if "EBBTIDE_PLAN" in os.environ:
    from ebbtide.fitting.started import plan_when_torch_is_there

    plan_when_torch_is_there(os.environ["EBBTIDE_PLAN"])
