from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import ebbtide
from ebbtide import errors

MOST_NAMES = 20
MOST_MODULES = 60

# In a process of its own, because the tests' own process has torch loaded already.
PROBE = """
import json, sys
before = set(sys.modules)
import {module}
heavy = sorted({{"torch", "numpy", "scipy", "transformers", "plotly"}} & set(sys.modules))
print(json.dumps([len(set(sys.modules) - before), heavy]))
"""


def probe(module: str) -> tuple[int, list[str]]:
    env = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(module=module)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    modules, heavy = json.loads(done.stdout)
    return modules, heavy


def test_import_loads_little_and_nothing_heavy() -> None:
    modules, heavy = probe("ebbtide")
    assert heavy == []
    assert modules < MOST_MODULES


@pytest.mark.parametrize(
    "module",
    [
        "ebbtide.cli.app",
        "ebbtide.cli.gpus",
        "ebbtide.cli.predict",
        "ebbtide.cli.replay",
        "ebbtide.gpus",
        "ebbtide.prediction",
        "ebbtide.report",
        "ebbtide.trace",
        "ebbtide.trace.model",
        "ebbtide.vgpu",
        "ebbtide.workloads",
    ],
)
def test_these_rooms_open_without_torch(module: str) -> None:
    _, heavy = probe(module)
    assert "torch" not in heavy
    assert "transformers" not in heavy


def test_there_are_few_public_names() -> None:
    assert len(ebbtide.__all__) == len(set(ebbtide.__all__)) <= MOST_NAMES


@pytest.mark.parametrize("name", ebbtide.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(ebbtide, name)
    assert name in dir(ebbtide)
    if name != "__version__":
        assert value.__name__ == name
        assert value.__doc__


def test_all_exceptions_are_public() -> None:
    ours = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.EbbtideError)
    }
    assert ours <= set(ebbtide.__all__)


def test_a_lazy_name_is_looked_up_once() -> None:
    name = next(iter(ebbtide._LAZY))
    assert getattr(ebbtide, name) is vars(ebbtide)[name]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'predictt'"):
        ebbtide.predictt  # noqa: B018


def test_a_room_never_hides_a_public_call() -> None:
    """A module ``ebbtide.predict`` would replace the function once anybody imported it."""
    rooms = {"report", "gpus", "vgpu", "trace", "workloads", "prediction", "cli"}
    assert rooms.isdisjoint(ebbtide.__all__)
