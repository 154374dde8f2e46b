"""Runs unmodified scripts on the virtual GPU, each in a fork that has imported torch already.

Reads jobs, one line of JSON each: `gpu`, `enforce`, `script`, `arguments`, `folder`,
`environment` and the file `out` for what the script prints, after which comes one line with
what it took. Answers each with its exit code.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

from ebbtide.vgpu.virtual_gpu import VirtualGpu
from ebbtide.workloads.torchvision_mend import mend_torchvision

MARK = "EBBTIDE "


def main() -> None:
    mend_torchvision()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            be_the_script(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def be_the_script(job: dict[str, Any]) -> NoReturn:
    out = os.open(job["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, to in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(descriptor, to)
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    tempfile.tempdir = None
    code = 1
    try:
        run(job)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(job: dict[str, Any]) -> None:
    sys.argv = [job["script"], *job["arguments"]]
    sys.path.insert(0, str(Path(job["script"]).parent))
    with VirtualGpu(job["gpu"], enforce=job["enforce"]) as virtual:
        runpy.run_path(job["script"], run_name="__main__")
        peak = virtual.memory.max_memory_allocated()
    result = {
        "peak_allocated_bytes": peak,
        "operations": len(virtual.tape.op_name),
        "guesses": {kind: count for kind, (text, count) in virtual.guesses.items()},
    }
    print(MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
