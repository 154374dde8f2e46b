"""Compare the allocator model with the allocator inside torch's libc10_cuda.so.

Random requests go to both: to torch's own code over a runtime that hands out
addresses and keeps no memory (`fake_cudart.c`, `drive.cpp`), and to the model over a
driver that chooses addresses in the same way. Every address, the state at the end,
every statistic and every out-of-memory message must be the same; and the record that
torch wrote must replay without a difference.

    python bench/allocator_oracle/compare.py DRIVE [--runs 200] [--seed 0] [--save DIR]

DRIVE is the program built from `drive.cpp` (README.md says how).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebbtide.trace.snapshot import parse_snapshot_data
from ebbtide.trace.snapshot_replay import replay_record
from ebbtide.units import GiB, KiB, MiB
from ebbtide.vgpu.allocator import (
    AllocatorConfig,
    Block,
    CachingAllocator,
    OutOfMemory,
    TieBreak,
    memory_snapshot,
)

CONFIGS = (
    "",
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:64,max_non_split_rounding_mb:32",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:0.6,max_split_size_mb:40",
    "large_segment_size_mb:32",
    "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_segments:True,large_segment_size_mb:64",
    "expandable_segments:True,max_split_size_mb:100",
)


class LowestDriver:
    """Addresses as `fake_cudart.c` chooses them."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.segments: list[tuple[int, int]] = []
        self.next_reserved = 0x600000000000

    def malloc(self, size: int, stream: int) -> int | None:
        if self.used + size > self.capacity:
            return None
        at = 0x7F0000000000
        place = 0
        while place < len(self.segments) and self.segments[place][0] < at + size:
            at = self.segments[place][1]
            place += 1
        self.segments.insert(place, (at, at + -(-size // (2 * MiB)) * 2 * MiB))
        self.used += size
        return at

    def free(self, address: int, size: int) -> None:
        self.segments = [s for s in self.segments if s[0] != address]
        self.used -= size

    def reserve(self, size: int | None, page: int) -> tuple[int, int]:
        space = -(-(size or 0) // page) * page
        base = self.next_reserved
        self.next_reserved += (space + GiB) // GiB * GiB
        return base, space

    def unreserve(self, base: int, size: int) -> None:
        pass

    def map(self, address: int, size: int) -> bool:
        if self.used + size > self.capacity:
            return False
        self.used += size
        return True

    def unmap(self, address: int, size: int) -> None:
        self.used -= size


@dataclass
class Workload:
    """Requests in the form that `drive.cpp` reads."""

    config: str
    capacity: int
    lines: list[str] = field(default_factory=list)


def make(seed: int, *, pools: bool = True) -> Workload:
    """A workload of the kind that `seed` chooses."""
    rng = random.Random(seed)
    capacity = rng.choice((256 * MiB, 1 * GiB, 8 * GiB))
    work = Workload(rng.choice(CONFIGS), capacity)
    streams = rng.choice((1, 1, 2, 3))
    add = work.lines.append
    if "garbage" in work.config or rng.random() < 0.2:
        add(f"F {rng.choice((0.5, 0.8, 0.95))}")
    history_at = rng.choice((0, 0, 200))
    entries = rng.choice((100000, 100000, 500))
    live: list[int] = []
    free_pools: list[tuple[int, int]] = []
    inside: tuple[int, int] | None = None
    made = 0
    biggest = rng.choice((4 * MiB, 64 * MiB, capacity // 4))
    sizes = [_size(rng, biggest) for _ in range(rng.choice((8, 40, 400)))]
    for step in range(rng.choice((100, 600, 2000))):
        if step == history_at:
            add(f"h {entries}")
        chance = rng.random()
        if chance < 0.55 or not live:
            add(f"m {step} {rng.choice(sizes)} {rng.randrange(streams)}")
            live.append(step)
        elif chance < 0.95:
            add(f"f {live.pop(rng.randrange(len(live)))}")
        elif chance < 0.97 and streams > 1:
            add(f"r {rng.choice(live)} {rng.randrange(streams)}")
        elif chance < 0.98:
            add("c")
        elif chance < 0.985:
            add("e")
        elif chance < 0.99:
            for _ in range(len(live) * 2 // 3):
                add(f"f {live.pop(rng.randrange(len(live)))}")
        elif chance < 0.995 and pools and rng.random() < 0.5:
            if inside is None:
                made += 1
                inside = (0, made)
                free_pools.append(inside)
                add(f"b {inside[0]} {inside[1]}")
            else:
                add(f"q {inside[0]} {inside[1]}")
                inside = None
        elif free_pools and inside is None and rng.random() < 0.3:
            pool = free_pools.pop(rng.randrange(len(free_pools)))
            add(f"x {pool[0]} {pool[1]}")
    if inside is not None:
        add(f"q {inside[0]} {inside[1]}")
    return work


def _size(rng: random.Random, biggest: int) -> int:
    kind = rng.random()
    if kind < 0.3:
        return rng.randrange(1, 4 * KiB)
    if kind < 0.5:
        return rng.randrange(1, MiB + 1)
    if kind < 0.6:
        return rng.choice((512, 513, MiB, MiB + 1, 10 * MiB, 10 * MiB - 1, 20 * MiB, 19 * MiB))
    if kind < 0.85:
        return rng.randrange(MiB, 12 * MiB)
    return rng.randrange(MiB, max(biggest, 2 * MiB))


def run_torch(drive: str, work: Workload) -> tuple[list[str], dict[str, Any]]:
    """What torch answers to each request, and its state at the end."""
    environment = dict(os.environ, FAKE_CAPACITY=str(work.capacity))
    environment.pop("PYTORCH_ALLOC_CONF", None)
    environment["PYTORCH_CUDA_ALLOC_CONF"] = work.config
    text = "\n".join([*work.lines, "d", ""])
    done = subprocess.run(
        [drive], input=text, capture_output=True, text=True, env=environment, timeout=120
    )
    lines = done.stdout.splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise RuntimeError(f"{drive} ended with {done.returncode}: {done.stderr[-2000:]}")
    return lines[:-1], json.loads(lines[-1])


def run_model(
    work: Workload, streams: dict[int, int], tie_break: TieBreak
) -> tuple[list[str], CachingAllocator]:
    """What the model answers, `streams` giving the handle of each stream."""
    clock = {"recorded": 0, "done": 0}

    def record_event(stream: int) -> int:
        clock["recorded"] += 1
        return clock["recorded"]

    allocator = CachingAllocator(
        work.capacity,
        config=AllocatorConfig.parse(work.config),
        driver=LowestDriver(work.capacity),
        record_event=record_event,
        event_done=lambda event: event <= clock["done"],
        tie_break=tie_break,
    )
    answers: list[str] = []
    live: dict[int, Block] = {}
    for line in work.lines:
        verb, *rest = line.split()
        if verb == "m":
            name, size, stream = map(int, rest)
            handle = streams.get(stream, stream)
            try:
                live[name] = allocator.malloc(size, handle)
                answers.append(f"{live[name].address} {handle}")
            except OutOfMemory as error:
                answers.append(f"oom {error}")
        elif verb == "f" and int(rest[0]) in live:
            allocator.free(live.pop(int(rest[0])))
        elif verb == "r" and int(rest[0]) in live:
            allocator.record_stream(live[int(rest[0])], streams.get(int(rest[1]), int(rest[1])))
        elif verb == "c":
            clock["done"] = clock["recorded"]
        elif verb == "e":
            allocator.empty_cache()
        elif verb == "F":
            allocator.set_memory_fraction(float(rest[0]))
        elif verb in "bqx":
            pool = (int(rest[0]), int(rest[1]))
            {"b": allocator.begin_pool, "q": allocator.end_pool, "x": allocator.release_pool}[verb](
                pool
            )
    return answers, allocator


def differences(
    drive: str, work: Workload, tie_break: TieBreak
) -> tuple[list[str], dict[str, Any]]:
    """Where model and torch part, and the state in which torch ended."""
    answers, state = run_torch(drive, work)
    return compare(work, answers, state, tie_break), state


def compare(
    work: Workload, theirs: list[str], state: dict[str, Any], tie_break: TieBreak
) -> list[str]:
    """Where the model parts from torch's answers and from the state it ended in."""
    requests = [line.split() for line in work.lines if line.startswith("m ")]
    streams: dict[int, int] = {}
    for (_, _, _, stream), answer in zip(requests, theirs, strict=True):
        if not answer.startswith("oom"):
            streams[int(stream)] = int(answer.split()[1])
    ours, allocator = run_model(work, streams, tie_break)
    found = []
    for index, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        expected = b
        if b.startswith("oom"):
            # The runtime here has no NVML, and torch leaves the sentence on processes out.
            head, _, rest = b.partition("Including non-PyTorch memory")
            expected = head + rest.partition(" memory in use. ")[2]
        if a != expected:
            found.append(f"request {index} {requests[index]}: torch {a!r}, model {expected!r}")
            break
    return found + _compare_state(state, allocator, work)


def _compare_state(state: dict[str, Any], allocator: CachingAllocator, work: Workload) -> list[str]:
    found = []
    ours = memory_snapshot(allocator)
    theirs = state["segments"]
    for segment in theirs:
        segment["segment_pool_id"] = tuple(segment["segment_pool_id"])
    for a, b in zip(theirs, ours, strict=False):
        for segment in (a, b):
            for block in segment["blocks"]:
                if block["state"] == "inactive":
                    block["requested_size"] = 0  # stale
        if a != b:
            found.append(f"segment: torch {a}, model {b}"[:600])
            break
    if len(ours) != len(theirs):
        found.append(f"segments: torch {len(theirs)}, model {len(ours)}")
    stats = allocator.stats()
    if any(line.startswith("r ") for line in work.lines):
        # In which order torch completes frees that waited for several streams is up to a
        # hash table; the sums and peaks of parts in between differ with it.
        for part in ("all", "small_pool", "large_pool"):
            for name in ("inactive_split", "inactive_split_bytes"):
                for which in ("peak", "allocated", "freed"):
                    state["stats"][name][part][which] = stats[name][part][which]
    for name, value in state["stats"].items():
        if stats[name] != value:
            found.append(f"{name}: torch {value}, model {stats[name]}")
    return found


def replayed(state: dict[str, Any], tie_break: TieBreak) -> str | None:
    """How the replay of torch's own record differs from it, None if it does not."""
    snapshot = parse_snapshot_data(state)
    for record in snapshot.devices.values():
        replay = replay_record(record, snapshot.config, [tie_break])
        if not replay.same:
            return f"{replay}"
        end = sum(s.size for s in record.segments)
        if replay.end_reserved_bytes != end:
            return f"ends with {replay.end_reserved_bytes} reserved, the snapshot has {end}"
    return None


def save(
    folder: Path,
    drive: str,
    work: Workload,
    state: dict[str, Any],
    seed: int,
    tie_break: TieBreak,
) -> None:
    """Keep a workload with torch's answers, for tests that run without torch's library."""
    answers, _ = run_torch(drive, work)
    kept = {
        "ties": tie_break.value,
        "config": work.config,
        "capacity": work.capacity,
        "lines": work.lines,
        "answers": answers,
        "state": state,
    }
    folder.mkdir(parents=True, exist_ok=True)
    data = gzip.compress(json.dumps(kept, separators=(",", ":")).encode(), mtime=0)
    (folder / f"{tie_break.value.replace(' ', '_')}_{seed}.json.gz").write_bytes(data)


def main() -> int:
    """Compare so many random workloads; 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("drive", help="the program built from drive.cpp")
    parser.add_argument(
        "--ties", type=TieBreak, default=TieBreak.SEGMENT_AGE, choices=list(TieBreak)
    )
    parser.add_argument("--pools", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="folder for the workloads and answers")
    options = parser.parse_args()
    bad = 0
    for seed in range(options.seed, options.seed + options.runs):
        work = make(seed, pools=options.pools)
        found, state = differences(options.drive, work, options.ties)
        other = replayed(state, options.ties)
        if found or other:
            bad += 1
            print(f"seed {seed} ({work.config or 'default'}, {work.capacity} B):")
            for line in [*found[:4], *([f"replay: {other}"] if other else [])]:
                print("   ", line[:700])
        if options.save:
            save(options.save, options.drive, work, state, seed, options.ties)
    print(f"{options.runs - bad} of {options.runs} workloads the same")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
