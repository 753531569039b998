"""KV cache with variable-length slots, and the tokens in each slot.

Position i of a slot is token i of its sequence. A slot keeps its content until it is overwritten, so another prompt
with the same prefix can continue or copy it. Buffers are allocated ahead and written in place. One position beyond the
capacity takes the writes of rows without a token, which steps over static shapes have.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

SPARE_TOKENS = 64
"""Capacity beyond the required number of tokens."""
MIN_GROWN_SLOTS = 8
"""Number of slots up to which growth doubles it."""
POSITIONS_MULTIPLE = 64
"""Positions of a slot are a multiple of this, which attention masks of fused kernels need."""


class KVCache:
    """Two buffers [slots, kv heads, capacity + 1, head dim] per layer, and the token ids.

    With `token_major`, they are views of [slots, capacity + 1, kv heads, head dim], as variable-length kernels need.
    """

    def __init__(self, device: torch.device, *, token_major: bool = False) -> None:
        self.device, self.token_major = device, token_major
        self._buffers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.tokens = np.full((0, 0), -1, dtype=np.int64)
        """Tokens of each slot; those from `num_computed` on have no keys and values yet."""
        self.num_tokens = np.zeros(0, dtype=np.int64)
        """Number of tokens in each slot."""
        self.num_computed = np.zeros(0, dtype=np.int64)
        """Number of tokens in each slot with keys and values."""
        self.adapter_ids = np.zeros(0, dtype=np.int64)
        """Adapter version that computed each slot."""

    @property
    def num_slots(self) -> int:
        """Number of slots."""
        return len(self.num_tokens)

    @property
    def capacity(self) -> int:
        """Maximum number of tokens of a slot."""
        return int(self.tokens.shape[1])

    @property
    def num_bytes(self) -> int:
        """Size of all buffers."""
        return sum(buffer.nbytes for pair in self._buffers.values() for buffer in pair)

    def clear(self) -> None:
        """Forget the tokens of all slots, but keep the buffers."""
        self.tokens.fill(-1)
        self.adapter_ids.fill(-1)
        self.num_tokens.fill(0)
        self.num_computed.fill(0)

    def reserve(self, slots: int, tokens: int) -> None:
        """Grow to at least this number of slots and capacity in tokens."""
        if slots <= self.num_slots and tokens <= self.capacity:
            return
        if slots > self.num_slots:
            slots = max(slots, self.num_slots * 5 // 4, min(2 * self.num_slots, MIN_GROWN_SLOTS))
        slots = max(slots, self.num_slots)
        capacity = self.capacity
        if tokens > capacity:
            positions = max(tokens + SPARE_TOKENS, capacity * 5 // 4) + 1
            capacity = positions + -positions % POSITIONS_MULTIPLE - 1
        for layer, (key, value) in self._buffers.items():  # first, because this may run out of memory
            self._buffers[layer] = (self._grow(key, slots, capacity), self._grow(value, slots, capacity))
        num_new = slots - self.num_slots
        self.tokens = np.pad(self.tokens, ((0, num_new), (0, capacity - self.capacity)), constant_values=-1)
        self.num_tokens = np.pad(self.num_tokens, (0, num_new))
        self.num_computed = np.pad(self.num_computed, (0, num_new))
        self.adapter_ids = np.pad(self.adapter_ids, (0, num_new), constant_values=-1)

    def update(
        self, layer: int, key_NHD: torch.Tensor, value_NHD: torch.Tensor, slot_N: torch.Tensor, position_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new keys and values; return the layer's buffers."""
        if layer not in self._buffers:  # zeros: masked entries are multiplied by 0, which must not give NaN
            key, value = (self._allocate(x, self.num_slots, x.shape[1], self.capacity) for x in (key_NHD, value_NHD))
            self._buffers[layer] = key, value
        key, value = self._buffers[layer]
        key[slot_N, :, position_N] = key_NHD
        value[slot_N, :, position_N] = value_NHD
        return key, value

    def common_prefix_lengths(self, tokens: Sequence[int], adapter_id: int) -> np.ndarray:
        """Return the prefix length that each slot of this adapter shares with `tokens`."""
        width = min(len(tokens), self.capacity)
        differs = self.tokens[:, :width] != np.asarray(tokens[:width], dtype=np.int64)
        first = (
            np.where(differs.any(1), differs.argmax(1), width) if width else np.zeros(self.num_slots, dtype=np.int64)
        )
        return np.where(self.adapter_ids == adapter_id, np.minimum(first, self.num_tokens), 0)

    def start_sequence(self, slot: int, tokens: Sequence[int], adapter_id: int, source: int, shared: int) -> None:
        """Assign a slot to a prompt; copy `shared` positions from the slot `source`."""
        if source != slot and shared:
            for pair in self._buffers.values():
                for buffer in pair:
                    buffer[slot, :, :shared] = buffer[source, :, :shared]
        self.tokens[slot] = -1
        self.tokens[slot, : len(tokens)] = tokens
        self.num_tokens[slot], self.num_computed[slot], self.adapter_ids[slot] = len(tokens), shared, adapter_id

    def append(self, slot: int, token: int) -> None:
        """Append a token without keys and values."""
        self.tokens[slot, self.num_tokens[slot]] = token
        self.num_tokens[slot] += 1

    def truncate(self, slot: int, length: int) -> None:
        """Keep only the first `length` tokens of a slot."""
        self.tokens[slot, length:] = -1
        self.num_tokens[slot] = min(self.num_tokens[slot], length)
        self.num_computed[slot] = min(self.num_computed[slot], length)

    def swap(self, a: int, b: int) -> None:
        """Swap two slots."""
        width = int(max(self.num_tokens[a], self.num_tokens[b]))
        for pair in self._buffers.values():
            for buffer in pair:
                copy = buffer[a, :, :width].clone()
                buffer[a, :, :width] = buffer[b, :, :width]
                buffer[b, :, :width] = copy
        for array in (self.tokens, self.num_tokens, self.num_computed, self.adapter_ids):
            array[[a, b]] = array[[b, a]]

    def _allocate(self, like: torch.Tensor, slots: int, heads: int, capacity: int) -> torch.Tensor:
        """Return zeros [slots, heads, capacity + 1, head dim]."""
        if self.token_major:
            return like.new_zeros(slots, capacity + 1, heads, like.shape[-1]).transpose(1, 2)
        return like.new_zeros(slots, heads, capacity + 1, like.shape[-1])

    def _grow(self, buffer: torch.Tensor, slots: int, capacity: int) -> torch.Tensor:
        """Copy a buffer to one with at least this size."""
        old_slots, heads, positions, _ = buffer.shape
        grown = self._allocate(buffer, max(slots, old_slots), heads, max(capacity, positions - 1))
        grown[:old_slots, :, :positions] = buffer
        return grown
