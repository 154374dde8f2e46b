"""The model beside torch's own allocator: answers kept from `bench/allocator_oracle`."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ebbtide.trace.snapshot import parse_snapshot_data
from ebbtide.trace.snapshot_replay import replay_record
from ebbtide.vgpu.allocator import TieBreak

ROOT = Path(__file__).parents[3]
KEPT = sorted((ROOT / "tests/data/allocator").glob("*.json.gz"))


@pytest.fixture(scope="module")
def oracle() -> ModuleType:
    path = ROOT / "bench/allocator_oracle/compare.py"
    spec = importlib.util.spec_from_file_location("allocator_oracle", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def load(path: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes()))


def test_the_kept_answers_cover_what_they_should():
    kept = [load(path) for path in KEPT]
    assert {one["ties"] for one in kept} == {rule.value for rule in TieBreak}
    text = " ".join(one["config"] for one in kept)
    for setting in ("expandable_segments", "max_split", "roundup", "garbage", "large_segment"):
        assert setting in text
    verbs = {line[0] for one in kept for line in one["lines"]}
    assert {"m", "f", "r", "c", "e", "b", "q", "F"} <= verbs
    actions = {e["action"] for one in kept for e in one["state"]["device_traces"][0]}
    assert {"segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom"} <= actions


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name.partition(".")[0])
def test_every_address_the_state_and_the_statistics(oracle: ModuleType, path: Path):
    kept = load(path)
    work = oracle.Workload(kept["config"], kept["capacity"], kept["lines"])
    found = oracle.compare(work, kept["answers"], kept["state"], TieBreak(kept["ties"]))
    assert found == []


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name.partition(".")[0])
def test_the_record_replays(path: Path):
    kept = load(path)
    snapshot = parse_snapshot_data(kept["state"])
    (record,) = snapshot.devices.values()
    replay = replay_record(record, snapshot.config, [TieBreak(kept["ties"])])
    assert replay.first_difference is None
    assert replay.same
    assert replay.end_reserved_bytes == sum(segment.size for segment in record.segments)


def test_another_rule_for_ties_would_not_do(oracle: ModuleType):
    """The three rules differ on these files, so that the test above can tell them apart."""
    wrong = 0
    for path in KEPT:
        kept = load(path)
        if kept["ties"] != TieBreak.SEGMENT_AGE.value:
            continue
        work = oracle.Workload(kept["config"], kept["capacity"], kept["lines"])
        wrong += bool(oracle.compare(work, kept["answers"], kept["state"], TieBreak.ADDRESS))
    assert wrong > 0


@pytest.mark.parametrize(
    ("release", "rule"),
    [
        ((2, 6), TieBreak.ADDRESS),
        ((2, 11), TieBreak.ADDRESS),
        ((2, 12), TieBreak.BLOCK_AGE),
        ((2, 13), TieBreak.SEGMENT_AGE),
        ((3, 0), TieBreak.SEGMENT_AGE),
    ],
)
def test_each_release_has_its_rule_for_ties(release: tuple[int, int], rule: TieBreak):
    assert TieBreak.of(release) is rule
