from __future__ import annotations

from ebbtide.units import MiB
from ebbtide.vgpu.allocator import CachingAllocator, memory_snapshot
from ebbtide.vgpu.allocator.stats import Gauge

# The keys of torch 2.13's `torch.cuda.memory_stats_as_nested_dict` that its own
# documentation lists (`torch.cuda.memory_stats`).
GROUPS = {
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
}
SINGLE = {"oversize_allocations", "oversize_segments"}
COUNTS = {
    "max_split_size",
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
}


def test_a_gauge():
    gauge = Gauge()
    for amount in (5, 3, -4, 0, 2):
        gauge.change(amount)
    assert gauge.as_dict() == {"current": 6, "peak": 8, "allocated": 10, "freed": 4}
    gauge.reset_peak()
    assert gauge.peak == 6
    gauge.reset_accumulated()
    assert (gauge.allocated, gauge.freed, gauge.current) == (0, 0, 6)


def test_the_shape_is_torchs():
    stats = CachingAllocator(None).stats()
    assert stats.keys() == GROUPS | SINGLE | COUNTS
    for name in GROUPS:
        assert stats[name].keys() == {"all", "large_pool", "small_pool"}
        for part in stats[name].values():
            assert part == {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    for name in SINGLE:
        assert stats[name].keys() == {"current", "peak", "allocated", "freed"}
    assert stats["max_split_size"] == -1


def test_what_a_few_requests_count():
    allocator = CachingAllocator(None)
    small, large = allocator.malloc(1000), allocator.malloc(3 * MiB + 1)
    allocator.free(small)
    stats = allocator.stats()
    assert stats["allocation"]["all"] == {"current": 1, "peak": 2, "allocated": 2, "freed": 1}
    assert stats["allocated_bytes"]["small_pool"] == {
        "current": 0,
        "peak": 1024,
        "allocated": 1024,
        "freed": 1024,
    }
    assert stats["requested_bytes"]["large_pool"]["current"] == 3 * MiB + 1
    assert stats["allocated_bytes"]["large_pool"]["current"] == 3 * MiB + 512
    assert stats["inactive_split"]["large_pool"]["current"] == 1
    assert stats["inactive_split"]["small_pool"]["current"] == 0
    assert stats["num_device_alloc"] == 2
    assert large.size == 3 * MiB + 512


def test_sums_can_be_forgotten():
    allocator = CachingAllocator(None)
    kept = allocator.malloc(1000)
    allocator.free(allocator.malloc(3 * MiB))
    waiting = allocator.malloc(2 * MiB)
    allocator.record_stream(waiting, 1)
    allocator.free(waiting)
    allocator.reset_accumulated_stats()
    stats = allocator.stats()
    for name in GROUPS:
        for part in stats[name].values():
            assert (part["allocated"], part["freed"]) == (0, 0)
    assert stats["allocation"]["all"]["current"] == 1
    assert stats["active"]["all"]["current"] == 2
    assert stats["num_device_alloc"] == 0
    allocator.process_events()
    allocator.free(kept)
    stats = allocator.stats()
    assert stats["allocation"]["all"]["freed"] == 1
    assert stats["active"]["all"]["freed"] == 2
    assert stats["requested_bytes"]["all"]["freed"] == 1000 + 2 * MiB


def test_peaks_of_requested_bytes():
    allocator = CachingAllocator(None)
    block = allocator.malloc(700)
    allocator.free(block)
    allocator.malloc(100)
    assert allocator.stats()["requested_bytes"]["all"]["peak"] == 700
    allocator.reset_peak_stats()
    assert allocator.stats()["requested_bytes"]["all"]["peak"] == 100


def test_a_snapshot_has_torchs_keys():
    allocator = CachingAllocator(None, device=2)
    allocator.malloc(1000, stream=9)
    (segment,) = memory_snapshot(allocator)
    assert segment.keys() == {
        "device",
        "address",
        "total_size",
        "allocated_size",
        "active_size",
        "requested_size",
        "stream",
        "segment_type",
        "segment_pool_id",
        "is_expandable",
        "frames",
        "blocks",
    }
    assert (segment["device"], segment["stream"], segment["segment_type"]) == (2, 9, "small")
    assert segment["requested_size"] == 1000
    first, rest = segment["blocks"]
    assert first.keys() == {"address", "size", "requested_size", "state", "frames"}
    assert first["state"] == "active_allocated"
    assert rest["address"] == first["address"] + first["size"]
