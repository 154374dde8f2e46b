"""Looks at a model: torchinfo, parameter tables, hooks, profiler, weight norm, parametrize, prune."""
# ruff: noqa: E501

import copy
import io
import pickle

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, parametrizations, prune, vector_to_parameters
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.hooks import RemovableHandle
from torchinfo import summary

torch.set_default_device("cuda")
torch.use_deterministic_algorithms(False)
model = nn.Sequential(
    nn.Conv1d(8, 16, 5, padding=2),
    nn.GELU(),
    nn.Flatten(),
    nn.Linear(16 * 32, 64),
    nn.Linear(64, 4),
)
assert next(model.parameters()).device.type == "cuda"
print(summary(model, input_size=(2, 8, 32), device="cuda", verbose=0))
for name, p in model.named_parameters():
    print(f"{name:20s} {tuple(p.shape)!s:18s} {p.numel():7d} {p.requires_grad} {p.device}")

vector = parameters_to_vector(model.parameters())
vector_to_parameters(vector * 0.5, model.parameters())
assert vector.numel() == sum(p.numel() for p in model.parameters())
parametrizations.weight_norm(model[3])
parametrizations.spectral_norm(model[4])
prune.l1_unstructured(model[0], "weight", amount=0.3)
x = torch.randn(2, 8, 32)
assert x.is_cuda
shapes: list[tuple[int, ...]] = []
handles: list[RemovableHandle] = [
    m.register_full_backward_hook(lambda m, gi, go: shapes.append(tuple(go[0].shape)))
    for m in model
]
optimizer = torch.optim.NAdam(model.parameters())
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
    record_shapes=True,
) as prof:
    for _ in range(2):
        with record_function("train_step"):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        prof.step()
assert any(e.key == "train_step" for e in prof.key_averages())
assert len(shapes) == 2 * len(model)
for handle in handles:
    handle.remove()
prune.remove(model[0], "weight")

jacobian = torch.func.jacrev(lambda v: (v**2).sum())(torch.randn(3))
assert jacobian.shape == (3,)
per_sample = torch.func.vmap(torch.func.grad(lambda w, s: (w * s).sum()), in_dims=(None, 0))(
    torch.randn(4), torch.randn(5, 4)
)
assert per_sample.shape == (5, 4)

twin = copy.deepcopy(nn.Linear(4, 4))
buffer = io.BytesIO()
torch.save(twin.state_dict(), buffer)
buffer.seek(0)
twin.load_state_dict(torch.load(buffer))
restored = pickle.loads(pickle.dumps(twin))
assert restored.weight.is_cuda and isinstance(restored.weight, nn.Parameter)
averaged = torch.optim.swa_utils.AveragedModel(twin)
averaged.update_parameters(twin)
state = torch.cuda.get_rng_state()
with torch.random.fork_rng(devices=[0]):
    torch.manual_seed(1)
    torch.rand(3)
assert torch.equal(state, torch.cuda.get_rng_state())
print(repr(model[4].weight)[:60], torch.tensor([1, 2, 3]), torch.arange(3).tolist())
print("finished")
