"""A GPT trained from scratch: fp16 with GradScaler, checkpointing, torch.compile, resume."""
# ruff: noqa: B007

import argparse
import math
import os
import tempfile
import time
from contextlib import nullcontext

import torch
import torch.nn as nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--heads", type=int, default=8)
parser.add_argument("--block", type=int, default=128)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--iters", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--vocab", type=int, default=1024)
parser.add_argument("--out", default=None)
args = parser.parse_args()

torch.manual_seed(1337)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
device = "cuda" if torch.cuda.is_available() else "cpu"
assert device == "cuda", "this recipe needs a GPU"
dtype = torch.float16
ctx = nullcontext() if device == "cpu" else torch.amp.autocast(device_type=device, dtype=dtype)


class CausalSelfAttention(nn.Module):
    def __init__(self, width, heads, block):
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)
        self.heads = heads
        self.flash = hasattr(F, "scaled_dot_product_attention")
        self.register_buffer("bias", torch.tril(torch.ones(block, block)).view(1, 1, block, block))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        if self.flash:
            y = F.scaled_dot_product_attention(
                q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True
            )
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            y = self.dropout(F.softmax(att, dim=-1)) @ v
        return self.dropout(self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)))


class Block(nn.Module):
    def __init__(self, width, heads, block):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads, block)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab, width, heads, layers, block):
        super().__init__()
        self.block = block
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(block, width)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList([Block(width, heads, block) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * layers))
        print(f"number of parameters: {sum(p.numel() for p in self.parameters()) / 1e6:.2f}M")

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if getattr(module, "bias", None) is not None:
                torch.nn.init.zeros_(module.bias)

    def forward(self, idx, targets=None):
        T = idx.size(1)
        assert T <= self.block
        pos = torch.arange(0, T, dtype=torch.long, device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(pos))
        for block in self.h:
            if self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        x = self.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss

    def configure_optimizers(self, weight_decay, lr):
        decay = [p for p in self.parameters() if p.dim() >= 2]
        rest = [p for p in self.parameters() if p.dim() < 2]
        groups = [
            {"params": decay, "weight_decay": weight_decay},
            {"params": rest, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)

    @torch.no_grad()
    def generate(self, idx, count, temperature=1.0, top_k=None):
        for _ in range(count):
            cond = idx if idx.size(1) <= self.block else idx[:, -self.block :]
            logits, _ = self(cond)
            logits = logits[:, -1, :] / temperature
            if top_k is not None:
                v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                logits[logits < v[:, [-1]]] = -float("inf")
            idx = torch.cat((idx, torch.multinomial(F.softmax(logits, dim=-1), 1)), dim=1)
        return idx


data = torch.randint(0, args.vocab, (20_000,))


def get_batch(split):
    ix = torch.randint(len(data) - args.block, (args.batch,))
    x = torch.stack([data[i : i + args.block] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + args.block] for i in ix])
    x = x.pin_memory().to(device, non_blocking=True)
    return x, y.pin_memory().to(device, non_blocking=True)


model = GPT(args.vocab, args.width, args.heads, args.layers, args.block)
model.to(device)
scaler = torch.amp.GradScaler("cuda", enabled=(dtype == torch.float16))
optimizer = model.configure_optimizers(0.1, 6e-4)
raw_model = model
model = torch.compile(model)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(2)
        for k in range(2):
            X, Y = get_batch(split)
            with ctx:
                _, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


def get_lr(it):
    return 6e-4 * (it + 1) / 3 if it < 2 else 6e-4 * 0.5 * (1 + math.cos(math.pi * it / args.iters))


best = 1e9
X, Y = get_batch("train")
out_dir = args.out or tempfile.mkdtemp()
os.makedirs(out_dir, exist_ok=True)
t0 = time.time()
for it in range(args.iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    for micro in range(args.accumulate):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / args.accumulate
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    dt, t0 = time.time() - t0, time.time()
    print(
        f"iter {it}: loss {loss.item() * args.accumulate:.4f}, norm {norm:.2f}, {dt * 1000:.1f}ms"
    )
    if it % 2 == 1:
        losses = estimate_loss()
        print(f"step {it}: train {losses['train']:.4f}, val {losses['val']:.4f}")
        if losses["val"] < best:
            best = losses["val"]
            path = os.path.join(out_dir, "ckpt.pt")
            torch.save(
                {
                    "model": raw_model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scaler": scaler.state_dict(),
                    "iter": it,
                    "best": best,
                    "args": vars(args),
                },
                path,
            )

checkpoint_file = torch.load(os.path.join(out_dir, "ckpt.pt"), map_location=device)
fresh = GPT(args.vocab, args.width, args.heads, args.layers, args.block)
prefix = "_orig_mod."
state = {k.removeprefix(prefix): v for k, v in checkpoint_file["model"].items()}
fresh.load_state_dict(state)
fresh.to(device)
resumed = fresh.configure_optimizers(0.1, 6e-4)
resumed.load_state_dict(checkpoint_file["optimizer"])
scaler.load_state_dict(checkpoint_file["scaler"])
assert checkpoint_file["iter"] == 1 or checkpoint_file["iter"] == 3
fresh.eval()
with ctx:
    text = fresh.generate(torch.zeros((1, 1), dtype=torch.long, device=device), 6, top_k=20)
assert text.shape == (1, 7)
print("generated", text[0].tolist())
print(f"max memory {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")
print("finished")
