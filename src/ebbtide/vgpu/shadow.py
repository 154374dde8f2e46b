"""Values of small tensors on the virtual GPU.

Fake tensors have no values, yet programs ask for some: loop ends, lengths,
masks, counters. Small integer and bool tensors, and the floats that programs
make themselves, therefore carry a real CPU tensor beside them, on which each
operation is repeated. What depends on computed values is not known; asked for,
it is answered with a plausible dummy, and the guess is counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

# Integers are masks, ids and positions: repeating an operation on 64 k of them
# takes about 50 us. Floats are coefficients, and masks that were multiplied.
_MOST_INTEGERS = 1 << 16
_MOST_FLOATS = 1 << 14
# An expanded tensor holds few values and stands for many: up to so many are worked on.
_MOST_EXPANDED = 1 << 26
_VALUE = "_ebbtide_value"
_ANY_OF = "_ebbtide_any_of"
_CPU = torch.device("cpu")
_aten = torch.ops.aten
# Asked about unknown values, these are answered as if nothing were wrong.
_ALL = frozenset({_aten.all.default, _aten.all.dim, _aten.all.dims, _aten._is_all_true.default})
_ANY = frozenset({_aten.any.default})
_COUNT = frozenset(
    {
        _aten.sum.default,
        _aten.sum.dim_IntList,
        _aten.count_nonzero.default,
        _aten.count_nonzero.dim_IntList,
    }
)


_INFINITE = (float("inf"), float("-inf"))
# A number that was computed is none in particular.
_EQUALITY = frozenset({_aten.eq.Scalar, _aten.ne.Scalar})
_SOUND = frozenset({_aten.isfinite.default})
_UNSOUND = frozenset(
    {_aten.isnan.default, _aten.isinf.default, _aten.isposinf.default, _aten.isneginf.default}
)


def _soundness(func: Any, args: tuple[Any, ...]) -> bool | None:
    """What a test of sound values finds: none is infinite, not a number, or just so.

    None if `func` is no such test.

    `isfinite` is a composite: it arrives as ``x == x`` and ``abs(x) != inf``.
    """
    if func in _SOUND or func in _UNSOUND:
        return func in _SOUND
    same = func is _aten.eq.Tensor or func is _aten.ne.Tensor
    if same and args[0] is args[1]:
        return bool(func is _aten.eq.Tensor)
    if func in _EQUALITY and (args[1] in _INFINITE or args[0].dtype.is_floating_point):
        return bool(func is _aten.ne.Scalar)
    return None


class Unknown(Exception):
    """A value that nothing is known of."""


class Shadows:
    """Keeps and repeats small values; counts what was guessed.

    Args:
        note: called with kind and text of each guess.
    """

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note

    @staticmethod
    def small(shape: Any, dtype: torch.dtype, stride: Any = None) -> bool:
        """Whether a tensor of this shape may carry its values.

        With `stride`, what is only expanded counts once.
        """
        count = 1
        for n, step in zip(shape, stride or (1,) * len(shape), strict=True):
            count *= n if step or not n else 1
        if dtype.is_floating_point or dtype.is_complex:
            return count <= _MOST_FLOATS
        return count <= _MOST_INTEGERS

    def remember(self, fake: torch.Tensor, value: torch.Tensor | None) -> None:
        """`fake` is known to hold `value`; with None, nothing is known of it."""
        setattr(fake, _VALUE, value)

    def remember_real(self, fake: torch.Tensor, real: torch.Tensor) -> None:
        """`fake` stands for the real tensor `real`, if that is small."""
        if type(real) is torch.Tensor and self.small(real.shape, real.dtype, _strides(real)):
            setattr(fake, _VALUE, real.detach())

    def worth_following(self, func: Any, shape: Any, dtype: torch.dtype, stride: Any) -> bool:
        """Whether an output of `func` may carry its values, or a guess that holds throughout.

        What is written to may have carried one.
        """
        return func in _EQUALITY or func._schema.is_mutable or self.small(shape, dtype, stride)

    @staticmethod
    def known(tensor: torch.Tensor) -> torch.Tensor | None:
        """The values of `tensor`, or None."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        value: torch.Tensor | None = getattr(tensor, _VALUE, None)
        return value

    def value(self, tensor: torch.Tensor, what: str = "a value") -> torch.Tensor:
        """The values of `tensor`, or a dummy of the same shape and dtype, counted as a guess."""
        known = self.known(tensor)
        if known is not None:
            return known
        self._note("value", f"{what} of a tensor on the GPU was asked for and is not known")
        with _disable_current_modes():
            fill = torch.ones if tensor.dtype.is_floating_point else torch.zeros
            return fill(tuple(tensor.shape), dtype=tensor.dtype, device=_CPU)

    def _operand(self, tensor: torch.Tensor, view: bool) -> torch.Tensor:
        known = self.known(tensor)
        if known is not None:
            if not view and known.numel() > _MOST_EXPANDED:
                raise Unknown
            return known
        # Unknown numbers are ids or sizes: zeros serve. An unknown answer stays unknown,
        # and so does an unknown number that is only looked at in another shape.
        whole = tensor.dtype is not torch.bool and not tensor.dtype.is_floating_point
        if whole and not view and self.small(tensor.shape, tensor.dtype):
            return torch.zeros(tuple(tensor.shape), dtype=tensor.dtype, device=_CPU)
        raise Unknown

    def _swap(self, value: Any, view: bool = False) -> Any:
        if isinstance(value, torch.Tensor):
            return self._operand(value, view)
        if isinstance(value, tuple | list):
            return type(value)(self._swap(item, view) for item in value)
        if isinstance(value, torch.device):
            return _CPU
        return value

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Repeat `func` on the values of its arguments and keep what comes out."""
        results = result if isinstance(result, tuple | list) else (result,)
        view, mutable = func.is_view, func._schema.is_mutable
        if torch.Tag.nondeterministic_seeded in func.tags:
            if mutable and type(result) is FakeTensor:
                setattr(result, _VALUE, None)
            return
        with _disable_current_modes(), torch.no_grad():
            try:
                real_args = self._swap(args, view)
                if mutable and _stands_for_many(real_args[0], args[0]):
                    raise Unknown
                real_kwargs = {
                    name: None if name == "pin_memory" else self._swap(value, view)
                    for name, value in kwargs.items()
                }
                value = func(*real_args, **real_kwargs)
            except Unknown:
                if type(result) is FakeTensor:
                    self._guess(func, args, result)
                return
            except Exception:
                # The operation itself succeeded on metadata; only its value is lost.
                if mutable and type(result) is FakeTensor:
                    setattr(result, _VALUE, None)
                return
        if mutable:
            value = real_args[0]
        values = value if isinstance(value, tuple | list) else (value,)
        for fake, real in zip(results, values, strict=False):
            if isinstance(real, torch.Tensor) and type(fake) is FakeTensor:
                if real.shape == fake.shape:
                    setattr(fake, _VALUE, real)

    def follow_lists(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Repeat an operation that changes its first list on those of its tensors that are known.

        Optimizers keep step counts and products of coefficients that way.
        """
        first = args[0]
        for index, tensor in enumerate(first):
            known = getattr(tensor, _VALUE, None)
            if known is None:
                continue
            alone = tuple(
                [value[index]] if isinstance(value, list) and len(value) == len(first) else value
                for value in args
            )
            with _disable_current_modes(), torch.no_grad():
                try:
                    func(*self._swap(alone), **{n: self._swap(v) for n, v in kwargs.items()})
                except Exception:
                    # Unknown, or no such kernel on the CPU: the value is lost.
                    setattr(tensor, _VALUE, None)

    def _guess(self, func: Any, args: tuple[Any, ...], result: torch.Tensor) -> None:
        """The values went in unknown: say what holds when nothing is wrong."""
        sound = _soundness(func, args)
        if func in _ALL:
            value = torch.ones(tuple(result.shape), dtype=torch.bool, device=_CPU)
        elif sound is not None:
            if func in _EQUALITY and args[1] not in _INFINITE:
                self._note("equality", "computed numbers were taken as different from a constant")
            value = torch.tensor(sound, device=_CPU).expand(result.shape)
            if self.small(result.shape, result.dtype):
                value = value.clone(memory_format=torch.contiguous_format)
        elif func in _COUNT and not result.dtype.is_floating_point and result.numel():
            each = args[0].numel() // result.numel()
            value = torch.full(tuple(result.shape), each, dtype=result.dtype, device=_CPU)
        else:
            if func in _ANY:
                setattr(result, _ANY_OF, weakref.ref(args[0]))
            if func._schema.is_mutable and hasattr(result, _VALUE):
                delattr(result, _VALUE)
            return
        setattr(result, _VALUE, value)

    def _none_of(self, answer: torch.Tensor) -> None:
        """If `answer` was whether any is true, then from now on none is."""
        source = getattr(answer, _ANY_OF, lambda: None)()
        if source is not None and self.known(source) is None and source.dtype is torch.bool:
            no = torch.zeros((), dtype=torch.bool, device=_CPU)
            self.remember(source, no.expand(source.shape))

    def scalar(self, tensor: torch.Tensor) -> Any:
        """What `tensor.item()` answers."""
        known = self.known(tensor)
        if known is not None and known.numel() == 1:
            with _disable_current_modes():
                return known.item()
        self._note("item", "a value was read from the GPU (`.item()`, `if tensor:`): a dummy")
        if tensor.dtype is torch.bool:
            self._none_of(tensor)
            return False
        if tensor.dtype.is_complex:
            return 1 + 0j
        return 1.0 if tensor.dtype.is_floating_point else 0


def count_true(values: torch.Tensor) -> int:
    """How many elements are not zero; what is expanded is counted once and multiplied."""
    times = 1
    for dim, (n, step) in enumerate(zip(values.shape, values.stride(), strict=True)):
        if n > 1 and step == 0:
            times *= n
            values = values.narrow(dim, 0, 1)
    return int(values.count_nonzero()) * times


def _stands_for_many(value: Any, tensor: Any) -> bool:
    """Whether writing to `value` would change more elements than writing to `tensor` does."""
    if not isinstance(tensor, FakeTensor):
        return False
    return bool(value.untyped_storage().nbytes() < tensor.untyped_storage().nbytes())


def _strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    return tensor.stride() if tensor.layout is torch.strided else None


def fakes_in(values: Any) -> Iterator[FakeTensor]:
    """Every fake tensor in nested lists and tuples."""
    for value in values:
        if isinstance(value, FakeTensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from fakes_in(value)
