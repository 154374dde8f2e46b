"""The peak of a step on the CPU, to the byte."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from ebbtide.fitting.cpu_peak import peak_of


def test_the_most_at_once_is_counted() -> None:
    def step() -> None:
        first = torch.empty(1000, dtype=torch.uint8)
        second = torch.empty(3000, dtype=torch.uint8)
        del first
        third = torch.empty(500, dtype=torch.uint8)
        del second, third

    assert peak_of(step) == 4000


def test_what_was_there_before_does_not_count() -> None:
    there = [torch.empty(1 << 20)]

    def step() -> None:
        there.clear()
        torch.empty(1000, dtype=torch.uint8)

    assert peak_of(step) == 1000


def test_what_kernels_take_inside_counts() -> None:
    a = torch.randn(64, 64).t()
    assert peak_of(lambda: torch.sort(a)) > 64 * 64 * (4 + 8)


def test_nothing_is_said_but_what_others_say(capfd: pytest.CaptureFixture[str]) -> None:
    there = [torch.empty(1 << 20)]

    def step() -> None:
        there.clear()
        print("python", file=sys.stderr)
        os.write(2, b"below\n")

    peak_of(step)
    assert capfd.readouterr() == ("", "python\nbelow\n")


def test_an_error_comes_through(capfd: pytest.CaptureFixture[str]) -> None:
    def step() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        peak_of(step)
    print("still there", file=sys.stderr)
    assert capfd.readouterr().err == "still there\n"
