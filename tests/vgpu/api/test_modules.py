"""Parameters are fake from the start; modules move in place."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils import parametrizations

from ebbtide.vgpu.virtual_gpu import VirtualGpu


def test_parameters_are_fake_and_buffers_real(gpu: VirtualGpu) -> None:
    layer = nn.BatchNorm1d(4)
    assert isinstance(layer.weight, FakeTensor) and isinstance(layer.weight, nn.Parameter)
    assert not isinstance(layer.running_mean, FakeTensor)
    assert layer.weight.device.type == "cpu" and layer.weight.is_leaf
    assert torch.cuda.memory_allocated() == 0
    assert isinstance(nn.Parameter(), nn.Parameter)
    assert nn.Parameter(torch.zeros(2), requires_grad=False).requires_grad is False


def test_a_large_model_takes_no_host_memory(gpu: VirtualGpu) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = nn.Sequential(*[nn.Linear(16384, 16384) for _ in range(8)])
    assert sum(p.numel() for p in model.parameters()) > 2_000_000_000
    model.half().cuda()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert torch.cuda.memory_allocated() >= 4 << 30
    # Each weight is 1 GiB of fp32; one may be made before it turns fake.
    assert (after - before) * 1024 < 2 << 30


@pytest.mark.parametrize(
    "move",
    [
        lambda model: model.cuda(),
        lambda model: model.to("cuda"),
        lambda model: model.to(torch.device("cuda", 0), torch.float32),
        lambda model: model._apply(lambda t: t.cuda()),
    ],
)
def test_identity_is_kept(gpu: VirtualGpu, move: object) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = list(model.parameters())
    assert move(model) is model  # type: ignore[operator]
    after = list(model.parameters())
    assert all(a is b for a, b in zip(before, after, strict=True))
    assert all(p.is_cuda for p in after) and all(b.is_cuda for b in model.buffers())
    model(torch.randn(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    assert optimizer.state[after[0]]["momentum_buffer"].is_cuda


def test_gradients_move_along(gpu: VirtualGpu) -> None:
    layer = nn.Linear(3, 3).cuda()
    layer(torch.randn(2, 3, device="cuda")).sum().backward()
    gradient = layer.weight.grad
    layer.cpu()
    assert layer.weight.grad is gradient
    assert layer.weight.device.type == gradient.device.type == "cpu"
    assert isinstance(layer.weight, FakeTensor)
    layer.half()
    assert layer.weight.dtype is gradient.dtype is torch.float16
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() == 0


def test_meta_and_empty(gpu: VirtualGpu) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
    model.to_empty(device="cuda")
    assert model[0].weight is not model[1].weight  # PyTorch loses the tie too
    assert all(p.is_cuda for p in model.parameters())
    assert model(torch.randn(1, 4, device="cuda")).shape == (1, 4)
    assert all(p.is_meta for p in model.to("meta").parameters())


def test_states_load_from_real_and_fake(gpu: VirtualGpu) -> None:
    layer = nn.Linear(3, 2).cuda()
    result = layer.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
    assert not result.missing_keys and layer.weight.is_cuda
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    layer.load_state_dict(state, assign=True)
    assert isinstance(layer.weight, nn.Parameter) and layer.weight.is_cuda
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer.load_state_dict({"weight": torch.ones(5, 3), "bias": torch.zeros(2)})


def test_lazy_modules(gpu: VirtualGpu) -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
    model.cuda()
    out = model(torch.randn(2, 3, 8, 8, device="cuda"))
    assert out.shape == (2, 2)
    assert type(model[3]) is nn.Linear and model[3].weight.shape == (2, 144)
    assert all(p.is_cuda and isinstance(p, nn.Parameter) for p in model.parameters())
    assert model[1].running_mean.is_cuda
    out.sum().backward()
    assert model[0].weight.grad is not None


def test_utilities(gpu: VirtualGpu) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).cuda()
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 2, model.parameters())
    parametrizations.weight_norm(model[0])
    parametrizations.orthogonal(model[1])
    model(torch.randn(2, 4, device="cuda")).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    assert norm.is_cuda
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    twin = copy.deepcopy(model)
    assert [p.shape for p in twin.parameters()] == [p.shape for p in model.parameters()]
    assert not {p.data_ptr() for p in twin.parameters()} & {
        p.data_ptr() for p in model.parameters()
    }


def test_subclasses_of_parameter_stay_what_they_are(gpu: VirtualGpu) -> None:
    class Tagged(nn.Parameter):
        pass

    layer = nn.Linear(2, 2)
    layer.weight = Tagged(torch.zeros(2, 2))
    assert type(layer.weight) is Tagged
    layer.cuda()
    assert layer.weight.is_cuda
    assert layer(torch.randn(1, 2, device="cuda")).is_cuda


def test_leaving_the_mode_makes_real_parameters(gpu: VirtualGpu) -> None:
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        layer = nn.Linear(2, 2)
        assert type(layer.weight) is nn.Parameter
        layer.double()
    assert layer.weight.dtype is torch.float64


def test_parameters_can_be_made_from_their_own_type(gpu: VirtualGpu) -> None:
    parameter = nn.Linear(2, 2).weight
    made = type(parameter)(torch.zeros(3), requires_grad=False)
    assert isinstance(made, nn.Parameter) and not made.requires_grad
    state = {**parameter.__dict__, "requires_grad": True}
    empty = type(parameter)(parameter.to("meta"), **state)
    assert empty.is_meta and empty.device.type == "meta" and empty.requires_grad


def test_accelerate_builds_and_offloads_empty_models(gpu: VirtualGpu) -> None:
    accelerate = pytest.importorskip("accelerate")

    with accelerate.init_empty_weights():
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    assert all(p.device.type == "meta" for p in model.parameters())
    model.to_empty(device="cpu")
    offloaded = accelerate.cpu_offload(model, execution_device=0)
    assert offloaded(torch.randn(1, 64, device="cuda")).is_cuda
    del offloaded
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() < 64 * 64 * 4
