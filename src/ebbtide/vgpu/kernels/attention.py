"""Which kernel CUDA's `scaled_dot_product_attention` picks, and why.

A port of the decision, not of the code: `select_sdp_backend` walks a priority list and
takes the first kernel whose conditions all hold.

Sources: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and sdp_utils_cpp.h of
main @ 001f694a (2026-08) for the present rules; what differs in a release was read from
that release's file or from the messages in its libtorch_cuda.so. Nested tensors and ROCm
are not covered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.tensors import TensorMeta

Backend = Literal["flash", "efficient", "cudnn", "math"]
ALL_BACKENDS: frozenset[Backend] = frozenset({"flash", "efficient", "cudnn", "math"})

_HALF = frozenset({"float16", "bfloat16"})
# The newest architecture that the fused kernels of a release accept: the messages
# "only supports gpu architectures in the range [sm80, smNN]" of its libtorch_cuda.so.
_NEWEST_SM = (((2, 8), 121), ((2, 7), 120), ((2, 0), 90))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One call of `scaled_dot_product_attention`, as far as kernel choice looks at it."""

    query: TensorMeta
    key: TensorMeta
    value: TensorMeta
    mask: TensorMeta | None = None
    mask_needs_grad: bool = False
    dropout_p: float = 0.0
    is_causal: bool = False
    enable_gqa: bool = False
    needs_grad: bool = False

    @property
    def tensors(self) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
        """Query, key and value."""
        return self.query, self.key, self.value


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel that runs, and why those before it in the priority order do not."""

    backend: Backend
    reason: str


class NoKernelError(RuntimeError):
    """Raised when every kernel is switched off or refuses, with PyTorch's own wording."""


def choose_sdpa(
    q: TensorMeta,
    k: TensorMeta,
    v: TensorMeta,
    mask: TensorMeta | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
    needs_grad: bool,
    ctx: KernelContext,
    enabled: frozenset[Backend] | set[Backend] = ALL_BACKENDS,
    *,
    mask_needs_grad: bool = False,
    order: tuple[Backend, ...] | None = None,
) -> Choice:
    """The kernel for these tensors.

    Args:
        q: query, (batch, heads, length, head dimension); `k` and `v` likewise.
        k: key.
        v: value.
        mask: boolean or floating-point mask, or None.
        dropout_p: probability.
        is_causal: the flag of that name; excludes a mask.
        enable_gqa: fewer heads in key and value than in query are allowed.
        needs_grad: gradients are on and one of the three requires them.
        ctx: device, versions and switches.
        enabled: what `torch.nn.attention.sdpa_kernel` or `torch.backends.cuda` leave on.
        mask_needs_grad: the mask itself requires a gradient.
        order: a priority set by the user (`sdpa_kernel(..., set_priority=True)`).

    Raises:
        NoKernelError: no enabled kernel accepts the call.
    """
    call = Attention(
        query=q,
        key=k,
        value=v,
        mask=mask,
        mask_needs_grad=mask_needs_grad,
        dropout_p=dropout_p,
        is_causal=is_causal,
        enable_gqa=enable_gqa,
        needs_grad=needs_grad,
    )
    refusals: list[str] = []
    for backend in order or priority_order(ctx):
        objection = _switched_off(backend, enabled) or _OBJECTIONS[backend](call, ctx)
        if objection is None:
            return Choice(backend, "; ".join(refusals) or f"{backend} comes first")
        refusals.append(f"{backend}: {objection}")
    raise NoKernelError("No available kernel. Aborting execution. " + "; ".join(refusals))


def priority_order(ctx: KernelContext) -> tuple[Backend, ...]:
    """The order in which the kernels are tried.

    cuDNN came first on compute capability 9.0 and newer in 2.5.0 and was put last in
    2.5.1 (PR 138522), the release meant by (2, 5) here. It came first again in 2.9 on 9.0
    and 10.0 where PyTorch was built with cuDNN 9.9 or newer, and since 2.10 with cuDNN
    9.15.1 or newer at run time (`check_prefer_cudnn_attention`; which release reads which
    variable is in its libtorch_cuda.so). TORCH_CUDNN_SDPA_DEPRIORITIZED=1 switches it off.
    """
    if _prefers_cudnn(ctx):
        return ("cudnn", "flash", "efficient", "math")
    return ("flash", "efficient", "math", "cudnn")


def _prefers_cudnn(ctx: KernelContext) -> bool:
    major, minor = ctx.capability
    if ctx.torch_version >= (2, 10):
        if ctx.flag("TORCH_CUDNN_SDPA_DEPRIORITIZED") is True or ctx.cudnn_version <= 91500:
            return False
        # Builds with CUDA 13 take every 9.x and 10.x, older ones only 9.0, 10.0 and x.3.
        return major in (9, 10) and (ctx.cuda_version >= (13, 0) or minor in (0, 3))
    if ctx.torch_version >= (2, 9):
        preferred = ctx.flag("TORCH_CUDNN_SDPA_PREFERRED") is not False
        return preferred and ctx.cudnn_version >= 90900 and ctx.capability in ((9, 0), (10, 0))
    return False


