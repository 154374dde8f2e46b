"""Which rule says what an operation allocates besides its outputs.

Operations that are not listed allocate nothing but their outputs: element-wise ones,
`gather`, `scatter`, dropout, `nll_loss`, pooling, interpolation, `cat`, and the foreach and
fused optimizer kernels, whose lists of tensors travel in the kernels' arguments
(aten/src/ATen/native/cuda/MultiTensorApply.cuh).
"""

from __future__ import annotations

from collections.abc import Callable

from ebbtide.vgpu.kernels import (
    convolutions,
    fused_attention,
    indexing,
    libraries,
    norms,
    products,
    reductions,
    sorting,
)
from ebbtide.vgpu.kernels.context import KernelContext
from ebbtide.vgpu.kernels.temporary import Inputs, Outputs, Scratch, exact, tensors_of

__all__ = ["Scratch", "scratch"]

_Rule = Callable[[str, Inputs, Outputs, KernelContext], tuple[Scratch, ...]]

_CHUNK = 65536  # MultiTensorApply.cuh: kChunkSize


def _foreach_norm(
    name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """ForeachReduceOp.cu: a partial result for each chunk of each tensor."""
    tensors = tensors_of(inputs)
    chunks = max((-(-t.numel // _CHUNK) for t in tensors), default=0)
    return exact("partial norms", 0, len(tensors) * chunks * 4)


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(reductions.NAMES, reductions.scratch),
    **dict.fromkeys(
        ("mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "addbmm"), products.gemm
    ),
    "_grouped_mm": products.grouped_mm,
    "embedding_dense_backward": indexing.embedding_backward,
    "index_put": indexing.index_put,
    "_index_put_impl": indexing.index_put,
    "_unsafe_index_put": indexing.index_put,
    "index": indexing.index,
    "masked_select": indexing.masked_select,
    "nonzero": indexing.nonzero,
    **dict.fromkeys(("sort", "argsort", "msort"), sorting.sort),
    "topk": sorting.topk,
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"), sorting.scan),
    **dict.fromkeys(("unique", "_unique", "_unique2", "unique_dim"), sorting.unique),
    "multinomial": sorting.multinomial,
    "randperm": sorting.randperm,
    **dict.fromkeys(
        (
            "_softmax",
            "_log_softmax",
            "_softmax_backward_data",
            "_log_softmax_backward_data",
            "native_layer_norm",
            "_fused_rms_norm",
        ),
        norms.contiguous_input,
    ),
    "_safe_softmax": norms.safe_softmax,
    "native_layer_norm_backward": norms.layer_norm_backward,
    "native_group_norm": norms.group_norm,
    "native_group_norm_backward": norms.group_norm_backward,
    "cudnn_batch_norm": norms.batch_norm,
    "cudnn_batch_norm_backward": norms.batch_norm,
    "_ctc_loss_backward": norms.ctc_backward,
    "_scaled_dot_product_flash_attention": fused_attention.flash_forward,
    "_scaled_dot_product_flash_attention_backward": fused_attention.flash_backward,
    "_scaled_dot_product_efficient_attention_backward": fused_attention.efficient_backward,
    "_scaled_dot_product_cudnn_attention": fused_attention.cudnn_forward,
    "_scaled_dot_product_cudnn_attention_backward": fused_attention.cudnn_backward,
    **dict.fromkeys(("convolution", "_convolution", "cudnn_convolution"), convolutions.forward),
    "convolution_overrideable": convolutions.forward,
    "convolution_backward": convolutions.backward,
    **dict.fromkeys(("_fft_c2c", "_fft_r2c", "_fft_c2r"), libraries.fft),
    "_foreach_norm": _foreach_norm,
    **dict.fromkeys(
        (
            "linalg_lu_factor_ex",
            "linalg_qr",
            "linalg_cholesky_ex",
            "linalg_inv_ex",
            "_linalg_solve_ex",
            "_linalg_det",
            "_linalg_slogdet",
            "_linalg_eigh",
            "linalg_eig",
            "_linalg_svd",
            "linalg_lstsq",
            "cholesky_solve",
            "linalg_ldl_factor_ex",
        ),
        libraries.factorisation,
    ),
}


def scratch(
    op_name: str, inputs: Inputs, outputs: Outputs, ctx: KernelContext
) -> tuple[Scratch, ...]:
    """The temporaries of one operation, in the order in which they live.

    Args:
        op_name: ATen's name without namespace and overload; a trailing underscore of an
            in-place operation makes no difference.
        inputs: the arguments in ATen's order, tensors as `TensorMeta`, lists as tuples.
        outputs: the tensors it returns.
        ctx: device, versions and switches.
    """
    rule = _RULES.get(op_name) or _RULES.get(op_name.removesuffix("_"))
    if rule is None or (not tensors_of(inputs) and op_name != "randperm"):
        return ()
    return rule(op_name, inputs, outputs, ctx)
