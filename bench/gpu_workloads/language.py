"""Train a Transformers language model for a few steps on random tokens.

python language.py --model llama-1b --precision bf16-true --checkpointing
"""

import argparse
from contextlib import nullcontext

import torch
import transformers as tf

# Sizes of published models; the weights are random.
MODELS = {
    "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config()),
    "bert-base": lambda: tf.BertForMaskedLM(tf.BertConfig()),
    "t5-small": lambda: tf.T5ForConditionalGeneration(
        tf.T5Config(d_model=512, d_ff=2048, num_layers=6, num_heads=8, decoder_start_token_id=0)
    ),
    "llama-1b": lambda: tf.LlamaForCausalLM(
        tf.LlamaConfig(
            vocab_size=32000,
            hidden_size=2048,
            intermediate_size=5632,
            num_hidden_layers=22,
            num_attention_heads=32,
            num_key_value_heads=4,
        )
    ),
    "mixtral-small": lambda: tf.MixtralForCausalLM(
        tf.MixtralConfig(
            vocab_size=32000,
            hidden_size=1024,
            intermediate_size=2048,
            num_hidden_layers=8,
            num_attention_heads=16,
            num_key_value_heads=4,
            num_local_experts=8,
        )
    ),
}
AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}
OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "adafactor": torch.optim.Adafactor,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--precision", choices=["fp32", "bf16-true", *AUTOCAST], default="fp32")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--lora", type=int, help="rank")
    parser.add_argument("--steps", type=int, default=4)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    model = MODELS[args.model]()
    if args.precision == "bf16-true":
        model.to(torch.bfloat16)
    if args.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if args.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=args.lora, target_modules="all-linear"))
    model.cuda().train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = OPTIMIZERS[args.optimizer](trained, lr=1e-4)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, enabled=args.precision == "fp16")
    dtype = AUTOCAST.get(args.precision)
    for _ in range(args.steps):
        tokens = torch.randint(0, model.config.vocab_size, (args.batch, args.seq)).cuda()
        with torch.autocast("cuda", dtype=dtype) if dtype else nullcontext():
            loss = model(input_ids=tokens, labels=tokens).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