def _switched_off(backend: Backend, enabled: frozenset[Backend] | set[Backend]) -> str | None:
    return None if backend in enabled else "has been disabled"


def _flash(call: Attention, ctx: KernelContext) -> str | None:
    """`can_use_flash_attention`."""
    shape = _four_dimensions(call)
    if shape is not None:
        return shape
    if call.mask is not None:
        return "does not support a mask"
    dims = {tensor.shape[-1] for tensor in call.tensors}
    if len(dims) > 1 or max(dims) > 256:
        return "needs one head dimension of at most 256"
    if not 80 <= ctx.sm <= _newest_sm(ctx):
        return f"has no kernel for compute capability {_capability(ctx)}"
    if not _flash_backward_fits(call, ctx):
        return "no backward with this head dimension on 8.6, 8.9 and 12.x"
    if call.is_causal and call.query.shape[-2] != call.key.shape[-2]:
        return "is_causal needs as many keys as queries"
    return (
        _dtypes(call, _HALF)
        or _heads(call, ctx, gqa=ctx.torch_version >= (2, 5))
        or _nonzero_lengths(call)
        or _last_stride(call, singleton=True)
    )


def _flash_backward_fits(call: Attention, ctx: KernelContext) -> bool:
    """`check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120`."""
    small_shared_memory = 86 <= ctx.sm <= 89 or (ctx.sm in (120, 121))
    if not (call.needs_grad and small_shared_memory):
        return True
    head_dim = call.query.shape[-1]
    return head_dim <= 192 or (call.dropout_p == 0 and head_dim > 224)


def _efficient(call: Attention, ctx: KernelContext) -> str | None:
    """`can_use_mem_efficient_attention`."""
    if not 50 <= ctx.sm <= _newest_sm(ctx):
        return f"has no kernel for compute capability {_capability(ctx)}"
    shape = _four_dimensions(call)
    if shape is not None:
        return shape
    if call.mask is not None and ctx.torch_version < (2, 1):
        return "does not support a mask before 2.1"  # PR 104310
    step = gemm_alignment(call.query.dtype, ctx)
    dims = [tensor.shape[-1] for tensor in call.tensors]
    if dims[0] != dims[1] or any(n == 0 or n % step for n in (dims[0], dims[2])):
        return f"needs head dimensions that are multiples of {step}, the query's like the key's"
    allowed = _HALF | {"float32"} if ctx.sm >= 80 else frozenset({"float16", "float32"})
    return (
        _nonzero_lengths(call)
        or _last_stride(call, singleton=False)
        # Grouped queries without repeating key and value: PR 191085, in 2.14.
        or _heads(call, ctx, gqa=ctx.torch_version >= (2, 14))
        or _dtypes(call, allowed)
    )


