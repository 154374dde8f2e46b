from __future__ import annotations

import inspect
import pickle
import re

import pytest

from ebbtide import errors

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, Exception) and value.__module__ == errors.__name__
]
EXIT_CODES = {
    "EbbtideError": 1,
    "UsageError": 2,
    "UnknownGpuError": 2,
    "TargetError": 2,
    "SnapshotError": 2,
    "MissingExtraError": 2,
    "ScriptError": 2,
    "VirtualGpuError": 2,
    "PlanError": 1,
    "DoesNotFitError": 1,
}


def tree_of_the_module_text() -> dict[str, str]:
    """Class name to its parent's, as the module's own text draws it."""
    parents: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        drawn = re.match(r"^([\s│├└─]*)([A-Z]\w+Error)\b", line)
        if not drawn:
            continue
        depth, name = len(drawn[1]), drawn[2]
        while stack and stack[-1][0] >= depth:
            stack.pop()
        parents[name] = stack[-1][1] if stack else "Exception"
        stack.append((depth, name))
    return parents


def test_the_drawn_tree_is_the_real_one() -> None:
    drawn = tree_of_the_module_text()
    assert drawn == {cls.__name__: (cls.__bases__[0]).__name__ for cls in CLASSES}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_derives_from_the_base_and_says_when(cls: type[Exception]) -> None:
    assert issubclass(cls, errors.EbbtideError)
    assert cls.__doc__ and len(cls.__doc__.split()) > 4


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_exit_codes(cls: type[errors.EbbtideError]) -> None:
    assert cls.exit_code == EXIT_CODES[cls.__name__]


def test_wrong_usage_exits_with_two_and_nothing_else_below_it_differs() -> None:
    assert {cls.exit_code for cls in CLASSES if issubclass(cls, errors.UsageError)} == {2}


def test_missing_extra_names_feature_package_and_command() -> None:
    error = errors.MissingExtraError("The HTML report", "plotly", "report")
    assert str(error) == (
        "The HTML report needs the package 'plotly', which is not installed. "
        "Install it with: pip install 'ebbtide[report]'"
    )


def test_does_not_fit_fails_a_test_like_an_assertion() -> None:
    with pytest.raises(AssertionError, match="3 GiB short"):
        raise errors.DoesNotFitError("3 GiB short")


@pytest.mark.parametrize(
    "cls", [c for c in CLASSES if c is not errors.MissingExtraError], ids=lambda cls: cls.__name__
)
def test_errors_cross_processes(cls: type[errors.EbbtideError]) -> None:
    error = pickle.loads(pickle.dumps(cls("asked 3 GiB, free 2 GiB")))
    assert type(error) is cls
    assert str(error) == "asked 3 GiB, free 2 GiB"
