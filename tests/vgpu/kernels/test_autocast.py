from __future__ import annotations

import inspect

import pytest
import torch

from ebbtide.vgpu.kernels.autocast import batch_norm_backend, dropout_operation, optimizer_loop
from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.tensors import TensorMeta

from .build import meta

CTX = KernelContext(capability=(8, 0), torch_version=(2, 13))


def norm(
    x: TensorMeta,
    *,
    parameters: str | None = "float32",
    running: bool = True,
    training: bool = True,
    ctx: KernelContext = CTX,
) -> str:
    weight = None if parameters is None else meta(x.shape[1], dtype=parameters)
    return batch_norm_backend(x, weight, weight, running, training, ctx)


def test_training_in_float32_and_float16_takes_cudnn() -> None:
    assert norm(meta(8, 64, 28, 28)) == "cudnn"
    assert norm(meta(8, 64, 28, 28, dtype="float16")) == "cudnn"
    assert norm(meta(8, 64, 28, 28), running=False) == "cudnn"


@pytest.mark.parametrize(
    ("x", "settings"),
    [
        (meta(8, 64, 28, 28, dtype="bfloat16"), {}),
        (meta(8, 64, 28, 28), {"parameters": "bfloat16"}),
        (meta(8, 64, 28, 28, dtype="float16"), {"parameters": "float16"}),
        (meta(8, 64, 28, 28), {"parameters": None}),
        (meta(8, 64), {}),
        (meta(8, 64, 28, 28), {"running": False, "training": False}),
        (meta(900_000, 2, 1), {}),
        (meta(70_000, 2, 1), {"training": False}),
        (meta(8, 64, 28, 28), {"ctx": KernelContext(capability=(8, 0), torch_version=(2, 13),
                                                    cudnn_enabled=False)}),
    ],
)  # fmt: skip
def test_what_cudnn_does_not_take(x: TensorMeta, settings: dict[str, object]) -> None:
    assert norm(x, **settings) == "native"  # type: ignore[arg-type]


def test_large_batches_in_training() -> None:
    assert norm(meta(70_000, 2, 1)) == "cudnn"


def test_dropout() -> None:
    assert dropout_operation(True, 0.1) == "native_dropout"
    assert dropout_operation(False, 0.1) == "none"
    assert dropout_operation(True, 0.0) == "none"
    assert dropout_operation(True, 1.0) == "none"


def test_optimizers_as_they_were_before_2_0() -> None:
    old = KernelContext(capability=(8, 0), torch_version=(1, 13))
    assert optimizer_loop("Adam", old) == "for_loop"


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, cls in vars(torch.optim).items()
        if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and name != "Optimizer"
    ],
)
def test_the_table_agrees_with_the_torch_at_hand(name: str) -> None:
    """Those that ask for the default are those whose module imports the question."""
    module = inspect.getmodule(getattr(torch.optim, name))
    assert module is not None
    asks = "_default_to_fused_or_foreach(" in inspect.getsource(module)
    if name == "AdamW":  # a subclass of Adam since 2.7
        asks = True
    assert (optimizer_loop(name, CTX) == "foreach") is asks
