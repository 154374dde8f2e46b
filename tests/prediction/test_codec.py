from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import UsageError
from ebbtide.prediction.codec import decode, encode


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    name: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    inner: Inner
    pairs: tuple[tuple[int, str], ...]
    table: Mapping[str, tuple[int, ...]]
    share: float
    maybe: Inner | None = None
    flag: bool = False


INNER = st.builds(Inner, name=st.text(), size=st.integers())
OUTER = st.builds(
    Outer,
    inner=INNER,
    pairs=st.lists(st.tuples(st.integers(), st.text())).map(tuple),
    table=st.dictionaries(st.text(), st.lists(st.integers()).map(tuple)),
    share=st.floats(allow_nan=False, allow_infinity=False),
    maybe=st.none() | INNER,
    flag=st.booleans(),
)


@given(OUTER)
def test_there_and_back(value: Outer) -> None:
    assert decode(Outer, encode(value)) == value


def test_fields_named_first_come_first() -> None:
    value = Inner(name="a", size=1)
    assert list(encode(value, ("size",))) == ["size", "name"]


def test_defaults_may_be_missing_and_unknown_fields_are_passed_over() -> None:
    data = {"inner": {"name": "a", "size": 1}, "pairs": [], "table": {}, "share": 1, "new": 5}
    assert decode(Outer, data).share == 1.0


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([[1]], r"Outer\.pairs\[0\] has 1 items, expected 2"),
        ([[1, 2]], r"Outer\.pairs\[0\]\[1\] is 2, expected str"),
        ("ab", r"Outer\.pairs is 'ab', expected list"),
    ],
)
def test_the_place_is_named(pairs: object, message: str) -> None:
    data = {"inner": {"name": "a", "size": 1}, "pairs": pairs, "table": {}, "share": 0.5}
    with pytest.raises(UsageError, match=message):
        decode(Outer, data)


def test_no_mapping_at_all() -> None:
    with pytest.raises(UsageError, match="This is no Inner that Ebbtide wrote"):
        decode(Inner, [])  # type: ignore[arg-type]
