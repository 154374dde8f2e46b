"""Train a small diffusion U-Net for a few steps: convolutions, attention, group norm."""

import torch
from torch import nn
from torch.nn import functional as F

BATCH, SIZE, STEPS, WIDTHS = 16, 64, 4, (64, 128, 256)


class Block(nn.Module):
    """Two convolutions with a residual, told the time step."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1)
        )
        self.time = nn.Linear(256, outside)
        self.second = nn.Sequential(
            nn.GroupNorm(8, outside), nn.SiLU(), nn.Conv2d(outside, outside, 3, padding=1)
        )
        self.skip = nn.Conv2d(inside, outside, 1)

    def forward(self, x: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        """Pictures (batch, inside, h, w) to (batch, outside, h, w)."""
        hidden = self.first(x) + self.time(when)[:, :, None, None]
        return self.second(hidden) + self.skip(x)


class UNet(nn.Module):
    """Down and up through `WIDTHS`, with attention at the bottom."""

    def __init__(self) -> None:
        super().__init__()
        self.when = nn.Sequential(nn.Linear(1, 256), nn.SiLU(), nn.Linear(256, 256))
        self.enter = nn.Conv2d(3, WIDTHS[0], 3, padding=1)
        pairs = list(zip(WIDTHS, (*WIDTHS[1:], WIDTHS[-1]), strict=True))
        self.down = nn.ModuleList(Block(a, b) for a, b in pairs)
        self.attention = nn.MultiheadAttention(WIDTHS[-1], 8, batch_first=True)
        self.up = nn.ModuleList(Block(2 * b, a) for a, b in reversed(pairs))
        self.leave = nn.Conv2d(WIDTHS[0], 3, 3, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """The noise in the pictures (batch, 3, h, w) at `time` (batch, 1)."""
        when, x, kept = self.when(time), self.enter(x), []
        for block in self.down:
            x = block(x, when)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        flat = x.flatten(2).transpose(1, 2)
        x = x + self.attention(flat, flat, flat)[0].transpose(1, 2).reshape(x.shape)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], 1), when)
        return self.leave(x)


def main() -> None:
    torch.manual_seed(0)
    model = UNet().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        pictures = torch.randn(BATCH, 3, SIZE, SIZE).cuda()
        noise, time = torch.randn_like(pictures), torch.rand(BATCH, 1, device="cuda")
        mixed = pictures + time[:, :, None, None] * noise
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.mse_loss(model(mixed, time).float(), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
