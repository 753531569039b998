"""Continuous batching: sequences join and leave between decode steps.

A step prefills the uncomputed tokens of each sequence (a new prompt, or the token sampled last) and samples the next
token of each. A new sequence reuses the KV cache of its dialogue's slot, or copies the longest cached prefix of another
slot. If another sequence is about to prefill a shared prefix, it waits for the next step.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from rl2f_core.models.backends.base import (
    Generation,
    GenerationRequest,
    PendingGeneration,
    SamplingParams,
    allowed_next,
)
from rl2f_core.models.backends.hf.kv_cache import KVCache
from rl2f_core.models.backends.hf.packed_forward import forward_tokens
from rl2f_core.models.backends.hf.token_scores import ScoredSampling, TokenScore, score_tokens
from rl2f_core.models.modeling import logprobs
from rl2f_core.models.modeling.attention import MASK_VALUE, CausalLM
from rl2f_core.types import FinishReason

MIN_SHARED_PREFIX = 16
"""Tokens of a shared prefix for which a sequence waits one step instead of prefilling them too."""
LOGITS_CHUNK = 128
"""Sequences whose logits are in memory at once."""
CDF_BLOCK_SIZE = 256
"""Vocabulary entries per block of the two-level cumulative sum in `sample_tokens`."""


@dataclass(eq=False)
class RunningSequence(PendingGeneration):
    """A sequence that is generated."""

    slot: int = -1
    """Slot in the KV cache; −1 before admission."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    choice_logprobs: tuple[float, ...] = ()
    uniforms: np.ndarray = field(init=False)
    """Random number of each token, from the prompt's seed."""
    scores: list[TokenScore] = field(default_factory=list)
    """Score of each sampled token, if the sampling is a `ScoredSampling`."""
    prompt_scores: list[TokenScore] = field(default_factory=list)
    """Score of each prompt token from the second on, if `score_prompt` is set."""

    def __post_init__(self) -> None:
        rng = np.random.Generator(np.random.Philox(self.prompt.seed))
        self.uniforms = rng.random(self.sampling.max_new_tokens)

    @property
    def scores_prompt(self) -> bool:
        """Whether all prompt tokens are scored."""
        return isinstance(self.sampling, ScoredSampling) and self.sampling.score_prompt


