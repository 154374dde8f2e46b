"""LSTM, GRU and RNN: on CUDA they go through cuDNN, whose part is done here.

`lstm`, `gru`, `rnn_tanh` and `rnn_relu` are composites that ask a dispatch stub which
exists on a GPU only. A `torch.library` implementation for CUDA's autograd key does what
that stub does (aten/src/ATen/native/cudnn/RNN.cpp and cudnn/AutocastRNN.cpp of
pytorch/pytorch @ 00fc08aa): find or make the flat weight buffer, cast under autocast,
call `_cudnn_rnn`, whose autograd formula is PyTorch's own. The handlers say what cuDNN
allocates.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ebbtide.vgpu.kernels.recurrent import DROPOUT_STATE, GRU, LSTM, RELU, TANH, Recurrent
from ebbtide.vgpu.tape import SYNC, WORKSPACE

_aten = torch.ops.aten
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_CELLS = {"lstm": LSTM, "gru": GRU, "rnn_tanh": TANH, "rnn_relu": RELU}
# The text of PyTorch (RNN.cpp, WEIGHT_FORMAT_WARN).
_NOT_FLAT = (
    "RNN module weights are not part of single contiguous chunk of memory. This means they "
    "need to be compacted at every call, possibly greatly increasing memory usage. To compact "
    "weights again call flatten_parameters()."
)
_CAST = (torch.float32, torch.bfloat16)  # what autocast calls eligible, less half itself
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
HANDLERS: dict[Any, Any] = {}

Tensors = Sequence[torch.Tensor]


# -- the composite: what comes before cuDNN


def _run(
    mode: Any, cell: int, data: torch.Tensor, batch_sizes: Any, hidden: Any, rest: tuple[Any, ...]
) -> tuple[torch.Tensor, ...]:
    """`_cudnn_impl` of RNN.cpp. Returns output and final state or states."""
    params, has_biases, layers, dropout, train, bidirectional, *batch_first = rest
    hx, cx = (hidden[0], hidden[1]) if cell == LSTM else (hidden, None)
    projected = cx is not None and cx.shape[2] != hx.shape[2]
    net = Recurrent(
        mode=cell,
        inputs=data.shape[-1],
        hidden=cx.shape[2] if cx is not None else hx.shape[2],
        projection=hx.shape[2] if projected else 0,
        layers=layers,
        directions=2 if bidirectional else 1,
    )
    stride = (4 if has_biases else 2) + projected
    buffer = _flat_buffer(net, params, has_biases)
    state = _dropout_state(mode, data) if train and dropout > 0 else None
    if torch.is_autocast_enabled("cuda"):
        data, params, buffer, hx, cx = _cast(net, data, params, buffer, hx, cx, has_biases)
    if buffer is None:
        warnings.warn(_NOT_FLAT, stacklevel=2)
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        out = _aten._cudnn_rnn(
            data, params, stride, buffer, hx, cx, cell, net.hidden, net.projection, layers,
            bool(batch_first and batch_first[0]), dropout, train, bidirectional,
            [] if batch_sizes is None else batch_sizes.tolist(), state,
        )  # fmt: skip
    return (out[0], out[1], out[2]) if cell == LSTM else (out[0], out[1])


def _cast(
    net: Recurrent,
    data: torch.Tensor,
    params: Tensors,
    buffer: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    has_biases: bool,
) -> tuple[Any, ...]:
    """`_cudnn_rnn_cast_reflatten`: autocast runs cuDNN in half, whatever its own dtype is."""
    if params[0].dtype in _CAST:
        elements = net.weight_elements()
        buffer = torch.zeros(elements, dtype=torch.half, device=params[0].device)
        flat = []
        for param, offset in zip(params, net.offsets(biases=has_biases), strict=True):
            # Detached: each copy is differentiated for itself, not as a view of the buffer.
            slot = buffer.as_strided(param.shape, param.stride(), offset).detach()
            flat.append(slot.copy_(param))
        params = flat
    data, hx = _half(data), _half(hx)
    return data, params, buffer, hx, None if cx is None else _half(cx)


def _half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.half() if tensor.dtype in _CAST else tensor


def _flat_buffer(net: Recurrent, params: Tensors, has_biases: bool) -> torch.Tensor | None:
    """`try_get_weight_buf`: the buffer whose views the parameters are, or None."""
    first = params[0]
    storage = first.untyped_storage()
    elements = net.weight_elements()
    if storage.nbytes() < elements * first.dtype.itemsize or not params[-1].is_contiguous():
        return None
    for param, offset in zip(params, net.offsets(biases=has_biases), strict=True):
        if param.storage_offset() != offset or param.dtype is not first.dtype:
            return None
        if param.untyped_storage()._cdata != storage._cdata:
            return None
    return first.detach().as_strided((elements,), (1,), 0)


def _dropout_state(mode: Any, like: torch.Tensor) -> torch.Tensor:
    """Random states of cuDNN's dropout: made once for a device, with a seed read back."""
    state: torch.Tensor | None = mode.library_state.get("cudnn-dropout")
    if state is None:
        mode.tape.event(SYNC)
        low, likely, high = DROPOUT_STATE
        state = mode.new_tensor((likely,), like, torch.uint8, span=(low, high), category=WORKSPACE)
        mode.library_state["cudnn-dropout"] = state
    return state


