"""Asks for memory everywhere: summaries, statistics, snapshots, free memory, peaks, properties."""
# ruff: noqa: UP031

import gc
import pickle
import tempfile

import torch
from torch import nn

assert torch.cuda.is_available() and torch.cuda.device_count() == 1
assert torch.version.cuda is not None and torch.backends.cudnn.is_available()
print(
    torch.__version__,
    torch.version.cuda,
    torch.backends.cudnn.version(),
    torch.cuda.get_arch_list(),
)
print(torch.cuda.get_device_properties("cuda"), torch.cuda.get_device_properties(0).uuid)
print("bf16", torch.cuda.is_bf16_supported(), "nccl", torch.distributed.is_nccl_available())
print("tf32", torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark)
torch.cuda.init()
assert torch.cuda.is_initialized()
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
free_before, total = torch.cuda.mem_get_info()
assert 0 < free_before <= total
base = torch.cuda.memory_allocated()

x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
assert torch.cuda.memory_allocated() - base == 64 << 20
assert x.element_size() * x.nelement() == 64 << 20 == x.untyped_storage().nbytes()
assert x.data_ptr() % 512 == 0 and x[512:].data_ptr() == x.data_ptr() + 512
y = x[: 1 << 20].clone()
z = torch.randn(100, 100, device="cuda")
print(z[:2, :3], z.mean(), f"{z.std():.3f} {z.sum().item():.1e}", "%s" % z.dtype)
del x
assert torch.cuda.memory_allocated() - base < 3 << 20
assert torch.cuda.max_memory_allocated() - base >= 64 << 20
assert torch.cuda.memory_reserved() >= 64 << 20
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() < 64 << 20
torch.cuda.reset_peak_memory_stats(0)
assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()

stats = torch.cuda.memory_stats()
assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
assert stats["reserved_bytes.all.peak"] == torch.cuda.max_memory_reserved()
assert stats["num_ooms"] == 0
summary = torch.cuda.memory_summary(device=None, abbreviated=False)
assert "Allocated memory" in summary and "GPU reserved memory" in summary
print(torch.cuda.memory_summary(abbreviated=True))
print(torch.cuda.list_gpu_processes())

torch.cuda.memory._record_memory_history(max_entries=1000)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(2):
    with torch.cuda.nvtx.range(f"step {step}"):
        loss = model(torch.randn(32, 256, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(
        f"step {step} loss={loss} allocated={torch.cuda.memory_allocated() / 1e6:.2f} MB "
        f"reserved={torch.cuda.memory_reserved() / 1e6:.2f} MB "
        f"peak={torch.cuda.max_memory_allocated() / 1e6:.2f} MB"
    )
snapshot = torch.cuda.memory._snapshot()
assert sum(s["total_size"] for s in snapshot["segments"]) == torch.cuda.memory_reserved()
active = sum(
    b["size"] for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"
)
assert active == torch.cuda.memory_allocated(), (active, torch.cuda.memory_allocated())
with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
    torch.cuda.memory._dump_snapshot(file.name)
    with open(file.name, "rb") as again:
        assert "segments" in pickle.load(again)
torch.cuda.memory._record_memory_history(enabled=None)
assert torch.cuda.memory_snapshot()

pointer = torch.cuda.caching_allocator_alloc(4 << 20)
held = torch.cuda.memory_allocated()
torch.cuda.caching_allocator_delete(pointer)
assert held - torch.cuda.memory_allocated() == 4 << 20
total_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
tensors = [o for o in gc.get_objects() if isinstance(o, torch.Tensor) and o.is_cuda]
print(f"parameters {total_bytes / 1024:.0f} KiB; {len(tensors)} tensors on the GPU")
with torch.cuda.device(0):
    assert torch.cuda.current_device() == 0
with torch.cuda.device_of(z):
    torch.cuda.synchronize()
torch.cuda.set_per_process_memory_fraction(0.9, 0)
torch.cuda.ipc_collect()
free_after, _ = torch.cuda.mem_get_info()
assert free_after <= free_before
print(
    "accelerator",
    torch.accelerator.current_accelerator(),
    torch.accelerator.device_count(),
    torch.accelerator.memory_allocated() == torch.cuda.memory_allocated(),
)
del model, optimizer, loss
gc.collect()
torch.cuda.empty_cache()
print(f"end: {torch.cuda.memory_allocated() - base} bytes")
print("finished")
