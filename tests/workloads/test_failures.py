"""Errors keep their class and their text between processes."""

from __future__ import annotations

import json

import pytest

from ebbtide import errors
from ebbtide.errors import EbbtideError, MissingExtraError, ScriptError, UsageError
from ebbtide.workloads.failures import OutOfVirtualMemoryError, pack, unpack

CLASSES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, EbbtideError) and kind is not MissingExtraError
]


@pytest.mark.parametrize("kind", [*CLASSES, OutOfVirtualMemoryError])
def test_each_class_comes_back(kind: type[EbbtideError]) -> None:
    there = unpack(json.loads(json.dumps(pack(kind("batch: 3 \N{BLACK SUN WITH RAYS}")))))
    assert type(there) is kind
    assert str(there) == "batch: 3 \N{BLACK SUN WITH RAYS}"
    assert there.exit_code == kind.exit_code


def test_a_class_with_a_message_of_its_own_comes_back_once() -> None:
    error = MissingExtraError("A hub id", "huggingface_hub", "hf")
    there = unpack(pack(error))
    assert isinstance(there, MissingExtraError)
    assert str(there) == str(error)
    assert isinstance(there, UsageError)


@pytest.mark.parametrize("kind", ["ValueError", "annotations", "__doc__", ""])
def test_what_is_none_of_ours_is_the_scripts(kind: str) -> None:
    assert type(unpack({"kind": kind, "text": "odd"})) is ScriptError
