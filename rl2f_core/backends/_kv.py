"""A key/value cache that lives across the turns of a dialogue.

Every row has its own valid slots; the slots between them (left padding of a block, the time a finished row waited for
the others) are masked, and positions count valid slots only.  Buffers are allocated ahead and written in place, since
growing a cache by concatenation copies all of it for every token.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

SPARE = 64
"""Slots that are allocated beyond what a write needs."""


class BufferedLayer(DynamicLayer):
    """One layer's keys and values, [rows, kv heads, slots, head dim], in a buffer larger than what is in use."""

    def __init__(self) -> None:
        super().__init__()
        self.used = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self._k = self._v = None
        self.is_initialized = True

    def _room(self, like: torch.Tensor, needed: int) -> None:
        if self._k is not None and self._k.shape[2] >= needed:
            return
        shape = (like.shape[0], like.shape[1], needed + SPARE, like.shape[3])
        for name in ("_k", "_v"):
            held, fresh = getattr(self, name), torch.empty(shape, dtype=like.dtype, device=like.device)
            if held is not None:
                fresh[:, :, : self.used] = held[:, :, : self.used]
            setattr(self, name, fresh)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.used + key_states.shape[2]
        self._room(key_states, end)
        assert self._k is not None and self._v is not None
        self._k[:, :, self.used : end] = key_states
        self._v[:, :, self.used : end] = value_states
        self.used = end
        self.keys, self.values = self._k[:, :, :end], self._v[:, :, :end]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.used

    def take(self, rows: torch.Tensor) -> None:
        """Keep these rows, in this order; a row may be taken more than once."""
        assert self._k is not None and self._v is not None
        self._k, self._v = self._k.index_select(0, rows), self._v.index_select(0, rows)
        self.keys, self.values = self._k[:, :, : self.used], self._v[:, :, : self.used]


class DialogueCache:
    """The cache of a batch of dialogues, with the tokens that each row holds."""

    def __init__(self, layers: int, device: torch.device) -> None:
        self.layers = [BufferedLayer() for _ in range(layers)]
        self.past = Cache(layers=list(self.layers))
        self.keys: list[str] = []
        self.tokens: list[tuple[int, ...]] = []
        self.adapter: str | None = None
        self.valid_BS = torch.zeros(0, 0, dtype=torch.bool, device=device)
        self.device = device

    def take(self, rows: list[int]) -> None:
        """Keep these rows, in this order."""
        if rows == list(range(len(self.valid_BS))):
            return
        index = torch.tensor(rows, device=self.device)
        for layer in self.layers:
            layer.take(index)
        self.valid_BS = self.valid_BS.index_select(0, index)

    def feed(self, block_BQ: torch.Tensor, valid_BQ: torch.Tensor) -> dict[str, Any]:
        """Model inputs for a block of new tokens: mask [rows, 1, block, slots], positions [rows, block]."""
        before = self.valid_BS.sum(1, keepdim=True)
        positions_BQ = (before + valid_BQ.cumsum(1) - 1).clamp(min=0)
        held, new = self.valid_BS.shape[1], block_BQ.shape[1]
        self.valid_BS = torch.cat([self.valid_BS, valid_BQ], dim=1)
        slots = torch.arange(held + new, device=self.device)
        causal_QS = slots[None, :] <= (held + torch.arange(new, device=self.device))[:, None]
        mask_B1QS = (self.valid_BS[:, None, :] & causal_QS[None]).unsqueeze(1)
        if new > 1:  # a padding query that sees nothing would give NaN; its output is never read
            mask_B1QS = mask_B1QS | (~valid_BQ[:, None, :, None] & causal_QS[None, None])
        return {
            "input_ids": block_BQ,
            "attention_mask": mask_B1QS,
            "position_ids": positions_BQ,
            "past_key_values": self.past,
            "use_cache": True,
        }
