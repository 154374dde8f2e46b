from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.prediction.samples import one, three

from ebbtide.errors import UsageError
from ebbtide.prediction.parts import PARTS
from ebbtide.prediction.result import STABLE, Prediction
from ebbtide.report import palette
from ebbtide.units import GiB, Range


def test_verdict_of_what_fits() -> None:
    made = replace(
        one(),
        usable_bytes=20 * GiB,
        process_bytes=Range(15 * GiB, 16 * GiB, 17 * GiB),
        largest_batch=24,
    )
    assert made.verdict == "fits an L4 with 4.00 GiB to spare; largest batch 24"
    assert made.spare_bytes == 4 * GiB


def test_verdict_of_what_may_not_fit() -> None:
    made = replace(
        one(),
        usable_bytes=20 * GiB,
        process_bytes=Range(15 * GiB, 19 * GiB, 21 * GiB),
        largest_batch=None,
    )
    assert made.verdict == (
        "probably fits an L4 with 1.00 GiB to spare (at worst 1.00 GiB too large)"
    )


def test_verdict_of_what_does_not_fit() -> None:
    made = replace(
        three()[0],
        usable_bytes=15 * GiB,
        process_bytes=Range(17 * GiB, 18 * GiB, 19 * GiB),
        largest_batch=0,
    )
    assert made.verdict == (
        "does not fit a T4: it needs 18.00 GiB, 3.00 GiB more than there is; no batch fits"
    )
    smaller = replace(made, largest_batch=3)
    assert smaller.verdict.endswith("; largest batch 3")


def test_a_capped_search_says_or_more() -> None:
    made = replace(one(), largest_batch=65_535, batch_cap=65_535)
    assert made.verdict.endswith("largest batch 65535 or more")


def test_the_ledger_adds_up_to_the_byte() -> None:
    for each in three():
        assert tuple(each.ledger) == PARTS
        assert sum(each.ledger.values()) == each.process_bytes.likely


def test_every_part_has_its_colour() -> None:
    assert tuple(palette.PARTS) == PARTS


def test_what_is_alive_adds_up_to_the_ledger() -> None:
    made = one()
    for part in PARTS[:10]:
        alive = sum(row.bytes for row in made.alive if row.category == part)
        assert alive == made.ledger[part]


def test_stable_fields_come_first() -> None:
    data = one().to_json()
    assert (
        tuple(data)[: len(STABLE)]
        == STABLE
        == (
            "gpu",
            "fits",
            "peak_allocated_bytes",
            "peak_reserved_bytes",
            "process_bytes",
            "ledger",
            "peak",
            "largest_batch",
            "curve",
            "guesses",
            "seconds",
        )
    )
    assert set(data["process_bytes"]) == {"low", "likely", "high"}
    assert {"phase", "op", "module"} <= set(data["peak"])
    assert {"batch", "allocated_bytes", "reserved_bytes", "step_s", "samples_per_s"} <= set(
        data["curve"][0]
    )
    assert data["verdict"] == one().verdict


@pytest.mark.parametrize("index", range(3))
def test_json_there_and_back(index: int) -> None:
    made = three()[index]
    text = json.dumps(made.to_json(), allow_nan=False)
    assert Prediction.from_json(json.loads(text)) == made


def test_without_curve_and_timeline() -> None:
    made = replace(
        one(), curve=(), timeline=None, largest_batch=None, step_s=None, samples_per_s=None
    )
    assert Prediction.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_the_same_each_time() -> None:
    # P6: two machines, one answer.
    assert three() == three.__wrapped__()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fits": None}, r"Prediction\.fits is None, expected bool"),
        ({"peak_allocated_bytes": 1.5}, r"peak_allocated_bytes is 1\.5, expected int"),
        ({"peak_allocated_bytes": True}, r"peak_allocated_bytes is True, expected int"),
        ({"peak": []}, r"Prediction\.peak is \[\], expected dict"),
        ({"ledger": {"parameters": "much"}}, r"ledger\['parameters'\] is 'much', expected int"),
        ({"process_bytes": {"low": 1}}, r"Prediction\.process_bytes\.likely is missing"),
        ({"process_bytes": {"low": 3, "likely": 2, "high": 1}}, "expected low <= likely <= high"),
    ],
)
def test_foreign_json_is_refused(change: dict[str, object], message: str) -> None:
    data = {**one().to_json(), **change}
    with pytest.raises(UsageError, match=message):
        Prediction.from_json(data)


def test_a_missing_field_is_named() -> None:
    data = one().to_json()
    del data["gpu"]
    with pytest.raises(UsageError, match=r"Prediction\.gpu is missing"):
        Prediction.from_json(data)


def test_str_is_short() -> None:
    lines = str(one()).splitlines()
    assert len(lines) == 2
    assert lines[0] == one().verdict
    assert lines[1].startswith("allocated 16.9")
    assert lines[1].endswith("(predicted)")


def test_a_notebook_shows_verdict_and_ledger() -> None:
    shown = one()._repr_html_()
    assert one().verdict in shown
    assert "optimizer state" in shown
    assert "KV cache" not in shown
    assert "<script" not in shown


def test_a_notebook_escapes_names() -> None:
    made = replace(one(), gpu_label="<b>L4</b>", ledger={"<i>": 5})
    shown = made._repr_html_()
    assert "<b>L4" not in shown
    assert "&lt;b&gt;L4" in shown
    assert "<i>" not in shown
