"""Streaming inference: pinned double buffers, copy and compute streams, events, a worker thread."""
# ruff: noqa: E501

import queue
import threading
import time

import torch
from torch import nn

device = torch.device("cuda:0")
torch.cuda.set_device(device)
properties = torch.cuda.get_device_properties(device)
print(
    f"{properties.name}: {properties.total_memory / 2**30:.1f} GiB, {properties.multi_processor_count} SMs"
)
assert properties.major == torch.cuda.get_device_capability()[0]

model = (
    nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 5),
    )
    .half()
    .to(device)
    .eval()
)

copy_stream, compute_stream = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
assert copy_stream != compute_stream and copy_stream.query()
host = [torch.empty(8, 3, 64, 64, dtype=torch.float16).pin_memory() for _ in range(2)]
assert all(h.is_pinned() for h in host)
results = torch.empty(8, 5, dtype=torch.float16, pin_memory=True)
free = [torch.cuda.Event() for _ in range(2)]
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
latencies = []


def frames(count):
    for i in range(count):
        yield torch.full((8, 3, 64, 64), float(i), dtype=torch.float16)


with torch.inference_mode():
    for i, frame in enumerate(frames(6)):
        slot = i % 2
        free[slot].synchronize()
        host[slot].copy_(frame)
        start.record(compute_stream)
        with torch.cuda.stream(copy_stream):
            batch = host[slot].to(device, non_blocking=True)
            ready = copy_stream.record_event()
            free[slot].record(copy_stream)
        with torch.cuda.stream(compute_stream):
            assert torch.cuda.current_stream() == compute_stream
            compute_stream.wait_event(ready)
            batch.record_stream(compute_stream)
            out = model(batch)
            results.copy_(out, non_blocking=True)
        end.record(compute_stream)
        end.synchronize()
        latencies.append(start.elapsed_time(end))
assert torch.cuda.current_stream() == torch.cuda.default_stream()
torch.cuda.current_stream().wait_stream(compute_stream)
torch.cuda.synchronize()
print(f"mean latency {sum(latencies) / len(latencies):.3f} ms, last {latencies[-1]:.3f} ms")
assert all(t >= 0 for t in latencies)

requests, answers = queue.Queue(), {}


def serve():
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream), torch.no_grad():
        while (item := requests.get()) is not None:
            key, image = item
            answers[key] = int(model(image.to(device).half()).argmax(1)[0])
        stream.synchronize()


worker = threading.Thread(target=serve, daemon=True)
worker.start()
for key in range(3):
    requests.put((key, torch.randn(1, 3, 64, 64)))
requests.put(None)
worker.join(timeout=60)
assert sorted(answers) == [0, 1, 2], answers

event = torch.cuda.Event()
with torch.no_grad():
    model(batch)
event.record()
polls = 0
while not event.query():
    polls += 1
    time.sleep(0)
    assert polls < 1_000_000

graph = torch.cuda.CUDAGraph()
static = torch.zeros(8, 3, 64, 64, device=device, dtype=torch.float16)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side), torch.no_grad():
    for _ in range(3):
        model(static)
torch.cuda.current_stream().wait_stream(side)
with torch.cuda.graph(graph), torch.no_grad():
    static_out = model(static)
for i in range(3):
    static.copy_(host[i % 2])
    graph.replay()
assert static_out.shape == (8, 5)
print("finished")
