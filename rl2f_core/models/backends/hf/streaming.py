"""The transformers backend of the model server: unmerged weights, so each sequence has its own adapter."""

from __future__ import annotations

from typing import ClassVar

from rl2f_core.config.model import ModelConfig
from rl2f_core.models.backends.hf.backend import HFBackend


class StreamBackend(HFBackend):
    """Transformers backend whose sequences each have their own adapter, also if only one is active."""

    merges_adapters: ClassVar[bool] = False
    stacks_all_adapters: ClassVar[bool] = True

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(HFBackend.Config(multi_lora="batched"), model)
