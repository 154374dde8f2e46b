"""The tape: names, phases, rows, and the codes of the trace's events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.trace.model import Category, Event
from ebbtide.vgpu import tape as module
from ebbtide.vgpu.tape import ALLOC, FREE, PHASE, RECORD_STREAM, UNKNOWN, WORKSPACE, Names, Tape


@pytest.mark.parametrize("event", list(Event))
def test_codes_are_those_of_the_trace(event: Event) -> None:
    assert getattr(module, event.name) == int(event)


def test_the_known_category_is_the_traces() -> None:
    assert WORKSPACE == Category.WORKSPACE
    assert UNKNOWN not in [int(category) for category in Category]


@given(st.lists(st.text()))
def test_names_are_numbered_once_in_order(texts: list[str]) -> None:
    names = Names()
    numbers = [names.of(text) for text in texts]
    assert [names.items[number] for number in numbers] == texts
    assert len(set(names.items)) == len(names.items)
    assert names.items[0] == ""
    assert names.of("") == 0


def test_a_new_tape_is_in_setup() -> None:
    tape = Tape()
    assert tape.phases == [("setup", 0)]
    assert (tape.kind, tape.arg) == ([PHASE], [0])
    assert tape.op == -1


def test_a_phase_is_opened_once_and_again_after_another() -> None:
    tape = Tape()
    for name, step in (("forward", 1), ("forward", 1), ("backward", 1), ("forward", 1)):
        tape.set_phase(name, step)
    assert tape.phases == [("setup", 0), ("forward", 1), ("backward", 1), ("forward", 1)]
    assert tape.kind == [PHASE] * 4
    assert tape.phase == 3


def test_an_allocation_is_a_row_of_its_own() -> None:
    tape = Tape()
    tape.op, tape.stream = 7, 3
    first = tape.alloc(100, 90, 120)
    second = tape.alloc(8, 8, 8, WORKSPACE)
    tape.free(first)
    assert (first, second) == (0, 1)
    assert (tape.alloc_bytes, tape.alloc_low, tape.alloc_high) == ([100, 8], [90, 8], [120, 8])
    assert tape.alloc_category == [UNKNOWN, WORKSPACE]
    assert tape.alloc_op == [7, 7]
    assert tape.alloc_stream == [3, 3]
    assert tape.kind[1:] == [ALLOC, ALLOC, FREE]
    assert tape.arg[1:] == [0, 1, 0]


def test_a_refused_allocation_has_no_bytes() -> None:
    tape = Tape()
    row = tape.alloc(100, 90, 120)
    tape.void(row)
    assert (tape.alloc_bytes, tape.alloc_low, tape.alloc_high) == ([0], [0], [0])


def test_an_event_keeps_its_second_number_by_position() -> None:
    tape = Tape()
    tape.event(RECORD_STREAM, 5, 9)
    tape.event(RECORD_STREAM, 6)
    assert tape.extra == {1: 9}
    assert tape.arg[1:] == [5, 6]
