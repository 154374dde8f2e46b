from __future__ import annotations

import gzip
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbtide.cli.app import main
from ebbtide.units import MiB

DATA = Path(__file__).parents[1] / "data" / "snapshots"
REAL = DATA / "sil_mem_snapshot.pickle.gz"
BASE = 0x7F00_0000_0000

Show = Callable[..., tuple[int, str, str]]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Show:
    """Run ``ebbtide replay``; its exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*args: str | Path) -> tuple[int, str, str]:
        code = main(["replay", *map(str, args)])
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


def event(action: str, addr: int, size: int, stream: int = 0) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 0}


def one_block(device: int = 0, address: int = BASE, size: int = 30 * MiB) -> dict[str, Any]:
    block = {
        "address": address,
        "size": size,
        "requested_size": size,
        "state": "active_allocated",
    }
    return {
        "device": device,
        "address": address,
        "total_size": size,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": [block],
    }


def taken(address: int = BASE, size: int = 30 * MiB) -> list[dict[str, Any]]:
    return [event("segment_alloc", address, size), event("alloc", address, size)]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def put(data: Any, name: str = "snapshot.pickle") -> Path:
        path = tmp_path / name
        path.write_bytes(pickle.dumps(data))
        return path

    return put


@pytest.fixture
def wrong(write: Callable[..., Path]) -> Path:
    """A record in which a request got other memory than the allocator would give."""
    low, high = one_block(), one_block(address=BASE + 100 * MiB)
    low["blocks"][0]["state"] = "inactive"
    half = 30 * MiB
    free = [
        event("free_requested", BASE, half),
        event("free_completed", BASE, half),
        *taken(BASE + 100 * MiB),
    ]
    return write({"segments": [low, high], "device_traces": [[*taken(), *free]]})


def test_a_real_snapshot(show: Show):
    code, out, err = show(REAL)
    assert code == 0
    assert out.splitlines()[0].startswith(
        "The same: all 36 allocations lie where they did on the GPU"
    )
    assert "36 of 36" in out
    assert "9 of 9" in out
    assert "3.03 GiB" in out
    assert "3.52 GiB" in out
    assert err == ""


def test_json_of_a_real_snapshot(show: Show):
    code, out, _ = show(REAL, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["same"] is True
    assert (found["allocations"], found["same_address"]) == (36, 36)
    assert (found["segment_allocations"], found["same_segment_allocations"]) == (9, 9)
    assert round(found["peak_allocated_bytes"] / MiB, 2) == 3098.63
    assert found["peak_reserved_bytes"] == 3606 * MiB
    (device,) = found["devices"]
    assert device["device"] == 0
    assert device["tie_break"] == "address"
    assert device["first_difference"] is None


def test_json_is_plain_even_in_a_narrow_terminal(show: Show, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, out, _ = show(REAL, "--json")
    json.loads(out)


def test_a_difference_is_code_1(show: Show, wrong: Path):
    code, out, _ = show(wrong)
    assert code == 1
    assert out.splitlines()[0] == "Not the same: 1 of 2 allocations lie where they did on the GPU."
    assert "GPU 0: first difference at event 5, alloc of 31457280 bytes at 0x7f0006400000" in out
    code, out, _ = show(wrong, "--json")
    assert code == 1
    assert json.loads(out)["same"] is False


def test_several_devices(show: Show, write: Callable[..., Path]):
    path = write(
        {
            "segments": [one_block(0), one_block(2, size=50 * MiB)],
            "device_traces": [taken(), [], taken(size=50 * MiB)],
        }
    )
    code, out, _ = show(path)
    assert code == 0
    assert "GPU 0" in out
    assert "GPU 2" in out
    assert "all 2 allocations" in out
    found = json.loads(show(path, "--json")[1])
    assert found["allocations"] == 2
    assert found["peak_reserved_bytes"] == 50 * MiB
    assert [one["device"] for one in found["devices"]] == [0, 2]
    found = json.loads(show(path, "--json", "--device", "0")[1])
    assert found["peak_reserved_bytes"] == 30 * MiB


def test_a_device_that_is_not_there(show: Show):
    code, out, err = show(REAL, "--device", "3")
    assert (code, out) == (2, "")
    assert err == "ebbtide: The snapshot has no GPU 3. It has: 0.\n"


def test_no_events(show: Show, write: Callable[..., Path]):
    path = write({"segments": [one_block()], "device_traces": [[]]})
    code, out, _ = show(path)
    assert code == 0
    assert out.startswith("Nothing to replay: the snapshot holds segments but no events.")
    assert "_record_memory_history" in out
    assert "30.0 MiB" in out
    found = json.loads(show(path, "--json")[1])
    assert found["allocations"] == 0
    assert found["peak_allocated_bytes"] == 30 * MiB


def test_nothing_at_all(show: Show, write: Callable[..., Path]):
    code, out, err = show(write({"segments": [], "device_traces": [[]]}))
    assert (code, out) == (2, "")
    assert "nothing to replay" in err


def test_what_was_read_off_the_record_is_shown(show: Show, write: Callable[..., Path]):
    """Of two segments of one size that were there before, the one higher up is older."""
    old, new = BASE + 100 * MiB, BASE
    events = [event("alloc", old, 30 * MiB)]
    free = one_block(address=new)
    free["blocks"][0]["state"] = "inactive"
    path = write({"segments": [free, one_block(address=old)], "device_traces": [events]})
    code, out, _ = show(path)
    assert code == 0
    assert "facts about the start read off the record" in out


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.abort, ())


def bad_files(tmp_path: Path) -> dict[str, Path]:
    whole = REAL.read_bytes()
    contents = {
        "text": b"hello\n",
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "cut-inside": gzip.compress(gzip.decompress(whole)[:5000]),
        "trap": pickle.dumps({"segments": [Trap()], "device_traces": []}),
        "other": pickle.dumps([1, 2, 3]),
        "claim": b"\x80\x04\x8d" + (2**40).to_bytes(8, "little"),
        "deep": b"\x80\x04" + b"]" * 100_000 + b".",
        "memo": b"\x80\x04Nr\xff\xff\xff\xff.",
    }
    paths = {}
    for name, content in contents.items():
        paths[name] = tmp_path / f"{name}.pickle"
        paths[name].write_bytes(content)
    paths["missing"] = tmp_path / "missing.pickle"
    paths["folder"] = tmp_path
    return paths


def test_bad_input_is_one_clear_line_and_code_2(show: Show, tmp_path: Path):
    for name, path in bad_files(tmp_path).items():
        code, out, err = show(path)
        assert (code, out) == (2, ""), name
        assert err.startswith("ebbtide: "), name
        assert err.count("\n") == 1, name
        assert str(path) in err, name
        assert "Traceback" not in err, name


def test_a_contradiction_is_code_2(show: Show, write: Callable[..., Path]):
    path = write({"segments": [], "device_traces": [taken()]})
    code, out, err = show(path)
    assert (code, out) == (2, "")
    assert "segments or events are missing" in err


def test_nothing_is_written(show: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    show(REAL)
    show(REAL, "--json")
    assert list(tmp_path.iterdir()) == []


def test_usage(show: Show):
    assert show()[0] == 2
    assert show(REAL, "--device", "x")[0] == 2
    code, out, _ = show("--help")
    assert code == 0
    assert "Nothing in the file is executed" in " ".join(out.split())


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_it_fits_the_terminal(show: Show, monkeypatch: pytest.MonkeyPatch, columns: str):
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = show(REAL)
    lines = [line for line in out.splitlines() if "first difference" not in line]
    assert max(map(len, lines)) <= int(columns)
