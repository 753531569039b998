"""Token by token, each row of a batch with an adapter of its own: several speakers answer side by side.

The base model stays as it is, so that changing speakers costs nothing.  Chance comes from each prompt's own seed, as in
training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from rl2f_core.backends.base import Prompt, Sampling
from rl2f_core.backends.hf import HFBackend
from rl2f_core.config import ModelConfig


class Drawn(NamedTuple):
    """One sampled token of one row."""

    row: int
    token: int
    logprob: float
    """In nats, at the sampling temperature, over the allowed tokens."""


class StreamBackend(HFBackend):
    """The transformers backend with `stream`."""

    merges: ClassVar[bool] = False

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(HFBackend.Config(speakers="together"), model)

    def drop_adapter(self, name: str) -> None:
        """Forget an adapter."""
        self.adapters.pop(name, None)
        self._merger.forget(name)
        self._decoder.forget_speaker(name)

    def stream(
        self, prompts: Sequence[Prompt], sampling: Sampling, adapters: Sequence[str | None]
    ) -> Iterator[list[Drawn]]:
        """Sample one turn for every prompt; yields the tokens of each step for the rows that have not ended.

        A row ends with its end-of-message token or after `sampling.max_new_tokens`. Closing the iterator stops.

        Raises `RunError` where a prompt and its answer do not fit the context, `AdapterError` for an unknown adapter.
        """
        keys = {p.key for p in prompts if p.key}
        self._decoder.leave(set(self._decoder.keys) - keys)
        rows: dict[Any, int] = {}
        try:
            for row, (prompt, adapter) in enumerate(zip(prompts, adapters, strict=True)):
                rows[self.submit([prompt], sampling, adapter)[0]] = row
            while any(ticket.generation is None for ticket in rows):
                drawn = [Drawn(rows[t], t.token_ids[-1], t.logprobs[-1]) for t in self.advance() if t in rows]
                if drawn:
                    yield sorted(drawn)
        finally:
            self._decoder.cancel(rows)
