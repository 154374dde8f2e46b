"""PPO on a toy environment: NumPy actions, GAE, clipped loss, minibatches, early stop on KL."""
# ruff: noqa: B007, B905

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Normal


class CartLike:
    """Four numbers, two actions; falls over when the angle is too large."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.state = self.rng.uniform(-0.05, 0.05, 4).astype(np.float32)
        self.t = 0
        return self.state.copy()

    def step(self, action):
        assert isinstance(action, (int, np.integer)), type(action)
        self.t += 1
        force = 1.0 if action == 1 else -1.0
        self.state = (self.state * 0.98 + 0.02 * force + self.rng.normal(0, 0.01, 4)).astype(
            np.float32
        )
        done = bool(abs(self.state[2]) > 0.2 or self.t >= 25)
        return self.state.copy(), 1.0, done


def layer_init(layer, std=2**0.5, bias=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 1), std=1.0)
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 2), std=0.01)
        )
        self.log_std = nn.Parameter(torch.zeros(1, 2))

    def act(self, x, action=None):
        dist = Categorical(logits=self.actor(x))
        action = dist.sample() if action is None else action
        return action, dist.log_prob(action), dist.entropy(), self.critic(x)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ENVS, STEPS, EPOCHS, MINI = 4, 16, 2, 16
envs = [CartLike(i) for i in range(ENVS)]
agent = Agent().to(device)
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
obs = torch.zeros((STEPS, ENVS, 4), device=device)
actions = torch.zeros((STEPS, ENVS), device=device, dtype=torch.long)
logprobs, rewards, dones, values = (torch.zeros((STEPS, ENVS), device=device) for _ in range(4))
next_obs = torch.Tensor(np.stack([e.reset() for e in envs])).to(device)
next_done = torch.zeros(ENVS).to(device)
returns_seen, episode = [], np.zeros(ENVS)

for update in range(2):
    optimizer.param_groups[0]["lr"] = (1.0 - update / 2) * 2.5e-4
    for step in range(STEPS):
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            action, logprob, _, value = agent.act(next_obs)
            values[step] = value.flatten()
        actions[step], logprobs[step] = action, logprob
        taken = action.cpu().numpy()
        observed, reward, done = zip(*(e.step(a) for e, a in zip(envs, taken)))
        episode += np.array(reward)
        observed = list(observed)
        for i, d in enumerate(done):
            if d:
                returns_seen.append(episode[i])
                episode[i] = 0
                observed[i] = envs[i].reset()
        rewards[step] = torch.tensor(reward).to(device).view(-1)
        next_obs = torch.Tensor(np.stack(observed)).to(device)
        next_done = torch.Tensor(np.array(done, dtype=np.float32)).to(device)
    with torch.no_grad():
        next_value = agent.critic(next_obs).reshape(1, -1)
        advantages, last = torch.zeros_like(rewards), 0
        for t in reversed(range(STEPS)):
            alive = 1.0 - (next_done if t == STEPS - 1 else dones[t + 1])
            following = next_value if t == STEPS - 1 else values[t + 1]
            delta = rewards[t] + 0.99 * following * alive - values[t]
            advantages[t] = last = delta + 0.99 * 0.95 * alive * last
        returns = advantages + values
    b_obs, b_act = obs.reshape(-1, 4), actions.reshape(-1)
    b_logp, b_adv, b_ret = logprobs.reshape(-1), advantages.reshape(-1), returns.reshape(-1)
    index, clipped = np.arange(STEPS * ENVS), []
    for epoch in range(EPOCHS):
        np.random.shuffle(index)
        for begin in range(0, len(index), MINI):
            mb = index[begin : begin + MINI]
            _, newlogp, entropy, newvalue = agent.act(b_obs[mb], b_act[mb])
            ratio = (newlogp - b_logp[mb]).exp()
            with torch.no_grad():
                kl = ((ratio - 1) - (newlogp - b_logp[mb])).mean()
                clipped += [((ratio - 1.0).abs() > 0.2).float().mean().item()]
            adv = b_adv[mb]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            loss_p = torch.max(-adv * ratio, -adv * torch.clamp(ratio, 0.8, 1.2)).mean()
            loss_v = 0.5 * ((newvalue.view(-1) - b_ret[mb]) ** 2).mean()
            loss = loss_p - 0.01 * entropy.mean() + 0.5 * loss_v
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
        if kl > 1e6:
            break
    truth = b_ret.cpu().numpy()
    variance = np.var(truth)
    explained = (
        np.nan if variance == 0 else 1 - np.var(truth - values.reshape(-1).cpu().numpy()) / variance
    )
    print(
        f"update {update}: policy {loss_p.item():.3f} value {loss_v.item():.3f} "
        f"clip {np.mean(clipped):.2f} explained {explained:.2f} episodes {len(returns_seen)}"
    )
normal = Normal(torch.zeros(2, device=device), agent.log_std.exp().expand(3, 2).mean(0))
assert normal.rsample((5,)).shape == (5, 2)
print("finished")
