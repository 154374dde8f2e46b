"""Models that Ebbtide steps itself: the trace says what was run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ebbtide.errors import TargetError, UsageError
from ebbtide.gpus import find
from ebbtide.trace.model import Category, Trace
from ebbtide.vgpu.virtual_gpu import VirtualGpu
from ebbtide.workloads.model_run import run_model, trace_function
from ebbtide.workloads.options import WorkloadOptions
from ebbtide.workloads.request import Request

Tiny = Callable[..., str]


def build(batch: int = 6) -> Any:
    model = nn.Linear(16, 16).cuda()
    return model, torch.optim.Adam(model.parameters()), torch.ones(batch, 16)


def bytes_of(trace: Trace, category: Category) -> int:
    return int(trace.allocs.likely_bytes[trace.allocs.category == category].sum())


def test_a_function_takes_three_steps() -> None:
    trace = trace_function(build, "l4", None, "users:build")
    assert trace.meta == {"target": "users:build", "batch": 6, "steps": 3, "forwards": 3}
    assert trace.gpu == "l4"
    assert bytes_of(trace, Category.PARAMETER) == 4 * (16 * 16 + 16)
    assert bytes_of(trace, Category.OPTIMIZER_STATE) >= 2 * 4 * (16 * 16 + 16)


def test_a_function_at_another_batch_on_a_spec() -> None:
    trace = trace_function(build, find("t4"), 9, "users:build")
    assert (trace.gpu, trace.meta["batch"]) == ("t4", 9)


def test_a_function_for_inference() -> None:
    trace = trace_function(build, "l4", None, "users:build", inference=True)
    assert (trace.meta["steps"], trace.meta["forwards"]) == (0, 3)
    assert bytes_of(trace, Category.GRADIENT) == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": -64}, "cannot be built: RuntimeError: Trying to create tensor with neg"),
        ({"hidden_act": "nope"}, "cannot be built: KeyError: 'nope'"),
    ],
)
def test_fields_of_which_no_model_is_built(
    tiny: Tiny, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(TargetError, match=message):
        run_model(Request(kind="architecture", target=tiny(**fields)), "l4", 2)


def test_more_bytes_than_can_be_counted(tiny: Tiny) -> None:
    options = WorkloadOptions(batch=10**9, seq=10**9)
    request = Request(kind="architecture", target=tiny(), options=options)
    with pytest.raises(UsageError, match=r"config\.json is too large at these sizes: Storage size"):
        run_model(request, "l4", None)
    assert VirtualGpu._active is None


def test_a_quantisation_that_is_not_carried_out_is_listed(tiny: Tiny) -> None:
    path = tiny(quantization_config={"quant_method": "gptq", "bits": 4})

    def guesses(options: WorkloadOptions) -> list[str]:
        request = Request(kind="architecture", target=path, options=options)
        return [guess.text for guess in run_model(request, "l4", 2).guesses]

    (text,) = guesses(WorkloadOptions(seq=8))
    assert "quantised by gptq; they are taken as fp32" in text
    assert guesses(WorkloadOptions(seq=8, inference=True, quantize="nf4")) == []


def test_after_an_error_the_virtual_gpu_is_off() -> None:
    def fails() -> Any:
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError):
        trace_function(fails, "l4", None, "users:fails")
    assert VirtualGpu._active is None
    assert torch.ones(2).sum().item() == 2.0


def test_a_function_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "by_name.py").write_text(
        "import torch\nhere = torch.cuda.is_available()\n"
        "def build():\n"
        "    return torch.nn.Linear(2, 2).cuda(), None, torch.ones(5 if here else 1, 2)\n"
    )
    request = Request(kind="function", target="by_name:build")
    assert run_model(request, "l4", None).meta["batch"] == 5


def architecture(target: str, gpu: str = "l4", batch: int | None = None, **options: Any) -> Trace:
    seq = options.pop("then", None)
    request = Request(kind="architecture", target=target, options=WorkloadOptions(**options))
    return run_model(request, gpu, batch, seq)


def test_an_architecture_in_training(tiny: Tiny) -> None:
    trace = architecture(tiny(), batch=3, seq=32, grad_accum=2)
    assert trace.meta["batch"] == 3
    assert trace.meta["accumulated"] == 2
    assert (trace.meta["seq"], trace.meta["longest_seq"]) == (32, 128)
    assert (trace.meta["steps"], trace.meta["forwards"]) == (3, 6)


def test_the_options_say_the_batch_where_nothing_else_does(tiny: Tiny) -> None:
    assert architecture(tiny(), batch=None, seq=16).meta["batch"] == 8
    request = Request(kind="architecture", target=tiny(), options=WorkloadOptions(seq=16, batch=2))
    assert run_model(request, "l4", None).meta["batch"] == 2


def test_another_length_is_another_trace(tiny: Tiny) -> None:
    short, long = (architecture(tiny(), batch=2, seq=16, then=seq) for seq in (None, 64))
    assert (short.meta["seq"], long.meta["seq"]) == (16, 64)
    assert bytes_of(long, Category.INPUT) == 4 * bytes_of(short, Category.INPUT)


def test_a_length_of_its_own(tiny: Tiny) -> None:
    trace = architecture(tiny(), batch=1)
    assert trace.meta["seq"] == trace.meta["longest_seq"] == 128


def test_the_settings_are_told(tiny: Tiny) -> None:
    path = tiny(dtype="bfloat16")
    trace = architecture(path, seq=16)
    told = f"training, batch 8, 16 tokens, float32, AdamW; configuration: {path}"
    assert trace.meta["assumed"] == told
    assert [guess.kind for guess in trace.guesses] == ["dtype"]
    trace = architecture(path, inference=True, kv_tokens=32)
    assert trace.guesses == ()
    assert trace.meta["assumed"] == (
        "inference, 1 request, cache of 32 tokens each, prompt of 128 tokens, bfloat16; "
        f"configuration: {path}"
    )


def test_inference_counts_no_accumulation(tiny: Tiny) -> None:
    trace = architecture(tiny(), batch=2, seq=16, inference=True)
    assert (trace.meta["accumulated"], trace.meta["steps"]) == (1, 0)
    assert trace.meta["seq"] == 16


def test_a_cache_decides_and_not_the_prompt(tiny: Tiny) -> None:
    trace = architecture(tiny(), batch=2, seq=16, kv_tokens=64, inference=True)
    assert "seq" not in trace.meta
    assert bytes_of(trace, Category.KV_CACHE) > 0


def test_what_reads_no_text_has_no_length() -> None:
    trace = architecture("torchvision/squeezenet1_1", batch=2, image=64)
    assert "seq" not in trace.meta
    assert trace.meta["batch"] == 2


def test_what_cannot_be_built(tiny: Tiny) -> None:
    with pytest.raises(TargetError, match="resnet5000"):
        architecture("resnet5000")
    with pytest.raises(UsageError, match="image"):
        architecture(tiny(), image=64)
