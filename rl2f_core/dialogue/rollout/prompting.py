"""Prompts of the student: the conversation continues, or each turn has a new prompt (see also `enumeration`).

    append     initial prompt · attempt 0 · hint suffix 0 · attempt 1 · …     one token sequence
    reprompt   initial prompt · attempt 0
               reprompt(problem, attempt 0, hint 0) · attempt 1               one token sequence per turn

The reprompt is x_1 of RLTF (arXiv 2602.02482): one user message with problem, last attempt and hint. It does not
continue the earlier tokens, so it starts its own token sequence and training sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rl2f_core.common import prompt_templates
from rl2f_core.config.rollout import RolloutConfig
from rl2f_core.environments.base import Environment
from rl2f_core.errors import ConfigError
from rl2f_core.models.renderer import ChatRenderer
from rl2f_core.types import Task, Turn


def load_reprompt_template(config: RolloutConfig) -> prompt_templates.PromptTemplate | None:
    """Load the reprompt template; None without `prompting: reprompt`. Raises `ConfigError` if it is invalid."""
    if config.prompting != "reprompt":
        return None
    prompt = prompt_templates.load(config.reprompt_template)
    messages = prompt.render({"problem": "qzproblemqz", "attempt": "qzattemptqz", "hint": "qzhintqz"})
    if len(messages) != 1:
        raise ConfigError(
            "A reprompt template must have no system message; the environment provides it.",
            value=config.reprompt_template,
            fix="Remove the text above the line ---.",
        )
    missing = [name for name in ("problem", "hint") if f"qz{name}qz" not in messages[0]["content"]]
    if missing:
        raise ConfigError(
            f"The reprompt template does not show the {' and the '.join(missing)}.",
            value=config.reprompt_template,
            fix="Add {{ problem }} and {{ hint }}.",
        )
    return prompt


def reprompt_text(template: prompt_templates.PromptTemplate, problem: str, turn: Turn) -> str:
    """Return the user message of the prompt after a turn, with `prompting: reprompt`."""
    values = {"problem": problem, "attempt": turn.attempt.strip(), "hint": turn.reply}
    return template.render(values)[-1]["content"]


@dataclass(frozen=True)
class PromptBuilder:
    """Prompts of one environment's dialogues."""

    environment: Environment
    renderer: ChatRenderer
    reprompt: prompt_templates.PromptTemplate | None = None
    """Template of the prompt after a hint; None continues the conversation."""
    enumerates: bool = False
    """Whether each prompt lists the labeled valid actions of the state; the other methods then do not apply."""

    def version(self, turn: int) -> str | None:
        """Return `Turn.prompt_template` of turn k."""
        return self.reprompt.version if self.reprompt is not None and turn else None

    def initial_prompt(self, task: Task) -> tuple[int, ...]:
        """Return the tokens of the first prompt, x_0."""
        return self.renderer.initial_prompt(self.environment.prompt(task.public))

    def continuation(self, task: Task, turn: Turn, *, ended: bool) -> tuple[int, ...]:
        """Return the tokens after a turn: the hint suffix, or the whole reprompt.

        An observation precedes the hint. A missing hint counts as an empty one. `ended`: whether the student sampled
        the end-of-turn token.
        """
        if self.reprompt is None:
            return self.renderer.hint_suffix(turn.reply, ended=ended)
        text = reprompt_text(self.reprompt, self.environment.prompt(task.public), turn)
        return self.renderer.initial_prompt(text)

    def prompt(self, task: Task, turns: Sequence[Turn], get_tokens: Callable[[Turn], Sequence[int]]) -> tuple[int, ...]:
        """Return all prompt tokens of the attempt after `turns`.

        `get_tokens` returns the tokens of an attempt; it is called only if the conversation continues.
        """
        if self.reprompt is not None and turns:
            return self.continuation(task, turns[-1], ended=True)
        tokens = list(self.initial_prompt(task))
        for turn in turns:
            tokens += get_tokens(turn)
            tokens += self.continuation(task, turn, ended=tokens[-1] == self.renderer.tokenizer.eos_token_id)
        return tuple(tokens)
