"""Run an unmodified script on the virtual GPU and print what it took as one line of JSON.

python run_virtual.py GPU ENFORCE SCRIPT [ARGS...]
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from pathlib import Path

MARK = "EBBTIDE "


def main() -> None:
    gpu, enforce, script, *arguments = sys.argv[1:]
    from ebbtide.vgpu.virtual_gpu import VirtualGpu
    from ebbtide.workloads import torchvision_mend

    torchvision_mend.mend_torchvision()
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    begin = time.perf_counter()
    with VirtualGpu(gpu, enforce=enforce == "1") as virtual:
        runpy.run_path(script, run_name="__main__")
        peak = virtual.memory.max_memory_allocated()
    result = {
        "peak_allocated_bytes": peak,
        "operations": len(virtual.tape.op_name),
        "guesses": {kind: count for kind, (text, count) in virtual.guesses.items()},
        "seconds": round(time.perf_counter() - begin, 2),
    }
    print(MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
