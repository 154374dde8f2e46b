"""DQN: a replay buffer of CPU tensors, epsilon-greedy by .item(), target network, Huber loss."""
# ruff: noqa: B007, B905

import random
from collections import deque, namedtuple

import torch
from torch import nn, optim

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))
device = torch.device("cuda")
random.seed(0)


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, n):
        return random.sample(self.memory, n)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(4, 16, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(128),
            nn.ReLU(),
        )
        self.value, self.advantage = nn.Linear(128, 1), nn.Linear(128, actions)

    def forward(self, x):
        h = self.features(x.float() / 255)
        a = self.advantage(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


class Screen:
    """Frames of noise; the episode ends after ten steps."""

    def __init__(self):
        self.g = torch.Generator().manual_seed(1)

    def reset(self):
        self.n = 0
        return torch.randint(0, 255, (1, 4, 44, 44), dtype=torch.uint8, generator=self.g)

    def step(self, action):
        self.n += 1
        frame = torch.randint(0, 255, (1, 4, 44, 44), dtype=torch.uint8, generator=self.g)
        return frame, float(action) * 0.1, self.n >= 10


ACTIONS, BATCH, GAMMA = 3, 8, 0.99
policy, target = DQN(ACTIONS).to(device), DQN(ACTIONS).to(device)
policy(torch.zeros(1, 4, 44, 44, device=device))
target(torch.zeros(1, 4, 44, 44, device=device))
target.load_state_dict(policy.state_dict())
optimizer = optim.AdamW(policy.parameters(), lr=1e-4, amsgrad=True)
memory, env, steps = ReplayMemory(100), Screen(), 0


def select_action(state):
    global steps
    steps += 1
    if random.random() > max(0.05, 0.9 - steps * 0.05):
        with torch.no_grad():
            return policy(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(ACTIONS)]], device=device, dtype=torch.long)


def optimize():
    if len(memory) < BATCH:
        return None
    batch = Transition(*zip(*memory.sample(BATCH)))
    alive = torch.tensor([s is not None for s in batch.next_state], device=device, dtype=torch.bool)
    following = torch.cat([s for s in batch.next_state if s is not None])
    q = policy(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
    values = torch.zeros(BATCH, device=device)
    with torch.no_grad():
        values[alive] = target(following).max(1).values
    expected = values * GAMMA + torch.cat(batch.reward)
    loss = nn.SmoothL1Loss()(q, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy.parameters(), 100)
    optimizer.step()
    return loss.item()


losses, durations = [], []
for episode in range(3):
    state = env.reset().to(device)
    for t in range(50):
        action = select_action(state)
        frame, reward, done = env.step(action.item())
        reward = torch.tensor([reward], device=device)
        following = None if done else frame.to(device)
        memory.push(state, action, following, reward)
        state = following
        loss = optimize()
        if loss is not None:
            losses.append(loss)
        new, old = policy.state_dict(), target.state_dict()
        for key in new:
            old[key] = new[key] * 0.005 + old[key] * 0.995
        target.load_state_dict(old)
        if done:
            durations.append(t + 1)
            break
assert durations == [10, 10, 10], durations
print(f"{len(losses)} updates, last loss {losses[-1]:.3f}, memory {len(memory)}")
print("finished")