def _composite(mode: Any, func: Any, cell: int) -> Callable[..., Any]:
    packed = func._overloadname == "data"

    def implementation(*args: Any, **kwargs: Any) -> Any:
        data = args[0]
        if kwargs or not torch.cudnn_is_acceptable(data):
            return func._op_dk(_COMPOSITE, *args, **kwargs)
        if packed:
            return _run(mode, cell, data, args[1], args[2], args[3:])
        return _run(mode, cell, data, None, args[1], args[2:])

    return implementation


def register(mode: Any, library: torch.library.Library) -> None:
    """Route CUDA's recurrent layers through cuDNN's operation while `library` lives."""
    for name, cell in _CELLS.items():
        for overload in ("input", "data"):
            func = getattr(getattr(_aten, name), overload)
            library.impl(f"{name}.{overload}", _composite(mode, func, cell), "AutogradCUDA")


def _in_mode(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Under inference mode the composite reaches the dispatch mode whole."""
    with mode:
        return _composite(mode, func, _CELLS[func._schema.name.removeprefix("aten::")])(
            *args, **kwargs
        )


for _name in _CELLS:
    for _overload in ("input", "data"):
        HANDLERS[getattr(getattr(_aten, _name), _overload)] = _in_mode


# -- what cuDNN does


def _network(args: Any) -> tuple[Recurrent, Any]:
    """The network of `_cudnn_rnn`'s arguments, and how its rows are laid out."""
    (data, _, _, _, _, _, cell, hidden, projection, layers, first, _, _, both, sizes) = args[:15]
    if sizes:
        steps, batch = len(sizes), sizes[0]
        rows: tuple[int, ...] = (data.shape[0],)
    else:
        batch, steps = data.shape[:2] if first else (data.shape[1], data.shape[0])
        rows = (steps, batch)
    net = Recurrent(
        mode=cell,
        inputs=data.shape[-1],
        hidden=hidden,
        projection=projection,
        layers=layers,
        directions=2 if both else 1,
        steps=steps,
        batch=batch,
    )
    return net, rows


def _contiguous(mode: Any, tensor: torch.Tensor, transposed: bool) -> torch.Tensor:
    """`tensor.contiguous()`, of its transpose where the batch comes first."""
    if transposed:
        tensor = tensor.transpose(0, 1)
    return tensor if tensor.is_contiguous() else mode.new_tensor(tensor.shape, tensor, tensor.dtype)


def _states(net: Recurrent) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Shapes of the hidden state and of the cell."""
    count = net.layers * net.directions
    return (count, net.batch, net.width), (count, net.batch, net.hidden)


def _forward(mode: Any, func: Any, args: Any, kwargs: Any) -> tuple[torch.Tensor, ...]:
    data, _, _, buffer, hx, cx = args[:6]
    first, train, sizes = args[10], args[12], args[14]
    for name, state in (("hx", hx), ("cx", cx)):
        if state is not None and not state.is_contiguous():
            raise RuntimeError(f"rnn: {name} is not contiguous")
    net, rows = _network(args)
    mode.launch(func, args, kwargs)
    transposed = first and not sizes
    copy = _contiguous(mode, data, transposed)
    output = mode.new_tensor((*rows, net.width * net.directions), data, data.dtype)
    hidden_shape, cell_shape = _states(net)
    hy = mode.new_tensor(hidden_shape, data, hx.dtype)
    cy = mode.new_tensor((0,) if cx is None else cell_shape, data, hx.dtype)
    if buffer is None:
        buffer = mode.new_tensor((net.weight_elements(),), data, data.dtype)
    itemsize = data.dtype.itemsize
    workspace = mode.take_scratch(*net.workspace_bytes(itemsize))
    reserve = mode.new_tensor((0,), data, torch.uint8)
    if train:
        low, likely, high = net.reserve_bytes(itemsize, dropout=args[11] > 0)
        reserve = mode.new_tensor((likely,), data, torch.uint8, span=(low, high))
    mode.tape.free(workspace)
    del copy
    if transposed:
        output = output.transpose(0, 1)
    return output, hy, cy, reserve, buffer


def _backward(mode: Any, func: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
    data, weights, _, buffer, hx, cx, output, *grads = args[:10]
    rest = args[10:]
    if all(grad is None for grad in grads):
        return None, None, None, [None] * len(weights)
    first, train, sizes, wanted = rest[4], rest[6], rest[8], rest[11]
    if not train:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    net, rows = _network((data, weights, 0, buffer, hx, cx, *rest[:9]))
    mode.launch(func, args, kwargs)
    transposed = first and not sizes
    itemsize = data.dtype.itemsize
    # Gradients that nobody gave are zeros; they live to the end.
    like = (output, hx, cx)
    given = [
        mode.new_tensor(tuple(of.shape), data, of.dtype)
        if grad is None and of is not None
        else grad
        for grad, of in zip(grads, like, strict=True)
    ]
    copies = [_contiguous(mode, data, transposed), _contiguous(mode, given[0], transposed)]
    dx = mode.new_tensor((*rows, data.shape[-1]), data, data.dtype)
    hidden_shape, cell_shape = _states(net)
    dhx = mode.new_tensor(hidden_shape, data, hx.dtype)
    dcx = None if cx is None else mode.new_tensor(cell_shape, data, cx.dtype)
    mode.tape.free(mode.take_scratch(*net.workspace_bytes(itemsize)))
    del copies
    gradients: list[torch.Tensor] = []
    if wanted[3]:
        gradients = _weight_gradients(mode, net, data, weights, buffer, transposed)
    del given
    return dx.transpose(0, 1) if transposed else dx, dhx, dcx, gradients


def _weight_gradients(
    mode: Any, net: Recurrent, data: torch.Tensor, weights: Tensors, buffer: Any, transposed: bool
) -> list[torch.Tensor]:
    """Gradients as views of one buffer; copies of it for a projection without biases."""
    copy = _contiguous(mode, data, transposed)
    flat = mode.new_tensor(tuple(buffer.shape), buffer, buffer.dtype)
    mode.tape.free(mode.take_scratch(*net.workspace_bytes(data.dtype.itemsize)))
    del copy
    shapes = [tuple(weight.shape) for weight in weights]
    biases = any(len(shape) == 1 for shape in shapes)
    offsets = net.offsets(biases=biases)
    if not biases:
        # The buffer has rows for biases, so its parts do not match the list of weights.
        return [mode.new_tensor(shape, flat, flat.dtype) for shape in shapes]
    return [
        mode.view_of(flat, shape, offset) for shape, offset in zip(shapes, offsets, strict=True)
    ]


def _flatten(mode: Any, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """`_cudnn_rnn_flatten_weight`: the weights become views of one buffer, and stay themselves."""
    weights, stride, inputs, cell, hidden, projection, layers, _, both = args
    net = Recurrent(
        mode=cell,
        inputs=inputs,
        hidden=hidden,
        projection=projection,
        layers=layers,
        directions=2 if both else 1,
    )
    first = weights[0]
    buffer: torch.Tensor = mode.call(
        _aten.zeros.default, [net.weight_elements()], dtype=first.dtype, device=first.device
    )
    offsets = net.offsets(biases=stride >= 4)
    views = [
        mode.view_of(buffer, tuple(weight.shape), offset)
        for weight, offset in zip(weights, offsets, strict=True)
    ]
    for weight, view in zip(weights, views, strict=True):
        mode.call(_aten.copy_.default, view, weight)
    for weight, view in zip(weights, views, strict=True):
        weight.data = view
    return buffer


def _pack(mode: Any, func: Any, args: Any, kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`_pack_padded_sequence`: the lengths lie on the host and are known."""
    data, lengths, _first = args
    known = mode.shadows.value(lengths, "the length of a sequence")
    counts: list[int] = known.tolist()
    if not counts or min(counts) <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' "
            "that is <= 0"
        )
    if counts != sorted(counts, reverse=True):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. "
            "You can pass `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence "
            "to sidestep this requirement if you do not need ONNX exportability."
        )
    mode.launch(func, args, kwargs)
    tail = tuple(data.shape[2:])
    packed = mode.new_tensor((sum(counts), *tail), data, data.dtype)
    with torch.utils._python_dispatch._disable_current_modes():
        sizes = torch.tensor([sum(n > step for n in counts) for step in range(counts[0])])
    return packed, sizes


HANDLERS[_aten._cudnn_rnn.default] = _forward
HANDLERS[_aten._cudnn_rnn_backward.default] = _backward
HANDLERS[_aten._cudnn_rnn_flatten_weight.default] = _flatten
HANDLERS[_aten._pack_padded_sequence.default] = _pack
