"""Automatic gradient checkpointing when activations do not fit into memory.

The bytes that autograd saves, weights excluded, are measured on the forward passes that are larger than those before:
a slope per token, and the logits, which are bounded (`logprobs.in_chunks`). Before the first pass the slope is
estimated from the model's sizes. Recomputing activations layer by layer costs a third more
arithmetic (Chen et al. 2016, arXiv 1604.06174) and stores one hidden state per layer and token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch

from rl2f_core.learning.learner.memory import total_memory
from rl2f_core.learning.learner.policy_model import PolicyModel
from rl2f_core.learning.learner.torch_compile import decoder_layers
from rl2f_core.models.modeling.attention import CausalLM

MEMORY_FRACTION = 0.6
"""Fraction of the free memory for the activations of one forward pass."""
CPU_MICRO_BATCH_TOKENS = 1024
"""Tokens of a micro-batch on a CPU whose size is not configured: larger ones only take more memory."""
MICRO_BATCH_TOKENS = 4096, 65_536
"""Fewest and most tokens of such a micro-batch on a GPU."""
MICRO_BATCH_MEMORY = 0.25
"""Fraction of a GPU's memory for the activations of such a micro-batch."""
Choice = Literal["auto", "always", "never"]


class ActivationMemory:
    """Measures the activation memory of forward passes, and decides when to recompute activations.

    With `sharded` FSDP shards the weights. Shards cannot be distinguished from activations, so nothing is measured or
    recomputed.
    """

    def __init__(self, policy_model: PolicyModel, device: torch.device, *, sharded: bool = False) -> None:
        self.policy_model, self.device, self.sharded = policy_model, device, sharded
        self.per_token = estimate_bytes_per_token(policy_model.model)
        """Activation bytes per token without logits: an estimate, then the measured maximum."""
        self.logits = 0
        """Maximum bytes of logits that a forward pass saved."""
        self.recomputed: list[bool] = []
        """Whether each forward pass since the last `read` recomputes activations."""
        self._vocabulary = policy_model.model.get_base_model().get_output_embeddings().weight.shape[0]
        self._measured = 0.0
        self._largest = (0, 0)

    def fits(self, tokens: int) -> bool:
        """Return whether the activations of so many tokens, padding included, fit into memory."""
        return self.per_token * tokens + self.logits <= MEMORY_FRACTION * free_bytes(self.device)

    @contextmanager
    def forward_context(self, tokens: int, choice: Choice, width: int = 0) -> Iterator[None]:
        """Context of a forward pass over so many tokens in rows of `width`: measures or recomputes its activations.

        A pass that is in no respect larger than the measured ones is not measured, because hooks take time.
        """
        if self.sharded:
            yield
            return
        recompute = choice == "always" or (choice == "auto" and not self.fits(tokens))
        self.recomputed.append(recompute)
        if recompute:
            with _recomputing(self.policy_model):
                yield
            return
        largest = max(tokens, self._largest[0]), max(width, self._largest[1])
        if largest == self._largest:
            yield
            return
        with SavedTensorMeter(self.policy_model, self._vocabulary) as saved:
            yield
        self._largest, self.logits = largest, max(self.logits, saved.logits)
        self.per_token = self._measured = max(self._measured, (saved.bytes - saved.logits) / max(1, tokens))

    def read(self) -> float:
        """Return the fraction of forward passes since the last call that recompute activations."""
        passes, self.recomputed = self.recomputed, []
        return sum(passes) / max(1, len(passes))


class SavedTensorMeter:
    """Context that counts the bytes that autograd saves for the backward pass, each storage once.

    `logits` counts those of tensors with a last dimension of `vocabulary`.
    """

    def __init__(self, module: torch.nn.Module, vocabulary: int = 0) -> None:
        self.bytes = self.logits = 0
        self.vocabulary = vocabulary
        self._known = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._count, lambda tensor: tensor)

    def __enter__(self) -> SavedTensorMeter:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _count(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._known.add(storage.data_ptr())
            self.bytes += storage.nbytes()
            self.logits += storage.nbytes() if tensor.ndim and tensor.shape[-1] == self.vocabulary else 0
        return tensor


@contextmanager
def _recomputing(policy_model: PolicyModel) -> Iterator[None]:
    """Context in which every layer stores only its input."""
    from torch.utils.checkpoint import checkpoint

    layers = decoder_layers(policy_model)
    before = [layer.training for layer in layers]
    for layer in layers:
        layer.training = layer.gradient_checkpointing = True  # only the layer: its dropout modules stay in eval mode
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
    try:
        yield
    finally:
        for layer, training in zip(layers, before, strict=True):
            layer.training, layer.gradient_checkpointing = training, False


def estimate_bytes_per_token(model: CausalLM) -> float:
    """Estimate activation bytes per token of a Llama-like model with adapters on all layers, without attention scores.

    A layer saves two normed inputs and their sources, queries, keys, values and attention output (8 hidden states), and
    four intermediate states of its feed-forward part.
    """
    config = model.config
    hidden = int(getattr(config, "hidden_size", 0) or 0)
    inner = int(getattr(config, "intermediate_size", 0) or 4 * hidden)
    layers = int(getattr(config, "num_hidden_layers", 0) or 0)
    width = next(model.parameters()).element_size()
    return float(layers * (8 * hidden + 4 * inner) * width)


def default_micro_batch_tokens(model: CausalLM, device: torch.device) -> int:
    """Return the tokens of a micro-batch whose size is not configured, a power of two.

    A GPU waits for the host if micro-batches are small: an update of SmolLM2-135M on an H100 takes less than a quarter
    of the time with 32,768 tokens instead of 4,096. On a CPU 4,096 tokens take 9 GB and more time than 1,024, which
    take 4 GB. The size depends only on the model and the device, so a resumed run computes the same.
    """
    if device.type != "cuda":
        return CPU_MICRO_BATCH_TOKENS
    low, high = MICRO_BATCH_TOKENS
    fitting = MICRO_BATCH_MEMORY * total_memory(device) / max(1.0, estimate_bytes_per_token(model))
    return max(low, min(high, 2 ** int(math.log2(max(1.0, fitting)))))


def free_bytes(device: torch.device) -> int:
    """Return the free memory of the GPU, or of this machine."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    import psutil

    return int(psutil.virtual_memory().available)
