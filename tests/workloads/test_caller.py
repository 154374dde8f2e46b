"""The caller's state of torch is left, and found again afterwards."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ebbtide.workloads.caller import apart_from_caller


def test_gradients_in_inference_mode() -> None:
    with torch.inference_mode():
        with apart_from_caller():
            weight = torch.ones(2, requires_grad=True)
            (weight * 3).sum().backward()
        assert torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()
    assert weight.grad is not None
    assert weight.grad.tolist() == [3, 3]


def test_modes_come_back_after_an_error() -> None:
    with FakeTensorMode(), torch.no_grad():
        with pytest.raises(ZeroDivisionError), apart_from_caller():
            assert type(torch.ones(1)) is torch.Tensor
            raise ZeroDivisionError
        assert isinstance(torch.ones(1), FakeTensor)
        assert not torch.is_grad_enabled()


def test_compiled_functions_run_as_they_are_written() -> None:
    ran = []

    def compiler(module: object, examples: object) -> object:
        ran.append(module)
        return module

    double = torch.compile(lambda value: value * 2, backend=compiler)
    with apart_from_caller():
        assert double(torch.ones(1)).item() == 2
    assert not ran
    assert double(torch.ones(1)).item() == 2
    assert len(ran) == 1
