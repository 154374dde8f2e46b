"""A denoising diffusion U-Net: time embedding, attention, EMA, DDIM sampling."""
# ruff: noqa: E731

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda"
torch.backends.cuda.enable_flash_sdp(True)
torch.manual_seed(0)


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(
        -math.log(10000) * torch.arange(half, dtype=torch.float32, device=t.device) / half
    )
    args = t[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, i, o, emb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, i), nn.Conv2d(i, o, 3, padding=1)
        self.emb = nn.Linear(emb, 2 * o)
        self.norm2, self.conv2 = nn.GroupNorm(8, o), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.emb(F.silu(emb))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.dropout(F.silu(h), 0.1, self.training))


class Attention(nn.Module):
    def __init__(self, channels, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, channels)
        self.qkv, self.out = nn.Conv1d(channels, 3 * channels, 1), nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x).reshape(b, c, h * w)).chunk(3, dim=1)
        split = lambda t: t.reshape(b, self.heads, c // self.heads, h * w).transpose(2, 3)
        y = F.scaled_dot_product_attention(split(q), split(k), split(v))
        return x + self.out(y.transpose(2, 3).reshape(b, c, h * w)).reshape(b, c, h, w)


class Net(nn.Module):
    def __init__(self, base=32):
        super().__init__()
        emb = base * 4
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.label = nn.Embedding(11, emb)
        self.inp = nn.Conv2d(3, base, 3, padding=1)
        self.d1, self.d2 = ResBlock(base, base, emb), ResBlock(base, base * 2, emb)
        self.mid1, self.attn, self.mid2 = (
            ResBlock(base * 2, base * 2, emb),
            Attention(base * 2),
            ResBlock(base * 2, base * 2, emb),
        )
        self.u2, self.u1 = ResBlock(base * 4, base, emb), ResBlock(base * 2, base, emb)
        self.out = nn.Sequential(nn.GroupNorm(8, base), nn.SiLU(), nn.Conv2d(base, 3, 3, padding=1))

    def forward(self, x, t, y):
        emb = self.time(timestep_embedding(t, self.base)) + self.label(y)
        h0 = self.inp(x)
        h1 = self.d1(h0, emb)
        h2 = self.d2(F.avg_pool2d(h1, 2), emb)
        m = self.mid2(self.attn(self.mid1(h2, emb)), emb)
        u = self.u2(torch.cat([m, h2], 1), emb)
        u = F.interpolate(u, scale_factor=2, mode="nearest")
        return self.out(self.u1(torch.cat([u, h1], 1), emb))


class EMA:
    def __init__(self, model, decay=0.999):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay, self.steps = decay, 0

    @torch.no_grad()
    def update(self, model):
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        for e, p in zip(self.model.parameters(), model.parameters(), strict=True):
            e.mul_(decay).add_(p.detach(), alpha=1 - decay)


STEPS = 100
betas = torch.linspace(1e-4, 0.02, STEPS, device=device, dtype=torch.float64)
alphas = torch.cumprod(1.0 - betas, dim=0).float()

model = Net().to(device)
ema = EMA(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
for step in range(3):
    x0 = torch.rand(8, 3, 32, 32, device=device) * 2 - 1
    y = torch.randint(0, 10, (8,), device=device)
    y = torch.where(torch.rand(8, device=device) < 0.1, torch.full_like(y, 10), y)
    t = torch.randint(0, STEPS, (8,), device=device)
    noise = torch.randn_like(x0)
    a = alphas[t][:, None, None, None]
    xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(xt, t, y).float(), noise)
    optimizer.zero_grad()
    loss.backward()
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=False)
    optimizer.step()
    ema.update(model)
    print(f"step {step} loss {loss:.4f} grad {grad.item():.3f}")


@torch.no_grad()
def sample(net, n, guidance=2.0, steps=5):
    x = torch.randn(n, 3, 32, 32, device=device, generator=torch.Generator(device).manual_seed(5))
    y = torch.arange(n, device=device) % 10
    times = torch.linspace(STEPS - 1, 0, steps, device=device).long()
    for i, t in enumerate(times):
        tb = t.repeat(n)
        both = net(torch.cat([x, x]), torch.cat([tb, tb]), torch.cat([y, torch.full_like(y, 10)]))
        cond, free = both.chunk(2)
        eps = free + guidance * (cond - free)
        a = alphas[t]
        prev = alphas[times[i + 1]] if i + 1 < steps else torch.ones((), device=device)
        x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-1, 1)
        x = prev.sqrt() * x0 + (1 - prev).sqrt() * eps
    return x


images = sample(ema.model, 4)
array = ((images + 1) / 2).clamp(0, 1).mul(255).byte().permute(0, 2, 3, 1).cpu().numpy()
assert array.shape == (4, 32, 32, 3) and array.dtype.name == "uint8"
print("finished")
