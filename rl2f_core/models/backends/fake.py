"""Backend without a model for tests and dry runs: it replies with fixed texts or a script.

Of a prompt's choices it takes the one that is the reply, otherwise a random one, or the first if sampling is greedy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from rl2f_core.config.fields import ComponentConfig
from rl2f_core.config.model import ModelConfig
from rl2f_core.models.backends.base import Backend, Generation, GenerationRequest, SamplingParams
from rl2f_core.models.tokenizer import ByteTokenizer
from rl2f_core.registry import register
from rl2f_core.types import FinishReason

Script = Callable[[str, random.Random], str]


@register("backend")
class FakeBackend(Backend):
    """Replies with fixed texts or a script; every logprob is −1, or 0 if sampling is greedy."""

    class Config(ComponentConfig):
        """A backend without a model."""

        type: Literal["fake"] = "fake"
        replies: tuple[str, ...] = ("<answer>1</answer>",)
        """Reply of each turn; the last one repeats."""
        max_model_len: int = 4096
        """Maximum tokens of a prompt and its reply."""

    config: Config

    def __init__(
        self, config: Config | None = None, model: ModelConfig | None = None, script: Script | None = None
    ) -> None:
        super().__init__(config or self.Config(), model or ModelConfig())
        self.tokenizer: ByteTokenizer = ByteTokenizer()
        self.max_model_len = self.config.max_model_len
        self.script = script
        names = {self.tokenizer.start_id: b"<|im_start|>", self.tokenizer.eos_token_id: b"<|im_end|>"}
        self._bytes = {token: bytes([token]) for token in range(256)} | names
        self.seen: list[str] = []
        """All prompts as text, for tests."""

    def generate(
        self, prompts: Sequence[GenerationRequest], sampling: SamplingParams, adapter: str | None = None
    ) -> list[Generation]:
        generations = []
        for prompt in prompts:
            text = self._text(prompt.token_ids)
            self.seen.append(text)
            seed = 0 if sampling.is_greedy else prompt.seed
            if self.script is not None:
                reply = self.script(text, random.Random(seed))
            else:
                turn = text.count("<|im_start|>assistant") - 1
                reply = self.config.replies[min(turn, len(self.config.replies) - 1)]
            tokens = [t for t in self.tokenizer.encode(reply) if t not in self.tokenizer.banned_token_ids]
            tokens = [t for t in tokens if t != self.tokenizer.eos_token_id] + [self.tokenizer.eos_token_id]
            stop = FinishReason.EOS if len(tokens) <= sampling.max_new_tokens else FinishReason.LENGTH
            if prompt.choices:
                named = tuple(tokens[:-1])
                other = min(prompt.choices) if sampling.is_greedy else random.Random(seed).choice(prompt.choices)
                tokens = list(named if named in prompt.choices else other)
                stop = FinishReason.EOS
            tokens = tokens[: sampling.max_new_tokens]
            generations.append(Generation(tuple(tokens), (0.0 if sampling.is_greedy else -1.0,) * len(tokens), stop))
        return generations

    def _text(self, token_ids: Sequence[int]) -> str:
        return b"".join(map(self._bytes.__getitem__, token_ids)).decode("utf-8", "replace")

    def score(self, sequences: Sequence[Sequence[int]], adapter: str | None = None) -> list[list[float]]:
        return [[0.0, *[-1.0] * (len(s) - 1)][: len(s)] for s in sequences]

    def load_adapter(self, name: str, folder: Path) -> None:
        """Do nothing."""

    def reset_prefix_cache(self) -> None:
        """Do nothing."""
