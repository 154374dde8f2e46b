"""The virtual GPU's self-test: ``python -m ebbtide.vgpu.selftest``.

Each step says its name before it starts, so that the last line tells where a process
ended that died. Nothing is written anywhere; exit code 0 if all steps passed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

import torch
from torch import nn

from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu import unlock
from ebbtide.vgpu.verified import SWITCH
from ebbtide.vgpu.virtual_gpu import VirtualGpu

_WIDTH, _BATCH = 16, 4


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 1))


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise VirtualGpuError(f"The virtual GPU's self-test failed: {what}.")


def _cpu_step() -> list[torch.Tensor]:
    """The parameters after one real step on the CPU, from a fixed seed."""
    torch.manual_seed(0)
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(torch.randn(_BATCH, _WIDTH)).square().mean()
    loss.backward()
    optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def _training(gpu: VirtualGpu) -> None:
    model = _network().cuda()
    _expect(all(parameter.is_cuda for parameter in model.parameters()), "a model did not move")
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(torch.randn(_BATCH, _WIDTH, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    made = [parameter.grad for parameter in model.parameters()]
    _expect(all(g is not None and g.is_cuda for g in made), "a gradient is not on the GPU")
    names = {gpu.tape.names.items[number] for number in gpu.tape.op_name}
    _expect(any("_foreach_" in name for name in names), "an optimizer ran tensor by tensor")
    _expect(gpu.memory.max_memory_allocated() > 0, "memory was not counted")


def _autocast(gpu: VirtualGpu) -> None:
    model, data = _network().cuda(), torch.randn(_BATCH, _WIDTH, device="cuda")
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cuda", dtype=dtype):
            out = model(data)
        _expect(out.dtype is dtype, f"autocast gave {out.dtype} for {dtype}")
        out.float().sum().backward()


def _attention(gpu: VirtualGpu) -> None:
    query = torch.randn(1, 2, 8, _WIDTH, device="cuda", dtype=torch.float16, requires_grad=True)
    nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
    names = [gpu.tape.names.items[number] for number in gpu.tape.op_name]
    fused = [name for name in names if "attention" in name]
    _expect(len(fused) == 2, f"attention ran as {fused}")


def _copies(gpu: VirtualGpu) -> None:
    values = torch.arange(6).reshape(2, 3)
    there = values.cuda()
    _expect(there.is_cuda and there.device.type == "cuda", "a copy is not on the GPU")
    back = there.cpu()
    _expect(not back.is_cuda and torch.equal(back, values), "known values were lost in a copy")
    fresh = torch.empty(3, device="cuda")
    fresh.copy_(torch.ones(3))
    _expect(fresh.to("cuda") is fresh, "a tensor was copied for nothing")


def _errors(gpu: VirtualGpu) -> None:
    """An error inside an operation reaches the program, and the next one works."""
    data = torch.randn(_BATCH, _WIDTH, device="cuda")
    try:
        data @ data
    except RuntimeError:
        _expect(bool((data @ data.t()).is_cuda), "the GPU was lost after an error")
        return
    raise VirtualGpuError("The virtual GPU's self-test failed: wrong shapes were accepted.")


def _frees(gpu: VirtualGpu) -> None:
    before = gpu.memory.memory_allocated()
    data = torch.randn(1024, device="cuda")
    _expect(gpu.memory.memory_allocated() == before + 4096, "an allocation was not counted")
    del data
    _expect(gpu.memory.memory_allocated() == before, "memory was not given back")


_ON_THE_GPU: tuple[tuple[str, Callable[[VirtualGpu], None]], ...] = (
    ("a training step", _training),
    ("autocast", _autocast),
    ("attention", _attention),
    ("copies", _copies),
    ("errors", _errors),
    ("memory is given back", _frees),
)


def steps() -> Iterable[tuple[str, Callable[[], None]]]:
    """Name and function of each step, in order; each raises if it fails."""
    reference = _cpu_step()

    def on_gpu(check: Callable[[VirtualGpu], None]) -> Callable[[], None]:
        def run() -> None:
            with VirtualGpu() as gpu:
                check(gpu)

        return run

    def unchanged() -> None:
        same = zip(reference, _cpu_step(), strict=True)
        _expect(all(torch.equal(a, b) for a, b in same), "a step on the CPU has changed")
        _expect(not torch.cuda.is_available(), "a GPU is still seen after it was left")

    yield "the locks open and close", _locks
    for name, check in _ON_THE_GPU:
        yield name, on_gpu(check)
        yield f"the CPU after {name}", unchanged


def _locks() -> None:
    unlock.unlock()
    unlock.lock()
    unlock.unlock()
    unlock.lock()


def main() -> int:
    """Run every step. Returns the exit code."""
    if not unlock.needed():
        print("PyTorch sees a GPU: fake tensors need nothing opened.")
        return 0
    os.environ[SWITCH] = "0"  # this process may die: that is what it is for
    for name, step in steps():
        print(name, flush=True)
        step()
    print(f"The virtual GPU works with torch {torch.__version__}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
