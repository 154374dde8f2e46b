from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.trace.snapshot_ages import UnknownAges
from ebbtide.units import MiB
from ebbtide.vgpu.allocator import Block, CachingAllocator


def segments(count: int) -> tuple[CachingAllocator, list[Block]]:
    """An allocator with so many cached segments of one size."""
    allocator = CachingAllocator(None)
    blocks = [allocator.malloc(30 * MiB) for _ in range(count)]
    for block in blocks:
        allocator.free(block)
    return allocator, blocks


def test_what_is_older_is_taken_first():
    allocator, blocks = segments(3)
    ages = UnknownAges(allocator.heap, 3)
    assert ages.learn(blocks[2], blocks[0])
    assert ages.learned == 1
    taken = [allocator.malloc(30 * MiB) for _ in range(3)]
    assert taken == [blocks[2], blocks[0], blocks[1]]


def test_what_was_learned_holds_for_blocks_in_use_too():
    allocator, blocks = segments(2)
    assert allocator.malloc(30 * MiB) is blocks[0]
    ages = UnknownAges(allocator.heap, 2)
    assert ages.learn(blocks[1], blocks[0])
    allocator.free(blocks[0])
    assert allocator.malloc(30 * MiB) is blocks[1]


def test_a_contradiction_is_not_learned():
    allocator, blocks = segments(4)
    ages = UnknownAges(allocator.heap, 4)
    assert ages.learn(blocks[1], blocks[0])
    assert ages.learn(blocks[2], blocks[1])
    assert not ages.learn(blocks[0], blocks[2])
    assert not ages.learn(blocks[0], blocks[0])
    assert ages.learned == 2
    taken = [allocator.malloc(30 * MiB) for _ in range(4)]
    assert taken == [blocks[2], blocks[1], blocks[0], blocks[3]]


def test_known_ages_cannot_be_changed():
    allocator, blocks = segments(3)
    ages = UnknownAges(allocator.heap, 1)
    assert not ages.learn(blocks[2], blocks[1])
    assert not ages.learn(blocks[1], blocks[0])
    assert allocator.malloc(30 * MiB) is blocks[0]


@given(st.permutations(range(6)), st.data())
def test_enough_choices_give_the_true_order(truth: list[int], data: st.DataObject):
    """Whatever pairs are compared, in the end everything learned holds at once."""
    allocator, blocks = segments(6)
    ages = UnknownAges(allocator.heap, 6)
    pairs = data.draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20))
    known = []
    for a, b in pairs:
        if a == b:
            continue
        older, younger = (a, b) if truth.index(a) < truth.index(b) else (b, a)
        assert ages.learn(blocks[older], blocks[younger])
        known.append((older, younger))
        for first, second in known:
            assert blocks[first].order < blocks[second].order
    assert sorted(block.order for block in blocks) == [1, 2, 3, 4, 5, 6]
    taken = [blocks.index(allocator.malloc(30 * MiB)) for _ in range(6)]
    for first, second in known:
        assert taken.index(first) < taken.index(second)
