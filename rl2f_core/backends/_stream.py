"""Token by token, each row of a batch with an adapter of its own: several speakers answer side by side.

The base model stays as it is; every linear layer adds its row's (alpha / r) · B A x, so that changing speakers costs
nothing and no weights are written.  Chance comes from each prompt's own seed, as in training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rl2f_core.backends._lora import LoraWeights
from rl2f_core.backends.base import Prompt, Sampling
from rl2f_core.backends.hf import HFBackend, draw_tokens
from rl2f_core.config import ModelConfig
from rl2f_core.errors import AdapterError, RunError


class Drawn(NamedTuple):
    """One sampled token of one row."""

    row: int
    token: int
    logprob: float
    """In nats, at the sampling temperature, over the allowed tokens."""


class RowAdapters:
    """Hooks that add to each row of a batch what its own adapter says."""

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self.rows: list[LoraWeights | None] = []
        """The adapter of every row of the batch that is being read; None is the base."""
        for name, module in modules.items():
            module.register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Any:
        def add(module: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            for row, lora in enumerate(self.rows):
                pair = lora.pairs.get(name) if lora is not None else None
                if lora is not None and pair is not None:
                    a_RI, b_OR = pair
                    delta = (inputs[0][row].to(a_RI.dtype) @ a_RI.T) @ b_OR.T
                    output[row] += (delta * lora.scale).to(output.dtype)
            return output

        return add


class StreamBackend(HFBackend):
    """The transformers backend with `stream`."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(HFBackend.Config(), model)
        self._row_adapters = RowAdapters(self._merger.modules)

    def load_adapter(self, name: str, folder: Path) -> None:
        super().load_adapter(name, folder)
        held = self.adapters[name]
        pairs = {module: (a.to(self.device), b.to(self.device)) for module, (a, b) in held.pairs.items()}
        self.adapters[name] = LoraWeights(pairs, held.scale)

    def drop_adapter(self, name: str) -> None:
        """Forget an adapter."""
        self.adapters.pop(name, None)
        self.forget()

    def stream(
        self, prompts: Sequence[Prompt], sampling: Sampling, adapters: Sequence[str | None]
    ) -> Iterator[list[Drawn]]:
        """Sample one turn for every prompt; yields the tokens of each step for the rows that have not ended.

        A row ends with its end-of-message token or after `sampling.max_new_tokens`. Closing the iterator stops.

        Raises `RunError` where a prompt and its answer do not fit the context, `AdapterError` for an unknown adapter.
        """
        longest = max(len(p.token_ids) for p in prompts) + sampling.max_new_tokens
        if longest > self.context_limit:
            raise RunError("A prompt and its answer do not fit the model's context.", value=longest,
                           fix=f"Keep dialogues under {self.context_limit} tokens.")  # fmt: skip
        unknown = sorted({a for a in adapters if a is not None and a not in self.adapters})
        if unknown:
            raise AdapterError("No adapter of this name is loaded.", value=unknown[0], known=sorted(self.adapters))
        self._merger.activate(None, self.adapters)
        self._row_adapters.rows = [None if a is None else self.adapters[a] for a in adapters]
        whole = False
        try:
            yield from self._stream(prompts, sampling, "|".join(a or "" for a in adapters))
            whole = True
        except GeneratorExit:
            whole = True
            raise
        finally:
            self._row_adapters.rows = []
            if not whole or not self._keeps:
                self.forget()  # after an error the cache may no longer hold what it says

    def _stream(self, prompts: Sequence[Prompt], sampling: Sampling, speakers: str) -> Iterator[list[Drawn]]:
        import numpy as np

        from rl2f_core.backends._torch import NEVER, logits_of

        end = self.tokenizer.end_id
        uniforms_BN = torch.from_numpy(
            np.stack([np.random.Generator(np.random.Philox(p.seed)).random(sampling.max_new_tokens) for p in prompts])
        ).to(self.device)
        with torch.inference_mode():
            hidden_BH = self._read_rows(prompts, speakers)
        cache = self._cache
        live_B = torch.ones(len(prompts), dtype=torch.bool, device=self.device)
        for position in range(sampling.max_new_tokens):
            with torch.inference_mode():
                logits_BV = logits_of(self.model, hidden_BH) / sampling.temperature
                logits_BV.index_fill_(1, self._banned, NEVER)
                token_B, logp_B = draw_tokens(logits_BV, uniforms_BN[:, position], sampling.top_p)
                drawn = zip(live_B.tolist(), token_B.tolist(), logp_B.tolist(), strict=True)
                step = [Drawn(row, token, logp) for row, (live, token, logp) in enumerate(drawn) if live]
                live_B = live_B & (token_B != end)
            yield step
            if not bool(live_B.any()) or position + 1 == sampling.max_new_tokens:
                return
            with torch.inference_mode():
                hidden_BH = self._step(cache, token_B[:, None], live_B[:, None])
            for row, token, _ in step:
                if token != end:
                    cache.tokens[row] += (token,)

    def _read_rows(self, prompts: Sequence[Prompt], speakers: str) -> Any:
        """Bring the cache to the end of every prompt; the last hidden state of each, [B, H].

        Rows with equal prompts are not read once for all, since their adapters differ.
        """
        from rl2f_core.backends._kv import DialogueCache

        rows = self._reusable(prompts, speakers)
        if rows == list(range(len(prompts))):  # an adapter belongs to its row
            cache = self._cache
            blocks = [p.token_ids[len(held) :] for p, held in zip(prompts, cache.tokens, strict=True)]
        else:
            self._cache = cache = DialogueCache(self.model.config.num_hidden_layers, self.device)
            blocks = [p.token_ids for p in prompts]
        hidden_BH = self._forward(cache, blocks)
        cache.adapter = speakers
        cache.keys, cache.tokens = [p.key for p in prompts], [p.token_ids for p in prompts]
        return hidden_BH
