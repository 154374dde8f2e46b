"""Accelerate: bf16, accumulation with no_sync, gather_for_metrics, save_state and load_state."""

import os
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import get_cosine_schedule_with_warmup

set_seed(3)


class Regression(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(64, generator=g)
        return {"x": x, "y": x[:4].sum().view(1)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(64, 512), nn.LayerNorm(512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU()
        )
        self.head = nn.Linear(512, 1)

    def forward(self, x):
        return self.head(self.body(x))


folder = tempfile.mkdtemp()
accelerator = Accelerator(
    mixed_precision="bf16",
    gradient_accumulation_steps=2,
    project_config=ProjectConfiguration(
        project_dir=folder, automatic_checkpoint_naming=True, total_limit=2
    ),
)
accelerator.print(accelerator.state)
assert accelerator.device.type == "cuda"
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(Regression(), batch_size=8, shuffle=True)
schedule = get_cosine_schedule_with_warmup(optimizer, 2, 20)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
accelerator.register_for_checkpointing(schedule)

overall = 0
for epoch in range(2):
    model.train()
    for batch in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        overall += 1
    accelerator.save_state()
    accelerator.print(f"epoch {epoch} loss {loss.item():.3f} lr {schedule.get_last_lr()[0]:.2e}")

found = sorted(os.listdir(os.path.join(folder, "checkpoints")))
accelerator.print("saved", found)
accelerator.load_state(os.path.join(folder, "checkpoints", found[-1]))

with accelerator.no_sync(model):
    accelerator.backward(model(next(iter(loader))["x"]).mean())

model.eval()
seen = 0
for batch in loader:
    with torch.no_grad():
        out = model(batch["x"])
    predictions, references = accelerator.gather_for_metrics((out, batch["y"]))
    seen += predictions.shape[0]
assert seen == 32
accelerator.wait_for_everyone()
accelerator.save(accelerator.unwrap_model(model).state_dict(), os.path.join(folder, "model.pt"))
state = torch.load(os.path.join(folder, "model.pt"), map_location="cpu", weights_only=True)
assert all(v.device.type == "cpu" for v in state.values()), state
Net().load_state_dict(state)
accelerator.free_memory()
accelerator.end_training()
print("finished")
