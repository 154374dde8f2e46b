"""The dispatch mode: every ATen operation that touches the virtual GPU passes here.

Tensors on the CPU stay real. An operation is fake if an argument is, or if it
creates something on `cuda`. Its outputs come from the metadata cache or, the
first time, from FakeTensor; what it would allocate and launch is written to
the tape. Operations that need more than that have a handler in `ops/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from ebbtide.vgpu.clock import seconds_of
from ebbtide.vgpu.costs import Cost
from ebbtide.vgpu.kernel import Kernel, KernelModel
from ebbtide.vgpu.metadata import FakeMaker, Output, Plan, describe_outputs, key_of
from ebbtide.vgpu.places import Places
from ebbtide.vgpu.shadow import Shadows
from ebbtide.vgpu.storages import Storages
from ebbtide.vgpu.tape import UNKNOWN, WORKSPACE, Tape
from ebbtide.vgpu.unknown import NO_RULE, run_on_host, run_sparse, takes_sparse

if TYPE_CHECKING:
    from torch._ops import OpOverload

    Handler = Callable[["VirtualMode", OpOverload, tuple[Any, ...], dict[str, Any]], Any]

INVALID_DEVICE = (
    "CUDA error: invalid device ordinal\nThe virtual GPU is the only device: cuda:0 exists, "
    "cuda:{index} does not."
)
_DEVICE_OF = torch.ops.prim.device.default
# These change an argument's own metadata, so a cache of outputs cannot serve them.
_CHANGES_METADATA = frozenset(
    "resize_ resize_as_ set_ t_ transpose_ squeeze_ unsqueeze_ as_strided_ swapaxes_ "
    "swapdims_ detach_ rename_ _resize_output_ set_data".split()
)
# A CPU tensor larger than this that nobody has written to yet need not exist.
_LARGE_EMPTY_BYTES = 256 << 20
_EMPTY_NAMES = frozenset({"empty", "empty_strided", "new_empty", "new_empty_strided"})


class _Route:
    """What is known of an operation before its arguments: found once for each overload."""

    __slots__ = ("cacheable", "composite", "handler", "mutable", "name")

    def __init__(self, func: OpOverload, handler: Handler | None) -> None:
        self.name = func._schema.name.removeprefix("aten::")
        self.handler = handler
        self.composite = handler is None and func.has_kernel_for_dispatch_key(
            torch._C.DispatchKey.CompositeImplicitAutograd
        )
        self.mutable = func._schema.is_mutable
        self.cacheable = self.name not in _CHANGES_METADATA


class VirtualMode(TorchDispatchMode):
    """Runs `cuda` operations on fake tensors and writes them to a tape.

    Args:
        fake_mode: makes and understands the fake tensors.
        tape: what is written.
        kernels: what the GPU does for an operation.
        handler_for: finds the handler of an operation that needs one.
        note: called with kind and text for everything that had to be guessed.
    """

    def __init__(
        self,
        fake_mode: FakeTensorMode,
        tape: Tape,
        kernels: KernelModel,
        handler_for: Callable[[OpOverload], Handler | None],
        note: Callable[[str, str], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake_mode = fake_mode
        self.tape = tape
        self.kernels = kernels
        self.note = note
        self.storages = Storages(tape)
        self.shadows = Shadows(note)
        self.places = Places(tape)
        self.maker = FakeMaker(fake_mode)
        self.plans: dict[Any, Plan] = {}
        # While modules move, parameters stay fake on the host too.
        self.keep_host_copies_fake = False
        # Notes that a real tensor was made in pinned memory, and returns it.
        self.mark_pinned: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor
        # What libraries keep for the device, by a name of the operation's choice.
        self.library_state: dict[str, torch.Tensor] = {}
        self._handler_for = handler_for
        self._routes: dict[OpOverload, _Route] = {}
        self._workspaces: dict[tuple[str, bool, int], int] = {}

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep TorchDispatchMode from wrapping each call in `torch._dynamo.disable`.

        The wrapper costs 10 us a call and imports Dynamo; nothing is compiled here.
        """
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if kwargs is None:
            kwargs = {}
        if func is _DEVICE_OF:
            return args[0].fake_device if isinstance(args[0], FakeTensor) else func(*args)
        route = self._routes.get(func)
        if route is None:
            if not isinstance(func, torch._ops.OpOverload):
                return self._higher_order(func, args, kwargs)
            route = self._routes[func] = _Route(func, self._handler_for(func))
        if FakeTensor in types:
            for kind in types:
                if kind is not FakeTensor and kind is not torch.nn.Parameter:
                    return NotImplemented  # a wrapper subclass: it unpacks itself first
        elif not self._creates_fake(route, args, kwargs):
            if kwargs.get("pin_memory"):  # there is no GPU to pin it for
                return self.mark_pinned(func(*args, **{**kwargs, "pin_memory": False}))
            return func(*args, **kwargs)
        if route.handler is not None:
            return route.handler(self, func, args, kwargs)
        if route.composite:
            with self:
                return func.decompose(*args, **kwargs)
        return self.run(func, args, kwargs)

    def _higher_order(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation over functions, such as `flex_attention`: fused, so only its outputs."""
        self.note("higher-order", f"{func} is taken as fused: its outputs, and no time")
        with self.fake_mode:
            result = func(*args, **kwargs)
        for item in tree_leaves(result):
            if isinstance(item, FakeTensor) and item.fake_device.type == "cuda":
                self.storages.add(item)
        return result

    def _creates_fake(self, route: _Route, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        device = kwargs.get("device")
        if device is not None and device.type == "cuda":
            return True
        if route.name in _EMPTY_NAMES and (device is None or device.type == "cpu") and args:
            size = args[0] if not isinstance(args[0], torch.Tensor) else args[1]
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            count = dtype.itemsize
            for n in size:
                count *= n
            return count > _LARGE_EMPTY_BYTES
        return False

    def run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out an operation as it is: outputs, tape, small values."""
        route = self._routes.get(func)
        if route is None:
            route = self._routes[func] = _Route(func, self._handler_for(func))
        key: list[Any] = [func]
        tensors: list[torch.Tensor] = []
        try:
            key_of(args, key, tensors)
            if kwargs:
                key.extend(kwargs)
                key_of(kwargs.values(), key, tensors)
        except RuntimeError:  # a sparse tensor has no strides
            tensors = list(_all_tensors((*args, *kwargs.values())))
            return self._run_once(func, route, args, kwargs, None, tensors)
        try:
            plan = self.plans.get(tuple(key)) if route.cacheable else None
        except TypeError:  # an argument that cannot be hashed
            plan = None
        if plan is None or plan.outputs is None:
            return self._run_once(func, route, args, kwargs, key, tensors)
        if plan.kernel is not None:
            self._launch(plan.kernel)
            result = self._make(plan, tensors)
        elif plan.wrap is None:
            output = plan.outputs[0]
            result = None if output is None else self.maker.make(output, tensors)
        else:
            result = self._make(plan, tensors)
        if plan.small:
            self.shadows.follow(func, args, kwargs, result)
        return result

    def _make(self, plan: Plan, tensors: list[torch.Tensor]) -> Any:
        made: list[torch.Tensor | None] = []
        kernel = plan.kernel
        scratch = kernel.scratch if kernel is not None else ()
        assert plan.outputs is not None
        for position, output in enumerate(plan.outputs):
            if scratch:
                self._use_scratch(kernel, position)
            if output is None:
                made.append(None)
                continue
            tensor = self.maker.make(output, tensors)
            if output.nbytes:
                self.storages.add_new(tensor, output.nbytes)
            made.append(tensor)
        if kernel is not None:
            if kernel.workspaces:
                self._hold_workspaces(kernel)
            if scratch:
                self._use_scratch(kernel, len(plan.outputs), rest=True)
        return made[0] if plan.wrap is None else plan.wrap(made)

    def _run_once(
        self,
        func: OpOverload,
        route: _Route,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: list[Any] | None,
        tensors: list[torch.Tensor],
    ) -> Any:
        """The slow way, through FakeTensor; remembers the answer under `key` where it can."""
        device = kwargs.get("device")
        if device is not None and device.type == "cuda" and device.index:
            raise torch.AcceleratorError(INVALID_DEVICE.format(index=device.index))
        known = {id(tensor): self.as_fake(tensor) for tensor in tensors}
        fake_args = _swap(args, known)
        fake_kwargs = {name: _swap(value, known) for name, value in kwargs.items()}
        result = self._ask_fake(func, fake_args, fake_kwargs)
        converted = [known[id(tensor)] for tensor in tensors]
        outputs, wrap = describe_outputs(result, tensors, converted)
        plan = Plan(outputs, wrap, None)
        if any(tensor.device.type == "cuda" for tensor in _tensors_in(result, converted)):
            views = outputs and all(o is None or o.same >= 0 or o.alias >= 0 for o in outputs)
            if route.mutable or not views:
                plan.kernel = self.kernels.describe(route.name, fake_args, fake_kwargs, result)
        if outputs:
            worth = self.shadows.worth_following
            plan.small = all(
                o is not None and worth(func, o.shape, o.dtype, o.stride) for o in outputs
            )
        if plan.kernel is not None:
            self._launch(plan.kernel)
        self._note_outputs(plan.kernel, result, wrap)
        if outputs is not None and route.cacheable and key is not None:
            try:
                self.plans[tuple(key)] = plan
            except TypeError:
                self.note("uncached", f"aten::{route.name} takes an argument that has no hash")
        result = self._original(result, tensors, converted)
        if plan.small:
            self.shadows.follow(func, args, kwargs, result)
        return result

    def _ask_fake(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """What FakeTensor returns; where it has no rule, what the CPU kernel says.

        An error inside a meta kernel can leave this thread's dispatch keys as they are in
        there, so they are put back.
        """
        included = torch._C._dispatch_tls_local_include_set()
        excluded = torch._C._dispatch_tls_local_exclude_set()
        try:
            with torch._C._ForceDispatchKeyGuard(included, excluded):
                if takes_sparse(func, args):
                    return run_sparse(self, args)
                result = self.fake_mode.dispatch(func, (), args, kwargs)
        except NO_RULE:
            return run_on_host(self, func, args, kwargs)
        # Formulae in Python return named tuples, which are seen as a single output.
        return tuple(result) if isinstance(result, tuple) else result

    def _note_outputs(self, kernel: Kernel | None, result: Any, wrap: type | None) -> None:
        items = result if wrap else (result,)
        position = 0
        for position, item in enumerate(items):
            if kernel is not None and kernel.scratch:
                self._use_scratch(kernel, position)
            if isinstance(item, FakeTensor) and item.fake_device.type == "cuda":
                self.storages.add(item)
        if kernel is not None:
            if kernel.workspaces:
                self._hold_workspaces(kernel)
            if kernel.scratch:
                self._use_scratch(kernel, position + 1, rest=True)

    @staticmethod
    def _original(result: Any, tensors: list[torch.Tensor], converted: list[torch.Tensor]) -> Any:
        """`result` with converted arguments replaced by the tensors that were passed."""
        if all(a is b for a, b in zip(tensors, converted, strict=True)):
            return result
        back = {id(fake): real for real, fake in zip(tensors, converted, strict=True)}
        if isinstance(result, tuple | list):
            return type(result)(back.get(id(item), item) for item in result)
        return back.get(id(result), result)

    def as_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` itself if it is fake, else a fake one of its shape that knows its values."""
        if isinstance(tensor, FakeTensor):
            return tensor
        fake = self.fake_mode.from_tensor(tensor)
        self.shadows.remember_real(fake, tensor)
        return fake

    # -- for handlers

    def call(self, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
        """Run another operation as if the program had called it."""
        with self:
            return func(*args, **kwargs)

    def new_tensor(
        self,
        shape: tuple[int, ...],
        like: torch.Tensor,
        dtype: torch.dtype,
        stride: tuple[int, ...] | None = None,
        *,
        span: tuple[int, int] | None = None,
        category: int = UNKNOWN,
    ) -> torch.Tensor:
        """A fresh tensor on `like`'s device, allocated by the current operation.

        Args:
            shape: its shape.
            dtype: its dtype.
            stride: its strides; contiguous by default.
            like: any fake tensor of the device.
            span: least and most bytes it may have, where its size is a library's choice.
            category: what it is for, if that is known.
        """
        stride = stride or _contiguous(shape)
        output = Output(tuple(shape), stride, dtype, like.device)
        made = self.maker.make(output, [])
        if output.nbytes:
            self.storages.add_new(made, output.nbytes, span, category)
        return made

    def view_of(self, base: torch.Tensor, shape: tuple[int, ...], offset: int) -> torch.Tensor:
        """A contiguous view of the memory of `base`, `offset` elements from its start."""
        output = Output(shape, _contiguous(shape), base.dtype, base.device)
        output.alias, output.offset, output.nbytes = 0, offset, 0
        return self.maker.make(output, [base])

    def record_only(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Write the launch of an operation whose outputs, if any, are made elsewhere."""
        self._use_scratch(self.launch(func, args, kwargs), 0, rest=True)

    def launch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Kernel:
        """Write the launch alone: outputs and temporaries are the caller's."""
        key = (func, *(_shapes(value) for value in (*args, *kwargs.values())))
        plan = self.plans.get(key)
        if plan is None:
            name = func._schema.name.removeprefix("aten::")
            plan = Plan((), None, self.kernels.describe(name, args, kwargs, ()))
            self.plans[key] = plan
        kernel: Kernel = plan.kernel
        self._launch(kernel)
        return kernel

    def take_scratch(self, low: int, likely: int, high: int) -> int:
        """Memory of the current operation that is no tensor; `tape.free` gives it back."""
        return self.tape.alloc(likely, low, high, WORKSPACE)

    def over_link(self, row: int, link: str, nbytes: int) -> None:
        """The operation in `row` of the tape is a copy between host and device.

        Args:
            row: the operation, or beyond the last if none was written.
            link: of `clock.LINKS`.
            nbytes: how much crosses the link.
        """
        tape = self.tape
        if row < len(tape.op_name):
            cost = Cost(0, nbytes, link)
            tape.op_rate[row] = tape.names.of(link)
            tape.op_flops[row], tape.op_moved[row] = 0, nbytes
            tape.op_seconds[row] = seconds_of(self.kernels.spec, cost)

    def real_copy(self, fake: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """A real CPU tensor in place of the host copy `fake` of `source`."""
        known = self.shadows.known(source)
        with _disable_current_modes():
            real = torch.empty_strided(
                tuple(fake.shape), fake.stride(), dtype=fake.dtype, device="cpu"
            )
            if known is None:
                self.note("host-copy", "a tensor was copied to the host: it holds dummies there")
                return real.fill_(1 if fake.dtype.is_floating_point else 0)
            return real.copy_(known)

    # -- what the tape sees

    def _launch(self, kernel: Kernel) -> None:
        tape = self.tape
        module, line = self.places.now()
        tape.op = row = len(tape.op_name)
        tape.op_name.append(kernel.name)
        tape.op_module.append(module)
        tape.op_line.append(line)
        tape.op_phase.append(tape.phase)
        tape.op_stream.append(tape.stream)
        tape.op_rate.append(kernel.rate)
        tape.op_flops.append(kernel.flops)
        tape.op_moved.append(kernel.moved_bytes)
        tape.op_seconds.append(kernel.seconds)
        tape.kind.append(2)
        tape.arg.append(row)

    def _use_scratch(self, kernel: Kernel, position: int, rest: bool = False) -> None:
        """Temporaries that come before output `position`; with `rest`, all later ones."""
        for item in kernel.scratch:
            if item.after_outputs == position or (rest and item.after_outputs > position):
                row = self.tape.alloc(item.likely, item.low, item.high, WORKSPACE, item.fallback)
                self.tape.free(row)

    def _hold_workspaces(self, kernel: Kernel) -> None:
        """Library workspaces: kept for a handle and a stream, or for this call alone.

        The autograd engine runs on a thread of its own on a GPU, with its own handle.
        """
        tape = self.tape
        for workspace in kernel.workspaces:
            if workspace.held == "handle":
                owner = (workspace.library, self.places.in_backward, tape.stream)
                if owner not in self._workspaces:
                    size = workspace.nbytes
                    self._workspaces[owner] = tape.alloc(size, size, size, WORKSPACE)
            else:
                size = workspace.nbytes
                tape.free(tape.alloc(size, size, size, WORKSPACE))

    def forget_workspaces(self) -> None:
        """`torch._C._cuda_clearCublasWorkspaces()`."""
        for row in self._workspaces.values():
            self.tape.free(row)
        self._workspaces.clear()


def _swap(value: Any, known: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return known.get(id(value), value)
    if isinstance(value, tuple | list):
        return type(value)(_swap(item, known) for item in value)
    return value


def _all_tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _all_tensors(value)


def _tensors_in(result: Any, also: list[torch.Tensor]) -> list[torch.Tensor]:
    items = result if isinstance(result, tuple | list) else (result,)
    return [item for item in items if isinstance(item, torch.Tensor)] + also


def _shapes(value: Any) -> Any:
    """What `record_only` tells calls apart by: shapes and dtypes, not values."""
    if isinstance(value, torch.Tensor):
        return (value.shape, value.dtype)
    if isinstance(value, tuple | list):
        return tuple(_shapes(item) for item in value)
    return type(value)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))
