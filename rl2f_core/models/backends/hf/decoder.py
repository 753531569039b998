"""Continuous batching: sequences join and leave between decode steps.

A step prefills the uncomputed tokens of each sequence (a new prompt, or the token sampled last) and samples the next
token of each. A new sequence reuses the KV cache of its dialogue's slot, or copies the longest cached prefix of another
slot. If another sequence is about to prefill a shared prefix, it waits for the next step.

With a `StaticDecoder`, sequences with one uncomputed token are computed by it, the others in a packed forward.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
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
from rl2f_core.models.backends.hf.batched_lora import BatchedLora
from rl2f_core.models.backends.hf.kv_cache import KVCache
from rl2f_core.models.backends.hf.packed_forward import forward_tokens
from rl2f_core.models.backends.hf.static_decoder import LOGITS_CHUNK, StaticDecoder, row_bucket
from rl2f_core.models.backends.hf.token_sampling import sample_tokens
from rl2f_core.models.backends.hf.token_scores import ScoredSampling, TokenScore, score_tokens
from rl2f_core.models.device import to_device
from rl2f_core.models.modeling import logprobs
from rl2f_core.models.modeling.attention import MASK_VALUE, CausalLM
from rl2f_core.types import FinishReason

_log = logging.getLogger(__name__)
MIN_SHARED_PREFIX = 16
"""Tokens of a shared prefix for which a sequence waits one step instead of prefilling them too."""
MAX_ADMISSION_DELAY = 8
"""Steps over static shapes that a prompt waits at most, so that several prompts share a prefill."""


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

    @property
    def is_plain(self) -> bool:
        """Whether each token depends only on the temperature, the banned tokens and a random number."""
        sampling = self.sampling
        scored = isinstance(sampling, ScoredSampling)
        return not scored and not self.prompt.choices and (sampling.is_greedy or sampling.top_p >= 1)


class ContinuousBatchingDecoder:
    """Samples completions with one model.

    `banned` tokens are never sampled. A forward has at most `max_prefill_tokens` prompt tokens. With `reuse_kv_cache`,
    the KV cache of a dialogue stays for its next turn. `static` computes steps of one token.
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
        static: StaticDecoder | None = None,
    ) -> None:
        self.model, self.device, self.banned, self.eos_token_id = model, device, banned, eos_token_id
        self.max_prefill_tokens, self.reuse_kv_cache = max_prefill_tokens, reuse_kv_cache
        self.static = static
        self.kv = KVCache(device, token_major=static is not None)
        self.waiting: list[RunningSequence] = []
        """Sequences without a slot, in submission order."""
        self.num_forward_tokens = 0
        """Tokens of all forwards so far."""
        self._adapter_ids: defaultdict[str | None, int] = defaultdict(itertools.count(1).__next__)
        """Id of the current version of each adapter in the KV cache."""
        self._admission_delay = 0
        """Steps since prompts were admitted."""
        self.reset()

    # -- the cache ---------------------------------------------------------------------------------------------
    def reset(self) -> None:
        """Drop the KV cache and all sequences; with `static`, the cache's buffers stay."""
        if self.static is None:
            self.kv = KVCache(self.device)
        self.kv.clear()
        self.keys: list[str] = [""] * self.kv.num_slots
        """Dialogue of each slot; empty if the slot is free."""
        self.running: list[RunningSequence | None] = [None] * self.kv.num_slots
        """Running sequence of each slot."""
        self.waiting.clear()

    def release(self) -> None:
        """Free the KV cache's memory and that of CUDA graphs, and drop all sequences."""
        self.kv = KVCache(self.device, token_major=self.static is not None)
        if self.static is not None:
            self.static.release()
        self.reset()

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
    def step(self, adapters: set[str | None], lora: BatchedLora | None = None) -> list[RunningSequence]:
        """Compute a token of the sequences of these adapters; return the sequences that got one.

        `lora` applies their adapters, if these are not merged.
        """
        self._admit_waiting(adapters)
        self._compact_slots()
        blocks = self._schedule_tokens(adapters)
        single: list[RunningSequence] = []
        if self.static is not None:
            single = [sequence for sequence, count in blocks if count == 1 and self._is_last(sequence)]
            one_token = set(single)
            blocks = [block for block in blocks if block[0] not in one_token]
        self.num_forward_tokens += sum(count for _, count in blocks) + len(single)
        sequences = self._compute_packed(blocks, lora) if blocks else []
        if single:
            self._compute_static(single, lora)
        sequences += single
        for sequence in sequences:
            if not sequence.sampling.max_new_tokens:
                self._finish(sequence, FinishReason.LENGTH)
        return sequences

    def _is_last(self, sequence: RunningSequence) -> bool:
        """Whether exactly one token of a sequence is uncomputed, its last one."""
        return bool(self.kv.num_tokens[sequence.slot] - self.kv.num_computed[sequence.slot] == 1)

    def _compute_packed(
        self, blocks: Sequence[tuple[RunningSequence, int]], lora: BatchedLora | None
    ) -> list[RunningSequence]:
        """Run a packed forward; return the sequences whose tokens are all computed, and sample their next ones."""
        if lora is not None:
            indices = lora.select([sequence.adapter for sequence, _ in blocks])
            lora.use(to_device([np.repeat(indices, [count for _, count in blocks])], self.device)[0])
        kernel = None if self.static is None else self.static.kernel
        hidden_NH = forward_tokens(self.model, self.kv, [(seq.slot, count) for seq, count in blocks], kernel)
        self._score_prompts(blocks, hidden_NH)
        ends = itertools.accumulate(count for _, count in blocks)
        ready = [
            (sequence, end - 1)
            for (sequence, _), end in zip(blocks, ends, strict=True)
            if self.kv.num_computed[sequence.slot] == self.kv.num_tokens[sequence.slot]
        ]
        sampled = [(sequence, last) for sequence, last in ready if sequence.sampling.max_new_tokens]
        self._sample([sequence for sequence, _ in sampled], _select_rows(hidden_NH, [last for _, last in sampled]))
        return [sequence for sequence, _ in ready]

    def _compute_static(self, sequences: Sequence[RunningSequence], lora: BatchedLora | None) -> None:
        """Compute the last token of each sequence over static shapes, and sample its next one."""
        assert self.static is not None
        indices = [-1] * len(sequences) if lora is None else lora.select([s.adapter for s in sequences])
        slots = np.array([sequence.slot for sequence in sequences])
        uniforms = [s.uniforms[len(s.token_ids)] if s.sampling.max_new_tokens else 0.0 for s in sequences]
        temperatures = [0.0 if s.sampling.is_greedy else s.sampling.temperature for s in sequences]
        try:
            tokens, logps, hidden_JH = self.static.step(
                self.kv, slots, np.array([uniforms, temperatures, indices]), lora
            )
        except RuntimeError as error:
            if not self.static.falls_back:
                raise
            _log.warning("Decode steps run without CUDA graphs, which failed: %s", error)
            self.static = None
            self._compute_packed([(sequence, 1) for sequence in sequences], lora)
            return
        other = [s for s in sequences if s.sampling.max_new_tokens and not s.is_plain]
        slots_other = [sequence.slot for sequence in other]
        for sequence, slot in zip(sequences, slots.tolist(), strict=True):
            if sequence.is_plain and sequence.sampling.max_new_tokens:
                self._append_token(sequence, tokens[slot], logps[slot])
        if other:
            self._sample(other, _select_rows(hidden_JH, slots_other))

    # -- slots -------------------------------------------------------------------------------------------------
    def _admit_waiting(self, adapters: set[str | None]) -> None:
        """Assign a slot to each waiting sequence that need not wait for a shared prefix."""
        joining = [sequence for sequence in self.waiting if sequence.adapter in adapters]
        if not joining or self._delays_admission(adapters, len(joining)):
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
        self.kv.finish_copies()
        self.waiting = [sequence for sequence in self.waiting if sequence not in admitted]

    def _delays_admission(self, adapters: set[str | None], num_joining: int) -> bool:
        """Whether prompts wait for others, because a prefill takes longer than a step over static shapes."""
        num_running = sum(sequence is not None and sequence.adapter in adapters for sequence in self.running)
        is_delayed = (
            self.static is not None
            and MAX_ADMISSION_DELAY * num_joining < num_running
            and self._admission_delay < MAX_ADMISSION_DELAY
        )
        self._admission_delay = self._admission_delay + 1 if is_delayed else 0
        return is_delayed

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
        if self.static is not None and row_bucket(used[-1] + 1) <= row_bucket(len(used) * 9 // 8):
            return
        holes = [slot for slot in range(len(used)) if self.running[slot] is None]
        moved = used[::-1][: len(holes)]
        self.kv.swap(holes, moved)
        for hole, slot in zip(holes, moved, strict=True):
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
                logits_BV = logprobs.compute_logits(self.model, _select_rows(hidden_BH, chunk))
                scored = [j for j, i in enumerate(chunk) if isinstance(sequences[i].sampling, ScoredSampling)]
                scored_SV = _select_rows(logits_BV, scored).clone() if scored else logits_BV[:0]
                logits_BV = logits_BV / temperature if temperature not in (0, 1) else logits_BV
                logits_BV.index_fill_(1, self.banned, MASK_VALUE)
                logits_BV = _restrict_to_choices(logits_BV, [sequences[i] for i in chunk])
                if temperature == 0:
                    token_B, logp_B = logits_BV.argmax(1), logits_BV.new_zeros(len(chunk))  # the lowest id on ties
                else:
                    uniforms = np.array([sequences[i].uniforms[len(sequences[i].token_ids)] for i in chunk])
                    (bits_B,) = to_device([uniforms.view(np.int64)], self.device)
                    token_B, logp_B = sample_tokens(logits_BV, bits_B.view(torch.float64), top_p)
                tokens, logps = token_B.tolist(), logp_B.tolist()
                self._score_sampled([sequences[chunk[j]] for j in scored], scored_SV, [tokens[j] for j in scored])
                for i, token, logp in zip(chunk, tokens, logps, strict=True):
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
    labels = [
        [] if sequence.sampling.is_greedy or any(len(choice) > 1 for choice in sequence.prompt.choices)
        else [choice[0] for choice in sequence.prompt.choices]
        for sequence in sequences
    ]  # fmt: skip
    indices = [i for i, tokens in enumerate(labels) if tokens]
    if indices:
        label_RK = logprobs.allowed_tensor([labels[i] for i in indices], logits_BV.device)
        assert label_RK is not None
        logps_RK = _select_rows(logits_BV, indices).log_softmax(1).gather(1, label_RK).tolist()
        for i, logps in zip(indices, logps_RK, strict=True):
            sequences[i].choice_logprobs = tuple(logps[: len(labels[i])])
    return logits_BV


def _select_rows(rows: torch.Tensor, indices: Sequence[int]) -> torch.Tensor:
    """Return rows of a tensor; without a copy if these are all of them, in order."""
    if list(indices) == list(range(len(rows))):
        return rows
    return rows[to_device([np.array(indices, dtype=np.int64)], rows.device)[0]]
