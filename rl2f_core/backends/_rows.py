"""Keys and values of many dialogues, each row with a length of its own, and what every row holds.

Slot i of a row is the i-th token of its dialogue, so a position is a slot and nothing lies between two tokens.  What a
row held before stays in it until it is overwritten: another prompt that begins alike goes on from there, or takes a
copy.  Buffers are allocated ahead and written in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

SPARE = 64
"""Slots that are allocated beyond what is needed."""


class KVRows:
    """Buffers [rows, kv heads, slots, head dim], two a layer, and the tokens that they stand for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.tokens = np.full((0, 0), -1, dtype=np.int64)
        """Tokens of every row; of those beyond `read` keys and values are still to come."""
        self.known = np.zeros(0, dtype=np.int64)
        """Tokens in every row of `tokens`."""
        self.read = np.zeros(0, dtype=np.int64)
        """Tokens in every row whose keys and values are there."""
        self.speaker = np.zeros(0, dtype=np.int64)
        """Number of the weights that read them."""

    @property
    def rows(self) -> int:
        """Rows there are."""
        return len(self.known)

    @property
    def slots(self) -> int:
        """Tokens that every row has room for."""
        return int(self.tokens.shape[1])

    def room(self, rows: int, slots: int) -> None:
        """Grow until there are so many rows and slots."""
        if rows <= self.rows and slots <= self.slots:
            return
        rows = self.rows if rows <= self.rows else max(rows, self.rows * 5 // 4)
        slots = self.slots if slots <= self.slots else max(slots + SPARE, self.slots * 5 // 4)
        for layer, pair in self._buffers.items():  # first, since this may run out of memory
            grown = [_grown(held, rows, slots) for held in pair]
            self._buffers[layer] = (grown[0], grown[1])
        tokens = np.full((rows, slots), -1, dtype=np.int64)
        tokens[: self.rows, : self.slots] = self.tokens
        more = rows - self.rows
        self.tokens = tokens
        self.known, self.read, self.speaker = (
            np.concatenate([held, np.full(more, fill)])
            for held, fill in ((self.known, 0), (self.read, 0), (self.speaker, -1))
        )

    def write(
        self, layer: int, key_NHD: torch.Tensor, value_NHD: torch.Tensor, row_N: torch.Tensor, slot_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put new keys and values into their slots; the layer's buffers."""
        if layer not in self._buffers:  # zeros: what is masked is multiplied by 0, which must not give NaN
            shapes = [(self.rows, x.shape[1], self.slots, x.shape[2]) for x in (key_NHD, value_NHD)]
            self._buffers[layer] = (key_NHD.new_zeros(shapes[0]), value_NHD.new_zeros(shapes[1]))
        key, value = self._buffers[layer]
        key[row_N, :, slot_N] = key_NHD
        value[row_N, :, slot_N] = value_NHD
        return key, value

    def common(self, tokens: Sequence[int], speaker: int) -> np.ndarray:
        """How many tokens of a prompt every row begins with, [rows]; 0 where other weights read it."""
        width = min(len(tokens), self.slots)
        differs = self.tokens[:, :width] != np.asarray(tokens[:width], dtype=np.int64)
        first = np.where(differs.any(1), differs.argmax(1), width) if width else np.zeros(self.rows, dtype=np.int64)
        return np.where(self.speaker == speaker, np.minimum(first, self.known), 0)

    def begin(self, row: int, tokens: Sequence[int], speaker: int, source: int, shared: int) -> None:
        """Give a row to a prompt whose first `shared` tokens are those that the row `source` has read."""
        if source != row and shared:
            for pair in self._buffers.values():
                for buffer in pair:
                    buffer[row, :, :shared] = buffer[source, :, :shared]
        self.tokens[row] = -1
        self.tokens[row, : len(tokens)] = tokens
        self.known[row], self.read[row], self.speaker[row] = len(tokens), shared, speaker

    def append(self, row: int, token: int) -> None:
        """A token that comes next in a row and is to be read."""
        self.tokens[row, self.known[row]] = token
        self.known[row] += 1

    def cut(self, row: int, length: int) -> None:
        """Keep the first tokens of a row alone."""
        self.tokens[row, length:] = -1
        self.known[row], self.read[row] = min(self.known[row], length), min(self.read[row], length)

    def swap(self, a: int, b: int) -> None:
        """Let two rows change places."""
        width = int(max(self.known[a], self.known[b]))
        for pair in self._buffers.values():
            for buffer in pair:
                held = buffer[a, :, :width].clone()
                buffer[a, :, :width] = buffer[b, :, :width]
                buffer[b, :, :width] = held
        for array in (self.tokens, self.known, self.read, self.speaker):
            array[[a, b]] = array[[b, a]]


def _grown(held: torch.Tensor, rows: int, slots: int) -> torch.Tensor:
    """A buffer with at least so many rows and slots."""
    shape = max(rows, held.shape[0]), held.shape[1], max(slots, held.shape[2]), held.shape[3]
    fresh = held.new_zeros(shape)
    fresh[: held.shape[0], :, : held.shape[2]] = held
    return fresh
