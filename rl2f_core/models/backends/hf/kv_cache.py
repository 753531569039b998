"""KV cache with variable-length slots, and the tokens in each slot.

Position i of a slot is token i of its sequence. A slot keeps its content until it is overwritten, so another prompt
with the same prefix can continue or copy it. Buffers are allocated ahead and written in place. One position beyond the
capacity takes the writes of rows without a token, which steps over static shapes have.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rl2f_core.models.device import to_device

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
        self._copied = (-1, 0)
        """Source and number of positions of the copies that `finish_copies` makes."""
        self._copies: list[int] = []
        """Their targets."""

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
        """Assign a slot to a prompt; `finish_copies` copies `shared` positions from the slot `source`."""
        is_copied = source != slot and shared > 0
        if is_copied:
            if self._copied != (source, shared):
                self.finish_copies()
                self._copied = source, shared
            self._copies.append(slot)
        self.tokens[slot] = -1
        self.tokens[slot, : len(tokens)] = tokens
        self.num_tokens[slot], self.adapter_ids[slot] = len(tokens), adapter_id
        self.num_computed[slot] = 0 if is_copied else shared

    def finish_copies(self) -> None:
        """Copy the shared positions of the sequences that were started, together for each source."""
        if not self._copies:
            return
        (source, shared), slots = self._copied, np.array(sorted(self._copies))
        self._copied, self._copies = (-1, 0), []
        low, high = int(slots[0]), int(slots[-1]) + 1
        index = slice(low, high) if high - low == len(slots) else to_device([slots], self.device)[0]
        for pair in self._buffers.values():
            for buffer in pair:
                buffer[index, :, :shared] = buffer[source, :, :shared]
        self.num_computed[slots] = shared

    def append(self, slot: int, token: int) -> None:
        """Append a token without keys and values."""
        self.tokens[slot, self.num_tokens[slot]] = token
        self.num_tokens[slot] += 1

    def truncate(self, slot: int, length: int) -> None:
        """Keep only the first `length` tokens of a slot."""
        self.tokens[slot, length:] = -1
        self.num_tokens[slot] = min(self.num_tokens[slot], length)
        self.num_computed[slot] = min(self.num_computed[slot], length)

    def swap(self, a: Sequence[int], b: Sequence[int]) -> None:
        """Swap pairs of slots; no slot occurs twice."""
        targets, sources = np.array([*a, *b]), np.array([*b, *a])
        width = int(self.num_tokens[targets].max(initial=0))
        target, source = to_device([targets, sources], self.device)
        for pair in self._buffers.values():
            for buffer in pair:
                buffer[target, :, :width] = buffer[source, :, :width]
        for array in (self.tokens, self.num_tokens, self.num_computed, self.adapter_ids):
            array[targets] = array[sources]

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
