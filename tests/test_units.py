from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import UsageError
from ebbtide.units import (
    GiB,
    KiB,
    MiB,
    Range,
    TiB,
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_release,
)

sizes = st.integers(min_value=0, max_value=1 << 60)


def ranges() -> st.SearchStrategy[Range]:
    return st.lists(sizes, min_size=3, max_size=3).map(lambda three: Range(*sorted(three)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1024", 1024),
        ("512B", 512),
        ("1k", KiB),
        ("1 KiB", KiB),
        ("1kb", 1000),
        ("22GiB", 22 * GiB),
        ("22 gib", 22 * GiB),
        ("24GB", 24_000_000_000),
        ("80g", 80 * GiB),
        ("1.5GiB", 3 * GiB // 2),
        (".5m", MiB // 2),
        ("2.", 2),
        ("  7 MiB  ", 7 * MiB),
        ("1TiB", TiB),
        ("1tb", 10**12),
    ],
)
def test_parse_bytes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", " ", "GiB", "-1GiB", "1e9", "1,5GiB", "3 apples", "1GiBs", "0x10", "1 2", "nan", "٣GiB"],
)
def test_parse_bytes_refuses_and_quotes_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(text))):
        parse_bytes(text)


@given(sizes)
def test_plain_numbers_are_bytes(n: int) -> None:
    assert parse_bytes(str(n)) == pytest.approx(n, rel=1e-15)


@given(st.integers(min_value=0, max_value=1 << 40))
def test_what_people_read_is_off_by_half_of_its_last_digit_at_most(n: int) -> None:
    number, unit = format_bytes(n).split()
    last_digit = parse_bytes(f"1 {unit}") / 10 ** len(number.partition(".")[2])
    assert abs(parse_bytes(f"{number} {unit}") - n) <= last_digit / 2 + 0.5


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (KiB, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (MiB - 1, "1.0 MiB"),
        (MiB, "1.0 MiB"),
        (8_519_680, "8.1 MiB"),
        (GiB - 1, "1.00 GiB"),
        (GiB, "1.00 GiB"),
        (80 * GiB, "80.00 GiB"),
        (TiB, "1.00 TiB"),
        (-GiB, "-1.00 GiB"),
        (2.5 * MiB, "2.5 MiB"),
    ],
)
def test_format_bytes(n: float, expected: str) -> None:
    assert format_bytes(n) == expected


@given(st.integers(min_value=-(1 << 50), max_value=1 << 50))
def test_no_unit_shows_1024_of_the_smaller_one(n: int) -> None:
    number, unit = format_bytes(n).split()
    if unit != "TiB":
        assert abs(float(number)) < 1024


@given(st.integers(min_value=0, max_value=1 << 50))
def test_the_sign_only_adds_a_minus(n: int) -> None:
    assert format_bytes(-n).removeprefix("-") == format_bytes(n)


@pytest.mark.parametrize(
    ("s", "expected"),
    [
        (0.0, "0 us"),
        (2.5e-6, "2 us"),
        (999e-6, "999 us"),
        (0.9996e-3, "1 ms"),
        (0.310, "310 ms"),
        (0.0025, "2.5 ms"),
        (0.9996, "1 s"),
        (2.6, "2.6 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (61, "1 min"),
        (3540, "59 min"),
        (3599, "1 h 00 min"),
        (3720, "1 h 02 min"),
        (90_000, "25 h 00 min"),
        (-0.5, "-500 ms"),
    ],
)
def test_format_seconds(s: float, expected: str) -> None:
    assert format_seconds(s) == expected


@given(st.floats(min_value=0, max_value=1e6))
def test_seconds_never_show_a_full_larger_unit(s: float) -> None:
    shown = format_seconds(s)
    limits = {"us": 1000, "ms": 1000, "s": 60, "min": 60}
    *_, number, unit = shown.split()
    assert float(number) < limits[unit]
    assert "e" not in number


class TestRange:
    def test_exact_has_no_width(self) -> None:
        assert Range.exact(7) == Range(7, 7, 7)

    @pytest.mark.parametrize("three", [(2, 1, 3), (1, 3, 2), (3, 2, 1)])
    def test_disorder_is_refused_with_the_numbers(self, three: tuple[int, int, int]) -> None:
        low, likely, high = three
        with pytest.raises(ValueError, match=f"<= high, got {low}, {likely}, {high}"):
            Range(low, likely, high)

    @given(ranges(), ranges())
    def test_sum_adds_each_bound_and_commutes(self, a: Range, b: Range) -> None:
        assert a + b == b + a
        assert (a + b).likely == a.likely + b.likely
        assert (a + b).high - (a + b).low == (a.high - a.low) + (b.high - b.low)

    @given(ranges(), sizes)
    def test_a_number_moves_every_bound_from_either_side(self, a: Range, n: int) -> None:
        assert a + n == n + a == Range(a.low + n, a.likely + n, a.high + n)

    @given(st.lists(ranges(), max_size=5))
    def test_sum_builtin_starts_from_zero(self, many: list[Range]) -> None:
        total = sum(many, Range.exact(0))
        assert total.likely == sum(one.likely for one in many)

    def test_it_cannot_be_changed(self) -> None:
        with pytest.raises(AttributeError):
            Range.exact(1).low = 0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("version", "release"), [("2.13.0", (2, 13)), ("2.6.0+cu124", (2, 6)), ("2.14.0a0", (2, 14))]
)
def test_parse_release(version: str, release: tuple[int, int]) -> None:
    assert parse_release(version) == release


@pytest.mark.parametrize("version", ["", "latest", "v2.13", "2"])
def test_no_release(version: str) -> None:
    with pytest.raises(UsageError, match="is no version of torch"):
        parse_release(version)
