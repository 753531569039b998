"""Measured speed of rollout and update, memory, and agreement of two backends.

Operations count a multiply-add as 2, on the weights alone: a read token takes 2·body, a sampled one 2·head more; an
update of an adapter on frozen weights takes twice that, and 6 per weight of the adapter.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rl2f_core.common.processes import peak_memory
from rl2f_core.config.stage import StageConfig
from rl2f_core.models.backends.base import Generation, GenerationRequest, SamplingParams
from rl2f_core.models.device import best_seconds, seconds_of
from rl2f_core.models.tokenizer import encode_chat
from rl2f_core.types import JsonObject, TrainingSample

if TYPE_CHECKING:
    import torch

    from rl2f_core.learning.learner.learner import Learner
    from rl2f_core.models.backends.hf.backend import HFBackend
    from rl2f_core.models.modeling.attention import CausalLM

GREEDY = 0.0
"""Sampling temperature that selects the most likely token."""
QUESTIONS = (
    "Write the numbers from one to twenty in words.",
    "Name the capital of France and describe it in one sentence.",
    "What is 12 + 34? Explain each step.",
    "List the days of the week in order.",
)
"""Prompts of `greedy_agreement`."""
SEEDS = itertools.count()
"""Seeds of the prompts of `rollout_speed`: other prompts in each call, so that no prefix is in the cache."""


def warm_up(work: Callable[[], object], device: torch.device, seconds: float = 30.0) -> int:
    """Repeat some work until a call takes at least 80 % of the time of the one before; return the number of calls.

    The first calls on a GPU load kernels, which takes seconds. Ends after `seconds` at the latest.
    """
    last, calls, end = math.inf, 0, time.perf_counter() + seconds
    while True:
        found, calls = seconds_of(work, device), calls + 1
        if found >= 0.8 * last or time.perf_counter() > end:
            return calls
        last = found


def memory_bandwidth(device: torch.device, seconds: float = 0.4) -> float:
    """Measure the bandwidth of copies between two tensors in GB/s, reads plus writes; the best of several copies."""
    import torch

    source = torch.ones(2**28 if device.type == "cuda" else 2**25, device=device)
    target = torch.empty_like(source).copy_(source)  # the first copy maps the pages
    return 2 * source.nbytes / best_seconds(lambda: target.copy_(source), device, seconds) / 1e9


def weight_counts(model: CausalLM) -> tuple[int, int]:
    """Return the weights that every token is multiplied with (body) and those of the output layer (head)."""
    head, inputs = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    total = sum(parameter.numel() for parameter in model.parameters())
    own_head = head.numel() if head.data_ptr() != inputs.data_ptr() else 0
    return total - inputs.numel() - own_head, head.numel()


def peak_bytes(device: torch.device) -> int:
    """Return the largest memory so far: that PyTorch allocated on a GPU, or the resident memory of this process."""
    import torch

    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_memory()


# -- rollout -------------------------------------------------------------------------------------------------------
def prompts(count: int, tokens: int, words: int, seed: int = 0) -> list[GenerationRequest]:
    """Return prompts of random token ids."""
    rng = random.Random(seed)
    return [GenerationRequest(tuple(rng.randrange(words) for _ in range(tokens)), i) for i in range(count)]


def rollout_speed(backend: HFBackend, batch: int, prompt_tokens: int, new_tokens: int) -> JsonObject:
    """Measure prefill and decode of one batch of completions of at least two tokens.

    Prefill is the time of such prompts with one new token; decode is the rest. Tokens, tokens per second, operations
    per second (`gflops`) and `gb_per_second` are of decode. The last is the bandwidth of reading all weights once per
    step, which ignores the KV cache. `seconds` and `prefill_tokens_per_second` are of both and of prefill alone.
    """
    body, head = weight_counts(backend.model)
    done: list[list[Generation]] = []

    def generate(limit: int) -> float:
        requests = prompts(batch, prompt_tokens, backend.model.config.vocab_size, next(SEEDS))
        return seconds_of(lambda: done.append(backend.generate(requests, SamplingParams(limit))), backend.device)

    prefill, seconds = generate(1), generate(new_tokens)
    lengths = [len(generation.token_ids) - 1 for generation in done[1]]
    decode = max(seconds - prefill, 1e-9)
    return {
        "batch": batch,
        "seconds": seconds,
        "tokens": sum(lengths),
        "tokens_per_second": sum(lengths) / decode,
        "prefill_tokens_per_second": batch * prompt_tokens / prefill,
        "gflops": 2 * (body + head) * sum(lengths) / decode / 1e9,
        "gb_per_second": (body + head) * backend.dtype.itemsize * max(lengths) / decode / 1e9,
    }


# -- update --------------------------------------------------------------------------------------------------------
def training_samples(rows: int, tokens: int, words: int, seed: int = 0) -> list[TrainingSample]:
    """Return samples of random token ids; the policy sampled the second half of each."""
    rng, samples = random.Random(seed), []
    for _ in range(rows):
        mask = [i >= tokens // 2 for i in range(tokens)]
        weights, advantage, zeros = [float(m) for m in mask], rng.choice((-1.0, 1.0)), [0.0] * tokens
        samples.append(
            TrainingSample(
                [rng.randrange(words) for _ in range(tokens)],
                mask,
                [-2.0 * w for w in weights],
                [advantage * w for w in weights],
                weights,
                zeros,
                zeros,
            )
        )
    return samples


def make_learner(backend: HFBackend, rank: int = 16) -> Learner:
    """Return a learner with a new adapter on the backend's model."""
    from rl2f_core.config.model import LoraConfig
    from rl2f_core.learning.learner.learner import Learner

    return Learner(
        backend.folder,
        LoraConfig(rank=rank, alpha=2 * rank),
        dtype=backend.dtype,
        device=backend.device,
        banned=backend.tokenizer.banned_token_ids,
        pad=backend.pad_id,
        seed=0,
    )


