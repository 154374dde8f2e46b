"""Knowledge distillation: a frozen ViT teaches a small one; soft targets and features."""

import timm
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_float32_matmul_precision("high")
device = torch.device("cuda")
torch.cuda.manual_seed_all(42)

teacher = (
    timm.create_model("vit_small_patch16_224", img_size=64, num_classes=20, pretrained=False)
    .to(device)
    .eval()
)
student = timm.create_model(
    "vit_tiny_patch16_224", img_size=64, num_classes=20, pretrained=False, depth=4
).to(device)
for p in teacher.parameters():
    p.requires_grad = False

features = {}


def keep(name):
    def hook(module, inputs, output):
        features[name] = output

    return hook


handles = [
    teacher.blocks[5].register_forward_hook(keep("teacher")),
    student.blocks[2].register_forward_hook(keep("student")),
]
project = nn.Linear(192, 384).to(device)
optimizer = torch.optim.AdamW(
    [
        {"params": student.parameters(), "lr": 5e-4},
        {"params": project.parameters(), "lr": 1e-3, "weight_decay": 0},
    ]
)
images = torch.randn(24, 3, 64, 64)
labels = torch.randint(0, 20, (24,))
loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
T, alpha = 4.0, 0.7
history = []
for epoch in range(2):
    running = torch.zeros((), device=device)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        lam = torch.distributions.Beta(0.8, 0.8).sample().item()
        index = torch.randperm(x.size(0), device=device)
        mixed = lam * x + (1 - lam) * x[index]
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            teacher_logits = teacher(mixed)
        with torch.autocast("cuda", torch.bfloat16):
            student_logits = student(mixed)
            hidden = F.mse_loss(project(features["student"]), features["teacher"])
        soft = (
            F.kl_div(
                F.log_softmax(student_logits.float() / T, dim=1),
                F.softmax(teacher_logits.float() / T, dim=1),
                reduction="batchmean",
            )
            * T
            * T
        )
        hard = lam * F.cross_entropy(student_logits, y) + (1 - lam) * F.cross_entropy(
            student_logits, y[index]
        )
        loss = alpha * soft + (1 - alpha) * hard + 0.1 * hidden
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        total = torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0, foreach=True)
        optimizer.step()
        running += loss.detach()
        history.append({"loss": float(loss), "soft": soft.item(), "norm": float(total)})
    print(f"epoch {epoch} mean loss {running.item() / len(loader):.3f} over {len(history)}")
for handle in handles:
    handle.remove()
assert all(p.grad is None for p in teacher.parameters())
assert all(p.grad is not None for p in project.parameters())
print({k: round(v, 2) for k, v in history[-1].items()})
print("finished")
