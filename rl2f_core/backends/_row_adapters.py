"""Several adapters in one pass of a model: to each token is added what its own adapter says.

All adapters of a layer are multiplied at once, A one above the other, and of what came of it each token keeps its own
adapter's.  That is then multiplied by all B: by itself where weights lie as the model has them, and in one product with
the tokens, [x, s] · [W, B]ᵀ, where they are laid out ahead for a CPU, as a product there costs more than its sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rl2f_core.backends._lora import LoraWeights
from rl2f_core.backends._prepacked import lay_out, multiply


@dataclass(frozen=True)
class Stack:
    """What several adapters change in one layer, one above the other, in the layer's own type and on its device."""

    a: Any
    """[R, in]; laid out where `both` is there."""
    b_RO: torch.Tensor | None
    """Scaled …"""
    both: Any
    """… or laid out beside the base's weight, [out, in + R]."""
    owners: tuple[int, ...]
    """Whose each of the R ranks is."""


class RowAdapters:
    """Adds to each token what its own adapter says, so that several speak in one pass and no weights are written.

    Args:
        modules: Linear layers by name, as adapters name them.
        ahead: Weights are laid out ahead, see `Prepacked`, which takes as much memory once more.
    """

    def __init__(self, modules: Mapping[str, torch.nn.Linear], *, ahead: bool = False) -> None:
        self._ahead = ahead
        self._stacked: list[LoraWeights] = []
        """Those who spoke last …"""
        self._stacks: dict[str, Stack | None] = {}
        """… and what they change in each layer that was read."""
        self._speakers: list[tuple[int, int]] | None = None
        """Places in `_stacked`, −1 for the base, and for how many tokens; None outside the block."""
        self._kept: dict[tuple[int, ...], torch.Tensor] = {}
        """By the owners of ranks, which of them each token keeps, [N, R]."""
        for name, module in modules.items():
            layer: Any = module
            layer.forward = partial(self._multiply, name, module, module.forward)

    @contextmanager
    def speaking(
        self, adapters: Mapping[str, LoraWeights]
    ) -> Iterator[Callable[[Sequence[tuple[str | None, int]]], None]]:
        """In the block the model reads tokens of several speakers; it is told which before each pass."""

        def reading(blocks: Sequence[tuple[str | None, int]]) -> None:
            names = sorted({name for name, _ in blocks if name is not None})
            self._stack_up([adapters[name] for name in names])
            held = [*map(id, self._stacked)]
            places = {name: held.index(id(adapters[name])) for name in names}
            self._speakers = [(-1 if name is None else places[name], count) for name, count in blocks]
            self._kept = {}

        try:
            yield reading
        finally:
            self._speakers, self._kept = None, {}

    def _stack_up(self, now: list[LoraWeights]) -> None:
        """Stack these, unless they are among those that are stacked: some may have nothing to say for a while."""
        held = {id(lora) for lora in self._stacked}
        if not all(id(lora) in held for lora in now) or 2 * len(now) < len(held):
            self._stacked, self._stacks = now, {}

    def _stack(self, name: str, weight_OI: torch.Tensor) -> Stack | None:
        if name not in self._stacks:
            held = [(place, lora.pairs[name], lora.scale)
                    for place, lora in enumerate(self._stacked) if name in lora.pairs]  # fmt: skip
            self._stacks[name] = self._made(held, weight_OI) if held else None
        return self._stacks[name]

    def _made(self, held: Sequence[tuple[int, tuple[torch.Tensor, torch.Tensor], float]], weight_OI: Any) -> Stack:
        a_RI = torch.cat([a_RI for _, (a_RI, _), _ in held]).to(weight_OI)
        b_OR = torch.cat([b_OR * scale for _, (_, b_OR), scale in held], 1).to(weight_OI)
        owners = tuple(place for place, (a_RI, _), _ in held for _ in range(len(a_RI)))
        if self._ahead:
            return Stack(lay_out(a_RI), None, lay_out(torch.cat([weight_OI, b_OR], 1)), owners)
        return Stack(a_RI, b_OR.T.contiguous(), None, owners)

    def _keeps(self, owners: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        if owners not in self._kept:
            assert self._speakers
            places, counts = (torch.tensor(column) for column in zip(*self._speakers, strict=True))
            self._kept[owners] = (places.repeat_interleave(counts)[:, None] == torch.tensor(owners)).to(like)
        return self._kept[owners]

    def _multiply(self, name: str, layer: torch.nn.Linear, alone: Callable[[Any], Any], x_1NI: Any) -> torch.Tensor:
        stack = self._stack(name, layer.weight) if self._speakers else None
        if stack is None:
            return alone(x_1NI)
        keeps_NR = self._keeps(stack.owners, x_1NI)
        if stack.b_RO is None:
            said_1NR = multiply(x_1NI, stack.a).mul_(keeps_NR)
            return multiply(torch.cat([x_1NI, said_1NR], 2), stack.both, layer.bias)
        out_1NO = alone(x_1NI)
        out_1NO[0].addmm_((x_1NI[0] @ stack.a.T).mul_(keeps_NR), stack.b_RO)
        return out_1NO