def update_speed(
    learner: Learner, rows: int, tokens: int, micro_batch_tokens: int, step: int = 0, rate: float = 1e-5
) -> JsonObject:
    """Measure one update; fields as of `rollout_speed`, with the loss. Tokens are all tokens of the samples."""
    from rl2f_core.learning.learner.losses import LossConfig

    stage = StageConfig(
        name="bench", method="rl2f", steps=1000, learning_rate=rate, micro_batch_tokens=micro_batch_tokens
    )
    samples = training_samples(rows, tokens, learner.model.config.vocab_size, step)
    metrics: dict[str, float] = {}
    seconds = seconds_of(
        lambda: metrics.update(learner.update(samples, LossConfig(), stage.resolve(step, 1.0))), learner.device
    )
    adapter = sum(parameter.numel() for parameter in learner.parameters.values())
    total, head = weight_counts(learner.model)
    operations = (4 * (total - adapter) + 6 * adapter) * rows * tokens + 4 * head * rows * (tokens - tokens // 2)
    return {
        "micro_batch_tokens": micro_batch_tokens,
        "seconds": seconds,
        "tokens": rows * tokens,
        "tokens_per_second": rows * tokens / seconds,
        "gflops": operations / seconds / 1e9,
        "loss": metrics["loss"],
        "recomputed": metrics.get("gradient_checkpointing_frac", 0.0),
    }


# -- agreement -----------------------------------------------------------------------------------------------------
def greedy_agreement(backend: HFBackend, reference: HFBackend, new_tokens: int = 24) -> JsonObject:
    """Compare greedy completions of `QUESTIONS` and their logprobs with those of a reference backend.

    Returns:
        `equal`, the fraction of the reference's tokens before the first difference of each completion, and
        `max_logprob_error`, the largest difference of logprobs of the reference's tokens in nats, with
        `mean_logprob_error`. Rounding in bfloat16 changes close decisions, so `equal` below 1 with a small error is
        no defect.
    """
    tokenizer = reference.tokenizer
    chats = [encode_chat(tokenizer, [{"role": "user", "content": question}]) for question in QUESTIONS]
    requests = [GenerationRequest(tokens, seed) for seed, tokens in enumerate(chats)]
    sampling = SamplingParams(new_tokens, temperature=GREEDY)
    expected = [generation.token_ids for generation in reference.generate(requests, sampling)]
    found = [generation.token_ids for generation in backend.generate(requests, sampling)]
    same = [
        next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        for one, other in zip(expected, found, strict=True)
    ]
    sequences = [request.token_ids + tokens for request, tokens in zip(requests, expected, strict=True)]
    pairs = zip(backend.score(sequences), reference.score(sequences), strict=True)
    errors = [
        abs(a - b)
        for request, (one, other) in zip(requests, pairs, strict=True)
        for a, b in list(zip(one, other, strict=True))[len(request.token_ids) :]
    ]
    return {
        "reference": f"{reference.device.type}, {str(reference.dtype).removeprefix('torch.')}",
        "equal": sum(same) / sum(map(len, expected)),
        "max_logprob_error": max(errors),
        "mean_logprob_error": sum(errors) / len(errors),
    }
