"""A word language model with LSTM and GRU: BPTT, packed sequences, gradient clipping, sampling."""
# ruff: noqa: B007, E501

import math
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence


class RNNModel(nn.Module):
    def __init__(self, kind, vocab, emb, hidden, layers, dropout=0.2, tie=False):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocab, emb)
        self.rnn = getattr(nn, kind)(emb, hidden, layers, dropout=dropout)
        self.decoder = nn.Linear(hidden, vocab)
        if tie:
            self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        self.kind, self.hidden, self.layers = kind, hidden, layers

    def forward(self, x, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return self.decoder(self.drop(output)), hidden

    def init_hidden(self, batch):
        weight = next(self.parameters())
        h = weight.new_zeros(self.layers, batch, self.hidden)
        return (h, weight.new_zeros(self.layers, batch, self.hidden)) if self.kind == "LSTM" else h


def repackage(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage(v) for v in h)


def batchify(data, batch):
    n = data.size(0) // batch
    return data.narrow(0, 0, n * batch).view(batch, -1).t().contiguous().cuda()


VOCAB, BPTT = 200, 20
corpus = torch.randint(0, VOCAB, (2000,))
train, valid = batchify(corpus, 8), batchify(corpus[:400], 4)
criterion = nn.CrossEntropyLoss()


def get_batch(source, i):
    length = min(BPTT, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].view(-1)


for kind in ("LSTM", "GRU", "RNN"):
    model = RNNModel(kind, VOCAB, 64, 64, 2, tie=True).cuda()
    lr, best = 20.0, None
    model.train()
    hidden, total, start = model.init_hidden(8), 0.0, time.time()
    for batch, i in enumerate(range(0, min(train.size(0) - 1, 4 * BPTT), BPTT)):
        data, targets = get_batch(train, i)
        model.zero_grad()
        hidden = repackage(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output.view(-1, VOCAB), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total += loss.item()
    model.eval()
    with torch.no_grad():
        hidden = model.init_hidden(4)
        output, hidden = model(*(get_batch(valid, 0)[:1]), hidden)
    average = total / (batch + 1)
    print(
        f"{kind}: loss {average:.2f} ppl {math.exp(min(20, average)):.2f} {time.time() - start:.1f}s"
    )

lengths = [9, 7, 4, 2]
sequences = [torch.randn(n, 16) for n in lengths]
padded = pad_sequence(sequences, batch_first=True).cuda()
packed = pack_padded_sequence(padded, torch.tensor(lengths), batch_first=True)
encoder = nn.LSTM(16, 32, bidirectional=True, batch_first=True).cuda()
out, (h, c) = encoder(packed)
unpacked, sizes = pad_packed_sequence(out, batch_first=True)
assert unpacked.shape == (4, 9, 64) and sizes.tolist() == lengths
unpacked.sum().backward()

token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
model, text = RNNModel("LSTM", VOCAB, 64, 64, 1).cuda().eval(), []
hidden = model.init_hidden(1)
with torch.no_grad():
    for _ in range(5):
        output, hidden = model(token, hidden)
        weights = output.squeeze().div(0.8).exp().cpu()
        token.fill_(torch.multinomial(weights, 1)[0])
        text.append(int(token))
assert len(text) == 5
print("finished")
