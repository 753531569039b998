"""A scripted student for tests and dry runs: it answers by a script instead of a model. Shipped, not a mock."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from rl2f_core.backends.base import Backend, Generation, Prompt, Sampling
from rl2f_core.config import BaseConfig, ModelConfig
from rl2f_core.registry import register
from rl2f_core.rollout.tokenizer import ByteTokenizer
from rl2f_core.types import TurnStop

Script = Callable[[str, random.Random], str]


@register("backend")
class FakeBackend(Backend):
    """Says what its script says; every token has log-probability −1."""

    class Config(BaseConfig):
        """A scripted backend."""

        type: Literal["fake"] = "fake"
        replies: tuple[str, ...] = ("<answer>1</answer>",)
        """Said in this order, turn by turn; the last one again and again."""
        context_limit: int = 4096
        """Tokens."""

    def __init__(self, config: Any = None, model: ModelConfig | None = None, script: Script | None = None) -> None:
        super().__init__(config or self.Config(), model or ModelConfig())
        self.tokenizer: ByteTokenizer = ByteTokenizer()
        self.context_limit = self.config.context_limit
        self.script = script
        self.seen: list[str] = []
        """Every prompt as text, for tests that ask what the model was given."""

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, adapter: str | None = None) -> list[Generation]:
        generations = []
        for prompt in prompts:
            text = self._text(prompt.token_ids)
            self.seen.append(text)
            if self.script is not None:
                reply = self.script(text, random.Random(prompt.seed))
            else:
                turn = text.count("<|im_start|>assistant") - 1
                reply = self.config.replies[min(turn, len(self.config.replies) - 1)]
            tokens = [t for t in self.tokenizer.encode(reply) if t not in self.tokenizer.banned_ids]
            tokens = [t for t in tokens if t != self.tokenizer.end_id] + [self.tokenizer.end_id]
            stop = TurnStop.EOS if len(tokens) <= sampling.max_new_tokens else TurnStop.LENGTH
            tokens = tokens[: sampling.max_new_tokens]
            generations.append(Generation(tuple(tokens), (-1.0,) * len(tokens), stop))
        return generations

    def _text(self, token_ids: Sequence[int]) -> str:
        names = {self.tokenizer.start_id: "<|im_start|>", self.tokenizer.end_id: "<|im_end|>"}
        data = b"".join(names[t].encode() if t in names else bytes([t]) for t in token_ids)
        return data.decode("utf-8", "replace")

    def score(self, sequences: Sequence[Sequence[int]], adapter: str | None = None) -> list[list[float]]:
        return [[0.0, *[-1.0] * (len(s) - 1)][: len(s)] for s in sequences]

    def load_adapter(self, name: str, folder: Path) -> None:
        """Weights make no difference to a script."""

    def forget(self) -> None:
        """Nothing is kept."""
