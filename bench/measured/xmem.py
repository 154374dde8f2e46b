"""The `xmem-*` rows: four training iterations of a torchvision or Transformers model.

The loop is that of Stone-ResearchLife/xMem (exp/trainer/train_loop.py @ 0fa57ba6): a model
for images goes to the device before its optimizer is made, a language model after; gradients
are dropped before the batch is loaded; outputs and loss of an iteration live until the next
one replaces them; a language model's batch has input_ids, attention_mask and labels, of which
most are padded to 128 tokens. torch 2.6.0 and Transformers 4.51.3 (paper_container/config.py).
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import torch
from torch import nn

from .case import BATCH, MODEL
from .meter import Meter
from .rows import Row, read_configs

ITERATIONS = 4
LONGEST = 128
DRAWS = 8
IMAGE = 86


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """The class of `torch.optim`.

    Raises:
        ValueError: no such optimizer.
    """
    found = getattr(torch.optim, name, None)
    if not isinstance(found, type) or not issubclass(found, torch.optim.Optimizer):
        raise ValueError(f"torch.optim has no {name!r}")
    result: type[torch.optim.Optimizer] = found
    return result


def vision_model(row: Row) -> nn.Module:
    """The torchvision model that `row` names, without weights.

    MobileNetV3 is built from its settings and with ten classes, as the source does.
    """
    from torchvision import models
    from torchvision.models import mobilenetv3

    if "MobileNetV3 small" in row.model:
        settings, last = mobilenetv3._mobilenet_v3_conf("mobilenet_v3_small")
        return mobilenetv3.MobileNetV3(settings, last, num_classes=10)
    name = row.model.removeprefix("torchvision ").split("(")[0].strip()
    model: nn.Module = models.get_model(name, weights=None)
    return model


def language_config(row: Row) -> Any:
    """The Transformers configuration of the row's model."""
    from transformers import AutoConfig

    name = row.model.removesuffix(" (config)")
    configs = read_configs()
    found = next(key for key in configs if key == name or key.endswith(f"/{name}"))
    fields = dict(configs[found])
    fields.pop("architectures", None)
    if fields["model_type"] == "t5":
        # As T5's published configuration has it; the class has no default any more.
        fields["decoder_start_token_id"] = 0
    return AutoConfig.for_model(fields.pop("model_type"), **fields)


def language_model(row: Row) -> nn.Module:
    """The row's Transformers model with its head, in fp32."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = language_config(row)
    factory = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model: nn.Module = factory.from_config(config, dtype=torch.float32)
    return model


def train_vision(row: Row, device: torch.device, meter: Meter, *, image: int = IMAGE) -> None:
    """The loop for images, (batch, 3, image, image)."""
    model = vision_model(row)
    model.to(device)
    meter.note(MODEL, meter.reserved())
    model.train()
    optimizer = optimizer_class(row.optimizer)(model.parameters(), lr=0.001)  # type: ignore[call-arg]
    criterion = nn.CrossEntropyLoss()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
    batch = row.batch or 1
    for iteration in range(ITERATIONS):
        inputs, labels = torch.randn(batch, 3, image, image), torch.randint(0, 10, (batch,))
        optimizer.zero_grad()
        inputs, labels = inputs.to(device), labels.to(device)
        if iteration == 0:
            meter.note(BATCH, meter.reserved())
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        _, preds = torch.max(outputs, 1)
        scheduler.step()
    del preds


def draws(row: Row) -> Counter[tuple[int, ...]]:
    """What the iterations' batches may have been padded to, with how often it was drawn.

    The source shuffles the lines of WikiText-2 (raw), cuts them at 128 tokens and pads a
    batch to its longest line (exp/trainer/trainer.py). Of 36,718 lines 12,951 are empty
    (Hugging Face's copy of the data set) and about 6,200 headings; the others share 2,088,628
    words (Merity et al. 2016, table 1), a mean of 119, or 135 tokens at 1.13 a word. How they
    spread is taken as a gamma distribution of shape 2. DeepSeek's tokenizer is told to pad to
    the longest of a thousand lines, which is 128.
    """
    if "deepseek" in row.id:
        return Counter({(LONGEST,) * ITERATIONS: 1})
    rng = random.Random(0)
    return Counter(
        tuple(_longest(rng, row.batch or 1) for _ in range(ITERATIONS)) for _ in range(DRAWS)
    )


def _longest(rng: random.Random, lines: int) -> int:
    found = 1
    for _ in range(lines):
        kind = rng.random() * 36_718
        if kind > 12_951 + 6_200:
            found = max(found, round(rng.gammavariate(2, 135 / 2)))
        elif kind > 12_951:
            found = max(found, 8)
    return min(found, LONGEST)


def train_language(row: Row, device: torch.device, *, seqs: tuple[int, ...] | None = None) -> None:
    """The loop for text, (batch, seq) with a `seq` of `seqs` in each iteration."""
    model = language_model(row)
    model.train()
    optimizer = optimizer_class(row.optimizer)(model.parameters(), lr=0.001)  # type: ignore[call-arg]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
    model.to(device)
    vocab = int(model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    for seq in seqs or (LONGEST,) * ITERATIONS:
        ids = torch.randint(0, vocab, (row.batch or 1, seq))
        host = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
        optimizer.zero_grad()
        batch = {key: value.to(device) for key, value in host.items()}
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        scheduler.step()
