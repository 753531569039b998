"""The transformers backend of the chat: unmerged weights, so that each sequence has its own adapter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from rl2f_core.backends.hf.backend import HFBackend
from rl2f_core.config.model import ModelConfig

if TYPE_CHECKING:
    from rl2f_core.backends.hf.decoder import RunningSequence


class StreamBackend(HFBackend):
    """Transformers backend whose pending prompts can be aborted."""

    merges_adapters: ClassVar[bool] = False

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(HFBackend.Config(multi_lora="batched"), model)

    def cancel(self, sequences: Iterable[RunningSequence]) -> None:
        """Abort prompts; their computed KV cache stays."""
        self._decoder.abort(sequences)