def gemm_alignment(dtype: str, ctx: KernelContext) -> int:
    """Elements that the efficient kernels need rows to be a multiple of.

    `minimum_gemm_alignment` in sdp_utils.cpp.
    """
    half = dtype in _HALF
    tensor_cores = ctx.sm >= 80 or (ctx.sm >= 70 and half)
    alignment = 4 if ctx.sm >= 80 else 1
    return max(alignment, 128 // (16 if half else 32)) if tensor_cores else alignment


def _cudnn(call: Attention, ctx: KernelContext) -> str | None:
    """`can_use_cudnn_attention`."""
    if ctx.torch_version < (2, 5) or ctx.cudnn_version < 90000 or not ctx.cudnn_enabled:
        return "needs torch 2.5 and cuDNN 9.0"
    if call.dropout_p > 0 and 91100 < ctx.cudnn_version < 91400:
        return "has no dropout from cuDNN 9.11 to 9.13"
    shape = _four_dimensions(call)
    if shape is not None:
        return shape
    if ctx.deterministic:
        return "is not deterministic"
    if not 80 <= ctx.sm <= _newest_sm(ctx):
        return f"has no kernel for compute capability {_capability(ctx)}"
    if (call.dropout_p * 16) % 1:
        return "takes dropout in steps of 1/16"
    return (
        _dtypes(call, _HALF)
        or _cudnn_mask(call)
        or _nonzero_lengths(call)
        or _last_stride(call, singleton=True)
        or _heads(call, ctx, gqa=True, same_kv=False)
        or _cudnn_shapes(call, ctx)
    )


def _cudnn_mask(call: Attention) -> str | None:
    """`check_attn_mask_shape`: broadcastable in every dimension, two or four of them."""
    if call.mask is None:
        return None
    batch, heads, length, _ = call.query.shape
    wanted = (batch, heads, length, call.key.shape[-2])
    shape = call.mask.shape
    fits = len(shape) in (2, 4) and all(
        n in (1, want) for n, want in zip(shape, wanted[-len(shape) :], strict=True)
    )
    if call.mask_needs_grad or not fits:
        return "does not support this mask"
    return None


def _cudnn_shapes(call: Attention, ctx: KernelContext) -> str | None:
    """`check_cudnn_tensor_shapes` and `check_cudnn_d256_bprop_head_dim`."""
    qk, value = call.query.shape[-1], call.value.shape[-1]
    hopper_like = ctx.capability == (9, 0) or ctx.capability[0] == 10
    limit = 128
    if hopper_like and ctx.torch_version >= (2, 14) and ctx.cudnn_version > 92200:
        limit = 256
        trained = (qk <= 128 and value <= 128) or (qk, value) in ((192, 128), (256, 256))
        if call.needs_grad and not trained:
            return "no backward with these head dimensions"
    elif hopper_like and ctx.cudnn_version >= 91100 and (qk, value) == (192, 128):
        limit = 192
    if max(qk, value) > limit or qk % 8 or value % 8:
        return f"needs head dimensions that are multiples of 8 and at most {limit}"
    if max(call.query.shape[:2]) > 65535:
        return "takes at most 65,535 sequences and heads"
    if call.key.shape[-2] == 1 or (call.dropout_p > 0 and call.query.shape[-2] == 1):
        return "does not support a length of 1"
    return None


def _math(call: Attention, ctx: KernelContext) -> str | None:
    return None


_OBJECTIONS: dict[Backend, Callable[[Attention, KernelContext], str | None]] = {
    "flash": _flash,
    "efficient": _efficient,
    "cudnn": _cudnn,
    "math": _math,
}


def _four_dimensions(call: Attention) -> str | None:
    if all(len(tensor.shape) == 4 for tensor in call.tensors):
        return None
    return "needs four-dimensional query, key and value"


def _dtypes(call: Attention, allowed: frozenset[str]) -> str | None:
    dtypes = {tensor.dtype for tensor in call.tensors}
    if len(dtypes) == 1 and dtypes <= allowed:
        return None
    return f"needs one dtype of {', '.join(sorted(allowed))}, got {', '.join(sorted(dtypes))}"


def _nonzero_lengths(call: Attention) -> str | None:
    if call.query.shape[-2] and call.key.shape[-2]:
        return None
    return "does not support a length of 0"


def _last_stride(call: Attention, *, singleton: bool) -> str | None:
    """`check_last_dim_stride_equals_1_dense`."""
    ones = all(tensor.strides[-1] == 1 for tensor in call.tensors)
    if singleton:
        ones = ones or call.query.shape[-1] == 1
    if ones and (call.mask is None or call.mask.strides[-1] == 1):
        return None
    return "needs stride 1 in the last dimension"


def _heads(call: Attention, ctx: KernelContext, *, gqa: bool, same_kv: bool = True) -> str | None:
    """`check_batch_size_and_num_heads_dense`."""
    if len({tensor.shape[0] for tensor in call.tensors}) > 1:
        return "needs one batch size"
    query, key, value = (tensor.shape[1] for tensor in call.tensors)
    if query == key == value:
        return None
    if key == value == 1 and query > 0 and ctx.torch_version >= (2, 14):
        return None  # one key head for all queries needs no flag since PR 191085
    if not (call.enable_gqa and gqa):
        return "needs as many heads in key and value as in query"
    if same_kv and key != value:
        return "needs as many heads in key as in value"
    if not key or not value or query % key or query % value:
        return "needs a multiple of the key's heads in query"
    return None


def _newest_sm(ctx: KernelContext) -> int:
    return next((sm for since, sm in _NEWEST_SM if ctx.torch_version >= since), 0)


def _capability(ctx: KernelContext) -> str:
    return ".".join(map(str, ctx.capability))


def mask_alignment(ctx: KernelContext) -> int:
    """Elements that the efficient kernel's mask is padded to in its last dimension.

    `pad_bias` in attention.cpp: 16 in 2.0 and 2.1, 8 since (`mem_eff_alignment`).
    """
    return 16 if ctx.torch_version < (2, 2) else 8


def mask_is_aligned(mask: TensorMeta, ctx: KernelContext) -> bool:
    """Whether the efficient kernel takes the mask as it is.

    `aligned_tensor` in attention.cpp: every stride but the last is a multiple of the
    alignment; in 2.0 and 2.1 the size of the last dimension was looked at instead.
    """
    step = mask_alignment(ctx)
    if ctx.torch_version < (2, 2):
        return mask.shape[-1] % step == 0
    return all(stride % step == 0 for stride in mask.strides[:-1]) and mask.strides[-1] == 1
