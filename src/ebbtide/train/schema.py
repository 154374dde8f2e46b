"""What an operation's schema says: which arguments it writes, whether it draws at random."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_aten = torch.ops.aten
# Of a batch norm, by position: running mean and variance, and whether it trains. Not every
# schema says that it writes them; in training its outputs do not depend on them.
_STATISTICS = (3, 4)
_TRAINS = 5
_BATCH_NORMS = {
    _aten.native_batch_norm.default,
    _aten._native_batch_norm_legit.default,
    _aten.cudnn_batch_norm.default,
    _aten.miopen_batch_norm.default,
}
_TRAINING_BATCH_NORMS = {_aten._batch_norm_with_update.default}
# Operations with a state of their own or an effect elsewhere.
_ONCE_NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor", "fsdp")
_ONCE = {_aten._cudnn_rnn.default, _aten._cudnn_init_dropout_state.default}


@cache
def name_of(func: Any) -> str:
    """Such as ``"aten.mm.default"``."""
    return str(func)


@cache
def _written(func: Any) -> tuple[tuple[int, str, bool], ...]:
    """Position, name and whether by keyword alone, of each argument that `func` writes."""
    return tuple(
        (i, argument.name, argument.kwarg_only)
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def written(func: Any, args: tuple[Any, ...]) -> tuple[tuple[int, str, bool], ...]:
    """`_written` of this call: a batch norm writes its statistics in training alone."""
    if func in _TRAINING_BATCH_NORMS or func in _BATCH_NORMS:
        trains = func in _TRAINING_BATCH_NORMS or bool(args[_TRAINS])
        names = func._schema.arguments
        return tuple((i, names[i].name, False) for i in _STATISTICS) if trains else ()
    return _written(func)


def forgets(func: Any) -> bool:
    """Whether the outputs of `func` do not depend on what it writes."""
    return func in _BATCH_NORMS or func in _TRAINING_BATCH_NORMS


@cache
def makes_tensors(func: Any) -> bool:
    """Whether `func` can return a tensor. Questions such as ``prim.device`` do not count."""
    return any("Tensor" in str(each.type) for each in func._schema.returns)


@cache
def repeatable(func: Any) -> bool:
    """Whether calling `func` again on the same inputs, and seed, gives the same and no more."""
    return func not in _ONCE and func.namespace not in _ONCE_NAMESPACES


@cache
def is_random(func: Any) -> bool:
    """Whether `func` draws from a generator."""
    return torch.Tag.nondeterministic_seeded in func.tags


def written_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors among the arguments that this call of `func` writes."""
    if not func._schema.is_mutable and not forgets(func):
        return []
    found: list[Tensor] = []
    for position, name, by_name in written(func, args):
        if not by_name and position < len(args):
            given = args[position]
        else:
            given = kwargs.get(name)
        found += [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)]
    return found
