"""Generate tokens with a Llama-like model of 1.1 billion bf16 parameters."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, PROMPT, NEW = 8, 512, 32


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    prompt = torch.randint(3, config.vocab_size, (BATCH, PROMPT), device="cuda")
    tokens = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
    )
    print(f"{tuple(tokens.shape)} tokens")


if __name__ == "__main__":
    main()