class ContinuousBatchingDecoder:
    """Samples completions with one model.

    `banned` tokens are never sampled. A forward has at most `max_prefill_tokens` prompt tokens. With `reuse_kv_cache`,
    the KV cache of a dialogue stays for its next turn.
    """

    def __init__(
        self,
        model: CausalLM,
        device: torch.device,
        banned: torch.Tensor,
        eos_token_id: int,
        *,
        max_prefill_tokens: int,
        reuse_kv_cache: bool,
    ) -> None:
        self.model, self.device, self.banned, self.eos_token_id = model, device, banned, eos_token_id
        self.max_prefill_tokens, self.reuse_kv_cache = max_prefill_tokens, reuse_kv_cache
        self.waiting: list[RunningSequence] = []
        """Sequences without a slot, in submission order."""
        self.num_forward_tokens = 0
        """Tokens of all forwards so far."""
        self._adapter_ids: defaultdict[str | None, int] = defaultdict(itertools.count(1).__next__)
        """Id of the current version of each adapter in the KV cache."""
        self.reset()

    # -- the cache ---------------------------------------------------------------------------------------------
    def reset(self) -> None:
        """Drop the KV cache and all sequences."""
        self.kv = KVCache(self.device)
        self.keys: list[str] = []
        """Dialogue of each slot; empty if the slot is free."""
        self.running: list[RunningSequence | None] = []
        """Running sequence of each slot."""
        self.waiting.clear()

    def invalidate_adapter(self, adapter: str | None) -> None:
        """Invalidate the cache entries of this adapter's old version."""
        self._adapter_ids.pop(adapter, None)

    def release_cache(self, keys: Iterable[str]) -> None:
        """Free the slots of finished dialogues; prefixes stay until overwritten."""
        released = set(keys)
        self.keys = ["" if key in released else key for key in self.keys]

    # -- sequences ---------------------------------------------------------------------------------------------
    @property
    def pending(self) -> list[RunningSequence]:
        """All unfinished sequences."""
        return [*(sequence for sequence in self.running if sequence is not None), *self.waiting]

    def submit(
        self, prompts: Sequence[GenerationRequest], sampling: SamplingParams, adapter: str | None
    ) -> list[RunningSequence]:
        """Submit sequences, which join at the next step."""
        sequences = [RunningSequence(prompt, sampling, adapter) for prompt in prompts]
        self.waiting += sequences
        return sequences

    def abort(self, sequences: Iterable[RunningSequence]) -> None:
        """Abort sequences; their computed KV cache stays."""
        for sequence in sequences:
            if sequence in self.waiting:
                self.waiting.remove(sequence)
            if sequence.slot >= 0 and self.running[sequence.slot] is sequence:
                self._free_slot(sequence)

    @torch.inference_mode()
    def step(
        self, adapters: set[str | None], before_forward: Callable[[list[tuple[str | None, int]]], None] | None = None
    ) -> list[RunningSequence]:
        """Run one forward for these adapters; return the sequences that got a token.

        `before_forward` is called with (adapter, number of tokens) of each block of the forward, in order.
        """
        self._admit_waiting(adapters)
        self._compact_slots()
        blocks = self._schedule_tokens(adapters)
        if before_forward is not None:
            before_forward([(sequence.adapter, count) for sequence, count in blocks])
        hidden_NH, last_B = forward_tokens(self.model, self.kv, [(seq.slot, count) for seq, count in blocks])
        self.num_forward_tokens += sum(count for _, count in blocks)
        self._score_prompts(blocks, hidden_NH)
        slots = [sequence.slot for sequence, _ in blocks]
        ready = [i for i, slot in enumerate(slots) if self.kv.num_computed[slot] == self.kv.num_tokens[slot]]
        sequences = [blocks[i][0] for i in ready]
        sampled = [i for i in ready if blocks[i][0].sampling.max_new_tokens]
        self._sample([blocks[i][0] for i in sampled], hidden_NH[last_B[sampled]])
        for sequence in sequences:
            if not sequence.sampling.max_new_tokens:
                self._finish(sequence, FinishReason.LENGTH)
        return sequences

    # -- slots -------------------------------------------------------------------------------------------------
    def _admit_waiting(self, adapters: set[str | None]) -> None:
        """Assign a slot to each waiting sequence that need not wait for a shared prefix."""
        joining = [sequence for sequence in self.waiting if sequence.adapter in adapters]
        if not joining:
            return
        slots = list(zip(self.running, self.keys, strict=True))
        num_used = sum(sequence is not None or bool(key) for sequence, key in slots)
        idle = {key for sequence, key in slots if key and sequence is None}
        num_continued = len(idle & {sequence.prompt.cache_key for sequence in joining})
        longest = max(len(sequence.prompt.token_ids) + sequence.sampling.max_new_tokens for sequence in joining)
        self.kv.reserve(num_used + len(joining) - num_continued, longest)
        num_new = self.kv.num_slots - len(self.running)
        self.running += [None] * num_new
        self.keys += [""] * num_new
        admitted = {sequence for sequence in joining if self._assign_slot(sequence)}
        self.waiting = [sequence for sequence in self.waiting if sequence not in admitted]

    def _assign_slot(self, sequence: RunningSequence) -> bool:
        """Assign a slot; False to wait for another sequence's prefill of the prefix."""
        tokens, adapter_id = sequence.prompt.token_ids, self._adapter_ids[sequence.adapter]
        limit = 0 if sequence.scores_prompt else len(tokens) - 1  # scores need the hidden states of all tokens
        common = np.minimum(self.kv.common_prefix_lengths(tokens, adapter_id), limit)
        computed = np.minimum(common, self.kv.num_computed)
        key = sequence.prompt.cache_key
        idle = [(slot, k) for slot, k in enumerate(self.keys) if self.running[slot] is None]
        continued = next((slot for slot, k in idle if key and k == key), None)
        source = int(computed.argmax())
        if continued is not None and computed[continued] == computed[source]:
            source = continued
        if int(common.max()) - int(computed[source]) >= MIN_SHARED_PREFIX:
            return False
        free = [slot for slot, k in idle if not k]
        if continued is not None:
            slot = continued
        else:
            slot = source if computed[source] and source in free else free[0]
        self.kv.start_sequence(slot, tokens, adapter_id, source, int(computed[source]))
        self.keys[slot], self.running[slot], sequence.slot = key, sequence, slot
        return True

    def _compact_slots(self) -> None:
        """Compact running slots, because attention covers the whole slot range."""
        used = [slot for slot, sequence in enumerate(self.running) if sequence is not None]
        if not used or 4 * (used[-1] + 1) <= 5 * len(used) + 16:
            return
        holes = [slot for slot in range(len(used)) if self.running[slot] is None]
        for hole, slot in zip(holes, reversed(used), strict=False):
            self.kv.swap(hole, slot)
            self.keys[hole], self.keys[slot] = self.keys[slot], self.keys[hole]
            sequence = self.running[slot]
            assert sequence is not None
            self.running[hole], self.running[slot], sequence.slot = sequence, None, hole

    def _schedule_tokens(self, adapters: set[str | None]) -> list[tuple[RunningSequence, int]]:
        """Return the sequences of this step and how many tokens to compute, in slot order."""
        blocks, left = [], self.max_prefill_tokens
        for slot, sequence in enumerate(self.running):
            if sequence is None or sequence.adapter not in adapters:
                continue
            uncomputed = int(self.kv.num_tokens[slot] - self.kv.num_computed[slot])
            count = uncomputed if uncomputed == 1 else min(uncomputed, left)
            if count:
                blocks.append((sequence, count))
                left -= count if uncomputed > 1 else 0
        return blocks

    def _free_slot(self, sequence: RunningSequence) -> None:
        """End a sequence in its slot; without `reuse_kv_cache` also free the slot."""
        slot = sequence.slot
        self.kv.truncate(slot, int(self.kv.num_computed[slot]) if self.reuse_kv_cache else 0)
        self.running[slot] = None
        if not self.reuse_kv_cache:
            self.keys[slot] = ""

    # -- tokens ------------------------------------------------------------------------------------------------
    def _score_prompts(self, blocks: Sequence[tuple[RunningSequence, int]], hidden_NH: torch.Tensor) -> None:
        """Score the prompt tokens that this forward predicts, for sequences that request it."""
        first = 0
        for sequence, count in blocks:
            if sequence.scores_prompt:
                start = int(self.kv.num_computed[sequence.slot]) - count
                targets = sequence.prompt.token_ids[start + 1 : start + count + 1]
                for i in range(0, len(targets), LOGITS_CHUNK):
                    chunk = targets[i : i + LOGITS_CHUNK]
                    logits_NV = logprobs.compute_logits(self.model, hidden_NH[first + i : first + i + len(chunk)])
                    sequence.prompt_scores += score_tokens(logits_NV, chunk, [sequence.sampling] * len(chunk))
            first += count

    def _sample(self, sequences: Sequence[RunningSequence], hidden_BH: torch.Tensor) -> None:
        """Sample the next token of each sequence."""
        groups: dict[tuple[float, float], list[int]] = defaultdict(list)
        for i, sequence in enumerate(sequences):
            sampling = sequence.sampling
            groups[(0.0, 1.0) if sampling.is_greedy else (sampling.temperature, sampling.top_p)].append(i)
        for (temperature, top_p), indices in groups.items():
            for start in range(0, len(indices), LOGITS_CHUNK):
                chunk = indices[start : start + LOGITS_CHUNK]
                logits_BV = logprobs.compute_logits(self.model, hidden_BH[chunk])
                scored = [j for j, i in enumerate(chunk) if isinstance(sequences[i].sampling, ScoredSampling)]
                scored_SV = logits_BV[scored]
                logits_BV = logits_BV / temperature if temperature not in (0, 1) else logits_BV
                logits_BV.index_fill_(1, self.banned, MASK_VALUE)
                logits_BV = _restrict_to_choices(logits_BV, [sequences[i] for i in chunk])
                if temperature == 0:
                    token_B, logp_B = logits_BV.argmax(1), torch.zeros(len(chunk))  # the lowest id on ties
                else:
                    uniform = [sequences[i].uniforms[len(sequences[i].token_ids)] for i in chunk]
                    uniform_B = torch.tensor(uniform, dtype=torch.float64).to(self.device)
                    token_B, logp_B = sample_tokens(logits_BV, uniform_B, top_p)
                self._score_sampled([sequences[chunk[j]] for j in scored], scored_SV, token_B[scored].tolist())
                for i, token, logp in zip(chunk, token_B.tolist(), logp_B.tolist(), strict=True):
                    self._append_token(sequences[i], token, logp)

    def _score_sampled(
        self, sequences: Sequence[RunningSequence], logits_SV: torch.Tensor, token_ids: Sequence[int]
    ) -> None:
        """Add the score of the sampled token to each sequence."""
        if sequences:
            scores = score_tokens(logits_SV, token_ids, [sequence.sampling for sequence in sequences])
            for sequence, score in zip(sequences, scores, strict=True):
                sequence.scores.append(score)

    def _append_token(self, sequence: RunningSequence, token: int, logp: float) -> None:
        """Append a token; it may end the sequence."""
        sequence.token_ids.append(token)
        sequence.logprobs.append(logp)
        choices = sequence.prompt.choices
        ended = tuple(sequence.token_ids) in choices if choices else token == self.eos_token_id
        if ended or len(sequence.token_ids) == sequence.sampling.max_new_tokens:
            self._finish(sequence, FinishReason.EOS if ended else FinishReason.LENGTH)
        else:
            self.kv.append(sequence.slot, token)

    def _finish(self, sequence: RunningSequence, stop: FinishReason) -> None:
        """Complete a sequence and free its slot."""
        sequence.generation = Generation(
            tuple(sequence.token_ids), tuple(sequence.logprobs), stop, sequence.choice_logprobs
        )
        self._free_slot(sequence)


