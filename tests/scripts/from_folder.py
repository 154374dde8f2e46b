"""Load a model from a local folder in half precision onto the GPU, evaluate perplexity."""

import json
import math
import os
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GPTNeoXConfig

folder = tempfile.mkdtemp()
config = GPTNeoXConfig(
    vocab_size=300,
    hidden_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=256,
    max_position_embeddings=128,
)
made = AutoModelForCausalLM.from_config(config)
made.save_pretrained(folder, max_shard_size="400KB")
index = os.path.join(folder, "model.safetensors.index.json")
assert os.path.exists(index), os.listdir(folder)
with open(index) as file:
    shards = set(json.load(file)["weight_map"].values())
print("shards", sorted(shards))
assert len(shards) > 1

assert AutoConfig.from_pretrained(folder).hidden_size == 128
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, device_map={"": 0})
assert model.device == torch.device("cuda", 0) and model.dtype == torch.float16
print("footprint", model.get_memory_footprint(), "allocated", torch.cuda.memory_allocated())
assert torch.cuda.memory_allocated() >= model.get_memory_footprint()
model.eval()

ids = torch.randint(0, 300, (1, 200)).cuda()
losses, previous = [], 0
for begin in range(0, 200, 50):
    end = min(begin + 100, 200)
    window = ids[:, begin:end]
    target = window.clone()
    target[:, : -(end - previous)] = -100
    with torch.no_grad():
        losses.append(model(window, labels=target).loss)
    previous = end
    if end == 200:
        break
print("perplexity", math.exp(min(torch.stack(losses).mean().item(), 20)))

path = os.path.join(folder, "extra.safetensors")
save_file({"a": torch.arange(6.0), "b": torch.ones(2, 3, dtype=torch.int32)}, path)
assert load_file(path)["a"].tolist() == [0, 1, 2, 3, 4, 5]
on_gpu = load_file(path, device="cuda")
assert on_gpu["b"].is_cuda and on_gpu["b"].shape == (2, 3)
save_file(
    {k: v.contiguous() for k, v in model.state_dict().items()}, path, metadata={"format": "pt"}
)
with safe_open(path, framework="pt", device="cpu") as file:
    names = list(file.keys())
    part = file.get_slice(names[0])
    print(names[0], part.get_shape(), file.metadata())
    assert file.get_tensor(names[0]).shape == tuple(part.get_shape())
assert set(names) == set(model.state_dict())
model.load_state_dict(load_file(path, device="cuda:0"), assign=True)
assert all(p.is_cuda for p in model.parameters())
print("finished")
