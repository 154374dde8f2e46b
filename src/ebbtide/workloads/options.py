"""The settings of a workload built from an architecture, checked once, in one place."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from ebbtide.errors import UsageError

DTYPES = ("fp32", "bf16", "fp16")
AMP_DTYPES = ("bf16", "fp16")
OPTIMIZERS = ("adamw", "adam", "sgd", "momentum", "adagrad", "rmsprop", "adafactor", "none")
OPTIMIZER_KINDS = ("default", "foreach", "fused", "for-loop")
QUANTIZATIONS = ("int8", "fp8", "nf4")
LOSSES = ("full", "chunked")
LOGITS = ("last", "all")
# What means nothing in inference.
_TRAINING = (
    "optimizer",
    "optimizer_kind",
    "optimizer_in_backward",
    "grad_accum",
    "checkpointing",
    "lora",
    "loss",
)
# Of those, what a model that only answers can have too.
_SERVED = ("lora",)
# Of samples, tokens and pixels: beyond any use, and products still fit 64 bits, mostly.
MOST = 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class Lora:
    """Low-rank adapters.

    Attributes:
        r: rank.
        targets: names of the layers that get one, as peft's `target_modules` takes them;
            empty for peft's own choice by architecture, or every linear and
            convolution layer where it has none.
        dropout: of what goes into the adapters; above 0 a second copy of it is kept.
    """

    r: int
    targets: tuple[str, ...] = ()
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _at_least("lora rank", self.r, 1)
        if not 0 <= self.dropout < 1:
            raise UsageError(f"lora dropout: expected 0 or more and below 1, got {self.dropout!r}")

    @classmethod
    def parse(cls, text: str) -> Lora:
        """From ``"16"`` or ``"16,q_proj,v_proj"``.

        Raises:
            UsageError: the rank is no positive integer.
        """
        rank, *targets = (part.strip() for part in text.split(","))
        if not rank.lstrip("-").isdigit():
            raise UsageError(
                f"lora: expected a rank and layer names such as 16,q_proj,v_proj, got {text!r}"
            )
        return cls(r=int(rank), targets=tuple(name for name in targets if name))


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadOptions:
    """How an architecture is trained or run. `None` leaves the choice to the architecture.

    Attributes:
        batch: samples a step; for inference, concurrent requests.
        seq: tokens a sample; for inference, tokens of the prompt.
        image: side of a square image, in pixels.
        dtype: of the parameters. None is that of a checkpoint's weights; else, in inference,
            what the configuration states; else float32.
        amp: dtype of `torch.autocast`, or None for none. `"fp16"` uses a `GradScaler`.
        optimizer: one of `OPTIMIZERS`; `"none"` stops after backward, None is AdamW.
        optimizer_kind: torch's implementation: its default, or one of `OPTIMIZER_KINDS`.
        optimizer_in_backward: step each parameter as soon as its gradient is there.
        grad_accum: forward and backward passes of `batch` samples before each step.
        checkpointing: recompute activations layer by layer in backward.
        lora: train low-rank adapters and freeze the rest; in inference, hold them.
        quantize: format in which the weights of linear layers are held.
        inference: no gradients; causal language models prefill and then decode.
        kv_tokens: tokens a request holds in its cache at the end of decoding; of a TARGET,
            they imply inference.
        logits: what a prefill computes logits for: the last token, or all of them.
        loss: `"full"` as the model has it; `"chunked"` never holds all logits at once.
        steps: steps that `Running.step` will be asked for; sizes nothing.
    """

    batch: int | None = None
    seq: int | None = None
    image: int | None = None
    dtype: str | None = None
    amp: str | None = None
    optimizer: str | None = None
    optimizer_kind: str = "default"
    optimizer_in_backward: bool = False
    grad_accum: int = 1
    checkpointing: bool = False
    lora: Lora | None = None
    quantize: str | None = None
    inference: bool = False
    kv_tokens: int | None = None
    logits: str = "last"
    loss: str = "full"
    steps: int = field(default=3)

    def __post_init__(self) -> None:
        for name in ("batch", "seq", "image", "kv_tokens"):
            value = getattr(self, name)
            if value is not None:
                _at_least(name, value, 1)
                if value > MOST:
                    raise UsageError(f"{name}: expected at most {MOST:,}, got {value}")
        _at_least("grad_accum", self.grad_accum, 1)
        _at_least("steps", self.steps, 1)
        if self.dtype is not None:
            _one_of("dtype", self.dtype, DTYPES)
        if self.optimizer is not None:
            _one_of("optimizer", self.optimizer, OPTIMIZERS)
        _one_of("optimizer_kind", self.optimizer_kind, OPTIMIZER_KINDS)
        _one_of("logits", self.logits, LOGITS)
        _one_of("loss", self.loss, LOSSES)
        if self.amp is not None:
            _one_of("amp", self.amp, AMP_DTYPES)
        if self.quantize is not None:
            _one_of("quantize", self.quantize, QUANTIZATIONS)
        self._check_together()

    def of_training(self) -> tuple[str, ...]:
        """The options that were given and mean something in training alone."""
        defaults = {each.name: each.default for each in fields(self)}
        return tuple(name for name in _TRAINING if getattr(self, name) != defaults[name])

    def check_trainable(self) -> None:
        """Refuse to train weights that have no gradient.

        Raises:
            UsageError: they are quantised, and there is nothing else to train.
        """
        if self.quantize is not None and not self.inference and self.lora is None:
            raise UsageError(
                f"quantize: {self.quantize} weights have no gradient. "
                "Add --lora to train adapters on them, or --inference."
            )

    def _check_together(self) -> None:
        useless = [name for name in self.of_training() if name not in _SERVED]
        if self.inference and useless and (useless, self.optimizer) != (["optimizer"], "none"):
            raise UsageError(
                f"inference: there is no backward pass, so {', '.join(useless)} would do "
                "nothing. Leave one or the other away."
            )
        if self.kv_tokens is not None and not self.inference and self.of_training():
            raise UsageError(
                "kv_tokens: a cache is held in inference only, where "
                f"{', '.join(self.of_training())} would do nothing. Leave one or the other away."
            )
        if self.kv_tokens is not None and self.seq is not None and self.kv_tokens < self.seq:
            raise UsageError(
                f"kv_tokens: expected at least the {self.seq} tokens of the prompt (seq), "
                f"got {self.kv_tokens}"
            )
        if self.optimizer_in_backward and (self.grad_accum > 1 or self.amp == "fp16"):
            raise UsageError(
                "optimizer_in_backward: gradients are gone after each backward, so it goes "
                "neither with grad_accum nor with amp fp16 (its scaler needs them all)."
            )


def _at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name}: expected an integer of at least {least}, got {value!r}")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")