def _restrict_to_choices(logits_BV: torch.Tensor, sequences: Sequence[RunningSequence]) -> torch.Tensor:
    """Mask the tokens that continue no choice, and record the logprobs of choices of one token."""
    allowed = [allowed_next(s.prompt.choices, s.token_ids) for s in sequences]
    allowed_BK = logprobs.allowed_tensor(allowed, logits_BV.device)
    if allowed_BK is None:
        return logits_BV
    logits_BV = logprobs.restrict(logits_BV, allowed_BK)
    for row_V, sequence in zip(logits_BV, sequences, strict=True):
        choices = sequence.prompt.choices
        if choices and not sequence.sampling.is_greedy and all(len(choice) == 1 for choice in choices):
            logp_V = row_V.log_softmax(0)
            sequence.choice_logprobs = tuple(logp_V[[choice[0] for choice in choices]].tolist())
    return logits_BV


def sample_tokens(
    logits_BV: torch.Tensor, uniform_B: torch.Tensor, top_p: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row by inverse transform; return it and its logprob under the full distribution, both [B].

    The result of a row depends only on its logits and its uniform number. The cumulative distribution is computed over
    blocks of the vocabulary, then within the selected block, both in float64.
    """
    p_BV = full_BV = logits_BV.softmax(1)
    if top_p < 1:
        sorted_BV, order_BV = p_BV.sort(dim=1, descending=True, stable=True)
        nucleus_BV = sorted_BV.cumsum(1) - sorted_BV < top_p
        p_BV = torch.zeros_like(p_BV).scatter(1, order_BV, sorted_BV * nucleus_BV)
    rows, size = p_BV.shape
    padded_BV = torch.nn.functional.pad(p_BV, (0, -size % CDF_BLOCK_SIZE)) if size % CDF_BLOCK_SIZE else p_BV
    p_BNK = padded_BV.view(rows, -1, CDF_BLOCK_SIZE)
    mass_BN = p_BNK.sum(2).double()
    cdf_BN = mass_BN.cumsum(1)
    target_B1 = uniform_B.to(cdf_BN.dtype).unsqueeze(1) * cdf_BN[:, -1:]
    block_B1 = _first_above(cdf_BN, target_B1)
    mass_B1 = mass_BN.gather(1, block_B1)
    fraction_B1 = (target_B1 - cdf_BN.gather(1, block_B1) + mass_B1) / mass_B1
    inner_BK = p_BNK[torch.arange(rows, device=p_BNK.device), block_B1.squeeze(1)].double().cumsum(1)
    offset_B1 = _first_above(inner_BK, fraction_B1 * inner_BK[:, -1:])
    token_B = (block_B1 * CDF_BLOCK_SIZE + offset_B1).squeeze(1)
    return token_B, full_BV.gather(1, token_B[:, None]).squeeze(1).log()


def _first_above(cdf_BN: torch.Tensor, target_B1: torch.Tensor) -> torch.Tensor:
    """Return the first entry, with mass, whose cumulative sum exceeds the target."""
    return torch.minimum(
        torch.searchsorted(cdf_BN, target_B1, right=True), torch.searchsorted(cdf_BN, cdf_BN[:, -1:].contiguous())
    )
