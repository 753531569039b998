"""The transformers backend of the chat: unmerged weights, so that each sequence has its own adapter."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, ClassVar

from rl2f_core.backends.hf.backend import HFBackend
from rl2f_core.config.model import ModelConfig

if TYPE_CHECKING:
    from rl2f_core.backends.hf.decoder import RunningSequence


class StreamBackend(HFBackend):
    """Transformers backend with control over adapters, KV cache and pending prompts."""

    merges_adapters: ClassVar[bool] = False

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(HFBackend.Config(multi_lora="batched"), model)

    def drop_adapter(self, name: str) -> None:
        """Unload an adapter."""
        self.adapters.pop(name, None)
        self._merger.forget(name)
        self._decoder.invalidate_adapter(name)

    def keep_cached(self, keys: Collection[str]) -> None:
        """Release the KV cache of all conversations except `keys`."""
        self._decoder.release_cache(set(self._decoder.keys) - set(keys))

    def cancel(self, sequences: Iterable[RunningSequence]) -> None:
        """Abort prompts; their computed KV cache stays."""
        self._decoder.abort(sequences)
