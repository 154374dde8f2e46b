"""The trace file: what goes in comes out; everything else is refused with its reason."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prediction.builder import training

from ebbtide.errors import SnapshotError
from ebbtide.trace.file import load_trace, save_trace
from ebbtide.trace.model import VERSION, AllocTable, Guess, OpTable, Phase, Trace

text = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)
whole = st.integers(-(2**63), 2**63 - 1)


@st.composite
def traces(draw: Any) -> Trace:
    """Any trace, sensible or not: the file does not judge."""

    def ints(count: int) -> Any:
        return np.array(draw(st.lists(whole, min_size=count, max_size=count)), np.int64)

    ops, allocs, events = (draw(st.integers(0, 4)) for _ in range(3))
    columns = {f.name: ints(ops) for f in fields(OpTable) if f.name != "seconds"}
    seconds = draw(st.lists(st.floats(allow_nan=False), min_size=ops, max_size=ops))
    kinds = draw(st.lists(st.integers(0, 255), min_size=events, max_size=events))
    return Trace(
        gpu=draw(text),
        torch_version=draw(text),
        names=tuple(draw(st.lists(text, max_size=3))),
        modules=tuple(draw(st.lists(text, max_size=3))),
        lines=tuple(draw(st.lists(text, max_size=3))),
        phases=tuple(
            draw(st.lists(st.builds(Phase, name=text, step=st.integers(0, 9)), max_size=3))
        ),
        ops=OpTable(**columns, seconds=np.array(seconds, np.float64)),
        allocs=AllocTable(**{f.name: ints(allocs) for f in fields(AllocTable)}),
        event_kind=np.array(kinds, np.uint8),
        event_arg=ints(events),
        event_extra=ints(events),
        guesses=tuple(
            draw(
                st.lists(
                    st.builds(Guess, kind=text, text=text, count=st.integers(0, 9)), max_size=2
                )
            )
        ),
        meta=draw(
            st.dictionaries(text, st.one_of(text, st.integers(-9, 9), st.none()), max_size=2)
        ),
    )


def _same(left: Trace, right: Trace) -> None:
    for field in fields(Trace):
        one, other = getattr(left, field.name), getattr(right, field.name)
        if isinstance(one, OpTable | AllocTable):
            for column in fields(one):
                a, b = getattr(one, column.name), getattr(other, column.name)
                assert a.dtype == b.dtype
                assert np.array_equal(a, b)
        elif isinstance(one, np.ndarray):
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)
        else:
            assert one == other


@given(traces())
def test_what_goes_in_comes_out(tmp_path_factory: pytest.TempPathFactory, trace: Trace) -> None:
    path = tmp_path_factory.mktemp("trace") / "a.trace"
    save_trace(trace, path)
    _same(load_trace(path), trace)


@pytest.fixture
def trace() -> Trace:
    empty = np.zeros(0, np.int64)
    return Trace(
        gpu="l4",
        torch_version="2.13.0",
        names=("",),
        modules=("",),
        lines=("",),
        phases=(Phase(name="setup", step=0),),
        ops=OpTable(
            **{f.name: empty for f in fields(OpTable) if f.name != "seconds"},
            seconds=np.zeros(0),
        ),
        allocs=AllocTable(**{f.name: empty for f in fields(AllocTable)}),
        event_kind=np.zeros(0, np.uint8),
        event_arg=empty,
        event_extra=empty,
    )


def test_it_replaces_a_file_whole(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "a.trace"
    path.write_text("old")
    save_trace(trace, path)
    assert load_trace(os.fspath(path)).gpu == "l4"
    assert [item.name for item in tmp_path.iterdir()] == ["a.trace"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "a.trace"
    save_trace(trace, path)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        save_trace(replace(trace, meta={"odd": object()}), path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"There is no file .*nothing\.trace"):
        load_trace(tmp_path / "nothing.trace")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04broken", pickle.dumps({"a": 1})])
def test_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.trace"
    path.write_bytes(content)
    with pytest.raises(SnapshotError):
        load_trace(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_file(tmp_path: Path, trace: Trace, share: float) -> None:
    path = tmp_path / "a.trace"
    save_trace(trace, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(SnapshotError):
        load_trace(path)


@given(st.data())
def test_damage_is_noticed_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("trace") / "a.trace"
    save_trace(training(2), path)
    content = bytearray(path.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        assert load_trace(path).gpu
    except SnapshotError as error:
        assert "a.trace" in str(error)


def test_a_file_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.trace"
    save_trace(trace, path)
    monkeypatch.setattr("ebbtide.trace.file._MOST_BYTES", 1000)
    with pytest.raises(SnapshotError, match=r"a\.trace cannot be .* it unpacks to [\d,]+ bytes"):
        load_trace(path)


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("executed",))


def test_reading_executes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.trace"
    with path.open("wb") as file:
        np.savez(file, header=np.array([_Evil()], dtype=object))
    with pytest.raises(SnapshotError):
        load_trace(path)
    assert not (tmp_path / "executed").exists()


def _with_header(path: Path, change: dict[str, Any], drop: str | None = None) -> None:
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(arrays["header"].tobytes()) | change
    if drop in header:
        del header[drop]
    elif drop is not None:
        del arrays[drop]
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def test_a_newer_version_is_named(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "a.trace"
    save_trace(trace, path)
    _with_header(path, {"version": VERSION + 1})
    with pytest.raises(SnapshotError, match=rf"version {VERSION + 1}.*reads version {VERSION}"):
        load_trace(path)


def test_another_format_is_refused(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "a.trace"
    save_trace(trace, path)
    _with_header(path, {"format": "other"})
    with pytest.raises(SnapshotError, match="no trace of Ebbtide"):
        load_trace(path)


@pytest.mark.parametrize("part", ["phases", "meta", "op_flops", "alloc_stream", "event_arg"])
def test_a_missing_part_is_named(tmp_path: Path, trace: Trace, part: str) -> None:
    path = tmp_path / "a.trace"
    save_trace(trace, path)
    _with_header(path, {}, drop=part)
    with pytest.raises(SnapshotError, match=part):
        load_trace(path)


def test_it_is_a_plain_archive(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "a.trace"
    save_trace(trace, path)
    with zipfile.ZipFile(path) as archive:
        assert "header.npy" in archive.namelist()
