"""Train GPT-2 (124 M parameters) on a CUDA device with mixed precision.

Plain PyTorch and Transformers, written for a GPU; it knows nothing of Ebbtide.

    python examples/train_gpt2.py --batch 16
"""

import argparse

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup


class Bytes(Dataset):
    """Windows of a text, one token a byte; a stand-in for a tokenised corpus."""

    def __init__(self, text: bytes, length: int) -> None:
        self.tokens = torch.tensor(list(text))
        self.length = length

    def __len__(self) -> int:
        """How many windows there are."""
        return len(self.tokens) - self.length

    def __getitem__(self, start: int) -> torch.Tensor:
        """The window that begins at byte `start`."""
        return self.tokens[start : start + self.length]


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16, help="sequences a step")
    parser.add_argument("--seq", type=int, default=1024, help="tokens a sequence")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=6e-4)
    return parser.parse_args()


def main() -> None:
    """Train and report the loss."""
    args = arguments()
    device = torch.device("cuda")
    torch.manual_seed(0)

    model = GPT2LMHeadModel(GPT2Config(n_positions=args.seq)).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    schedule = get_cosine_schedule_with_warmup(optimizer, 100, args.steps)

    text = b"The tide goes out, and what did not fit the harbour fits the sea. " * 2000
    loader = DataLoader(
        Bytes(text, args.seq), args.batch, shuffle=True, drop_last=True, pin_memory=True
    )

    step = 0
    while step < args.steps:
        for tokens in loader:
            tokens = tokens.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
            if step % 10 == 0:
                used = torch.cuda.max_memory_allocated() / 2**30
                print(f"step {step}: loss {loss.item():.3f}, peak {used:.2f} GiB")
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
