"""The dtype that a configuration states, and who follows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.stated import stated_dtype, with_stated_dtype


def config(dtype: Any = None, text: Any = None) -> Any:
    made = SimpleNamespace(dtype=dtype)
    part = made if text is None else SimpleNamespace(dtype=text)
    made.get_text_config = lambda: part
    return made


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (config(torch.bfloat16), "bf16"),
        (config("float16"), "fp16"),
        (config("torch.float32"), "fp32"),
        (config(None, torch.bfloat16), "bf16"),
        (config(torch.float16, torch.bfloat16), "fp16"),
        (config(torch.float8_e4m3fn), None),
        (config("auto"), None),
        (config(), None),
    ],
)
def test_what_a_configuration_states(made: Any, name: str | None) -> None:
    assert stated_dtype(made) == name


def test_inference_follows_it_unless_told_otherwise() -> None:
    stated = config(torch.bfloat16)
    plain, told = WorkloadOptions(inference=True), WorkloadOptions(inference=True, dtype="fp16")
    assert with_stated_dtype(plain, stated) == (WorkloadOptions(inference=True, dtype="bf16"), "")
    assert with_stated_dtype(told, stated) == (told, "")
    assert with_stated_dtype(plain, config()) == (plain, "")


def test_training_stays_in_float32_and_says_so() -> None:
    plain = WorkloadOptions()
    options, note = with_stated_dtype(plain, config(torch.float16))
    assert options == plain
    assert note == "Weights taken as float32; the configuration says float16 (--dtype fp16)"
    for silent in (config(), config(torch.float32)):
        assert with_stated_dtype(plain, silent) == (plain, "")
    told = WorkloadOptions(dtype="fp32")
    assert with_stated_dtype(told, config(torch.float16)) == (told, "")
