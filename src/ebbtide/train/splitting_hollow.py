"""Run an objective without its arithmetic: what depends on parameters has a shape, no values.

What depends on the batch alone, such as labels, masks and their counts, is computed. So the
autograd graph of the whole batch can be had, with the numbers that its loss divides by, for
no memory and nearly no time. Nothing stays changed: not the generators, not what the pass
would write to.
"""

from __future__ import annotations

import logging
import random
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ebbtide.train.schema import forgets, is_random, written, written_tensors
from ebbtide.train.splitting import CannotSplitError
from ebbtide.train.splitting_program import Call

_aten = torch.ops.aten
_LOG = logging.getLogger("torch._subclasses.fake_tensor")
_NLL = {_aten.nll_loss_forward.default, _aten.nll_loss2d_forward.default}
_BY_MASK = {_aten.index.Tensor, _aten.index_put_.default, _aten.masked_select.default}
_BY_VALUE = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    UnsupportedFakeTensorException,
)
_MASKS = (torch.bool, torch.uint8)
_SHAPED = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_LOOKS = {"__array__", "numpy", "tolist"}  # those that pass the dispatcher by
_LARGE = 1 << 20
"""Bytes from which on a result that no parameter goes into is left without values, too,
where it is also larger than the batch: attention masks, not counts of tokens."""


