"""Generation and scoring with transformers: batched, on what hardware there is, with adapters merged for speed.

Turns join and leave between any two tokens, see `_decode.py`; `generate` is a session that ends with its last turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from rl2f_core.backends.base import Backend, Generation, Prompt, Sampling, Session, Ticket
from rl2f_core.config import BaseConfig, ModelConfig
from rl2f_core.errors import AdapterError, RunError
from rl2f_core.registry import register
from rl2f_core.rollout.tokenizer import HFChatTokenizer

if TYPE_CHECKING:
    from rl2f_core.backends._row_adapters import RowAdapters


@register("backend")
class HFBackend(Backend):
    """transformers on cuda, mps or cpu."""

    merges: ClassVar[bool] = True
    """A single speaker has merged weights, also where speakers are together."""

    class Config(BaseConfig):
        """Generation with transformers."""

        type: Literal["hf"] = "hf"
        keep_cache: bool = True
        """Keep keys and values between the turns of a dialogue; off reads the whole dialogue anew at each turn."""
        speakers: Literal["auto", "in_turns", "together"] = "auto"
        """How weights that differ, e.g. a trained student's and its base's as teacher, share the model. in_turns: each
        step is for those with most turns under way, with merged weights. together: one step for all, each row with its
        adapter beside the base. auto: together where two adapters or more have turns under way."""
        read_batch_tokens: int = Field(2048, ge=16)
        """Tokens of prompts that are read at once."""
        score_batch_tokens: int = Field(8192, ge=16)
        """Tokens, padding included, that are scored at once."""

    def __init__(self, config: Any, model: ModelConfig) -> None:
        super().__init__(config, model)
        import torch
        from transformers import AutoTokenizer

        from rl2f_core.backends._decode import Decoder
        from rl2f_core.backends._lora import LoraWeights, Merger
        from rl2f_core.backends._prepacked import prepacked
        from rl2f_core.backends._torch import load_base
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
        self._quick = prepacked(self.model, self.device, self.dtype)
        self._rows: RowAdapters | None = None
        if self.device.type == "cuda":
            self.wide = 256
        banned = torch.tensor(self.tokenizer.banned_ids, dtype=torch.long, device=self.device)
        self._decoder = Decoder(self.model, self.device, banned, self.tokenizer.end_id,
                                read_tokens=config.read_batch_tokens, keeps=config.keep_cache)  # fmt: skip

    # -- adapters ----------------------------------------------------------------------------------------------
    def load_adapter(self, name: str, folder: Path) -> None:
        from rl2f_core.backends._lora import read_lora

        self.adapters[name] = read_lora(Path(folder), self._merger.modules).to(self.device)
        self._merger.forget(name)
        self._decoder.forget_speaker(name)

    def forget(self) -> None:
        self._decoder.forget()

    # -- generation --------------------------------------------------------------------------------------------
    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, adapter: str | None = None) -> list[Generation]:
        keys = {p.key for p in prompts if p.key}
        if self._open is None and keys:  # these are now the dialogues in play
            self._decoder.leave(set(self._decoder.keys) - keys)
        tickets = self.submit(prompts, sampling, adapter)
        try:
            while any(ticket.generation is None for ticket in tickets):
                self.advance()
        finally:
            self._decoder.cancel(tickets)
        return [ticket.generation for ticket in tickets if ticket.generation is not None]

    def _session(self) -> Session:
        return _Session(self)

    def submit(self, prompts: Sequence[Prompt], sampling: Sampling, adapter: str | None) -> list[Any]:
        """Let prompts join what is under way; one ticket each, in order.

        Raises `RunError` where a prompt and its answer do not fit the context, `AdapterError` for an unknown adapter.
        """
        longest = max((len(p.token_ids) for p in prompts), default=0) + sampling.max_new_tokens
        if longest > self.context_limit:
            raise RunError("A prompt and its answer do not fit the model's context.", value=longest,
                           fix=f"Keep dialogues under {self.context_limit} tokens.")  # fmt: skip
        if adapter is not None and adapter not in self.adapters:
            raise AdapterError("No adapter of this name is loaded.", value=adapter, known=sorted(self.adapters))
        return self._decoder.submit(prompts, sampling, adapter)

    def advance(self) -> list[Any]:
        """One step of what is under way; the tickets that got a token."""
        with self._quick.used() if self._quick is not None else contextlib.nullcontext():
            return self._advance()

    def _advance(self) -> list[Any]:
        counts = self._decoder.speakers()
        if self._together(counts):
            from rl2f_core.backends._row_adapters import RowAdapters

            self._rows = self._rows or RowAdapters(self._merger.modules, ahead=self._quick is not None)
            self._merger.activate(None, self.adapters)
            with self._rows.speaking(self.adapters) as reading:
                return self._decoder.step(set(counts), reading)
        speaker = max(counts, key=lambda name: (counts[name], name == self._merger.active))
        self._merger.activate(speaker, self.adapters)
        return self._decoder.step({speaker})

    def _together(self, speaking: Collection[str | None]) -> bool:
        """Whether these speakers share a step, with no weights merged."""
        if not self.merges:
            return True
        how, count = self.config.speakers, len(speaking)
        return (how == "together" and count > 1) or (how == "auto" and count - (None in speaking) > 1)

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


class _Session(Session):
    """Turns that join and leave between tokens."""

    backend: HFBackend

    def submit(self, prompts: Sequence[Prompt], sampling: Sampling, adapter: str | None = None) -> list[Ticket]:
        return self.backend.submit(prompts, sampling, adapter)

    def _under_way(self) -> bool:
        return self.backend._decoder.busy

    def _advance(self) -> None:
        self.backend.advance()

    def leave(self, keys: Iterable[str]) -> None:
        self.backend._decoder.leave(keys)

    def close(self) -> None:
        decoder = self.backend._decoder
        decoder.cancel(decoder.pending)
        decoder.leave(decoder.keys)
        super().close()
