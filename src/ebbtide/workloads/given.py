"""A model object that a user gave, made ready for the virtual GPU."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from ebbtide.errors import UsageError
from ebbtide.vgpu.api.compile import COMPILED, OptimizedModule
from ebbtide.vgpu.virtual_gpu import VirtualGpu

_INSTEAD = "pass a function that builds the model: `ebbtide.predict(lambda: Model(), ...)`"
# Where dynamo notes what a compiled function was made from.
_ORIGINAL = "_torchdynamo_orig_callable"


def eager(model: nn.Module) -> nn.Module:
    """What `torch.compile` was given to make `model`, or `model` itself."""
    compiled = _compiled_class()
    while compiled is not None and isinstance(model, compiled):
        model = model._orig_mod  # type: ignore[assignment]
    return model


def note_compiled(model: nn.Module, *functions: Any) -> None:
    """Say that a compiler was asked for, if it was for any part of the model or a function.

    As the guess that `torch.compile` makes on the virtual GPU.
    """
    compiled = _compiled_class()
    if compiled is None:
        return
    found = sum(hasattr(function, _ORIGINAL) for function in functions)
    for module in model.modules():
        found += (
            isinstance(module, compiled)
            or getattr(module, "_compiled_call_impl", None) is not None
            or hasattr(inspect.getattr_static(module, "forward", None), _ORIGINAL)
            or any(hasattr(value, _ORIGINAL) for value in vars(module).values())
        )
    for _ in range(found):
        VirtualGpu.active().guess("compile", COMPILED)


def copy_without_data(model: nn.Module) -> nn.Module:
    """A copy of the model whose parameters and buffers are fake; the virtual GPU is on.

    Raises:
        UsageError: it holds something that cannot be copied; the message names it.
    """
    for name, module in model.named_modules():
        _check_attributes(name, module)
    # `deepcopy` takes what it finds here instead of copying the data.
    memo: dict[int, Any] = {}
    for tensor in model.buffers():
        memo[id(tensor)] = _fake(tensor)
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(_fake(parameter), requires_grad=parameter.requires_grad)
    given = dict(memo)
    try:
        # The innermost first: a compiled part may hold another.
        for module in reversed(list(model.modules())):
            if eager(module) is not module:
                memo[id(module)] = OptimizedModule(copy.deepcopy(eager(module), memo))
        return copy.deepcopy(model, memo)
    except Exception as error:  # from anybody's `__deepcopy__`
        raise UsageError(
            f"The model cannot be copied for the virtual GPU, because of "
            f"{_culprit(model, given)}: {str(error).splitlines()[0] if str(error) else error!r}. "
            f"Delete that attribute, or {_INSTEAD}."
        ) from error


def check_kinds(model: nn.Module) -> None:
    """Refuse modules that cannot be traced, built outside the virtual GPU or on it.

    Raises:
        UsageError: a part is TorchScript, or a lazy module without sizes.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            where = f"its module {name!r}" if name else "it"
            raise UsageError(
                f"The model cannot be traced: {where} is TorchScript, whose operations are not "
                f"seen. Give the module it was made from, or {_INSTEAD}."
            )
        for each, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and is_lazy(tensor):
                raise UsageError(
                    f"The model has no sizes yet: {_path(name, each)!r} of "
                    f"{type(module).__name__} is uninitialised. Call the model once on an "
                    "example batch, where it is built, before predicting."
                )


def _compiled_class() -> type[nn.Module] | None:
    """The class of compiled modules; None while nothing can have been compiled."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return None if dynamo is None else dynamo.OptimizedModule


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    gpu = VirtualGpu.active()
    if not tensor.is_inference():
        return gpu.make_fake(tensor)
    # What was made in inference mode stays without gradients, and so does what is made of it.
    with gpu.fake_mode:
        return torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )


def _check_attributes(name: str, module: nn.Module) -> None:
    """Refuse tensors that only their graph could make again."""
    for each, value in _attributes(module):
        for tensor in tree_leaves(value):
            if isinstance(tensor, torch.Tensor) and not tensor.is_leaf:
                raise UsageError(
                    f"The model cannot be copied for the virtual GPU: its attribute "
                    f"{_path(name, each)!r} holds a tensor that was computed with gradients and "
                    f"belongs to an earlier pass. Delete the attribute or set it to None, "
                    f"or {_INSTEAD}."
                )


def _culprit(model: nn.Module, memo: dict[int, Any]) -> str:
    """The first attribute that does not copy by itself."""
    for name, module in model.named_modules():
        for each, value in _attributes(module):
            try:
                copy.deepcopy(value, dict(memo))
            except Exception:
                return f"its attribute {_path(name, each)!r} ({type(value).__name__})"
    return type(model).__name__


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """What a module holds beside parameters, buffers and modules."""
    for name, value in vars(module).items():
        if name not in ("_parameters", "_buffers", "_modules", "_compiled_call_impl"):
            yield name, value


def _path(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name
