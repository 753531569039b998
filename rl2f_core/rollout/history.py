"""How the student is asked again after a hint: the dialogue goes on, or every turn is a fresh prompt.

    dialogue   opening(problem) · attempt 0 · suffix(hint 0) · attempt 1 · …       one stream, which only grows
    fresh      opening(problem) · attempt 0
               opening(problem, attempt 0, hint 0) · attempt 1                     one stream a turn

The fresh prompt is x_1 of RLTF (arXiv 2602.02482): one new message of the user with problem, last attempt and hint.
It is no continuation of what was said before, so its tokens are a stream of their own, and a training row of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rl2f_core import prompts
from rl2f_core.config import RolloutConfig
from rl2f_core.environments.base import Environment
from rl2f_core.errors import ConfigError
from rl2f_core.rollout.render import Renderer
from rl2f_core.types import Task, Turn


def template(config: RolloutConfig) -> prompts.Prompt | None:
    """The template of fresh prompts; None where the dialogue goes on. Raises `ConfigError` where it does not fit."""
    if config.history == "dialogue":
        return None
    prompt = prompts.load(config.fresh_prompt)
    held = prompt.render({"problem": "qzproblemqz", "attempt": "qzattemptqz", "hint": "qzhintqz"})
    if len(held) != 1:
        raise ConfigError("The template of a fresh prompt has a system message; that is the environment's own.",
                          value=config.fresh_prompt, fix="Leave out what stands above the line ---.")  # fmt: skip
    missing = [name for name in ("problem", "hint") if f"qz{name}qz" not in held[0]["content"]]
    if missing:
        raise ConfigError(f"The template of a fresh prompt does not show the {' and the '.join(missing)}.",
                          value=config.fresh_prompt, fix="Write {{ problem }} and {{ hint }} into it.")  # fmt: skip
    return prompt


@dataclass(frozen=True)
class History:
    """The prompts of one environment's dialogues."""

    environment: Environment
    renderer: Renderer
    fresh: prompts.Prompt | None = None
    """Template of the prompt after a hint; None lets the dialogue grow."""

    def version(self, turn: int) -> str | None:
        """What `Turn.prompt` says of turn k."""
        return self.fresh.version if self.fresh is not None and turn else None

    def opening(self, task: Task) -> tuple[int, ...]:
        """Tokens of the first prompt, x_0."""
        return self.renderer.opening(self.environment.prompt(task.public))

    def after(self, task: Task, turn: Turn, *, ended: bool) -> tuple[int, ...]:
        """Tokens that the student reads after a turn and its hint: what the dialogue grows by, or a fresh prompt whole.

        Args:
            task: Its public half alone is shown.
            turn: The last one; a missing hint reads as an empty one.
            ended: Whether the student sampled its own end-of-message token.
        """
        hint = turn.hint.text if turn.hint is not None else ""
        if self.fresh is None:
            return self.renderer.suffix(hint, ended=ended)
        values = {"problem": self.environment.prompt(task.public), "attempt": turn.attempt.strip(), "hint": hint}
        return self.renderer.opening(self.fresh.render(values)[-1]["content"])

    def prompt(self, task: Task, turns: Sequence[Turn], spoken: Callable[[Turn], Sequence[int]]) -> tuple[int, ...]:
        """All tokens that the student reads before its next attempt.

        Args:
            task: Its public half alone is shown.
            turns: Those that were played, each with its hint.
            spoken: The tokens of an attempt; asked for only where the dialogue grows.
        """
        if self.fresh is not None and turns:
            return self.after(task, turns[-1], ended=True)
        tokens = list(self.opening(task))
        for turn in turns:
            tokens += spoken(turn)
            tokens += self.after(task, turn, ended=tokens[-1] == self.renderer.tokenizer.end_id)
        return tuple(tokens)
