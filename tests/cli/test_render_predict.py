"""What people see of a prediction, held as pictures at three widths.

After a wanted change: ``EBBTIDE_UPDATE_PICTURES=1 python -m pytest tests/cli`` writes
them anew; look at them before they are committed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.prediction.samples import one, three

from ebbtide.cli.render_predict import render
from ebbtide.prediction.result import Prediction
from ebbtide.units import format_bytes

PICTURES = Path(__file__).parent / "pictures"


def picture(predictions: Sequence[Prediction], width: int) -> str:
    console = Console(
        width=width,
        record=True,
        force_terminal=True,
        color_system="truecolor",
        file=io.StringIO(),
        legacy_windows=False,
        _environ={},
    )
    render(predictions, console)
    return console.export_svg(title="ebbtide predict", unique_id="ebbtide")


def text(predictions: Sequence[Prediction], width: int = 100, **settings: object) -> str:
    file = io.StringIO()
    render(predictions, Console(file=file, width=width, _environ={}, **settings))  # type: ignore[arg-type]
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("count", ["one", "three"])
def test_looks_as_it_did(count: str, width: int) -> None:
    stored = PICTURES / f"predict_{count}_{width}.svg"
    shown = picture([one()] if count == "one" else three(), width)
    if os.environ.get("EBBTIDE_UPDATE_PICTURES"):
        stored.parent.mkdir(exist_ok=True)
        stored.write_text(shown, encoding="utf-8")
    assert shown == stored.read_text(encoding="utf-8")


def test_the_verdict_is_the_first_line() -> None:
    first = text([one()]).splitlines()[0]
    assert first == f"\N{HEAVY CHECK MARK} {one().verdict}"
    no = text([three()[0]], width=200).splitlines()[0]
    assert no == f"\N{HEAVY BALLOT X} {three()[0].verdict}"


def test_the_assumed_settings_stand_under_the_verdict() -> None:
    assumed = "training, batch 8, 512 tokens, float32, AdamW; configuration: [x]"
    lines = text([replace(one(), assumed=assumed)]).splitlines()
    assert lines[1:3] == [f"  {assumed}", ""]
    many = [replace(each, assumed=assumed) for each in three()]
    assert text([*many, *many], width=200).count(assumed) == 1
    assert text([one()]).splitlines()[1] == ""


def test_the_ledger_leaves_out_what_is_zero() -> None:
    shown = text([one()])
    for name, size in one().ledger.items():
        assert (f"  {name} " in shown) == bool(size), name


def test_the_three_figures_are_named() -> None:
    shown = text([one()])
    for name, size in (
        ("allocated", one().peak_allocated_bytes),
        ("reserved", one().peak_reserved_bytes),
        ("process", one().process_bytes.likely),
    ):
        line = next(line for line in shown.splitlines() if line.strip().startswith(name))
        assert format_bytes(size) in line


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_no_line_is_wider_than_the_terminal(width: int, index: int) -> None:
    for line in text([three()[index]], width=width).splitlines():
        assert len(line) <= width


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_figure_is_cut(width: int) -> None:
    shown = text([one()], width=width)
    lines = [line.split() for line in shown.splitlines()]
    for point in one().curve:
        wanted = [str(point.batch), *format_bytes(point.process_bytes.likely).split()]
        assert any(line[:3] == wanted for line in lines)
    for size in (*filter(None, one().ledger.values()), one().peak_allocated_bytes):
        assert format_bytes(size) in shown


def test_no_colour_where_none_is_wanted() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, _environ={"NO_COLOR": "1"})
    render([one()], console)
    colours = {"38;2", "38;5", "[31", "[32", "[36", "[91", "[92"}
    assert not any(colour in file.getvalue() for colour in colours)


def test_plain_text_where_the_output_is_no_terminal() -> None:
    assert "\x1b" not in text([one()])


def test_ascii_where_the_terminal_knows_no_more() -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii", newline="") as file:
        render(three(), Console(file=file, width=100, _environ={}))
        render([one()], Console(file=file, width=100, _environ={}))
        file.flush()
        shown = raw.getvalue().decode("ascii")
    assert "OK fits an L4" in shown
    assert "####" in shown


def test_each_batch_with_its_share_of_the_gpu() -> None:
    shown = text([one()])
    for point in one().curve:
        share = f"{100 * point.process_bytes.likely / one().usable_bytes:.0f} %"
        line = next(
            line for line in shown.splitlines() if line.strip().startswith(f"{point.batch} ")
        )
        assert share in line
        assert ("best" in line) == (point.batch == one().best_batch)


def test_times_are_called_predicted() -> None:
    shown = text([one()])
    assert "* predicted from the GPU's rates, not measured" in shown
    untimed = tuple(replace(p, step_s=None, samples_per_s=None) for p in one().curve)
    without = text([replace(one(), curve=untimed, step_s=None, samples_per_s=None)])
    assert "samples/s" not in without


def test_guesses_come_last() -> None:
    shown = text([one()])
    assert shown.index("Guesses:") > shown.index("samples/s*")
    assert "(4x)" in shown
    assert "Guesses:" not in text([replace(one(), guesses=())])


def test_guesses_that_all_gpus_share_are_listed_once() -> None:
    assert text(three()).count("Guesses:") == 1
    other = replace(three()[0], guesses=())
    assert text([other, one()]).count("Guesses:") == 1
    further = replace(one(), guesses=(replace(one().guesses[0], count=7),))
    assert text([further, one()]).count("Guesses:") == 2


def test_markup_of_the_user_is_text() -> None:
    peak = replace(one().peak, module="[red]layers[/red].0", op="[bold]mm")
    alive = tuple(replace(row, module="[/]x") for row in one().alive)
    shown = text([replace(one(), peak=peak, alive=alive)], width=120)
    assert "[red]layers[/red].0" in shown
    assert "[/]x" in shown


def test_several_gpus_are_compared_first() -> None:
    lines = text(three(), width=120).splitlines()
    assert lines[0].strip() == "fits 2 of 3 GPUs"
    assert [line.split()[0] for line in lines[2:5]] == ["T4", "L4", "A100"]
    assert "Name fewer GPUs" not in "\n".join(lines)


def test_of_many_gpus_there_is_a_table_only() -> None:
    shown = text([*three(), one()], width=120)
    assert "Name fewer GPUs" in shown
    assert "What fills" not in shown
    assert shown.startswith("fits 3 of 4 GPUs, smallest first")
    fits = [line.split()[0] for line in shown.splitlines() if " fits " in f" {line} "][1:]
    assert fits.index("L4") < fits.index("A100")
    assert next(line for line in shown.splitlines() if line.startswith("T4")).split()[-1] != ""


def test_columns_without_figures_are_left_out() -> None:
    bare = [replace(each, largest_batch=None, best_batch=None) for each in (*three(), one())]
    shown = text(bare, width=80)
    assert "largest" not in shown.splitlines()[1]
    assert all(len(line.rstrip()) <= 80 and "…" not in line for line in shown.splitlines())


def test_bare_figures() -> None:
    bare = replace(one(), alive=(), curve=(), timeline=None, largest_hole_bytes=None, guesses=())
    shown = text([bare])
    assert "largest hole" not in shown
    assert "batch" not in shown.split("Peak")[1]
