"""Contrastive learning (SimCLR and a CLIP-like pair): two views, a queue, temperature, kNN."""
# ruff: noqa: B007

import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

device = torch.device("cuda")
torch.manual_seed(0)


class TwoViews(Dataset):
    augment = v2.Compose(
        [
            v2.RandomResizedCrop(32, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.4, 0.4, 0.4),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )

    def __len__(self):
        return 24

    def __getitem__(self, i):
        image = torch.randint(0, 255, (3, 40, 40), dtype=torch.uint8)
        return self.augment(image), self.augment(image), i % 4


def info_nce(a, b, temperature=0.1):
    z = F.normalize(torch.cat([a, b]), dim=1)
    similarity = z @ z.t() / temperature
    n = len(a)
    mask = torch.eye(2 * n, dtype=torch.bool, device=z.device)
    similarity = similarity.masked_fill(mask, float("-inf"))
    targets = torch.cat([torch.arange(n, 2 * n), torch.arange(n)]).to(z.device)
    return F.cross_entropy(similarity, targets)


backbone = torchvision.models.mobilenet_v3_small(weights=None)
backbone.classifier = nn.Identity()
projector = nn.Sequential(nn.Linear(576, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64))
model = nn.Sequential(backbone, projector).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = torch.optim.Adam(model.parameters()) if optimizer is None else optimizer
queue_size = 32
queue = F.normalize(torch.randn(64, queue_size, device=device), dim=0)
pointer = 0
loader = DataLoader(TwoViews(), batch_size=8, shuffle=True, drop_last=True, num_workers=2)
for epoch in range(1):
    for first, second, _ in loader:
        a, b = model(torch.cat([first, second]).to(device)).chunk(2)
        loss = info_nce(a, b)
        with torch.no_grad():
            keys = F.normalize(b, dim=1)
            queue[:, pointer : pointer + len(keys)] = keys.t()
            pointer = (pointer + len(keys)) % queue_size
        positives = torch.einsum("nc,nc->n", [F.normalize(a, dim=1), keys]).unsqueeze(-1)
        negatives = torch.einsum("nc,ck->nk", [F.normalize(a, dim=1), queue.clone().detach()])
        moco = F.cross_entropy(
            torch.cat([positives, negatives], dim=1) / 0.2,
            torch.zeros(len(a), dtype=torch.long).cuda(),
        )
        optimizer.zero_grad()
        (loss + moco).backward()
        optimizer.step()
        print(f"loss {loss.item():.3f} moco {moco.item():.3f}")

text = nn.Sequential(nn.EmbeddingBag(100, 64, mode="mean"), nn.Linear(64, 64)).to(device)
scale = nn.Parameter(torch.ones([], device=device) * 2.659)
clip = torch.optim.AdamW([*text.parameters(), *model.parameters(), scale], lr=1e-4)
image, _, _ = next(iter(loader))
tokens = torch.randint(0, 100, (8, 12), device=device)
image_features = F.normalize(model(image.to(device)), dim=-1)
text_features = F.normalize(text(tokens), dim=-1)
logits = scale.exp() * image_features @ text_features.t()
truth = torch.arange(len(logits), device=device)
loss = (F.cross_entropy(logits, truth) + F.cross_entropy(logits.t(), truth)) / 2
loss.backward()
clip.step()
with torch.no_grad():
    scale.clamp_(0, 4.6052)

backbone.eval()
features, labels = [], []
with torch.inference_mode():
    for first, _, y in loader:
        features.append(F.normalize(backbone(first.to(device)), dim=1))
        labels.append(y.to(device))
features, labels = torch.cat(features), torch.cat(labels)
similarity = (features @ features.t()).fill_diagonal_(-1)
weights, neighbours = similarity.topk(5, dim=-1)
votes = torch.zeros(len(labels), 4, device=device)
votes.scatter_add_(1, labels[neighbours], (weights / 0.07).exp())
print(f"kNN accuracy {(votes.argmax(1) == labels).float().mean().item():.2f}")
print("finished")
