"""Self-test of CUDA graphs: the same tokens as without graphs, and the logprobs that the learner computes."""

from __future__ import annotations

import numpy as np
import torch

from rl2f_core.models.backends.base import GenerationRequest, SamplingParams, finished_generations
from rl2f_core.models.backends.hf.decoder import ContinuousBatchingDecoder
from rl2f_core.models.backends.hf.static_decoder import StaticDecoder
from rl2f_core.models.modeling.attention import CausalLM
from rl2f_core.models.modeling.logprobs import right_padded, selected_logprobs

PROMPT_TOKENS, NEW_TOKENS = (3, 17, 40), (12, 4, 12)
"""Lengths of the prompts and of their completions; a row ends between two others."""
MAX_REPLAY_ERROR = 1e-3
"""Largest difference of logprobs, in nats, between replayed and launched operations."""
MAX_MEAN_ERROR = {torch.float32: 1e-3}
"""Largest mean absolute difference to the learner's logprobs, in nats. For 16-bit numbers it is 0.15: SmolLM2-135M in
bfloat16 has 0.04 by rounding, 0.4 with positions and 0.9 with a mask that are wrong by one."""


def compare_graphs(model: CausalLM, device: torch.device, banned: torch.Tensor) -> str:
    """Generate with CUDA graphs and without; return what differs, or what failed; empty if nothing."""
    try:
        return _compare(model, device, banned)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _compare(model: CausalLM, device: torch.device, banned: torch.Tensor) -> str:
    rng = np.random.default_rng(0)
    allowed = np.setdiff1d(np.arange(model.get_input_embeddings().num_embeddings), banned.cpu().numpy())
    requests = [
        GenerationRequest(tuple(rng.choice(allowed, length).tolist()), seed)
        for seed, length in enumerate(PROMPT_TOKENS)
    ]
    results = []
    for captures in (True, False):
        static = StaticDecoder(model, device, banned, captures=captures)
        static.falls_back = False
        decoder = ContinuousBatchingDecoder(
            model, device, banned, -1, max_prefill_tokens=sum(PROMPT_TOKENS), reuse_kv_cache=False, static=static
        )
        samplings = map(SamplingParams, NEW_TOKENS)
        pending = [decoder.submit([r], sampling, None)[0] for r, sampling in zip(requests, samplings, strict=True)]
        while decoder.pending:
            decoder.step({None})
        results.append(finished_generations(pending))
        decoder.release()
    replayed, launched = results
    if [g.token_ids for g in replayed] != [g.token_ids for g in launched]:
        return "replayed graphs sample other tokens"
    logps, launched_logps = (np.concatenate([g.logprobs for g in result]) for result in results)
    error = float(np.abs(logps - launched_logps).max())
    if not error <= MAX_REPLAY_ERROR:
        return f"logprobs of replayed graphs differ by {error:.2g}"
    sequences = [r.token_ids + g.token_ids for r, g in zip(requests, replayed, strict=True)]
    ids_BT, attention_mask_BT = right_padded(sequences, 0, device)
    position_T = torch.arange(ids_BT.shape[1], device=device)
    target_BT = attention_mask_BT & (position_T >= torch.tensor(PROMPT_TOKENS, device=device)[:, None])
    with torch.inference_mode():
        expected_N, _ = selected_logprobs(model, ids_BT, attention_mask_BT, target_BT, banned=banned)
    error = float(np.abs(logps - expected_N.float().cpu().numpy()).mean())
    return "" if error <= MAX_MEAN_ERROR.get(model.dtype, 0.15) else f"logprobs differ by {error:.2g} on average"
