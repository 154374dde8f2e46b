"""Whether this torch has passed the self-test: asked once for each version and machine.

Opening the locks (see `unlock`) with a torch whose insides have changed could end the
process. So a child process tries first (`ebbtide.vgpu.selftest`), and its success is
remembered in the user's cache directory. A process that may die, because another one
watches it, says so by the environment variable ``EBBTIDE_SELFTEST=0``.
"""

from __future__ import annotations

import hashlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from ebbtide import __version__
from ebbtide.errors import VirtualGpuError
from ebbtide.vgpu.unlock import KNOWN_VERSIONS, needed

SWITCH = "EBBTIDE_SELFTEST"
_TIMEOUT_S = 300
_MODULE = "ebbtide.vgpu.selftest"


def ensure() -> None:
    """Return if the virtual GPU is known to work here, after trying it if need be.

    Does nothing where PyTorch sees a real GPU, and where the switch is off.

    Raises:
        VirtualGpuError: the self-test failed.
    """
    if os.environ.get(SWITCH) == "0" or not needed():
        return
    mark = mark_path()
    if mark.exists():
        return
    _try()
    _remember(mark)


def mark_path() -> Path:
    """The file that says that this combination has passed."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    parts = (
        __version__,
        torch.__version__,
        str(torch.version.git_version),
        torch.__file__,
        platform.python_version(),
        platform.platform(),
        platform.machine(),
    )
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return Path(base) / "ebbtide" / f"selftest-torch-{torch.__version__}-{digest}"


def _try() -> None:
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, SWITCH: "0", "PYTHONPATH": os.pathsep.join(paths)}
    try:
        child = subprocess.run(
            [sys.executable, "-m", _MODULE],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(f"it could not be run ({error})") from error
    if child.returncode != 0:
        raise _failed(_reason(child.returncode, child.stdout, child.stderr))


def _reason(code: int, out: str, err: str) -> str:
    steps = out.split("\n")
    last = next((line for line in reversed(steps) if line.strip()), "the start")
    if code < 0:
        return f"the process ended by {signal.Signals(-code).name} at: {last}"
    lines = [line for line in err.splitlines() if line.strip()]
    return f"at: {last}: {lines[-1] if lines else f'exit code {code}'}"


def _failed(reason: str) -> VirtualGpuError:
    return VirtualGpuError(
        f"The virtual GPU does not work with torch {torch.__version__} on {sys.platform} "
        f"{platform.machine()}: its self-test failed; {reason}. It is known to work on Linux "
        f"with torch {' and '.join(KNOWN_VERSIONS)}; install one of those, or use a machine "
        f"with a GPU. `python -m {_MODULE}` shows the whole error."
    )


def _remember(mark: Path) -> None:
    """Leave the mark, whole or not at all; without a place for it, test again next time."""
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=mark.parent, delete=False) as file:
            file.write("passed\n")
        os.replace(file.name, mark)
    except OSError:
        return
