"""Low-rank adapters, put in place by peft."""

from __future__ import annotations

import warnings

from torch import nn

from ebbtide.errors import MissingExtraError, UsageError
from ebbtide.workloads.options import Lora
from ebbtide.workloads.quantize import QuantizedLinear

ADAPTED = (nn.Linear, nn.Conv2d, nn.Embedding)
HEADS = ("lm_head", "classifier", "fc", "head", "score")


def add_lora(model: nn.Module, lora: Lora) -> nn.Module:
    """`model` with its parameters frozen and adapters of rank ``lora.r`` on its layers.

    Without targets, peft's choice for the model type (the query and value projections of
    most language models); where it has none, every linear and convolution layer but the
    output head.

    Raises:
        MissingExtraError: peft is not installed.
        UsageError: no layer has a name that was given.
    """
    try:
        from peft import LoraConfig, get_peft_model
        from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as known
    except ImportError as error:
        raise MissingExtraError("--lora", "peft", "hf") from error
    kind = getattr(getattr(model, "config", None), "model_type", None)
    targets = list(lora.targets) or list(known.get(kind, ())) or _layers(model)
    if any(isinstance(module, QuantizedLinear) for module in model.modules()):
        return _on_quantized(model, lora, targets)
    config = LoraConfig(r=lora.r, target_modules=targets, lora_dropout=lora.dropout)
    try:
        with warnings.catch_warnings():
            # peft asks Transformers for what newer releases call by another name.
            warnings.simplefilter("ignore")
            adapted: nn.Module = get_peft_model(model, config)
        return adapted
    except ValueError as error:
        raise UsageError(f"lora: {error}") from error


def _layers(model: nn.Module) -> list[str]:
    found = [
        name
        for name, module in model.named_modules()
        if type(module) in (nn.Linear, nn.Conv2d) or isinstance(module, QuantizedLinear)
    ]
    return [name for name in found if name.split(".")[-1] not in HEADS] or found


class LoraOnQuantized(nn.Module):
    """A quantised layer with an adapter beside it, computed as peft computes it.

    Args:
        base: the frozen layer.
        r: rank of the adapter.
        dropout: of what goes into it.
    """

    def __init__(self, base: QuantizedLinear, r: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, r, bias=False)
        self.lora_B = nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.lora_dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x):  # type: ignore[no-untyped-def]
        """``[..., in]`` to ``[..., out]``; the adapter computes in its own dtype (fp32)."""
        result = self.base_layer(x)
        added = self.lora_B(self.lora_A(self.lora_dropout(x.to(self.lora_A.weight.dtype))))
        return result + added.to(result.dtype)


def _on_quantized(model: nn.Module, lora: Lora, targets: list[str]) -> nn.Module:
    """Adapters on our own quantised layers, which peft does not know."""
    for param in model.parameters():
        param.requires_grad_(False)
    chosen = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, QuantizedLinear)
        and any(name == target or name.endswith(f".{target}") for target in targets)
    ]
    if not chosen:
        raise UsageError(f"lora: no quantised layer is named {' or '.join(targets)}")
    for name, module in chosen:
        parent, _, last = name.rpartition(".")
        adapted = LoraOnQuantized(module, lora.r, lora.dropout).to(module.packed.device)
        setattr(model.get_submodule(parent), last, adapted)
    return model
