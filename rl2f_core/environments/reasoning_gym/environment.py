"""`reasoning_gym:<name>`: a data set of the package reasoning-gym with its scorer.

Three checks protect the scorer from exploits: if the gold answer is a number, the answer must be one; an answer must
not contain the gold answer and more; and an answer with the full score must agree with the gold answer in its numbers.
"""

from __future__ import annotations

import json
import math
import random
import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar, Literal

from pydantic import Field, JsonValue, field_validator

from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.environments.base import new_task, parsed_answers, sample_task, wrap_answer
from rl2f_core.environments.capabilities import (
    Baselines,
    Demonstrator,
    LeakVocabulary,
    MisleadingHints,
    last_parsed,
    most_common_answer,
)
from rl2f_core.environments.math.answer_text import number_text, read_number
from rl2f_core.environments.math.base import number_candidates
from rl2f_core.environments.reasoning_gym.agreement import EXPRESSIONS, agrees, says_more
from rl2f_core.environments.reasoning_gym.dataset import ScoringJob, open_dataset
from rl2f_core.environments.reasoning_gym.dataset_names import UNUSABLE, Name
from rl2f_core.errors import DataError, shorten
from rl2f_core.registry import register
from rl2f_core.types import ConstantBaseline, Split, Task, TaskData, Verdict

UNREAD = "No answer of the right form was found."
MAX_ANSWER = 8_000
_BASELINE_TASKS = 60
_PROBED_ENTRIES = 6
_MAX_ERROR_DRAWS = 30
ONE_NUMBER = frozenset(("basic_arithmetic", "chain_sum", "count_bits", "gcd", "lcm", "leg_counting"))
"""Data sets whose scorer accepts exactly the numbers equal to the answer."""
_EXPRESSION = re.compile(r"[(\d][\d\s+*/×÷()−-]*[\d)]")
_OPERATORS = str.maketrans("×÷−", "*/-")