class Hollow(TorchDispatchMode):
    """One pass without arithmetic.

    Args:
        parameters: all tensors whose values are not to be looked at, frozen ones too.
        batch_bytes: size of the batch.
        own: storages of the batch, which the pass may write to.

    Attributes:
        random: operations that draw from a generator, and how often.
        norms: shapes of the inputs of batch norms in training.
        writes: shapes of tensors from outside that were written to.
        calls: what was computed from the batch alone.
        by_value: values of the batch decided what was computed, or its shapes, and no
            program of the calls would tell.
    """

    def __init__(self, parameters: Iterable[Tensor], batch_bytes: int, own: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.random: Counter[str] = Counter()
        self.norms: list[tuple[int, ...]] = []
        self.writes: list[tuple[int, ...]] = []
        self.calls: list[Call] = []
        self.by_value = False
        self._own = own
        self._limit = max(_LARGE, batch_bytes)
        self._fake = FakeTensorMode()
        # Real storages without meaning, by address; held, so that no other takes it.
        self._hollow = {p.untyped_storage()._cdata: p.untyped_storage() for p in parameters}
        self._made: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        writes = written_tensors(func, args, kwargs)
        self._notice(func, args, kwargs, writes)
        fakes = any(isinstance(t, FakeTensor) for t in tensors)
        if not fakes and (_is_view(func) or not any(map(self._is_hollow, tensors))):
            if writes or not self._too_large(func, leaves, spec):
                result = self._real(func, args, kwargs, writes)
                self.calls.append(Call(func, leaves, spec, pytree.tree_leaves(result)))
                self.by_value |= _by_value(func, leaves)
                return result
        if func in _BY_MASK:
            func, leaves, spec = self._by_places(func, args)
        result = self._faked(func, leaves, spec)
        for t in writes:
            if not isinstance(t, FakeTensor):
                self._hollow[t.untyped_storage()._cdata] = t.untyped_storage()
        if func in _NLL:
            return result[0], self._total_weight(args, result[1])
        # In place: what was given comes back. A batch norm writes aside.
        return writes[0] if len(writes) == 1 and _returns_written(func) else result

    def restore(self) -> None:
        """Put back what was written outside."""
        for storage, copied in self._before.values():
            storage.copy_(copied)
        self._before.clear()

    def _is_hollow(self, tensor: Tensor) -> bool:
        return isinstance(tensor, FakeTensor) or (
            tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._hollow
        )

    def _real(self, func: Any, args: Any, kwargs: dict[str, Any], writes: list[Tensor]) -> Any:
        for t in writes:
            storage = t.untyped_storage()
            if storage._cdata not in self._made and storage._cdata not in self._before:
                self._before[storage._cdata] = (storage, storage.clone())
        result = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and not _is_view(func) and not writes:
                self._make(leaf)
        return result

    def _make(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata

        def end(gone: weakref.ref[torch.UntypedStorage]) -> None:
            if self._made.get(key) is gone:
                del self._made[key]

        self._made[key] = weakref.ref(storage, end)

    def _faked(self, func: Any, leaves: list[Any], spec: Any) -> Any:
        given = [
            self._fake.from_tensor(leaf.detach())
            if isinstance(leaf, Tensor) and not isinstance(leaf, FakeTensor)
            else leaf
            for leaf in leaves
        ]
        args, kwargs = pytree.tree_unflatten(given, spec)
        try:
            with self._fake:
                return func(*args, **kwargs)
        except _BY_VALUE:
            raise
        except (RuntimeError, NotImplementedError) as error:
            raise CannotSplitError(
                f"What the loss is a mean of cannot be found: {func} gives no shape without "
                f"values ({str(error).splitlines()[0]}). Leave micro-batching out of the plan."
            ) from error

    def _by_places(self, func: Any, args: Any) -> tuple[Any, list[Any], Any]:
        """A mask whose values are known chooses a known number of elements."""
        if func is _aten.masked_select.default:
            shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
            args = (args[0].expand(shape), [args[1].expand(shape)])
        places: list[Any] = []
        for index in args[1]:
            known = isinstance(index, Tensor) and not self._is_hollow(index)
            if known and index.dtype in _MASKS:
                self.by_value = True
                places += index.nonzero(as_tuple=True)
            else:
                places.append(index)
        func = _aten.index.Tensor if func is _aten.masked_select.default else func
        return func, *pytree.tree_flatten(((args[0], places, *args[2:]), {}))

    def _too_large(self, func: Any, leaves: list[Any], spec: Any) -> bool:
        if _is_view(func):
            return False
        try:
            result = self._faked(func, leaves, spec)
        except Exception:  # it depends on values, which a real call has
            return False
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        return sum(leaf.nbytes for leaf in made) > self._limit

    def _notice(self, func: Any, args: Any, kwargs: Any, writes: list[Tensor]) -> None:
        if is_random(func) and _draws(func, args, kwargs):
            self.random[func._schema.name.split("::")[1]] += 1
        if forgets(func) and written(func, args) and args[0].shape[0] != 1:
            self.norms.append(tuple(args[0].shape))  # one of size 1 is an instance norm
        for t in writes:
            key = t.untyped_storage()._cdata
            if not isinstance(t, FakeTensor) and key not in self._made and key not in self._own:
                self.writes.append(tuple(t.shape))

    def _total_weight(self, args: Any, unknown: Tensor) -> Tensor:
        """What the mean of a cross-entropy divides by: the weight of the labels that count."""
        _, target, weight, _, ignored = args
        if self._is_hollow(target) or (weight is not None and self._is_hollow(weight)):
            return unknown
        given = (target, weight, ignored, unknown.dtype)
        total = _count(*given)
        self.calls.append(Call(_count, *pytree.tree_flatten((given, {})), [total]))
        return total


def _count(target: Tensor, weight: Tensor | None, ignored: int, dtype: torch.dtype) -> Tensor:
    counted = target != ignored
    if weight is None:
        return counted.sum().to(dtype)
    return (weight[target.clamp(min=0)] * counted).sum()


class _Looks(TorchFunctionMode):
    """Notices where a tensor's values become Python's, or numpy's."""

    def __init__(self, hollow: Hollow) -> None:
        super().__init__()
        self.hollow = hollow

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.hollow.by_value |= getattr(func, "__name__", "") in _LOOKS
        return func(*args, **(kwargs or {}))


def hollow_loss(
    objective: Callable[[Any], Tensor], parameters: Iterable[Tensor], batch: Any
) -> tuple[Tensor, Hollow]:
    """The loss of `batch` with its graph but without a value, and what was noticed.

    Raises:
        CannotSplitError: the objective looks at values that depend on parameters.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    own = {t.untyped_storage()._cdata for t in tensors}
    mode = Hollow(parameters, sum(t.nbytes for t in tensors), own)
    try:
        with generators_kept(), unobserved(), _quiet(), torch.enable_grad(), _Looks(mode), mode:
            python, numpy = random.getstate(), _numpy_state()
            loss = objective(batch)
            mode.random["random"] += random.getstate() != python
            mode.random["numpy.random"] += _numpy_state() != numpy
            mode.random = +mode.random
    except _BY_VALUE as error:
        raise CannotSplitError(
            "What the loss is a mean of cannot be found: the objective branches on values that "
            f"depend on the parameters ({type(error).__name__}: {error}). Leave micro-batching "
            "out of the plan."
        ) from error
    finally:
        mode.restore()
    return loss, mode


@contextmanager
def _quiet() -> Iterator[None]:
    """PyTorch logs what is raised here, or tried in a second way."""
    before, _LOG.disabled = _LOG.disabled, True
    try:
        yield
    finally:
        _LOG.disabled = before


@contextmanager
def unobserved() -> Iterator[None]:
    """Without the dispatch modes and saved-tensor hooks that are active outside."""
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t))
        yield


def _numpy_state() -> tuple[bytes, int]:
    state = np.random.get_state(legacy=False)["state"]
    return state["key"].tobytes(), state["pos"]


@contextmanager
def generators_kept() -> Iterator[None]:
    """Put torch's, Python's and numpy's generators back at the end."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _by_value(func: Any, leaves: list[Any]) -> bool:
    """Whether values decide the shape of the result, or go into Python unseen."""
    if func is _aten._local_scalar_dense.default:
        return False  # a program compares what Python saw
    if func is _aten.index.Tensor:
        return any(isinstance(i, Tensor) and i.dtype in _MASKS for i in leaves[1:])
    return not _SHAPED.isdisjoint(func.tags)


def _is_view(func: Any) -> bool:
    return any(
        each.alias_info is not None and not each.alias_info.is_write
        for each in func._schema.returns
    )


def _returns_written(func: Any) -> bool:
    returned = func._schema.returns
    return len(returned) == 1 and returned[0].alias_info is not None


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Attention is marked as random, and draws where its dropout is not 0."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[i] if i < len(args) else kwargs.get("dropout_p", argument.default_value)
            return bool(given)
    return True
