"""LoRA with PEFT on a Llama: only adapters train; save the adapter, load it, merge it."""
# ruff: noqa: B007

import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, get_scheduler

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
)
with torch.device("cuda"):
    base = LlamaForCausalLM(config).to(torch.bfloat16)
base.config.use_cache = False
base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
base.enable_input_require_grads()
model = get_peft_model(
    base,
    LoraConfig(
        r=8,
        lora_alpha=16,
        lora_dropout=0.05,
        bias="none",
        task_type="CAUSAL_LM",
        target_modules=["q_proj", "v_proj", "down_proj"],
    ),
)
model.print_trainable_parameters()
for name, p in model.named_parameters():
    if p.requires_grad:
        p.data = p.data.float()
trainable = [p for p in model.parameters() if p.requires_grad]
assert all(p.is_cuda for p in model.parameters())
assert all(p.dtype == torch.float32 for p in trainable)
optimizer = torch.optim.AdamW(trainable, lr=2e-4)
schedule = get_scheduler("linear", optimizer, num_warmup_steps=1, num_training_steps=4)

model.train()
for step in range(4):
    ids = torch.randint(0, 512, (2, 64), device="cuda")
    mask = torch.ones_like(ids)
    labels = ids.masked_fill(mask == 0, -100)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(input_ids=ids, attention_mask=mask, labels=labels)
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(trainable, 0.3)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    print(f"step {step} loss {out.loss.item():.3f} lr {schedule.get_last_lr()[0]:.1e}")
assert all(p.grad is None for n, p in model.named_parameters() if "lora" not in n)
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    fresh = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    tuned = PeftModel.from_pretrained(fresh, folder)
    merged = tuned.merge_and_unload()
assert not any("lora" in n for n, _ in merged.named_parameters())
merged.eval()
with torch.no_grad():
    logits = merged(torch.arange(16, device="cuda")[None]).logits
assert logits.shape == (1, 16, 512)
with model.disable_adapter():
    model(torch.arange(16, device="cuda")[None])
print(f"allocated {torch.cuda.memory_allocated() / 2**20:.1f} MiB")
print("finished")