@register("environment")
class ReasoningGym(MisleadingHints, Demonstrator, Baselines, LeakVocabulary):
    """One data set; hints contain only the score and the form."""

    member_field: ClassVar[str] = "name"

    class Config(ComponentConfig):
        """Data set, level and settings."""

        type: Literal["reasoning_gym"] = "reasoning_gym"
        """Name of the environment; `reasoning_gym:gcd` is short for this type and the name gcd."""
        name: Name = Field("chain_sum", json_schema_extra=BASIC_FIELD)
        """Name of the data set."""
        level: int | None = Field(None, ge=0, json_schema_extra=BASIC_FIELD)
        """Level of the data set's curriculum, from 0; None uses its default settings."""
        settings: dict[str, JsonValue] = Field(default_factory=dict)
        """Settings of the data set, e.g. min_terms and max_terms of chain_sum."""
        time_limit: float = Field(5.0, gt=0, le=60)
        """Time limit in seconds for scoring an answer."""
        seed: int = Field(0, ge=0, lt=2**31)
        """Seed of the task order."""

        @field_validator("name", mode="before")
        @classmethod
        def _check_name(cls, value: object) -> object:
            if isinstance(value, str) and value in UNUSABLE:
                raise ValueError(f"data set {value!r} cannot be an environment: {UNUSABLE[value]}")
            return value

        @field_validator("settings")
        @classmethod
        def _check_settings(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
            if taken := sorted(set(value) & {"seed", "size", "level"}):
                raise ValueError(f"{', '.join(taken)} cannot be set here; seed and level are fields of the environment")
            return value

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        settings = dict(config.settings) | ({} if config.level is None else {"level": config.level})
        self.source = open_dataset(config.name, json.dumps(settings, sort_keys=True), config.seed, config.time_limit)
        self._numbers: bool | None = None

    # -- tasks -------------------------------------------------------------------------------------------------
    def task(self, split: Split, index: int) -> Task:
        """Raises `DataError` if the package creates no entries with these settings."""
        task = sample_task(self, split, index, self.config.seed, self._make)
        return task.model_copy(update={"id": f"{self.name}/{self.config.name}/{split}/{index}"})

    def _make(self, rng: random.Random) -> Task:
        entry = self.source.entry(rng)
        privileged: TaskData = {"answer": entry.answer, "position": entry.position}
        return self._task(entry.question, privileged | ({"solution": entry.solution} if entry.solution else {}))

    def _task(self, question: str, privileged: TaskData) -> Task:
        level = "" if self.config.level is None else f" level {self.config.level}"
        task = new_task(self, f"{self.config.name}{level}", {"problem": question}, privileged)
        return task.model_copy(update={"id": f"{self.name}/{self.config.name}/gold"})

    def canonical(self, task: Task) -> str:
        """The question without case and spacing, but with signs, because grids and codes consist of them."""
        return " ".join(unicodedata.normalize("NFKC", task.public["problem"]).casefold().split())

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Raises `DataError` if the data set's scorer rejects the answer or needs more data."""
        candidate = clean(answer)
        if candidate is None or (self.numbers and read_number(candidate) is None):
            raise DataError("The gold answer cannot be read.", value=answer)
        task = self._task(problem, {"answer": candidate})
        score, why = self.source.scores([self._scoring_job(task, candidate)])[0]
        if score < 1:
            reason = f"its scorer needs more than problem and answer ({why})" if why else "its scorer refuses it"
            raise DataError(
                f"The gold answer cannot be used with {self.config.name}: {reason}.",
                value=answer,
                fix="Use tasks of the environment.",
            )
        return task

    @property
    def numbers(self) -> bool:
        """Whether the data set's answers are numbers, judged by a few entries."""
        if self._numbers is None:
            rng = random.Random("numbers")
            self._numbers = all(read_number(self.source.entry(rng).answer) is not None for _ in range(_PROBED_ENTRIES))
        return self._numbers

    # -- student -----------------------------------------------------------------------------------------------
    def system_prompt(self) -> str:
        return "Give the answer alone, in the form that is asked for, as <answer>answer</answer>."

    def prompt(self, public: TaskData) -> str:
        return str(public["problem"])

    def worked_solution(self, task: Task) -> str | None:
        """The solution of the data set, followed by the answer; None if it has none."""
        steps = self.solution(task)
        return None if steps is None else f"{steps.partition('####')[0].strip()}\n{wrap_answer(self.gold_answer(task))}"

    # -- verifier ----------------------------------------------------------------------------------------------
    def parse(self, task: Task, text: str) -> str | None:
        """Strip an answer; None if it breaks a rule of this module or contains invisible characters."""
        candidate, gold = clean(text), self.gold_answer(task)
        if candidate is None or candidate == gold:
            return candidate
        number, expected = read_number(candidate), read_number(gold)
        if expected is not None:
            return None if number is None else gold if number == expected else number_text(number)
        return None if says_more(candidate, gold) else candidate

    def is_correct_answer(self, task: Task, answer: str) -> bool:
        """Use the scorer, unless it is known to accept only equal numbers."""
        if self.config.name in ONE_NUMBER:
            return self.parse(task, answer) == self.gold_answer(task)
        return super().is_correct_answer(task, answer)

    def prefetch_verdicts(self, attempts: Sequence[tuple[Task, str]]) -> None:
        """Score the answers of a batch together."""
        answers = parsed_answers(self, attempts)
        self.source.scores(
            [self._scoring_job(task, parsed) for task, parsed in answers if parsed != self.gold_answer(task)]
        )

    def _scoring_job(self, task: Task, text: str) -> ScoringJob:
        position = task.privileged.get("position")
        if position is not None:
            return ScoringJob(text, position, "", "")
        return ScoringJob(text, None, task.public["problem"], self.gold_answer(task))

    def score_parsed(self, task: Task, parsed: str) -> Verdict:
        """The scorer's score; only the full score is correct, and only if the answer agrees with the gold answer."""
        gold = self.gold_answer(task)
        score, error = (1.0, "") if parsed == gold else self.source.scores([self._scoring_job(task, parsed)])[0]
        correct = score > 1 - 1e-9
        if correct and parsed != gold and not agrees(self.config.name, parsed, gold, task.public["problem"]):
            correct, score = False, 0.0
        reason = f"no verdict: {error}" if error else f"scores {score:.2f}"
        wrong = f"{shorten(parsed, 80)} is wrong ({reason}): the answer is {shorten(gold, 200)}"
        return Verdict(
            correct=correct,
            score=1.0 if correct else score,
            parsed=parsed,
            well_formed=True,
            detail="right" if correct else wrong,
        )

    # -- scripted teacher --------------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """State form and score, without content of the answer."""
        if last_parsed(attempts) is None:
            return UNREAD
        score = math.floor(100 * (attempts[-1].score or 0.0)) / 100  # a wrong answer scores less than 1
        text = f"It scores {score:.2f} of 1." if score else "It scores nothing."
        return f"The form is right, the answer is not. {text}"

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Claim that the answer is nearly right and its form is not, or the reverse."""
        if last_parsed(attempts) is None:
            return "The form is right, the answer is not. It scores nearly full marks."
        return "The answer is nearly right, its form is not. It scores nearly full marks."

    # -- simulated student -------------------------------------------------------------------------------------
    def simulate_attempt(
        self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow_hint: bool, correct: bool
    ) -> str:
        """Draw a nearby number, or the answer to another problem; with `follow_hint`, repeat no earlier attempt."""
        gold = self.gold_answer(task)
        if correct:
            return wrap_answer(gold)
        tried = {v.parsed for v in attempts if follow_hint}
        for _ in range(_MAX_ERROR_DRAWS):
            candidate = self._sample_error(gold, rng)
            parsed = self.parse(task, candidate)
            if parsed is not None and parsed not in tried and not self.score_parsed(task, parsed).correct:
                return wrap_answer(candidate)
        return wrap_answer("0" if read_number(gold) is not None else "none")

    def _sample_error(self, gold: str, rng: random.Random) -> str:
        number = read_number(gold)
        if number is None:
            return self.source.entry(rng).answer
        step = rng.choice((Fraction(1, number.denominator), Fraction(1)))  # some scorers allow for rounding
        return number_text(number + step * rng.choice((-1, 1)) * rng.choice((1, 1, 2, 3, 10, 100)))

    # -- reference lines ---------------------------------------------------------------------------------------
    def constant_baseline(self) -> ConstantBaseline:
        """The most frequent gold answer and its fraction, over the first 60 test tasks."""
        best, count = most_common_answer([self.gold_answer(self.task("test", i)) for i in range(_BASELINE_TASKS)])
        return ConstantBaseline(best, count / _BASELINE_TASKS)

    # -- leak detection ----------------------------------------------------------------------------------------
    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        """Numbers or expressions of the same numbers if the answer is one; otherwise its occurrences, ignoring case."""
        gold = self.gold_answer(task)
        if self.config.name in EXPRESSIONS:
            numbers = sorted(re.findall(r"\d+", gold))
            found = [(m.start(), m.end(), m[0].translate(_OPERATORS)) for m in _EXPRESSION.finditer(text)]
            return [item for item in found if sorted(re.findall(r"\d+", item[2])) == numbers]
        if read_number(gold) is not None:
            return sorted(number_candidates(text))
        pattern = r"\s+".join(re.escape(word) for word in gold.split())
        return [(m.start(), m.end(), gold) for m in re.finditer(pattern, text, re.IGNORECASE)]


def clean(text: str) -> str | None:
    """Strip an answer and the ends of its lines.

    None if it is empty, too long, or contains control or invisible characters, foreign digits or chat markup.
    """
    if len(text) > 2 * MAX_ANSWER:
        return None
    candidate = "\n".join(line.rstrip() for line in text.strip(" \t\r\n").split("\n"))
    if not 0 < len(candidate) <= MAX_ANSWER or any(mark in candidate.lower() for mark in ("<|", "<think", "<answer")):
        return None
    for char in candidate:
        if char not in "\n\t" and (kind := unicodedata.category(char)) in ("Cc", "Cf", "Cs", "Co", "Cn", "Nd"):
            if kind != "Nd" or not char.isascii():
                return None
    return candidate
