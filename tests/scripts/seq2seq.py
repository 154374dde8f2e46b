"""An encoder-decoder Transformer: masks, label smoothing, Noam schedule, LBFGS finish, beams."""
# ruff: noqa: B905

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.lr_scheduler import LambdaLR

device = torch.device("cuda")
PAD, BOS, EOS, VOCAB = 0, 1, 2, 60


class PositionalEncoding(nn.Module):
    def __init__(self, width, length=200):
        super().__init__()
        position = torch.arange(length).unsqueeze(1)
        div = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        pe = torch.zeros(length, 1, width)
        pe[:, 0, 0::2], pe[:, 0, 1::2] = torch.sin(position * div), torch.cos(position * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(0)]


class Seq2Seq(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width, padding_idx=PAD)
        self.position = PositionalEncoding(width)
        self.transformer = nn.Transformer(width, 4, 2, 2, 128, dropout=0.1)
        self.out = nn.Linear(width, VOCAB)
        self.scale = math.sqrt(width)

    def encode(self, src):
        pad = src.t() == PAD
        return self.transformer.encoder(
            self.position(self.embed(src) * self.scale), src_key_padding_mask=pad
        )

    def decode(self, tgt, memory, src):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(0), device=tgt.device)
        h = self.transformer.decoder(
            self.position(self.embed(tgt) * self.scale),
            memory,
            tgt_mask=mask,
            memory_key_padding_mask=(src.t() == PAD),
        )
        return self.out(h)

    def forward(self, src, tgt):
        return self.decode(tgt, self.encode(src), src)


def batch(n=6, length=12):
    src = torch.randint(3, VOCAB, (length, n))
    lengths = torch.randint(4, length + 1, (n,))
    for i, stop in enumerate(lengths):
        src[stop:, i] = PAD
    tgt = torch.cat([torch.full((1, n), BOS), src.flip(0), torch.full((1, n), EOS)])
    return src.to(device), tgt.to(device)


model = Seq2Seq().to(device)
for p in model.parameters():
    if p.dim() > 1:
        nn.init.xavier_uniform_(p)
optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
noam = LambdaLR(optimizer, lambda s: 64**-0.5 * min((s + 1) ** -0.5, (s + 1) * 400**-1.5))
criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
for step in range(3):
    src, tgt = batch()
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        logits = model(src, tgt[:-1])
    loss = criterion(logits.reshape(-1, VOCAB), tgt[1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    noam.step()
    tokens = (tgt[1:] != PAD).sum().item()
    print(f"step {step} loss {loss.item():.3f} tokens {tokens} lr {noam.get_last_lr()[0]:.2e}")

probe = nn.Linear(64, 2).to(device)
lbfgs = torch.optim.LBFGS(probe.parameters(), lr=0.1, max_iter=3, line_search_fn=None)
features, labels = torch.randn(20, 64, device=device), torch.randint(0, 2, (20,), device=device)


def closure():
    lbfgs.zero_grad()
    value = F.cross_entropy(probe(features), labels)
    value.backward()
    return value


lbfgs.step(closure)
model.eval()
with torch.no_grad():
    src, _ = batch(1)
    memory = model.encode(src)
    beams = [(0.0, torch.tensor([[BOS]], device=device))]
    for _ in range(5):
        grown = []
        for score, sequence in beams:
            logp = F.log_softmax(model.decode(sequence, memory, src)[-1, 0], dim=-1)
            values, indices = logp.topk(2)
            for value, index in zip(values, indices):
                grown.append((score + value.item(), torch.cat([sequence, index.view(1, 1)])))
        beams = sorted(grown, key=lambda b: b[0], reverse=True)[:2]
    best = beams[0][1].squeeze(1)
assert best.shape == (6,) and best[0].item() == BOS
print("decoded", best.tolist())
print("finished")
