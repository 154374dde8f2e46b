"""Which models run on the virtual GPU, of those that run on a CPU.

    python bench/coverage_models.py --suite transformers --jobs 2

For Transformers the CPU pass (real tensors, stock library) is the denominator; of timm and
torchvision every model is. Both kinds of results are kept in ``bench/data/`` by version of
the library: ``coverage_cpu_*.json`` and ``coverage_*.json``, the last with its date and
with the error of each model that failed. A model has a process of its own, forked after
the imports, with a limit on CPU time and memory: a crash or a hang loses that model alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
CPU_SECONDS = 40
MEMORY_BYTES = 6 << 30
FIRST = {"transformers": "gpt2", "timm": "resnet18", "torchvision": "resnet18"}
LIBRARY = {"transformers": "transformers", "timm": "timm", "torchvision": "torchvision"}


def main() -> int:
    """Run a suite and print the share that passes."""
    args = _arguments()
    from ebbtide.workloads.torchvision_mend import mend_torchvision

    mend_torchvision()
    sys.path.insert(0, str(Path(__file__).parent))
    import coverage_cases
    import torch
    import torchvision  # noqa: F401

    torch.set_num_threads(1)
    chosen = [n for n in coverage_cases.names(args.suite) if re.search(args.filter, n)]
    chosen = chosen[: args.limit]
    report: dict[str, Any] = {"suite": args.suite, "versions": _versions(args.suite)}
    passing, levels = chosen, dict.fromkeys(chosen)
    if args.suite == "transformers":
        cpu = _on_cpu(args, chosen)
        passing = [n for n in chosen if cpu.get(n, {}).get("ok")]
        levels = {n: cpu[n].get("level") for n in passing}
        report["cpu"] = {"models": len(chosen), "pass": len(passing)}
        report["cpu_failed"] = {n: cpu[n] for n in chosen if n in cpu and not cpu[n]["ok"]}
    if not args.cpu_only:
        virtual = _on_virtual_gpu(args, passing, levels)
        report["virtual"] = {"models": len(passing), "pass": sum(v["ok"] for v in virtual.values())}
        report["virtual_failed"] = {n: v for n, v in virtual.items() if not v["ok"]}
    _print(report, args.json)
    return 0


def _on_cpu(args: argparse.Namespace, chosen: list[str]) -> dict[str, Any]:
    """Run what is not kept; returns everything that is."""
    kept = DATA / f"coverage_cpu_{args.suite}.json"
    cpu = _cached(kept, args.suite)
    todo = [n for n in chosen if n not in cpu or (args.retry and not cpu[n]["ok"])]
    todo.sort(key=lambda n: n in cpu)

    def keep(name: str, result: dict[str, Any]) -> None:
        cpu[name] = result
        _store(kept, args.suite, cpu)

    if todo and not args.virtual_only:
        _run_all(args, todo, None, keep)
    return cpu


def _on_virtual_gpu(
    args: argparse.Namespace, chosen: list[str], levels: dict[str, Any]
) -> dict[str, Any]:
    """Run them, or with `--retry` what is not known to pass; returns the results of `chosen`."""
    kept = DATA / f"coverage_{args.suite}.json"
    known = _cached(kept, args.suite)
    todo = [n for n in chosen if not (args.retry and known.get(n, {}).get("ok"))]

    def keep(name: str, result: dict[str, Any]) -> None:
        known[name] = result
        _store(kept, args.suite, known)

    # In no order, so that a run which is stopped halfway has seen a fair sample.
    random.Random(0).shuffle(todo)
    with _warm(args.suite) if todo else nullcontext():
        _run_all(args, todo, levels, keep)
    return {n: known[n] for n in chosen}


@contextmanager
def _warm(suite: str) -> Iterator[None]:
    """Import and cache in this process what each model's own would otherwise repeat.

    Models of images find the virtual GPU on; those of Transformers are measured on the CPU
    first, so that each turns it on itself.
    """
    import coverage_cases

    with nullcontext() if suite == "transformers" else coverage_cases.virtual_gpu():
        coverage_cases.run(suite, FIRST[suite], True, "narrow")
        yield


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", choices=sorted(LIBRARY), default="transformers")
    parser.add_argument("--limit", type=int, help="only so many models")
    parser.add_argument("--filter", default="", help="only names that this expression finds")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--cpu-only", action="store_true", help="only the denominator")
    parser.add_argument("--virtual-only", action="store_true", help="only the kept denominator")
    parser.add_argument(
        "--retry", action="store_true", help="run again what failed, not what passed"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser.parse_args()


def _versions(suite: str) -> dict[str, str]:
    return {name: version(name) for name in ("torch", LIBRARY[suite])}


def _cached(path: Path, suite: str) -> dict[str, Any]:
    if not path.is_file():
        return {}
    kept = json.loads(path.read_text())
    return dict(kept["models"]) if kept["versions"] == _versions(suite) else {}


def _store(path: Path, suite: str, models: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    head = {"versions": _versions(suite), "date": date.today().isoformat()}
    text = json.dumps({**head, "models": dict(sorted(models.items()))}, indent=0)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def _run_all(args: Any, names: list[str], levels: dict[str, Any] | None, done: Any) -> None:
    """Fork a process a model, `args.jobs` at once, and hand each result to `done`."""
    waiting = list(reversed(names))
    running: dict[int, tuple[int, str, float]] = {}
    count = 0
    while waiting or running:
        while waiting and len(running) < args.jobs:
            name = waiting.pop()
            level = None if levels is None else levels[name]
            reading, child = _start(args.suite, name, levels is not None, level)
            running[reading] = (child, name, time.monotonic())
        ready, _, _ = select.select(list(running), [], [], 5)
        for reading in ready:
            child, name, began = running.pop(reading)
            result = _finish(reading, child)
            result["seconds"] = round(time.monotonic() - began, 1)
            count += 1
            done(name, result)
            mark = "ok" if result["ok"] else f"{result['stage']}: {result['error'][:160]}"
            print(f"[{count}/{len(names)}] {name}: {mark}", file=sys.stderr, flush=True)


def _start(suite: str, name: str, virtual: bool, level: str | None) -> tuple[int, int]:
    """Fork; the child writes its result into a pipe. Returns the pipe and the child's id."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return reading, child
    os.close(reading)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    if not virtual:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    import coverage_cases

    result = coverage_cases.run(suite, name, virtual, level)
    os.write(writing, json.dumps(result).encode())
    os._exit(0)


def _finish(reading: int, child: int) -> dict[str, Any]:
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if text:
        result: dict[str, Any] = json.loads(text)
        return result
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    why = (
        f"more than {CPU_SECONDS} s of CPU time" if number == signal.SIGXCPU else f"signal {number}"
    )
    return {"ok": False, "stage": "process", "error": why}


def _print(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(report, indent=1))
        return
    if "cpu" in report:
        cpu = report["cpu"]
        print(f"{report['suite']}: {cpu['pass']} of {cpu['models']} models run on the CPU")
    for kind in ("cpu_failed", "virtual_failed"):
        for name, result in sorted(report.get(kind, {}).items()):
            print(f"  {kind[:-7]}: {name}: {result['stage']}: {result['error'][:200]}")
    if "virtual" in report:
        passed, total = report["virtual"]["pass"], report["virtual"]["models"]
        share = 100 * passed / total if total else 0.0
        print(f"{passed} of these {total} run on the virtual GPU: {share:.1f} %")


if __name__ == "__main__":
    sys.exit(main())
