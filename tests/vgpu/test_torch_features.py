"""Parts of PyTorch beside plain modules: layouts, functorch, checkpoints, hooks, optimizers."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu.virtual_gpu import VirtualGpu

CUDA = "cuda"


@pytest.fixture(scope="module", autouse=True)
def shared_gpu() -> Iterator[VirtualGpu]:
    """One virtual GPU for the whole file."""
    with VirtualGpu("l4") as virtual:
        yield virtual


def _two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.ReLU(), nn.Linear(4, 2)).cuda()


def _x(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(*shape, device=CUDA, **options)


# -- memory formats: cuDNN keeps channels_last where one of image and weight has it


def _is_last(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last)


def test_convolutions_keep_channels_last() -> None:
    layers = nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, groups=16), nn.ConvTranspose2d(16, 8, 2),
    ).to(CUDA, memory_format=torch.channels_last)  # fmt: skip
    out = _x(2, 8, 12, 12).to(memory_format=torch.channels_last)
    for layer in layers:
        out = layer(out)
        assert _is_last(out), layer
    out.sum().backward()
    assert _is_last(layers[0].weight.grad)


def test_a_channels_last_weight_is_enough() -> None:
    layer = nn.Conv2d(8, 16, 3).to(CUDA, memory_format=torch.channels_last)
    assert _is_last(layer(_x(2, 8, 12, 12)))


def test_a_contiguous_convolution_stays_so() -> None:
    layer = nn.Conv2d(8, 16, 3).cuda()
    assert layer(_x(2, 8, 12, 12)).is_contiguous()


def test_three_dimensions_keep_their_format() -> None:
    layer = nn.Conv3d(4, 8, 3).to(CUDA, memory_format=torch.channels_last_3d)
    out = layer(_x(2, 4, 6, 6, 6).to(memory_format=torch.channels_last_3d))
    assert out.is_contiguous(memory_format=torch.channels_last_3d)
    out.sum().backward()


@pytest.mark.parametrize(
    ("layer", "kept"),
    [
        (nn.AvgPool2d(2), True),
        (nn.AdaptiveAvgPool2d(3), True),
        (nn.AdaptiveMaxPool2d(3), True),
        (nn.Upsample(scale_factor=2), True),
        (nn.GELU(), True),
        (nn.GroupNorm(2, 8), False),  # group_norm.cpp: contiguous on CUDA
        (nn.PixelShuffle(2), False),
    ],
)
def test_formats_of_other_layers(layer: nn.Module, kept: bool) -> None:
    data = _x(2, 8, 12, 12).to(memory_format=torch.channels_last)
    assert _is_last(copy.deepcopy(layer).cuda()(data)) is kept


# -- functorch


def test_vmap() -> None:
    assert torch.vmap(torch.dot)(_x(3, 5), _x(3, 5)).shape == (3,)
    assert torch.vmap(nn.Linear(4, 2).cuda())(_x(3, 5, 4)).shape == (3, 5, 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # PyTorch's own use
def test_gradients_as_functions() -> None:
    assert torch.func.grad(lambda t: (t**2).sum())(_x(3)).shape == (3,)
    assert torch.func.jacrev(torch.sin)(_x(3)).shape == (3, 3)
    assert torch.func.hessian(lambda t: (t**3).sum())(_x(3)).shape == (3, 3)
    out, tangent = torch.func.jvp(torch.sin, (_x(3),), (_x(3),))
    assert out.shape == tangent.shape == (3,)
    assert out.is_cuda


def test_gradients_of_each_sample() -> None:
    layer = nn.Linear(4, 2).cuda()
    parameters = {name: value.detach() for name, value in layer.named_parameters()}

    def loss(values: dict[str, torch.Tensor], sample: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, values, (sample[None],)).sum()

    each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, _x(3, 4))
    assert each["weight"].shape == (3, 2, 4)


def test_an_ensemble() -> None:
    layers = [nn.Linear(4, 2).cuda() for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(layers)

    def call(values: dict[str, torch.Tensor], data: torch.Tensor) -> Any:
        return torch.func.functional_call(layers[0], values, (data,))

    assert torch.vmap(call, in_dims=(0, None))(parameters, _x(5, 4)).shape == (3, 5, 2)


# -- autograd


def test_double_backward() -> None:
    data = _x(2, 3, 8, 8, requires_grad=True)
    critic = nn.Sequential(nn.Conv2d(3, 4, 3), nn.LeakyReLU(), nn.Conv2d(4, 1, 3)).cuda()
    (gradient,) = torch.autograd.grad(critic(data).sum(), data, create_graph=True)
    ((gradient.flatten(1).norm(2, 1) - 1) ** 2).mean().backward()
    assert critic[0].weight.grad is not None


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("amp", [True, False])
def test_checkpointing(reentrant: bool, amp: bool) -> None:
    model, data = _two_layers(), _x(2, 4, requires_grad=True)
    with torch.autocast(CUDA, enabled=amp):
        out = checkpoint(model, data, use_reentrant=reentrant)
    out.float().sum().backward()
    assert model[0].weight.grad is not None
    assert data.grad is not None


def test_checkpointing_in_segments() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))).cuda()
    data = _x(2, 4, requires_grad=True)
    checkpoint_sequential(model, 2, data, use_reentrant=False).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_selective_checkpointing() -> None:
    def policy(_: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        kept = operation is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.GELU()).cuda()
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    checkpoint(model, _x(2, 4), use_reentrant=False, context_fn=contexts).sum().backward()
    assert model[0].weight.grad is not None


def test_saved_tensors_on_the_host(shared_gpu: VirtualGpu) -> None:
    layer, data = nn.Linear(64, 64).cuda(), _x(32, 64)
    before = shared_gpu.memory.memory_allocated()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        out = layer(data).relu()
    # The output alone: what relu saved is on the host.
    assert shared_gpu.memory.memory_allocated() - before == 32 * 64 * 4
    out.sum().backward()
    assert layer.weight.grad.is_cuda


class _Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: torch.Tensor) -> torch.Tensor:
        out = data.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0]


def test_own_functions() -> None:
    data = _x(3, requires_grad=True)
    _Exp.apply(data).sum().backward()
    assert data.grad.shape == (3,)


class _Product(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type=CUDA, cast_inputs=torch.float16)
    def forward(ctx: Any, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(left, right)
        return left @ right

    @staticmethod
    @torch.amp.custom_bwd(device_type=CUDA)
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left, right = ctx.saved_tensors
        return gradient @ right.t(), left.t() @ gradient


def test_own_functions_under_autocast() -> None:
    left, right = _x(3, 4, requires_grad=True), _x(4, 2, requires_grad=True)
    with torch.autocast(CUDA):
        out = _Product.apply(left, right)
    assert out.dtype is torch.float16
    out.sum().backward()
    assert left.grad.dtype is right.grad.dtype is torch.float32


def test_hooks_run() -> None:
    layer, seen = nn.Linear(4, 2).cuda(), []
    layer.register_forward_hook(lambda *_: seen.append("forward"))
    layer.register_full_backward_hook(lambda *_: seen.append("backward"))
    layer.weight.register_hook(lambda gradient: seen.append("gradient"))
    layer.weight.register_post_accumulate_grad_hook(lambda _: seen.append("accumulated"))
    layer(_x(3, 4, requires_grad=True)).sum().backward()
    assert seen[0] == "forward"
    assert set(seen) == {"forward", "backward", "gradient", "accumulated"}


def test_a_deep_copy_is_apart() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda()
    other = copy.deepcopy(model)
    assert other[0].weight is not model[0].weight
    assert other[0].weight.is_cuda
    assert other[1].running_mean.is_cuda
    other(_x(3, 4)).sum().backward()
    assert model[0].weight.grad is None


# -- parametrisations and tools


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "wrap",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.parametrizations.orthogonal,
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
    ],
)
def test_normed_weights(wrap: Callable[[nn.Module], nn.Module]) -> None:
    layer = wrap(nn.Linear(4, 4)).cuda()
    layer(_x(3, 4)).sum().backward()
    assert any(parameter.grad is not None for parameter in layer.parameters())


def test_pruning() -> None:
    import torch.nn.utils.prune as prune

    layer = nn.Linear(4, 4).cuda()
    prune.l1_unstructured(layer, "weight", 0.5)
    layer(_x(3, 4)).sum().backward()
    assert layer.weight_orig.grad is not None


def test_averaging_and_vectors() -> None:
    layer = nn.Linear(4, 4).cuda()
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    model = torch.optim.swa_utils.AveragedModel(layer, multi_avg_fn=average)
    model.update_parameters(layer)
    model.update_parameters(layer)
    vector = nn.utils.parameters_to_vector(layer.parameters())
    assert vector.shape == (20,)
    nn.utils.vector_to_parameters(vector * 2, layer.parameters())


def test_clipping() -> None:
    layer = nn.Linear(4, 4).cuda()
    layer(_x(3, 4)).sum().backward()
    assert nn.utils.clip_grad_norm_(layer.parameters(), 1.0).is_cuda
    nn.utils.clip_grad_value_(layer.parameters(), 0.1)


def test_a_module_moves_and_changes_in_place() -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3)}).cuda()
    weight = model["a"].weight
    assert model.double()["a"].weight is weight
    assert weight.dtype is torch.float64
    assert not model.cpu()["a"].weight.is_cuda
    assert model.cuda().float()["a"].weight is weight
    model.load_state_dict(model.state_dict())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    out = model.to(CUDA, dtype)(_x(2, 3, 8, 8, dtype=dtype))
    out.sum().backward()
    assert out.dtype is model[0].weight.grad.dtype is dtype


# -- optimizers

_OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.9}), ("SGD", {"lr": 0.1, "fused": True}), ("Adam", {}),
    ("Adam", {"amsgrad": True}), ("Adam", {"capturable": True}), ("AdamW", {"fused": True}),
    ("AdamW", {"foreach": False}), ("RMSprop", {}), ("Adagrad", {}), ("Adadelta", {}),
    ("Adamax", {}), ("NAdam", {}), ("RAdam", {}), ("ASGD", {}), ("Rprop", {}), ("Adafactor", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), _OPTIMIZERS)
def test_optimizers(name: str, options: dict[str, Any]) -> None:
    layer = nn.Linear(4, 4).cuda()
    optimizer = getattr(torch.optim, name)(layer.parameters(), **options)
    for _ in range(2):
        layer(_x(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    big = [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    assert all(value.is_cuda for value in big if value.dim())


def test_lbfgs_asks_again() -> None:
    layer, data = nn.Linear(4, 1).cuda(), _x(3, 4)
    optimizer, calls = torch.optim.LBFGS(layer.parameters(), max_iter=3), []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = layer(data).pow(2).sum()
        loss.backward()
        calls.append(1)
        return loss

    optimizer.step(closure)
    assert calls


def test_sparse_gradients_with_sgd(shared_gpu: VirtualGpu) -> None:
    layer = nn.Embedding(1000, 8, sparse=True).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before = shared_gpu.memory.memory_allocated()
    layer(torch.randint(0, 1000, (6,), device=CUDA)).sum().backward()
    assert layer.weight.grad.is_sparse
    # Six rows and their numbers, not a thousand: 6 x 8 x 4 and 6 x 8 bytes, rounded.
    assert shared_gpu.memory.memory_allocated() - before <= 3 * 512
    optimizer.step()
    optimizer.zero_grad()
    assert shared_gpu.memory.memory_allocated() == before


def test_the_gradient_scaler_steps() -> None:
    layer = nn.Linear(4, 4).cuda()
    optimizer, scaler = torch.optim.Adam(layer.parameters()), torch.amp.GradScaler(CUDA)
    for _ in range(2):
        with torch.autocast(CUDA):
            loss = layer(_x(3, 4)).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert {float(state["step"]) for state in optimizer.state.values()} == {2.0}


# -- the rest


def test_distributions() -> None:
    zeros, ones = torch.zeros(3, device=CUDA), torch.ones(3, device=CUDA)
    kinds = torch.distributions
    normal = kinds.Normal(zeros, ones)
    assert normal.log_prob(normal.rsample()).is_cuda
    assert kinds.kl_divergence(normal, normal).shape == (3,)
    choice = kinds.Categorical(logits=_x(4, 5))
    assert choice.log_prob(choice.sample()).shape == (4,)
    for kind in (kinds.Beta(ones, ones), kinds.Gamma(ones, ones), kinds.Dirichlet(ones)):
        assert kind.rsample().is_cuda
    assert kinds.MultivariateNormal(zeros, torch.eye(3, device=CUDA)).rsample().shape == (3,)


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        (SDPBackend.MATH, None),
        (SDPBackend.FLASH_ATTENTION, "_scaled_dot_product_flash_attention"),
        (SDPBackend.EFFICIENT_ATTENTION, "_scaled_dot_product_efficient_attention"),
    ],
)
def test_attention_by_the_kernel_that_is_asked_for(
    shared_gpu: VirtualGpu, backend: SDPBackend, expected: str | None
) -> None:
    start = len(shared_gpu.tape.op_name)
    query = _x(1, 2, 8, 16, dtype=torch.half, requires_grad=True)
    with sdpa_kernel(backend):
        F.scaled_dot_product_attention(query, query, query).sum().backward()
    names = {shared_gpu.tape.names.items[n] for n in shared_gpu.tape.op_name[start:]}
    fused = {name.removeprefix("aten::") for name in names if "scaled_dot" in name}
    assert fused == ({expected, f"{expected}_backward"} if expected else set())


def test_eight_bit_products() -> None:
    left = torch.ones(32, 16, dtype=torch.int8, device=CUDA)
    assert torch._int_mm(left, left.t()[:, :32].contiguous()).dtype is torch.int32
    small = _x(16, 16).to(torch.float8_e4m3fn)
    scale = torch.ones((), device=CUDA)
    out = torch._scaled_mm(small, small.t(), scale, scale, out_dtype=torch.bfloat16)
    assert out.dtype is torch.bfloat16


def test_changes_through_views() -> None:
    data = _x(4, 4)
    data[:, 0] = 1
    data[1] += 2
    data.view(-1)[:3].mul_(2)
    assert data.shape == (4, 4)


def test_data_parallel_has_one_replica() -> None:
    model = nn.DataParallel(nn.Linear(4, 4)).cuda()
    model(_x(2, 4)).sum().backward()
    assert model.module.weight.grad is not None


# -- what is not known is said, never skipped


def test_an_operation_without_any_rule_is_an_error_that_names_it() -> None:
    library = torch.library.Library("ebbtide_test", "FRAGMENT")
    library.define("mystery(Tensor x) -> Tensor")
    with pytest.raises(VirtualGpuError, match=r"ebbtide_test::mystery.*register_fake"):
        torch.ops.ebbtide_test.mystery(_x(3))
    assert (_x(3) + 1).is_cuda


def test_an_operation_with_a_cpu_kernel_alone_is_listed(shared_gpu: VirtualGpu) -> None:
    shared_gpu.guesses.clear()
    library = torch.library.Library("ebbtide_test", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: torch.cat([x, x]), "CPU")
    out = torch.ops.ebbtide_test.double(_x(3))
    assert out.shape == (6,)
    assert out.is_cuda
    text, count = shared_gpu.guesses["unknown-op"]
    assert "ebbtide_test::double" in text
    assert count == 1


def test_errors_in_operations_reach_the_program() -> None:
    with pytest.raises(RuntimeError, match="reduction dim|cannot be multiplied"):
        _x(2, 3) @ _x(2, 3)
    with pytest.raises(RuntimeError, match="same device"):
        nn.Linear(4, 4)(_x(2, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (_x(2, 3) @ _x(3, 2)).shape == (2, 2)
