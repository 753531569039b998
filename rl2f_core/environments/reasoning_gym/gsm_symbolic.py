"""`gsm_symbolic`: grade-school word problems from 100 templates, generated offline by reasoning-gym.

The templates are those of GSM-Symbolic (arXiv 2410.05229); names and numbers differ between problems, and each has a
worked solution. Answers are compared as numbers, because the package's scorer accepts the first number of any text.
"""

from __future__ import annotations

import random
from typing import Literal

from pydantic import Field

from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import sample_task
from rl2f_core.environments.math.base import AnswerForm, MathEnvironment
from rl2f_core.environments.reasoning_gym.dataset import open_dataset
from rl2f_core.registry import register
from rl2f_core.types import Split, Task

INSTRUCTION = " Give the result as your final answer. Do not include units."
"""End of every question of the package; the system message states how to answer."""


@register("environment")
class GsmSymbolic(MathEnvironment):
    """Problems of one difficulty, the only one of the package."""

    class Config(ComponentConfig):
        """Answer form, time limit and seed."""

        type: Literal["gsm_symbolic"] = "gsm_symbolic"
        """Name of the environment."""
        answer_form: AnswerForm = "tags"
        """How an answer is marked: in answer tags, in the last \\boxed{…}, or either way."""
        time_limit: float = Field(2.0, gt=0, le=60)
        """Time limit in seconds of the comparison of two answers."""
        seed: int = Field(0, ge=0, lt=2**31)
        """Seed of the task order."""

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config, config.answer_form, config.time_limit)
        self.source = open_dataset("gsm_symbolic", "{}", config.seed, 5.0)

    def task(self, split: Split, index: int) -> Task:
        return sample_task(self, split, index, self.config.seed, self._make)

    def _make(self, rng: random.Random) -> Task:
        entry = self.source.entry(rng)
        solution = (entry.solution or "").partition("####")[0].strip()
        return self._task(entry.question.removesuffix(INSTRUCTION), entry.answer, solution or None, "words")
