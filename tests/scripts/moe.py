"""Mixture of experts: top-2 routing with index_add, load balancing, capacity, expert statistics."""

import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cuda")
torch.manual_seed(0)
EXPERTS, WIDTH, TOKENS = 4, 128, 64


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, 2 * WIDTH, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class SparseMoE(nn.Module):
    def __init__(self, top_k=2):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.top_k = top_k

    def forward(self, hidden):
        b, s, c = hidden.shape
        hidden = hidden.view(-1, c)
        logits = self.gate(hidden)
        weights = F.softmax(logits, dim=1, dtype=torch.float)
        weights, chosen = torch.topk(weights, self.top_k, dim=-1)
        weights = (weights / weights.sum(dim=-1, keepdim=True)).to(hidden.dtype)
        final = torch.zeros_like(hidden)
        mask = F.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for expert in hit:
            index = int(expert)
            slot, rows = torch.where(mask[index])
            current = hidden[None, rows].reshape(-1, c)
            out = self.experts[index](current) * weights[rows, slot, None]
            final.index_add_(0, rows, out.to(hidden.dtype))
        load = F.one_hot(chosen, EXPERTS).float().mean(dim=(0, 1))
        balance = EXPERTS * (load * F.softmax(logits.float(), 1).mean(0)).sum()
        return final.view(b, s, c), balance, torch.bincount(chosen.flatten(), minlength=EXPERTS)


class CapacityMoE(nn.Module):
    """GShard style: every expert takes a fixed number of tokens."""

    def __init__(self, capacity=1.25):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.w1 = nn.Parameter(torch.empty(EXPERTS, WIDTH, 2 * WIDTH))
        self.w2 = nn.Parameter(torch.empty(EXPERTS, 2 * WIDTH, WIDTH))
        nn.init.kaiming_uniform_(self.w1)
        nn.init.kaiming_uniform_(self.w2)
        self.capacity = capacity

    def forward(self, x):
        b, s, c = x.shape
        flat = x.reshape(-1, c)
        probs = self.gate(flat).softmax(-1)
        top, expert = probs.max(-1)
        onehot = F.one_hot(expert, EXPERTS)
        position = (onehot.cumsum(0) * onehot).sum(-1) - 1
        size = int(self.capacity * flat.size(0) / EXPERTS)
        keep = position < size
        dispatch = torch.einsum(
            "te,tp->tep",
            (onehot * keep[:, None]).to(x.dtype),
            F.one_hot(position.clamp(max=size - 1), size).to(x.dtype),
        )
        inputs = torch.einsum("tep,tc->epc", dispatch, flat)
        hidden = F.gelu(torch.bmm(inputs, self.w1))
        outputs = torch.bmm(hidden, self.w2)
        return (torch.einsum("tep,epc->tc", dispatch, outputs) * top[:, None]).view(b, s, c)


embed = nn.Embedding(100, WIDTH)
layers = nn.ModuleList([SparseMoE(), CapacityMoE(), SparseMoE()])
head = nn.Linear(WIDTH, 100)
model = nn.ModuleDict({"embed": embed, "layers": layers, "head": head}).to(device, torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
counts = torch.zeros(EXPERTS, dtype=torch.long, device=device)
for step in range(3):
    tokens = torch.randint(0, 100, (4, TOKENS), device=device)
    h, auxiliary = embed(tokens), 0.0
    for layer in layers:
        out = layer(F.layer_norm(h, (WIDTH,)))
        if isinstance(out, tuple):
            out, balance, used = out
            auxiliary = auxiliary + balance
            counts += used
        h = h + out
    loss = F.cross_entropy(head(h)[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
    (loss + 0.01 * auxiliary).backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.3f} balance {float(auxiliary):.3f}")
print("tokens per expert", counts.tolist())
assert len(counts.tolist()) == EXPERTS
print("finished")
