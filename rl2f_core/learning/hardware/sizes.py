"""Estimated memory of models of several sizes, and settings that fit a machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rl2f_core.learning.learner.memory import TRAINED_BYTES
from rl2f_core.types import JsonObject

LORA_RANK = 16
CONTEXT_TOKENS = 2048
"""Tokens of a dialogue in the estimate of the KV cache."""
CONCURRENT = 16
"""Concurrent dialogues in the estimate of the KV cache."""
USABLE = 0.85
"""Fraction of the memory for weights, optimizer and KV cache; activations and the system need the rest."""
BEST = 0.9
"""Fraction of the best speed at which a smaller batch is suggested."""
GPU_PRESETS = {8: "gpu_8gb", 24: "gpu_24gb", 80: "gpu_80gb", 141: "gpu_141gb"}
"""Preset by GPU memory in GB."""


class ModelSize(NamedTuple):
    """Sizes of a decoder with gated MLPs; those of `SIZES` are of SmolLM2 and Qwen2.5."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    kv: int
    """Width of keys, and of values."""
    vocabulary: int
    tied: bool
    """Whether input and output embeddings are the same weights."""

    @property
    def weights(self) -> int:
        """Number of weights, without norms and biases."""
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        layer = 2 * self.hidden**2 + 2 * self.hidden * self.kv + 3 * self.hidden * self.intermediate
        return self.layers * layer + embeddings

    def adapter_weights(self, rank: int = LORA_RANK) -> int:
        """Return the weights of a LoRA adapter on all linear layers, r·(in + out) per layer."""
        attention = 2 * (self.hidden + self.hidden) + 2 * (self.hidden + self.kv)
        return rank * self.layers * (attention + 3 * (self.hidden + self.intermediate))

    def kv_bytes(self, width: int) -> int:
        """Return the bytes of the KV cache per token."""
        return 2 * self.layers * self.kv * width


SIZES = (
    ModelSize("0.1B", 576, 1536, 30, 192, 49_152, True),
    ModelSize("0.5B", 896, 4864, 24, 128, 151_936, True),
    ModelSize("1.5B", 1536, 8960, 28, 256, 151_936, True),
    ModelSize("3B", 2048, 11_008, 36, 256, 151_936, True),
    ModelSize("7B", 3584, 18_944, 28, 512, 152_064, False),
    ModelSize("14B", 5120, 13_824, 48, 1024, 152_064, False),
    ModelSize("32B", 5120, 27_648, 64, 1024, 152_064, False),
)


def memory_table(total: int, width: int, sizes: Sequence[ModelSize] = SIZES) -> list[JsonObject]:
    """Return the estimated bytes of training each size, and whether they fit into `total` bytes.

    With N weights of the model, P of the adapter and w bytes per weight: an adapter needs 2·w·N + 16·P, all weights
    2·w·N + 16·N, as sampler and learner each hold the base (`learner.memory`). The KV cache is that of 16 dialogues
    of 2,048 tokens. Activations are not included.
    """
    rows: list[JsonObject] = []
    for size in sizes:
        bases = 2 * width * size.weights + CONCURRENT * CONTEXT_TOKENS * size.kv_bytes(width)
        adapter = bases + TRAINED_BYTES * size.adapter_weights()
        full = bases + TRAINED_BYTES * size.weights
        rows.append(
            {
                "size": size.name,
                "weights": size.weights,
                "adapter_bytes": adapter,
                "full_bytes": full,
                "adapter_fits": adapter <= USABLE * total,
                "full_fits": full <= USABLE * total,
            }
        )
    return rows


def preset_for(total: int) -> str | None:
    """Return the preset of the largest GPU that has at most `total` bytes, within a tenth; None if there is none."""
    fitting = [name for gigabytes, name in sorted(GPU_PRESETS.items()) if total >= 0.9 * gigabytes * 1e9]
    return fitting[-1] if fitting else None


def smallest_fast(rows: Sequence[JsonObject], key: str) -> int | None:
    """Return the smallest value of `key` at which the speed is at least `BEST` of the highest; None without rows."""
    best = max((row["tokens_per_second"] for row in rows), default=0.0)
    return min((int(row[key]) for row in rows if row["tokens_per_second"] >= BEST * best), default=None)


def suggestions(report: JsonObject) -> list[JsonObject]:
    """Return settings that follow from a benchmark (`bench.benchmark`): `set` and `why`."""
    found = [{"set": f"model.dtype={report['dtype']}", "why": "the data type of these measurements"}]
    batch = smallest_fast(report["rollout"], "batch")
    if batch is not None:
        why = f"{batch} concurrent sequences reach at least {BEST:.0%} of the highest measured rollout speed"
        found.append({"set": f"rollout.max_concurrent={batch}", "why": why})
    tokens = smallest_fast(report["update"], "micro_batch_tokens")
    if tokens is not None:
        why = f"micro-batches of {tokens} tokens reach at least {BEST:.0%} of the highest measured update speed"
        found.append({"set": f"stages.N.micro_batch_tokens={tokens}", "why": why})
    preset = preset_for(report["memory"]["total"]) if report["device"] == "cuda" else None
    if preset is not None:
        found.append({"set": f"rl2f train {preset}", "why": "preset for a GPU with this memory"})
    return found
