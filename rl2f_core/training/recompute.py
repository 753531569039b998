"""Activations by need: kept for the backward pass where they fit, else computed again in it, layer by layer.

What a pass keeps is measured on the passes themselves (the tensors that autograd saves, weights left out), so it is
known for any model and attention; before the first one it is reckoned from the model's sizes.  Computing again costs a
third more arithmetic (Chen et al. 2016, arXiv 1604.06174) and keeps one hidden state a layer and token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch

from rl2f_core.training.compiled import blocks
from rl2f_core.training.policy import PolicyModel

SHARE = 0.6
"""Of the free memory, for what one pass keeps."""
Choice = Literal["auto", "always", "never"]


class Activations:
    """What a model's passes keep.

    Args:
        reader: The model as it is trained.
        device: Where it is.
        shared_out: Its weights are in parts with several processes (FSDP), which then would have to decide alike and
            whose parts cannot be told from activations: nothing is measured or computed again.
    """

    def __init__(self, reader: PolicyModel, device: torch.device, *, shared_out: bool = False) -> None:
        self.reader, self.device, self.shared_out = reader, device, shared_out
        self.per_token = reckoned(reader.model)
        """Bytes that a token of a pass keeps: reckoned, then the most that was measured."""
        self.recomputed: list[bool] = []
        """Of each pass since it was last asked."""
        self._measured = 0.0

    def fits(self, tokens: int) -> bool:
        """Whether a pass over so many tokens, padding included, may keep its activations."""
        return self.per_token * tokens <= SHARE * free_bytes(self.device)

    @contextmanager
    def kept(self, tokens: int, choice: Choice) -> Iterator[None]:
        """The forward pass of so many tokens; what it keeps is measured, or computed again."""
        if self.shared_out:
            yield
            return
        again = choice == "always" or (choice == "auto" and not self.fits(tokens))
        self.recomputed.append(again)
        if again:
            with _recomputing(self.reader):
                yield
            return
        with Saved(self.reader) as saved:
            yield
        found = saved.bytes / max(1, tokens)
        self._measured = max(self._measured, found)
        self.per_token = self._measured

    def read(self) -> float:
        """The share of passes since the last call that were computed again."""
        passes, self.recomputed = self.recomputed, []
        return sum(passes) / max(1, len(passes))


class Saved:
    """In the block the bytes are counted that autograd keeps for the backward pass, each storage once."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.bytes = 0
        self._known = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._count, lambda tensor: tensor)

    def __enter__(self) -> Saved:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _count(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._known.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor


@contextmanager
def _recomputing(reader: PolicyModel) -> Iterator[None]:
    """In the block every layer keeps its input alone."""
    from torch.utils.checkpoint import checkpoint

    layers = blocks(reader)
    before = [layer.training for layer in layers]
    for layer in layers:
        held: Any = layer
        held.training = held.gradient_checkpointing = True  # the layer alone: nothing in it that drops out is woken
        held._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
    try:
        yield
    finally:
        for layer, training in zip(layers, before, strict=True):
            held = layer
            held.training, held.gradient_checkpointing = training, False


def reckoned(model: Any) -> float:
    """Bytes that a token keeps in a model of the Llama kind with adapters on all its layers, scores left out.

    A layer keeps its two normed inputs and their sources, queries, keys, values and what attention gives (8 hidden
    states), and of its feed-forward part four intermediate ones.
    """
    config = model.config
    hidden = int(getattr(config, "hidden_size", 0) or 0)
    inner = int(getattr(config, "intermediate_size", 0) or 4 * hidden)
    layers = int(getattr(config, "num_hidden_layers", 0) or 0)
    width = next(model.parameters()).element_size()
    return float(layers * (8 * hidden + 4 * inner) * width)


def free_bytes(device: torch.device) -> int:
    """Memory that a pass may take: of the GPU, or of this machine."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    import psutil

    return int(psutil.virtual_memory().available)
