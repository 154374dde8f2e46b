"""WGAN-GP: two networks, spectral norm, gradient penalty through a second backward."""
# ruff: noqa: UP031

import torch
from torch import autograd, nn
from torch.nn.utils import spectral_norm

cuda = torch.cuda.is_available()
device = torch.device("cuda" if cuda else "cpu")
assert cuda
FloatTensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor


def weights_init(m):
    name = m.__class__.__name__
    if name.find("Conv") != -1 and hasattr(m, "weight"):
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif name.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


class Generator(nn.Module):
    def __init__(self, nz=32, ngf=16):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 4),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Critic(nn.Module):
    def __init__(self, ndf=16):
        super().__init__()
        self.features = nn.Sequential(
            spectral_norm(nn.Conv2d(3, ndf, 4, 2, 1)),
            nn.LeakyReLU(0.2, inplace=True),
            spectral_norm(nn.Conv2d(ndf, ndf * 2, 4, 2, 1)),
            nn.InstanceNorm2d(ndf * 2, affine=True),
            nn.LeakyReLU(0.2, inplace=True),
            spectral_norm(nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1)),
            nn.LeakyReLU(0.2, inplace=True),
        )
        self.head = nn.Linear(ndf * 4 * 16, 1)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


G, D = Generator().to(device), Critic().to(device)
G.apply(weights_init)
D.apply(weights_init)
opt_g = torch.optim.Adam(G.parameters(), lr=1e-4, betas=(0.5, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-4, betas=(0.5, 0.9))
fixed = torch.randn(8, 32, 1, 1, device=device)
batch = 8


def gradient_penalty(real, fake):
    alpha = torch.rand(real.size(0), 1, 1, 1, device=device)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = D(mixed)
    ones = FloatTensor(score.shape).fill_(1.0)
    grads = autograd.grad(score, mixed, grad_outputs=ones, create_graph=True, retain_graph=True)[0]
    return ((grads.view(grads.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()


for step in range(4):
    real = torch.rand(batch, 3, 32, 32).to(device) * 2 - 1
    for p in D.parameters():
        p.requires_grad = True
    opt_d.zero_grad()
    with torch.no_grad():
        fake = G(torch.randn(batch, 32, 1, 1, device=device))
    loss_real, loss_fake = D(real).mean(), D(fake).mean()
    penalty = gradient_penalty(real, fake)
    loss_d = loss_fake - loss_real + 10.0 * penalty
    loss_d.backward()
    opt_d.step()
    if step % 2 == 0:
        for p in D.parameters():
            p.requires_grad = False
        opt_g.zero_grad()
        loss_g = -D(G(torch.randn(batch, 32, 1, 1, device=device))).mean()
        loss_g.backward()
        opt_g.step()
    print(
        "[%d] D %.4f G %.4f penalty %.4f (real %s)"
        % (step, loss_d.item(), loss_g.item(), penalty.item(), loss_real.detach().cpu().numpy())
    )
with torch.no_grad():
    samples = G(fixed).detach().cpu()
grid = ((samples.clamp(-1, 1) + 1) * 127.5).permute(0, 2, 3, 1).to(torch.uint8).numpy()
assert grid.shape == (8, 32, 32, 3)
assert isinstance(fixed, FloatTensor)
print("finished")
