"""What an operation costs: multiplications and additions, and bytes to and from memory.

Bytes are those of the tensors that go in and come out; caches are not modelled, nor are
kernels that read their input twice. An operation that is not listed is taken to be
elementwise, which all that are not matrix products nearly are: bound by memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from ebbtide.vgpu.tensors import TensorMeta


class Cost(NamedTuple):
    """What one operation asks of the GPU.

    Attributes:
        flops: multiplications and additions of matrix units; 0 where memory binds.
        moved_bytes: read from and written to device memory; 0 if no kernel runs.
        dtype_for_rate: torch's name of the dtype that is computed in, or ``"tf32"``.
    """

    flops: int
    moved_bytes: int
    dtype_for_rate: str


NOTHING = Cost(0, 0, "float32")

# Change what is seen of memory, or take memory without touching it.
_FREE = frozenset(
    """
    _conj _neg_view _reshape_alias _reshape_copy _unsafe_view alias as_strided as_strided_
    chunk detach detach_ diagonal empty empty_like empty_permuted empty_strided expand
    expand_as flatten imag is_same_size lift lift_fresh movedim narrow new_empty
    new_empty_strided permute real record_stream resize_ result_type select set_ size slice
    split split_with_sizes squeeze squeeze_ swapaxes sym_numel sym_size sym_storage_offset
    sym_stride t t_ tensor_split transpose transpose_ unbind unflatten unfold unsafe_chunk
    unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_ values view view_as
    view_as_complex view_as_real _fused_sdp_choice _version _has_compatible_shallow_copy_type
    """.split()
)
# Write their output and read no tensor, though one may be passed for its shape.
_WRITE_ONLY = frozenset(
    """
    arange bernoulli_ cauchy_ exponential_ eye fill fill_ full full_like geometric_ linspace
    log_normal_ new_full new_ones new_zeros normal_ ones ones_like rand rand_like randint
    randint_like randn randn_like random_ randperm scalar_tensor tril_indices triu_indices
    uniform_ zero_ zeros zeros_like
    """.split()
)
# Position of the left factor among the arguments.
_PRODUCTS = {
    "mm": 0,
    "bmm": 0,
    "matmul": 0,
    "linear": 0,
    "mv": 0,
    "dot": 0,
    "vdot": 0,
    "_int_mm": 0,
    "_scaled_mm": 0,
    "_grouped_mm": 0,
    "_scaled_grouped_mm": 0,
    "_weight_int8pack_mm": 0,
    "_weight_int4pack_mm": 0,
    "addmm": 1,
    "addmm_": 1,
    "_addmm_activation": 1,
    "addmv": 1,
    "baddbmm": 1,
    "baddbmm_": 1,
}
_CONVOLUTIONS = frozenset(
    """
    convolution _convolution convolution_overrideable cudnn_convolution
    cudnn_convolution_relu cudnn_convolution_add_relu conv1d conv2d conv3d conv_depthwise3d
    _conv_depthwise2d slow_conv_dilated2d slow_conv_dilated3d slow_conv3d _slow_conv2d_forward
    """.split()
)
_TRANSPOSED = frozenset(
    "cudnn_convolution_transpose conv_transpose1d conv_transpose2d conv_transpose3d".split()
)
# Where `is_causal` stands among the arguments; whether heads come before the sequence.
_ATTENTION = {
    "scaled_dot_product_attention": (5, True),
    "_scaled_dot_product_attention_math": (5, True),
    "_scaled_dot_product_flash_attention": (4, True),
    "_scaled_dot_product_efficient_attention": (6, True),
    "_scaled_dot_product_cudnn_attention": (6, True),
    "_flash_attention_forward": (8, False),
    "_efficient_attention_forward": (-1, False),
}
_ATTENTION_BACKWARD = {
    "_scaled_dot_product_flash_attention_backward": (11, True),
    "_scaled_dot_product_efficient_attention_backward": (11, True),
    "_scaled_dot_product_cudnn_attention_backward": (14, True),
    "_flash_attention_backward": (11, False),
    "_efficient_attention_backward": (-1, False),
}
# Read as many elements of their first tensor as they write, found by an index.
_GATHERS = frozenset("embedding gather index index_select _unsafe_index take".split())
# Write as many elements of their first tensor as there are values, found by an index.
_SCATTERS = frozenset(
    """
    index_put_ _index_put_impl_ _unsafe_index_put scatter_ scatter_add_ index_add_ index_copy_
    scatter_reduce_ masked_scatter_
    """.split()
)


def op_cost(
    name: str,
    inputs: Sequence[Any],
    outputs: Sequence[TensorMeta],
    *,
    matmul_tf32: bool = False,
    conv_tf32: bool = True,
) -> Cost:
    """The cost of one ATen operation.

    Args:
        name: without namespace and overload: ``"addmm"``.
        inputs: its arguments in order, tensors as `TensorMeta`, lists as tuples.
        outputs: the tensors it returned.
        matmul_tf32: whether float32 products may use TF32 (`torch.backends.cuda.matmul
            .allow_tf32`, off by default).
        conv_tf32: the same for convolutions (`torch.backends.cudnn.allow_tf32`, on).
    """
    if name in _FREE:
        return NOTHING
    if name in _PRODUCTS:
        return _product(name, inputs, outputs, matmul_tf32)
    if name in _CONVOLUTIONS or name in _TRANSPOSED:
        transposed = name in _TRANSPOSED or _flag(inputs, 6)
        flops = _convolution(inputs[0], inputs[1], outputs[0] if outputs else None, transposed)
        return Cost(flops, _moved(inputs, outputs), _rate(inputs[0], conv_tf32))
    if name == "convolution_backward":
        return _convolution_backward(inputs, outputs, conv_tf32)
    if name in _ATTENTION or name in _ATTENTION_BACKWARD:
        return _attention(name, inputs, outputs, matmul_tf32)
    if name.startswith("_cudnn_rnn") and len(inputs) > 1:
        return _rnn(name, inputs, outputs, conv_tf32)
    return Cost(0, _elementwise_bytes(name, inputs, outputs), _dtype(inputs, outputs))


def _product(name: str, inputs: Sequence[Any], outputs: Sequence[TensorMeta], tf32: bool) -> Cost:
    left: TensorMeta = inputs[_PRODUCTS[name]]
    inner = left.shape[-1] if left.shape else 1
    size = sum(out.numel for out in outputs)
    if name in ("_grouped_mm", "_scaled_grouped_mm") and len(left.shape) == 2 == len(
        inputs[1].shape
    ):
        # Two matrices: the groups part the inner dimension, and each fills an output.
        size = outputs[0].numel // max(outputs[0].shape[0], 1) if outputs else 0
    return Cost(2 * size * inner, _moved(inputs, outputs), _rate(left, tf32))


def _convolution(
    image: TensorMeta, weight: TensorMeta, out: TensorMeta | None, transposed: bool
) -> int:
    """FLOP of a convolution: every element of the side that is not summed meets a filter."""
    side = image if transposed else out
    if side is None or not weight.shape or not weight.shape[0]:
        return 0
    return 2 * side.numel * (weight.numel // weight.shape[0])


def _convolution_backward(inputs: Sequence[Any], outputs: Sequence[TensorMeta], tf32: bool) -> Cost:
    grad, image, weight = inputs[:3]
    one = _convolution(image, weight, grad, _flag(inputs, 7))
    mask = inputs[10] if len(inputs) > 10 else (True, True)
    wanted = sum(1 for want in mask[:2] if want)
    return Cost(wanted * one, _moved(inputs, outputs), _rate(image, tf32))


def _attention(name: str, inputs: Sequence[Any], outputs: Sequence[TensorMeta], tf32: bool) -> Cost:
    """Two products forward; five backward, which makes the scores again.

    Dao, FlashAttention-2 (2023-07-17), section 4.1: half of it where causal, and a
    backward pass of 2.5 forward ones.
    """
    backward = name in _ATTENTION_BACKWARD
    causal, heads_first = (_ATTENTION_BACKWARD if backward else _ATTENTION)[name]
    query, key, value = inputs[1:4] if backward else inputs[:3]
    rows, columns = (-2, -2) if heads_first else (1, 1)
    if len(query.shape) < 3 or len(key.shape) < 3:
        return Cost(0, _moved(inputs, outputs), _rate(query, tf32))
    pairs = prod(query.shape[:-1]) * key.shape[columns]
    flops = 2 * pairs * (query.shape[-1] + value.shape[-1])
    if causal >= 0 and _flag(inputs, causal) and query.shape[rows] == key.shape[columns]:
        flops //= 2
    if backward:
        flops = flops * 5 // 2
    return Cost(flops, _moved(inputs, outputs), _rate(query, tf32))


def _rnn(name: str, inputs: Sequence[Any], outputs: Sequence[TensorMeta], tf32: bool) -> Cost:
    """Every weight meets every time step once; backward twice."""
    sequence: TensorMeta = inputs[0]
    steps = sequence.numel // max(sequence.shape[-1], 1)
    weights = sum(meta.numel for meta in _tensors(inputs[1]) if len(meta.shape) > 1)
    times = 2 if name.endswith("backward") else 1
    return Cost(2 * times * steps * weights, _moved(inputs, outputs), _rate(sequence, tf32))


def _elementwise_bytes(name: str, inputs: Sequence[Any], outputs: Sequence[TensorMeta]) -> int:
    written = sum(map(_footprint, outputs))
    if name in _WRITE_ONLY:
        return written
    if name == "copy_":
        return sum(_footprint(meta) for meta in inputs[:2] if isinstance(meta, TensorMeta))
    if name in _GATHERS:
        return 2 * written + sum(map(_footprint, _tensors(inputs[1:])))
    if name in _SCATTERS:
        # The value is read, its place read and written.
        return 3 * sum(map(_footprint, _tensors(inputs[1:])))
    read = sum(map(_footprint, _tensors(inputs)))
    if not outputs and name.endswith("_"):
        written = _written_in_place(name, inputs)
    return read + written


def _written_in_place(name: str, inputs: Sequence[Any]) -> int:
    """Bytes that an operation on lists writes: it returns nothing that shows them."""
    # params, grads, exp_avgs, exp_avg_sqs: the gradients are only read.
    lists = inputs[:1] if not name.startswith("_fused") else (*inputs[:1], *inputs[2:4])
    return sum(map(_footprint, _tensors(lists)))


def _moved(inputs: Sequence[Any], outputs: Sequence[TensorMeta]) -> int:
    return sum(map(_footprint, _tensors(inputs))) + sum(map(_footprint, outputs))


def _footprint(meta: TensorMeta) -> int:
    """Bytes of the memory that a tensor covers: an expanded dimension is one element."""
    size = meta.itemsize
    for extent, stride in zip(meta.shape, meta.strides, strict=True):
        if stride or not extent:
            size *= extent
    return size


def _tensors(values: Any) -> Iterator[TensorMeta]:
    """Every tensor in nested tuples; `TensorMeta` is one itself."""
    for value in values:
        if isinstance(value, TensorMeta):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _flag(inputs: Sequence[Any], position: int) -> bool:
    return len(inputs) > position and inputs[position] is True


def _rate(meta: TensorMeta, tf32: bool) -> str:
    return "tf32" if tf32 and meta.dtype == "float32" else meta.dtype


def _dtype(inputs: Sequence[Any], outputs: Sequence[TensorMeta]) -> str:
    first = next(iter(outputs), None) or next(_tensors(inputs), None)
    return "float32" if first is None else first.dtype
