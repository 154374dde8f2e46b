"""Which of torch's implementations an optimizer uses: foreach, fused, or a plain loop.

They compute the same update; foreach is quick and holds temporaries of the size of all
parameters, fused holds none, the plain loop those of one parameter. Bits differ between them
by the order of operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor
from torch.optim import Optimizer

from ebbtide.plan.decision import Implementation
from ebbtide.train.optimizer_twin import OptimizerError, plain_step, twin
from ebbtide.vgpu.virtual_gpu import VirtualGpu

IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImplementationCost:
    """What a step takes with one implementation.

    Attributes:
        implementation: which.
        temporary_bytes: the peak of `optimizer.step()` above what is there before it.
        state_bytes: what stays of the first step on the GPU.
        step_s: predicted seconds of a step.
        reason: why it cannot be used; empty where it can, the figures are 0 otherwise.
    """

    implementation: Implementation
    temporary_bytes: int
    state_bytes: int
    step_s: float
    reason: str = ""


@contextmanager
def use_implementation(optimizer: Optimizer, implementation: Implementation) -> Iterator[None]:
    """Step `optimizer` with `implementation` inside; groups and state are put back after.

    Raises:
        OptimizerError: the optimizer has no such implementation, or not for its parameters.
    """
    _check(optimizer, implementation)
    before: list[dict[str, Any]] = [
        {name: group[name] for name in ("foreach", "fused") if name in group}
        for group in optimizer.param_groups
    ]
    scaled = optimizer.__dict__.get("_step_supports_amp_scaling")
    _switch(optimizer, [_flags(group, implementation) for group in optimizer.param_groups])
    if implementation == "fused":
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    else:
        optimizer.__dict__.pop("_step_supports_amp_scaling", None)
    try:
        yield
    finally:
        # A group that was added inside is left as the first one was.
        added = len(optimizer.param_groups) - len(before)
        _switch(optimizer, before + [before[0]] * added)
        optimizer.__dict__.pop("_step_supports_amp_scaling", None)
        if scaled is not None:
            optimizer._step_supports_amp_scaling = scaled  # type: ignore[attr-defined]


def implementation_costs(
    optimizer: Optimizer, gpu: str = "a100-80gb"
) -> tuple[ImplementationCost, ...]:
    """What a step of `optimizer` would take on `gpu` with each implementation.

    Measured on the virtual GPU with parameters of the same shapes and dtypes, all of which
    have gradients; nothing of `optimizer` is changed.
    """
    return tuple(_cost(optimizer, each, gpu) for each in IMPLEMENTATIONS)


def _cost(optimizer: Optimizer, implementation: Implementation, gpu: str) -> ImplementationCost:
    try:
        _check(optimizer, implementation)
    except OptimizerError as error:
        return ImplementationCost(
            implementation=implementation,
            temporary_bytes=0,
            state_bytes=0,
            step_s=0.0,
            reason=str(error),
        )
    with VirtualGpu(gpu) as virtual:
        groups = [
            {**group, **_flags(group, implementation), "params": _on_gpu(group["params"])}
            for group in optimizer.param_groups
        ]
        tried = twin(optimizer, groups)
        before = torch.cuda.memory_allocated()
        plain_step(tried)
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        began = virtual.clock.now
        plain_step(tried)
        torch.cuda.synchronize()
        return ImplementationCost(
            implementation=implementation,
            temporary_bytes=torch.cuda.max_memory_allocated() - held,
            state_bytes=held - before,
            step_s=virtual.clock.now - began,
        )


def _on_gpu(parameters: list[Tensor]) -> list[Tensor]:
    made: list[Tensor] = []
    for p in parameters:
        like = torch.nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="cuda"))
        if p.requires_grad:
            like.grad = torch.empty_like(like)
        made.append(like)
    return made


def _flags(group: dict[str, Any], implementation: Implementation) -> dict[str, Any]:
    wanted = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
    return {name: value for name, value in wanted.items() if name in group}


def _check(optimizer: Optimizer, implementation: Implementation) -> None:
    name = type(optimizer).__name__
    if implementation not in IMPLEMENTATIONS:
        raise OptimizerError(
            f"No implementation is called {implementation!r}; there are {IMPLEMENTATIONS}."
        )
    for group in optimizer.param_groups:
        if implementation != "plain" and implementation not in group:
            raise OptimizerError(
                f"{name} has no {implementation} implementation in torch {torch.__version__}. "
                "Use another one."
            )
        if group.get("differentiable") and implementation != "plain":
            raise OptimizerError(
                f"{name} is differentiable, which {implementation} is not. Use 'plain'."
            )
        if implementation == "fused":
            odd = [p for p in group["params"] if not p.is_floating_point()]
            if odd:
                raise OptimizerError(
                    f"fused takes real floating-point parameters; {len(odd)} of "
                    f"{len(group['params'])} are not (first: {odd[0].dtype}). Use 'foreach'."
                )


def _switch(optimizer: Optimizer, flags: list[dict[str, Any]]) -> None:
    """Set the flags, and move Adam's count of steps to where that implementation has it."""
    for group, wanted in zip(optimizer.param_groups, flags, strict=True):
        group.update(wanted)
        on_device = group.get("fused") or group.get("capturable")
        for p in group["params"]:
            count = optimizer.state.get(p, {}).get("step")
            if isinstance(count, Tensor):
                target = p.device if on_device else torch.device("cpu")
                optimizer.state[p]["step"] = count.to(target)
