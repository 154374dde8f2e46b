"""The locks: read from headers, opened, closed, and the process as before."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu import unlock
from ebbtide.vgpu.unlock import guard_functions, virtual_functions

HEADERS = Path(torch.__file__).parent / "include"

BASE = """
struct TORCH_API AcceleratorHooksInterface {
  // virtual bool commented() const { return false; }
  virtual ~AcceleratorHooksInterface() = default;
  /* virtual bool inComment() const; */
  virtual bool isBuilt() const { return false; }
  virtual bool isAvailable() const { return false; }
  virtual bool hasPrimaryContext(DeviceIndex device_index) const = 0;
  virtual DeviceIndex deviceCount() const { return 0; }
  virtual DeviceIndex getCurrentDevice() const {
    return -1;
  }
};
"""
DERIVED = """
struct Other { virtual void elsewhere(); };
struct TORCH_API CUDAHooksInterface : AcceleratorHooksInterface {
  ~CUDAHooksInterface() override = default;
  void init() const override {}
  virtual bool hasCUDA() const { return false; }
  virtual bool hasROCM() const { return false; }
#ifdef USE_ROCM
  virtual bool forHipOnly() const { return false; }
#endif
  virtual std::string showConfig() const {
    return "virtual not one (";
  }
};
"""


GUARD = """
struct C10_API DeviceGuardImplInterface {
  virtual DeviceType type() const = 0;
  virtual Device exchangeDevice(Device) const = 0;
  virtual bool queryStream(const Stream& /*stream*/) const {
    TORCH_CHECK(false, "Backend doesn't support querying streams.");
  }
  virtual ~DeviceGuardImplInterface() = default;
};

struct NoOp { virtual void other(); };
"""


def _write(folder: Path, base: str = BASE, derived: str = DERIVED, guard: str = GUARD) -> Path:
    hooks, core = folder / "ATen" / "detail", folder / "c10" / "core" / "impl"
    for made in (hooks, core):
        made.mkdir(parents=True, exist_ok=True)
    (hooks / "AcceleratorHooksInterface.h").write_text(base)
    (hooks / "CUDAHooksInterface.h").write_text(derived)
    (core / "DeviceGuardImplInterface.h").write_text(guard)
    return folder


def test_functions_are_listed_in_the_order_of_the_table(tmp_path: Path) -> None:
    assert virtual_functions(_write(tmp_path)) == [
        "~", "~", "isBuilt", "isAvailable", "hasPrimaryContext", "deviceCount",
        "getCurrentDevice", "hasCUDA", "hasROCM", "showConfig",
    ]  # fmt: skip
    assert guard_functions(tmp_path) == ["type", "exchangeDevice", "queryStream", "~", "~"]


def test_this_torch_has_all_that_is_answered() -> None:
    names = virtual_functions(HEADERS)
    assert len(names) > 40
    answers = (*unlock._ANSWERED_YES, *unlock._ANSWERED_ZERO, *unlock._CALLBACKS)
    assert [name for name in answers if names.count(name) > 1] == []
    assert len([name for name in answers if name in names]) > 18
    guard = guard_functions(HEADERS)
    assert set(unlock._GUARD_ANSWERED_CUDA) <= set(guard)
    assert len(guard) == len(set(guard)) + 1


def test_a_wheel_without_headers_is_named(tmp_path: Path) -> None:
    with pytest.raises(VirtualGpuError, match=r"headers cannot be read.*2\.13\.0 \(CPU build\)"):
        virtual_functions(tmp_path)


def test_headers_that_look_different_are_refused(tmp_path: Path) -> None:
    with pytest.raises(VirtualGpuError, match="no such structure"):
        virtual_functions(_write(tmp_path, derived="struct Renamed {};"))
    without = BASE.replace("isAvailable", "isThere")
    with pytest.raises(VirtualGpuError, match="have no isAvailable"):
        virtual_functions(_write(tmp_path, base=without))
    with pytest.raises(VirtualGpuError, match=r"DeviceGuardImplInterface\.h looks unlike"):
        guard_functions(_write(tmp_path, guard="struct DeviceGuardImplInterface { };"))


def _registry() -> tuple[int | None, int | None]:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    entries = (ctypes.c_void_p * 21).in_dll(library, unlock._REGISTRY)
    return entries[unlock._CUDA_SLOT], entries[unlock._PRIVATEUSE1_SLOT]


def _hooks_table() -> int | None:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    get = library[unlock._GET_HOOKS]
    get.restype = ctypes.c_void_p
    return ctypes.c_void_p.from_address(get()).value


def test_both_locks_open_and_close() -> None:
    before = _registry()[0], _hooks_table()
    unlock.unlock()
    try:
        assert (_registry()[0], _hooks_table()) != before
        assert _registry()[0] == _registry()[1]
        opened = _hooks_table()
        unlock.unlock()  # a second time does nothing
        assert _hooks_table() == opened
    finally:
        unlock.lock()
    assert (_registry()[0], _hooks_table()) == before
    unlock.lock()
    assert (_registry()[0], _hooks_table()) == before


def test_the_cpu_computes_the_same_while_they_are_open() -> None:
    torch.manual_seed(0)
    expected = torch.randn(4, 4) @ torch.randn(4, 4)
    unlock.unlock()
    try:
        torch.manual_seed(0)
        assert torch.equal(torch.randn(4, 4) @ torch.randn(4, 4), expected)
    finally:
        unlock.lock()


def test_importing_opens_nothing() -> None:
    code = (
        "import torch, ebbtide.vgpu.unlock as u, ebbtide.vgpu.virtual_gpu\n"
        "assert not u._State.opened and u._State.guard is None\n"
        "try:\n    torch.empty(1, device='cuda')\n"
        "except (AssertionError, RuntimeError):\n    print('locked')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "locked"


FORKS = """
import os
import torch
from ebbtide.vgpu.virtual_gpu import VirtualGpu

def step():
    with VirtualGpu("l4"):
        torch.ones(3, device="cuda", requires_grad=True).sum().backward()

step()
child = os.fork()
if child == 0:
    step()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_may_run_backward_after_its_parent_has() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "7"


def test_a_missing_symbol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlock, "_GET_HOOKS", "_ZN2at6detail9renamedEv")
    with pytest.raises(VirtualGpuError, match="a symbol is missing"):
        unlock.unlock()
    assert not unlock._State.opened


def test_nothing_is_touched_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_isDriverSufficient", lambda: True, raising=False)
    assert not unlock.needed()
    before = _registry()[0], _hooks_table()
    unlock.unlock()
    assert (_registry()[0], _hooks_table()) == before
    monkeypatch.setattr(torch._C, "_cuda_isDriverSufficient", lambda: False)
    assert unlock.needed()
