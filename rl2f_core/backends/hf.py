"""Generation and scoring with transformers: batched, on what hardware there is, with adapters merged for speed.

Simplifications, on purpose: one adapter speaks at a time (its weights are merged into a working copy); rows that end
early wait for the others of their turn; models with sliding windows read the whole dialogue anew at each turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rl2f_core.backends.base import Backend, Generation, Prompt, Sampling
from rl2f_core.config import BaseConfig, ModelConfig
from rl2f_core.errors import RunError
from rl2f_core.registry import register
from rl2f_core.rollout.tokenizer import HFChatTokenizer
from rl2f_core.types import TurnStop


@register("backend")
class HFBackend(Backend):
    """transformers on cuda, mps or cpu."""

    class Config(BaseConfig):
        """Generation with transformers."""

        type: Literal["hf"] = "hf"
        keep_cache: bool = True
        """Keep keys and values between the turns of a dialogue; off reads the whole dialogue anew at each turn."""
        score_batch_tokens: int = Field(8192, ge=16)
        """Tokens, padding included, that are scored at once."""

    def __init__(self, config: Any, model: ModelConfig) -> None:
        super().__init__(config, model)
        import torch
        from transformers import AutoTokenizer

        from rl2f_core.backends._lora import LoraWeights, Merger
        from rl2f_core.backends._torch import load_base, plain_attention
        from rl2f_core.device import resolve
        from rl2f_core.models import get_model

        self.folder = get_model(model.name).path
        self.device, self.dtype = resolve(model.device, model.dtype)
        self.model = load_base(str(self.folder), self.dtype, self.device)
        hf_tokenizer = AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False, local_files_only=True)
        self.tokenizer = HFChatTokenizer(hf_tokenizer, self.model.config.vocab_size)
        self.pad_id = self.tokenizer.end_id
        self.context_limit = int(getattr(self.model.config, "max_position_embeddings", 0) or 2**31)
        self.adapters: dict[str, LoraWeights] = {}
        self._merger = Merger(self.model)
        self._banned = torch.tensor(self.tokenizer.banned_ids, dtype=torch.long, device=self.device)
        self._cache: Any = None
        self._keeps = self.config.keep_cache and plain_attention(self.model.config)

    # -- adapters ----------------------------------------------------------------------------------------------
    def load_adapter(self, name: str, folder: Path) -> None:
        from rl2f_core.backends._lora import read_lora

        self.adapters[name] = read_lora(Path(folder), self._merger.modules)
        if self._merger.active == name:
            self._merger.active = "\0stale"  # the next call merges the new weights
        self.forget()

    def forget(self) -> None:
        self._cache = None

    # -- generation --------------------------------------------------------------------------------------------
    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, adapter: str | None = None) -> list[Generation]:
        import torch

        if not prompts:
            return []
        longest = max(len(p.token_ids) for p in prompts) + sampling.max_new_tokens
        if longest > self.context_limit:
            raise RunError("A prompt and its answer do not fit the model's context.", value=longest,
                           fix=f"Keep dialogues under {self.context_limit} tokens.")  # fmt: skip
        self._merger.activate(adapter, self.adapters)
        alone = not any(p.key for p in prompts)  # nothing goes on from these: the dialogues in play keep their cache
        kept = self._cache
        if alone:
            self._cache = None
        try:
            with torch.inference_mode():
                hidden_BH = self._read(prompts, adapter)
                generations = self._decode(prompts, sampling, hidden_BH)
        except BaseException:
            self.forget()  # the cache may no longer hold what it says
            raise
        if not self._keeps:
            self.forget()
        elif alone:
            self._cache = kept
        return generations

    def _read(self, prompts: Sequence[Prompt], adapter: str | None) -> Any:
        """Bring the cache to the end of every prompt; the last hidden state of each, [B, H]."""
        from rl2f_core.backends._kv import DialogueCache

        cache = self._cache
        rows = self._reusable(prompts, adapter)
        if rows is not None:
            cache.take(rows)
            suffixes = [p.token_ids[len(cache.tokens[row]) :] for p, row in zip(prompts, rows, strict=True)]
            hidden_BH = self._forward(cache, suffixes)
        else:
            self._cache = cache = DialogueCache(self.model.config.num_hidden_layers, self.device)
            distinct = list(dict.fromkeys(p.token_ids for p in prompts))  # a group shares its opening
            where = {tokens: row for row, tokens in enumerate(distinct)}
            hidden_BH = self._forward(cache, distinct)
            expand = [where[p.token_ids] for p in prompts]
            cache.take(expand)
            hidden_BH = hidden_BH[expand]
        cache.adapter = adapter
        cache.keys, cache.tokens = [p.key for p in prompts], [p.token_ids for p in prompts]
        return hidden_BH

    def _reusable(self, prompts: Sequence[Prompt], adapter: str | None) -> list[int] | None:
        """The cache's row for every prompt, or None where any prompt does not extend what the cache holds."""
        cache = self._cache
        if cache is None or cache.adapter != adapter:
            return None
        known = {key: row for row, key in enumerate(cache.keys) if key}
        rows = []
        for prompt in prompts:
            row = known.get(prompt.key)
            if row is None:
                return None
            held = cache.tokens[row]
            if len(held) >= len(prompt.token_ids) or prompt.token_ids[: len(held)] != held:
                return None
            rows.append(row)
        return rows

    def _forward(self, cache: Any, blocks: Sequence[tuple[int, ...]]) -> Any:
        """Read one block of tokens per row, left-padded to the longest; the last hidden state of each row."""
        import torch

        width = max(map(len, blocks))
        block_BQ = torch.full((len(blocks), width), self.pad_id, dtype=torch.long)
        valid_BQ = torch.zeros(len(blocks), width, dtype=torch.bool)
        for i, block in enumerate(blocks):
            block_BQ[i, width - len(block) :] = torch.tensor(block, dtype=torch.long)
            valid_BQ[i, width - len(block) :] = True
        return self._step(cache, block_BQ.to(self.device), valid_BQ.to(self.device))

    def _step(self, cache: Any, block_BQ: Any, valid_BQ: Any) -> Any:
        import torch

        if not len(cache.valid_BS):
            cache.valid_BS = torch.zeros(len(block_BQ), 0, dtype=torch.bool, device=self.device)
        inputs = cache.feed(block_BQ, valid_BQ)
        return self.model.get_decoder()(**inputs).last_hidden_state[:, -1]

    def _decode(self, prompts: Sequence[Prompt], sampling: Sampling, hidden_BH: Any) -> list[Generation]:
        import numpy as np
        import torch

        from rl2f_core.backends._torch import NEVER, logits_of

        cache, end = self._cache, self.tokenizer.end_id
        uniforms_BN = torch.from_numpy(
            np.stack([np.random.Generator(np.random.Philox(p.seed)).random(sampling.max_new_tokens) for p in prompts])
        ).to(self.device)
        live_B = torch.ones(len(prompts), dtype=torch.bool, device=self.device)
        tokens, logprobs, lives = [], [], []
        for position in range(sampling.max_new_tokens):
            logits_BV = logits_of(self.model, hidden_BH) / sampling.temperature
            logits_BV.index_fill_(1, self._banned, NEVER)
            token_B, logp_B = draw_tokens(logits_BV, uniforms_BN[:, position], sampling.top_p)
            tokens.append(token_B)
            logprobs.append(logp_B)
            lives.append(live_B)
            live_B = live_B & (token_B != end)
            if not bool(live_B.any()) or position + 1 == sampling.max_new_tokens:
                break
            hidden_BH = self._step(cache, token_B[:, None], live_B[:, None])
        tokens_BN = torch.stack(tokens, 1).tolist()
        logprobs_BN = torch.stack(logprobs, 1).tolist()
        counts_B = torch.stack(lives, 1).sum(1).tolist()
        out = []
        for row, count in enumerate(counts_B):
            ids = tuple(tokens_BN[row][:count])
            stop = TurnStop.EOS if ids[-1] == end else TurnStop.LENGTH
            out.append(Generation(ids, tuple(logprobs_BN[row][:count]), stop))
            cache.tokens[row] += ids[: int(cache.valid_BS[row].sum()) - len(cache.tokens[row])]
        return out

    # -- scoring -----------------------------------------------------------------------------------------------
    def score(self, sequences: Sequence[Sequence[int]], adapter: str | None = None) -> list[list[float]]:
        import torch

        from rl2f_core.backends._torch import right_padded, selected_logprobs

        self._merger.activate(adapter, self.adapters)
        order = sorted((i for i in range(len(sequences)) if sequences[i]), key=lambda i: len(sequences[i]))
        out: list[list[float]] = [[] for _ in sequences]
        while order:
            count = max(1, self.config.score_batch_tokens // len(sequences[order[-1]]))
            batch, order = order[-count:], order[:-count]
            ids_BT, valid_BT = right_padded([sequences[i] for i in batch], self.pad_id, self.device)
            wanted_BT = valid_BT.clone()
            wanted_BT[:, 0] = False
            with torch.inference_mode():
                logp_N, _ = selected_logprobs(self.model, ids_BT, valid_BT, wanted_BT)
            values = iter(logp_N.tolist())
            for i in batch:
                out[i] = [0.0] + [next(values) for _ in range(len(sequences[i]) - 1)]
        return out


def draw_tokens(logits_BV: Any, uniform_B: Any, top_p: float = 1.0) -> tuple[Any, Any]:
    """One token a row by inverse transform sampling, and its log-probability under the full distribution, both [B].

    A row's draw depends on its own logits and its own uniform number alone.
    """
    import torch

    logp_BV = logits_BV.log_softmax(1)
    p_BV = logp_BV.exp()
    if top_p < 1:
        sorted_BV, order_BV = p_BV.sort(1, descending=True)
        kept = sorted_BV.cumsum(1) - sorted_BV < top_p
        p_BV = torch.zeros_like(p_BV).scatter(1, order_BV, sorted_BV * kept)
    cdf_BV = p_BV.double().cumsum(1)
    target_B1 = (uniform_B.to(cdf_BV.dtype) * cdf_BV[:, -1]).unsqueeze(1)
    token_B = torch.searchsorted(cdf_BV, target_B1, right=True).squeeze(1).clamp(max=logits_BV.shape[1] - 1)
    return token_B, logp_BV.gather(1, token_B[:, None]).squeeze(1)
