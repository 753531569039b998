"""From training rows to micro-batches: rows sorted by length, padded at the right, under a limit of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rl2f_core.backends._torch import right_padded
from rl2f_core.training.losses import Norms, TokenBatch
from rl2f_core.types import WEIGHTINGS, Sample


@dataclass(frozen=True)
class MicroBatch:
    """Rows that are read in one pass; `tokens` describes the positions where `wanted_BT` is true, row by row."""

    samples: tuple[Sample, ...]
    input_BT: torch.Tensor
    valid_BT: torch.Tensor
    wanted_BT: torch.Tensor
    tokens: TokenBatch
    prefixes: tuple[int, ...]
    """Tokens at the start of each row that predict nothing wanted; rows may share them."""
    reference_NH: torch.Tensor | None = None
    """Hidden states of the reference, where whole distributions are compared."""

    @property
    def lengths(self) -> list[int]:
        """Real tokens of each row."""
        return [needed_length(sample) for sample in self.samples]


def micro_batches(samples: Sequence[Sample], limit: int, pad: int, device: torch.device) -> list[MicroBatch]:
    """Rows in passes of at most `limit` tokens, padding included (`passes`), as tensors.

    What stands after a row's last weighted token is cut off: nothing depends on it.
    """
    return [micro_batch(rows, pad, device) for rows in passes(samples, limit)]


def passes(samples: Sequence[Sample], limit: int) -> list[list[Sample]]:
    """Split rows so that rows × longest row ≤ `limit` tokens (one row may exceed it alone).

    Rows without weight drop out; the others keep the order of `by_opening`.
    """
    rows = by_opening(samples)
    found = []
    while rows:
        count, longest = 1, needed_length(rows[0])
        while count < len(rows) and (count + 1) * max(longest, needed_length(rows[count])) <= limit:
            longest = max(longest, needed_length(rows[count]))
            count += 1
        found.append(rows[:count])
        rows = rows[count:]
    return found


def by_opening(samples: Sequence[Sample]) -> list[Sample]:
    """The rows with weight, those of one opening together, so that it can be read once.

    The opening with the longest row comes first, and of its rows the longest.
    """
    openings: dict[tuple[int, ...], int] = {}
    for sample in samples:
        if sample.weighted:
            opening = tuple(sample.token_ids[: free_length(sample)])
            openings[opening] = max(openings.get(opening, 0), needed_length(sample))

    def order(sample: Sample) -> tuple[int, tuple[int, ...], int]:
        opening = tuple(sample.token_ids[: free_length(sample)])
        return openings[opening], opening, needed_length(sample)

    return sorted((s for s in samples if s.weighted), key=order, reverse=True)


def free_length(sample: Sample) -> int:
    """Tokens before the one that predicts the first weighted token."""
    weighted = (bool(a or b or c) for a, b, c in zip(sample.rl, sample.ce, sample.kl, strict=True))
    return max(0, next((i for i, held in enumerate(weighted) if held), 1) - 1)


def weighted_positions(sample: Sample) -> list[int]:
    """Positions of the tokens that carry any weight: those that `MicroBatch.wanted_BT` marks."""
    return [p for p, held in enumerate(zip(sample.rl, sample.ce, sample.kl, strict=True)) if any(held)]


def minibatches(samples: Sequence[Sample], count: int) -> list[list[Sample]]:
    """Rows in up to `count` parts, dialogue by dialogue in turn: all terms of one dialogue share one update.

    A row without a dialogue counts as one of its own.
    """
    places: dict[object, int] = {}
    parts: list[list[Sample]] = [[] for _ in range(count)]
    for number, sample in enumerate(samples):
        place = places.setdefault(sample.dialogue or number, len(places))
        parts[place % count].append(sample)
    return [part for part in parts if part]


def needed_length(sample: Sample) -> int:
    """Tokens up to and with the last weighted one."""
    weighted = [bool(a or b or c) for a, b, c in zip(sample.rl, sample.ce, sample.kl, strict=True)]
    return len(weighted) - weighted[::-1].index(True) if any(weighted) else 0


def micro_batch(rows: Sequence[Sample], pad: int, device: torch.device) -> MicroBatch:
    """One pass over rows, each with weight."""
    cut = [needed_length(row) for row in rows]
    input_BT, valid_BT = right_padded([r.token_ids[:n] for r, n in zip(rows, cut, strict=True)], pad, device)
    wanted_BT = torch.zeros_like(valid_BT)
    names = ("logprobs", "advantages", "rl", "ce", "kl", "ref_logprobs", "values", "returns")
    columns: dict[str, list[float]] = {name: [] for name in names}
    weightings: list[int] = []
    foreign: list[bool] = []
    for i, row in enumerate(rows):
        positions = weighted_positions(row)
        wanted_BT[i, positions] = True
        weightings += [WEIGHTINGS.index(row.weighting)] * len(positions)
        foreign += [row.foreign] * len(positions)
        for name, values in columns.items():
            held = getattr(row, name)
            values += [held[p] for p in positions] if held is not None else [math.nan] * len(positions)
    tensors = {name: torch.tensor(values, dtype=torch.float32, device=device) for name, values in columns.items()}
    tokens = TokenBatch(
        behaviour_N=tensors["logprobs"],
        advantages_N=tensors["advantages"],
        rl_N=tensors["rl"],
        ce_N=tensors["ce"],
        kl_N=tensors["kl"],
        reference_N=tensors["ref_logprobs"] if any(row.ref_logprobs is not None for row in rows) else None,
        weighting_N=torch.tensor(weightings, dtype=torch.long, device=device) if any(weightings) else None,
        foreign_N=torch.tensor(foreign, dtype=torch.bool, device=device) if any(foreign) else None,
        values_N=tensors["values"] if any(row.values is not None for row in rows) else None,
        returns_N=tensors["returns"] if any(row.returns is not None for row in rows) else None,
    )
    prefixes = tuple(free_length(row) for row in rows)
    return MicroBatch(tuple(rows), input_BT, valid_BT, wanted_BT, tokens, prefixes)


def norms_of(samples: Sequence[Sample]) -> Norms:
    """Sum of every stream's weights."""
    return Norms(*(float(sum(sum(getattr(s, name)) for s in samples)) for name in ("rl", "ce", "kl")))
