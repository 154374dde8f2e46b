"""What the command line asks of the process that runs a workload."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ebbtide.workloads.options import Lora, WorkloadOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One workload, to be traced on GPUs and at batch sizes.

    Attributes:
        kind: ``"script"``, ``"function"``, ``"architecture"`` or ``"trace"``, which is read
            and not run.
        target: path, ``module:function``, or the architecture's name.
        gpus: keys of the catalogue, one answer each.
        batch: batch size to trace at; None for what the target itself says.
        curve: trace at other batch sizes too, and a model that reads text at other lengths.
        args: the script's own arguments; ``{batch}`` stands for the batch size.
        options: settings of an architecture.
        folder: where the traces are written.
        seconds: after this long a script is stopped and its trace taken as it stands.
        torch_version: whose rules of kernel choice to follow, None for the installed.
        budget_bytes: to plan for, None for what the GPU has; not used to predict.
    """

    kind: str
    target: str
    gpus: tuple[str, ...] = ()
    folder: str = ""
    batch: int | None = None
    curve: bool = True
    args: tuple[str, ...] = ()
    options: WorkloadOptions = field(default_factory=WorkloadOptions)
    seconds: float = 600.0
    torch_version: tuple[int, int] | None = None
    budget_bytes: int | None = None

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Request:
        """What `to_text` wrote."""
        data: dict[str, Any] = json.loads(text)
        options = data.pop("options")
        if options["lora"] is not None:
            lora = options["lora"]
            options["lora"] = Lora(**{**lora, "targets": tuple(lora["targets"])})
        version = data.pop("torch_version")
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(
            **plain,
            options=WorkloadOptions(**options),
            torch_version=tuple(version) if version else None,
        )
