from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.prediction.growth import Growth
from ebbtide.trace.model import Ints


def column(*values: int) -> Ints:
    return np.array(values, np.int64)


def growth(batches: tuple[int, ...], *columns: list[int]) -> Growth:
    return Growth(batches=batches, values=tuple(column(*values) for values in columns))


COEFFICIENTS = st.lists(
    st.tuples(st.integers(0, 1 << 36), st.integers(0, 1 << 30)), min_size=1, max_size=8
)
BATCHES = st.lists(st.integers(1, 4096), min_size=2, max_size=3, unique=True).map(sorted)


@given(COEFFICIENTS, BATCHES, st.integers(1, 65_535))
def test_affine_columns_are_exact_at_any_batch(
    coefficients: list[tuple[int, int]], batches: list[int], wanted: int
) -> None:
    made = growth(tuple(batches), *[[a + c * b for a, c in coefficients] for b in batches])
    found = made.at(wanted)
    assert found is not None
    assert found.tolist() == [a + c * wanted for a, c in coefficients]
    assert len(made.bent) == 0


@given(
    st.lists(st.tuples(*[st.integers(0, 1 << 40)] * 3), min_size=1, max_size=8),
    st.lists(st.integers(1, 512), min_size=3, max_size=3, unique=True).map(sorted),
)
def test_any_columns_are_reproduced_at_the_traced_batches(
    rows: list[tuple[int, int, int]], batches: list[int]
) -> None:
    made = growth(tuple(batches), *[[row[i] for row in rows] for i in range(3)])
    for index, batch in enumerate(batches):
        found = made.at(batch)
        assert found is not None
        assert found.tolist() == [row[index] for row in rows]


def test_a_quadratic_is_found_and_followed() -> None:
    made = growth((4, 8, 16), *[[4 * b * b, 10 * b] for b in (4, 8, 16)])
    assert made.bent.tolist() == [0]
    found = made.at(100)
    assert found is not None
    assert found.tolist() == [4 * 100 * 100, 1000]


def test_two_traces_cannot_see_a_quadratic() -> None:
    made = growth((4, 8), [4 * 16], [4 * 64])
    assert len(made.bent) == 0


def test_a_threshold_is_followed_in_straight_pieces() -> None:
    # A kernel's workspace that no longer grows.
    made = growth((4, 8, 16), [400], [800], [800])
    assert made.bent.tolist() == [0]
    found = [made.at(batch) for batch in (2, 12, 64)]
    assert [each.tolist() for each in found if each is not None] == [[200], [800], [800]]


def test_rounding_does_not_become_a_parabola() -> None:
    # A bit mask: bytes are the batch's bits rounded up; far away that stays so.
    made = growth((3, 8, 20), *[[-(-b * 100 // 8)] for b in (3, 8, 20)])
    found = made.at(40_000)
    assert found is not None
    assert found[0] == pytest.approx(500_000, rel=0.005)


def test_fractions_are_rounded_up() -> None:
    found = growth((1, 3), [10], [11]).at(2)
    assert found is not None
    assert found.tolist() == [11]


def test_never_below_zero() -> None:
    found = growth((8, 16), [100], [300]).at(1)
    assert found is not None
    assert found.tolist() == [0]


def test_beyond_counting_is_none() -> None:
    made = growth((1, 2), [0], [1 << 50])
    assert made.at(1 << 13) is None
    assert made.at(1 << 10) is not None
    quadratic = growth((1, 2, 4), *[[(b * b) << 40] for b in (1, 2, 4)])
    assert quadratic.at(1 << 14) is None


def test_growing_rows() -> None:
    assert growth((1, 2), [5, 1, 7], [5, 2, 7]).growing.tolist() == [1]


@pytest.mark.parametrize("batches", [(1,), (2, 1), (1, 1), (1, 2, 3, 4)])
def test_batches_must_be_two_or_three_and_ascending(batches: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="2 or 3 ascending"):
        Growth(batches=batches, values=tuple(column(1) for _ in batches))


def test_columns_must_be_of_one_length() -> None:
    with pytest.raises(ValueError, match="equal length"):
        growth((1, 2), [1], [1, 2])
    with pytest.raises(ValueError, match="equal length"):
        growth((1, 2), [1])
