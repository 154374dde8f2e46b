"""Transformers' Trainer: BERT classification, bf16, evaluation, metrics, checkpoints, resume."""

import tempfile

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

set_seed(7)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *[f"w{i}" for i in range(60)]]
core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
core.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
)


class Texts(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for _ in range(count):
            ids = rng.integers(4, 64, rng.integers(5, 30))
            text = " ".join(f"w{i - 4}" for i in ids)
            row = tokenizer(text, truncation=True, max_length=32)
            self.rows.append({**row, "labels": int(ids[0] > 30)})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def compute_metrics(prediction):
    logits, labels = prediction
    if isinstance(logits, tuple):
        logits = logits[0]
    return {"accuracy": float((np.argmax(logits, -1) == labels).mean())}


class Watch(TrainerCallback):
    seen = 0

    def on_step_end(self, args, state, control, **kwargs):
        Watch.seen += 1
        assert next(kwargs["model"].parameters()).is_cuda


config = BertConfig(
    vocab_size=64,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=256,
    max_position_embeddings=64,
    num_labels=2,
)
model = BertForSequenceClassification(config)
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        learning_rate=5e-5,
        warmup_steps=2,
        bf16=True,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        logging_steps=1,
        report_to=[],
        dataloader_num_workers=0,
        max_grad_norm=1.0,
        disable_tqdm=True,
        optim="adamw_torch_fused",
        gradient_checkpointing=True,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Texts(24, 0),
        eval_dataset=Texts(12, 1),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=compute_metrics,
        callbacks=[Watch(), EarlyStoppingCallback(early_stopping_patience=3)],
    )
    result = trainer.train()
    print("train", {k: round(float(v), 3) for k, v in result.metrics.items()})
    metrics = trainer.evaluate()
    print("eval", metrics)
    predictions = trainer.predict(Texts(6, 2))
    assert predictions.predictions.shape == (6, 2)
    trainer.save_model(f"{folder}/final")
    again = BertForSequenceClassification.from_pretrained(f"{folder}/final").to("cuda")
    print("reloaded on", again.device, "parameters", again.num_parameters())
assert Watch.seen == 6, Watch.seen
assert torch.cuda.max_memory_allocated() > 0
print("finished")
