"""Generation and scoring with transformers, with continuous batching (`decoder`) and merged or batched LoRA."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from rl2f_core.config.fields import ComponentConfig
from rl2f_core.config.model import ModelConfig
from rl2f_core.models.backends.base import (
    Backend,
    Generation,
    GenerationRequest,
    GenerationSession,
    PendingGeneration,
    SamplingParams,
    check_adapter,
    finished_generations,
)
from rl2f_core.models.tokenizer import HFChatTokenizer
from rl2f_core.registry import register

if TYPE_CHECKING:
    import torch

    from rl2f_core.models.backends.hf.batched_lora import BatchedLora
    from rl2f_core.models.backends.hf.cpu_prepack import Prepacked
    from rl2f_core.models.backends.hf.decoder import RunningSequence
    from rl2f_core.models.backends.hf.lora import FullWeights, LoraWeights
    from rl2f_core.models.backends.hf.static_decoder import StaticDecoder

_log = logging.getLogger(__name__)
MAX_IDLE_FRACTION = 0.1
"""Fraction of the GPU's memory up to which the KV cache stays during updates."""


@register("backend")
class HFBackend(Backend):
    """transformers on cuda, mps or cpu.

    With `unmerged`, a single active adapter is not merged into the base weights either, and each forward includes all
    loaded adapters, so that their weights are stacked only once.
    """

    folder: Path
    loads_full_weights: ClassVar[bool] = True

    class Config(ComponentConfig):
        """Generation with transformers."""

        type: Literal["hf"] = "hf"
        reuse_kv_cache: bool = True
        """Keep the KV cache between the turns of a dialogue; otherwise each turn prefills the whole dialogue."""
        multi_lora: Literal["auto", "merged", "batched"] = "auto"
        """How several checkpoints, e.g. a trained student and its base as teacher, share the model. merged: each step
        runs the checkpoint with most pending prompts, with merged weights. batched: each step runs all, with unmerged
        adapters. auto: batched if at least two adapters are active."""
        max_prefill_tokens: int | None = Field(None, ge=16)
        """Maximum prompt tokens of one forward. None: 2048, on a CUDA GPU 8192."""
        max_scoring_tokens: int = Field(8192, ge=16)
        """Maximum tokens of one forward that scores, padding included."""
        cuda_graphs: Literal["auto", "on", "off"] = "auto"
        """Decode over static shapes, which CUDA graphs replay. auto: on a CUDA GPU, if a self-test at the start gives
        the same tokens and logprobs with and without graphs. on: without the self-test; on other devices static shapes
        without graphs. off: each step launches its operations."""

    config: Config

    def __init__(self, config: Config, model: ModelConfig, *, unmerged: bool = False) -> None:
        super().__init__(config, model)
        import torch
        from transformers import AutoTokenizer

        from rl2f_core.models.backends.hf.cpu_prepack import prepack_model
        from rl2f_core.models.backends.hf.decoder import ContinuousBatchingDecoder
        from rl2f_core.models.backends.hf.lora import LoraMerger
        from rl2f_core.models.device import resolve_device
        from rl2f_core.models.modeling.loading import load_base_model
        from rl2f_core.models.store.store import get_model

        self.unmerged = unmerged
        self.folder = get_model(model.name).path
        self.device, self.dtype = resolve_device(model.device, model.dtype)
        self.model = load_base_model(str(self.folder), self.dtype, self.device)
        hf_tokenizer = AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False, local_files_only=True)
        self.tokenizer = HFChatTokenizer(hf_tokenizer, self.model.config.vocab_size)
        self.pad_id = self.tokenizer.eos_token_id
        self.max_model_len = int(getattr(self.model.config, "max_position_embeddings", 0) or 2**31)
        self.adapters: dict[str, LoraWeights | FullWeights] = {}
        banned = torch.tensor(self.tokenizer.banned_token_ids, dtype=torch.long, device=self.device)
        static = self._static_decoder(banned)
        self._is_mixed = False
        """Whether several adapters were active since the last reset, with static shapes."""
        self._prepacked: Prepacked | None = None
        if static is None or self.dtype == torch.bfloat16:  # static shapes in float32 keep their tensors
            self._prepacked = prepack_model(self.model, self.device, self.dtype)
        self._keeps_tensors = static is not None and self._prepacked is None
        """Whether adapters are copied into the same tensors; packed weights need new ones."""
        self._merger = LoraMerger(self.model, in_place=self._keeps_tensors)
        self._batched_lora: BatchedLora | None = None
        is_cuda = self.device.type == "cuda"
        if is_cuda:
            self.preferred_batch_size = 256
        self._decoder = ContinuousBatchingDecoder(
            self.model,
            self.device,
            banned,
            self.tokenizer.eos_token_id,
            max_prefill_tokens=config.max_prefill_tokens or (8192 if is_cuda else 2048),
            reuse_kv_cache=config.reuse_kv_cache,
            static=static,
        )

    def _static_decoder(self, banned: torch.Tensor) -> StaticDecoder | None:
        """Return the decoder of steps over static shapes, unless they are disabled or fail the self-test."""
        from rl2f_core.models.backends.hf.static_decoder import StaticDecoder, unsupported_by_static_shapes

        is_cuda, setting = self.device.type == "cuda", self.config.cuda_graphs
        if setting == "off" or (setting == "auto" and not is_cuda):
            return None
        reason = unsupported_by_static_shapes(self.model)
        if not reason and setting == "auto":
            from rl2f_core.models.backends.hf.self_test import compare_graphs

            reason = compare_graphs(self.model, self.device, banned)
        if reason:
            _log.warning("Decode steps run without CUDA graphs: %s", reason)
            return None
        return StaticDecoder(self.model, self.device, banned, captures=is_cuda)

    @property
    def decode_path(self) -> str:
        static = self._decoder.static
        if static is None:
            return "packed forward, no CUDA graphs"
        attention = "masked attention" if static.kernel is None else "variable-length attention"
        return f"{'CUDA graphs' if static.captures else 'static shapes, no CUDA graphs'}, {attention}"

    # -- adapters ----------------------------------------------------------------------------------------------
    def load_adapter(self, name: str, folder: Path) -> None:
        from rl2f_core.models.backends.hf.lora import load_weights

        self._add_adapter(name, load_weights(folder, self._merger))

    def copy_adapter(self, name: str, tensors: Mapping[str, torch.Tensor], scale: float | None) -> bool:
        from rl2f_core.models.backends.hf.lora import copy_weights

        self._add_adapter(name, copy_weights(tensors, scale, self.device, self.dtype))
        return True

    def _add_adapter(self, name: str, weights: LoraWeights | FullWeights) -> None:
        if self._prepacked is not None and self._prepacked.in_place:  # adapters are merged into plain weights
            self._prepacked.restore()
            self._prepacked = None
        self.drop_adapter(name)
        self.adapters[name] = weights

    def drop_adapter(self, name: str) -> None:
        """Unload an adapter, if it is loaded."""
        self.adapters.pop(name, None)
        self._merger.forget(name)
        self._decoder.invalidate_adapter(name)

    def _lora_adapters(self) -> dict[str, LoraWeights]:
        from rl2f_core.models.backends.hf.lora import LoraWeights

        return {name: weights for name, weights in self.adapters.items() if isinstance(weights, LoraWeights)}

    def reset_prefix_cache(self) -> None:
        self._decoder.reset()
        self._is_mixed = False

    def release_memory(self) -> None:
        """Free the KV cache and the CUDA graphs if they need much of the GPU's memory."""
        import torch

        if self.device.type == "cuda":
            total = torch.cuda.get_device_properties(self.device).total_memory
            if self._decoder.kv.num_bytes > MAX_IDLE_FRACTION * total:
                self._decoder.release()
                torch.cuda.empty_cache()

    def keep_cached(self, keys: Collection[str]) -> None:
        """Release the KV cache of all dialogues except `keys`."""
        self._decoder.release_cache(set(self._decoder.keys) - set(keys))

    # -- generation --------------------------------------------------------------------------------------------
    def generate(
        self, prompts: Sequence[GenerationRequest], sampling: SamplingParams, adapter: str | None = None
    ) -> list[Generation]:
        keys = {p.cache_key for p in prompts if p.cache_key}
        if self._open is None and keys:  # other dialogues have ended
            self.keep_cached(keys)
        pending = self.submit(prompts, sampling, adapter)
        try:
            while any(item.generation is None for item in pending):
                self.step()
        finally:
            self._decoder.abort(pending)
        return finished_generations(pending)

    def _session(self) -> GenerationSession:
        return _Session(self)

    def submit(
        self, prompts: Sequence[GenerationRequest], sampling: SamplingParams, adapter: str | None
    ) -> list[RunningSequence]:
        """Submit prompts for generation.

        Raises `RunError` if a prompt and its completion exceed the context, `AdapterError` for an unknown adapter.
        """
        self.check_request(prompts, sampling)
        check_adapter(adapter, self.adapters)
        return self._decoder.submit(prompts, sampling, adapter)

    def cancel(self, sequences: Iterable[RunningSequence]) -> None:
        """Abort prompts; their computed KV cache stays."""
        self._decoder.abort(sequences)

    def step(self) -> list[RunningSequence]:
        """Run one decoder step; return the sequences that got a token."""
        with self._prepacked.enabled() if self._prepacked is not None else contextlib.nullcontext():
            counts = Counter(sequence.adapter for sequence in self._decoder.pending)
            if self._uses_batched_lora(counts):
                from rl2f_core.models.backends.hf.batched_lora import BatchedLora

                self._batched_lora = self._batched_lora or BatchedLora(
                    self._merger.modules,
                    prepacked=self._prepacked is not None and self.dtype.itemsize < 4,
                    stack_all=self.unmerged or self._decoder.static is not None,
                    fixed=self._keeps_tensors,
                )
                self._merger.activate(None, self.adapters)
                with self._batched_lora.active(self._lora_adapters()) as lora:
                    return self._decoder.step(set(counts), lora)
            adapter = max(counts, key=lambda name: (counts[name], name == self._merger.active))
            self._merger.activate(adapter, self.adapters)
            return self._decoder.step({adapter})

    def _uses_batched_lora(self, adapters: Collection[str | None]) -> bool:
        """Whether one step runs all these adapters (None is the base), unmerged."""
        if self.unmerged:
            return True
        if not set(adapters) - {None} <= set(self._lora_adapters()):
            return False
        if self.config.multi_lora == "auto" and self._decoder.static is not None:  # switching copies all weights
            self._is_mixed = self._is_mixed or len(adapters) > 1
            return self._is_mixed
        if self.config.multi_lora == "auto":
            return len(adapters) - (None in adapters) > 1
        return bool(self.config.multi_lora == "batched" and len(adapters) > 1)

    # -- scoring -----------------------------------------------------------------------------------------------
    def score(self, sequences: Sequence[Sequence[int]], adapter: str | None = None) -> list[list[float]]:
        import torch

        from rl2f_core.models.modeling.logprobs import right_padded, selected_logprobs

        self._merger.activate(adapter, self.adapters)
        order = sorted((i for i in range(len(sequences)) if sequences[i]), key=lambda i: len(sequences[i]))
        out: list[list[float]] = [[] for _ in sequences]
        while order:
            count = max(1, self.config.max_scoring_tokens // len(sequences[order[-1]]))
            batch, order = order[-count:], order[:-count]
            ids_BT, attention_mask_BT = right_padded([sequences[i] for i in batch], self.pad_id, self.device)
            target_BT = attention_mask_BT.clone()
            target_BT[:, 0] = False
            with torch.inference_mode():
                logp_N, _ = selected_logprobs(self.model, ids_BT, attention_mask_BT, target_BT)
            values = iter(logp_N.tolist())
            for i in batch:
                out[i] = [0.0] + [next(values) for _ in range(len(sequences[i]) - 1)]
        return out


class _Session(GenerationSession):
    """Continuous batching: prompts join and leave between decode steps."""

    backend: HFBackend

    def submit(
        self, prompts: Sequence[GenerationRequest], sampling: SamplingParams, adapter: str | None = None
    ) -> list[PendingGeneration]:
        return [*self.backend.submit(prompts, sampling, adapter)]

    def _has_waiting(self) -> bool:
        return bool(self.backend._decoder.pending)

    def _run_batch(self) -> None:
        self.backend.step()

    def release_cache(self, keys: Iterable[str]) -> None:
        self.backend._decoder.release_cache(keys)

    def close(self) -> None:
        decoder = self.backend._decoder
        decoder.abort(decoder.pending)
        decoder.release_cache(decoder.keys)
        super().close()
