"""Text generation: greedy, sampling, beams, static cache, a streamer thread, own KV loop."""

import threading

import torch
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

torch.manual_seed(0)
gpt2 = (
    GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=500, n_positions=256))
    .to("cuda", torch.float16)
    .eval()
)
ids = torch.randint(3, 500, (2, 8), device="cuda")
mask = torch.ones_like(ids)

torch.cuda.reset_peak_memory_stats()
greedy = gpt2.generate(
    ids, attention_mask=mask, max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0
)
assert greedy.shape == (2, 16), greedy.shape
sampled = gpt2.generate(
    ids,
    attention_mask=mask,
    generation_config=GenerationConfig(
        max_new_tokens=6,
        min_new_tokens=6,
        do_sample=True,
        top_k=20,
        top_p=0.9,
        temperature=0.8,
        repetition_penalty=1.1,
        num_return_sequences=2,
        pad_token_id=0,
    ),
)
assert sampled.shape == (4, 14), sampled.shape
out = gpt2.generate(
    ids,
    attention_mask=mask,
    max_new_tokens=4,
    min_new_tokens=4,
    output_scores=True,
    return_dict_in_generate=True,
    pad_token_id=0,
    do_sample=False,
)
assert len(out.scores) == 4
print("first answer", greedy[0].tolist())


class Enough(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.full(
            (input_ids.shape[0],),
            input_ids.shape[1] >= 12,
            device=input_ids.device,
            dtype=torch.bool,
        )


stopped = gpt2.generate(
    ids,
    attention_mask=mask,
    max_new_tokens=50,
    pad_token_id=0,
    do_sample=False,
    stopping_criteria=StoppingCriteriaList([Enough()]),
)
assert 9 <= stopped.shape[1] <= 12, stopped.shape


class Collect(BaseStreamer):
    def __init__(self):
        self.tokens, self.done = [], threading.Event()

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.done.set()


streamer = Collect()
thread = threading.Thread(
    target=gpt2.generate,
    kwargs=dict(
        inputs=ids[:1],
        attention_mask=mask[:1],
        max_new_tokens=5,
        min_new_tokens=5,
        streamer=streamer,
        pad_token_id=0,
        do_sample=False,
    ),
)
thread.start()
thread.join()
assert streamer.done.is_set() and len(streamer.tokens) == 13, len(streamer.tokens)

llama = (
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=500,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )
    .to(device="cuda", dtype=torch.bfloat16)
    .eval()
)
static = llama.generate(
    ids,
    attention_mask=mask,
    max_new_tokens=6,
    min_new_tokens=6,
    do_sample=False,
    cache_implementation="static",
    pad_token_id=0,
    disable_compile=True,
)
assert static.shape == (2, 14)

with torch.inference_mode():
    state = llama(ids, use_cache=True)
    token, produced = state.logits[:, -1:].argmax(-1), []
    for _ in range(5):
        state = llama(token, past_key_values=state.past_key_values, use_cache=True)
        token = state.logits[:, -1:].argmax(-1)
        produced.append(token)
    text = torch.cat(produced, 1)
assert state.past_key_values.get_seq_length() == 13
assert text.shape == (2, 5)
print(f"peak {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")
print("finished")
