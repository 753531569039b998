"""`reasoning_gym:<name>`: a data set of the package reasoning-gym with its own scorer.

The scorer decides what is right. Before it is asked, an answer must have a form that no scorer can be fooled by: where
the gold answer is a number it is a number, and it never says the gold answer and something else beside it.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, Literal

from pydantic import Field, JsonValue, field_validator

from rl2f_core.config import BASIC, BaseConfig
from rl2f_core.environments._gym import GymSource, Said
from rl2f_core.environments._gym_names import UNUSABLE, Name
from rl2f_core.environments._math_base import number_candidates
from rl2f_core.environments._math_text import number_text, read_number
from rl2f_core.environments.base import Environment, Floor, draw, extract_answer, wrap
from rl2f_core.errors import DataError, shorten
from rl2f_core.registry import register
from rl2f_core.types import Split, Task, Verdict

UNREAD = "No answer of the right form was found."
MAX_ANSWER = 8_000
_FLOOR_TASKS = 60
_PROBED = 6
_TOKEN = re.compile(r"\w+|[^\w\s]")
_SLIPS = 30


ONE_NUMBER = frozenset(("basic_arithmetic", "chain_sum", "count_bits", "gcd", "lcm", "leg_counting"))
"""Data sets whose scorer calls a number right where it equals the answer, and no other."""


@register("environment")
class ReasoningGym(Environment):
    """One data set; hints say score and form alone."""

    member_field: ClassVar[str] = "name"

    class Config(BaseConfig):
        """Which data set, how hard, and its own settings."""

        type: Literal["reasoning_gym"] = "reasoning_gym"
        """Name of the environment; `reasoning_gym:gcd` is short for this type and the name gcd."""
        name: Name = Field("chain_sum", json_schema_extra=BASIC)
        """Name of the data set."""
        level: int | None = Field(None, ge=0, json_schema_extra=BASIC)
        """Level of the data set's curriculum, from 0; None takes its default settings."""
        settings: dict[str, JsonValue] = Field(default_factory=dict)
        """The data set's own settings, e.g. min_terms and max_terms of chain_sum."""
        time_limit: float = Field(5.0, gt=0, le=60)
        """Seconds that scoring an answer may take."""
        seed: int = Field(0, ge=0, lt=2**31)
        """Fixes the stream of problems."""

        @field_validator("name", mode="before")
        @classmethod
        def _usable(cls, value: Any) -> Any:
            if isinstance(value, str) and value in UNUSABLE:
                raise ValueError(f"data set {value!r} cannot be an environment: {UNUSABLE[value]}")
            return value

        @field_validator("settings")
        @classmethod
        def _own(cls, value: dict[str, Any]) -> dict[str, Any]:
            if taken := sorted(set(value) & {"seed", "size", "level"}):
                raise ValueError(f"{', '.join(taken)} cannot be set here; seed and level are fields of the environment")
            return value

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        settings = dict(config.settings) | ({} if config.level is None else {"level": config.level})
        self.source = source(config.name, settings, config.seed, config.time_limit)
        self._numbers: bool | None = None

    # -- tasks -------------------------------------------------------------------------------------------------
    def task(self, split: Split, index: int) -> Task:
        """Raises `DataError` where the package makes no entries with these settings."""
        task = draw(self, split, index, self.config.seed, self._make)
        return task.model_copy(update={"id": f"{self.name}/{self.config.name}/{split}/{index}"})

    def _make(self, rng: random.Random) -> Task:
        entry = self.source.entry(rng)
        return self._task(entry.question, {"answer": entry.answer, "position": entry.position}
                          | ({"solution": entry.solution} if entry.solution else {}))  # fmt: skip

    def _task(self, question: str, privileged: dict[str, Any]) -> Task:
        level = "" if self.config.level is None else f" level {self.config.level}"
        return Task(
            id=f"{self.name}/{self.config.name}/gold",
            environment=self.name,
            split="test",
            level=f"{self.config.name}{level}",
            public={"problem": question},
            privileged=privileged,
        )

    def canonical(self, task: Task) -> str:
        """The question without case and spacing; signs stay, as grids and codes are made of them."""
        return " ".join(unicodedata.normalize("NFKC", task.public["problem"]).casefold().split())

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Raises `DataError` where the data set's scorer does not accept the answer, or needs to know more than it."""
        said = clean(answer)
        if said is None or (self.numbers and read_number(said) is None):
            raise DataError("The gold answer cannot be read.", value=answer)
        task = self._task(problem, {"answer": said})
        score, why = self.source.scores([self._said(task, said)])[0]
        if score < 1:
            reason = f"its scorer needs more than problem and answer ({why})" if why else "its scorer refuses it"
            raise DataError(f"The gold answer cannot be used with {self.config.name}: {reason}.", value=answer,
                            fix="Take tasks of the environment's own streams.")  # fmt: skip
        return task

    @property
    def numbers(self) -> bool:
        """Whether the data set's answers are numbers, judged by the first few."""
        if self._numbers is None:
            rng = random.Random("numbers")
            self._numbers = all(read_number(self.source.entry(rng).answer) is not None for _ in range(_PROBED))
        return self._numbers

    # -- the student's side ------------------------------------------------------------------------------------
    def system(self) -> str:
        return "Give the answer alone, in the form that is asked for, as <answer>answer</answer>."

    def prompt(self, public: dict[str, Any]) -> str:
        return str(public["problem"])

    def worked_solution(self, task: Task) -> str | None:
        """The way to the answer, for the one data set that has it."""
        told = self.solution(task)
        return None if told is None else f"{told.partition('####')[0].strip()}\n{wrap(self.answer(task))}"

    # -- the verifier ------------------------------------------------------------------------------------------
    def answer(self, task: Task) -> str:
        return str(task.privileged["answer"])

    def parse(self, task: Task, text: str) -> str | None:
        """The answer without white space around it; None where it is no number though the gold answer is one, where
        it says the gold answer and more, or where it holds invisible characters."""
        said, gold = clean(text), self.answer(task)
        if said is None or said == gold:
            return said
        number, wanted = read_number(said), read_number(gold)
        if wanted is not None:
            return None if number is None else gold if number == wanted else number_text(number)
        return None if says_more(said, gold) else said

    def accepts(self, task: Task, said: str) -> bool:
        """As the scorer decides; it is not asked where it is known to take one number and no other."""
        if self.config.name in ONE_NUMBER:
            return self.parse(task, said) == self.answer(task)
        return super().accepts(task, said)

    def prepare(self, attempts: Sequence[tuple[Task, str]]) -> None:
        """Score the answers of a batch in one go."""
        said = []
        for task, attempt in attempts:
            inner, _ = extract_answer(attempt)
            parsed = None if inner is None else self.parse(task, inner)
            if parsed is not None and parsed != self.answer(task):
                said.append(self._said(task, parsed))
        self.source.scores(said)

    def _said(self, task: Task, text: str) -> Said:
        position = task.privileged.get("position")
        return Said(
            text, position, *(("", "") if position is not None else (task.public["problem"], self.answer(task)))
        )

    def judge(self, task: Task, parsed: str) -> Verdict:
        """The scorer's mark; right is full marks alone."""
        gold = self.answer(task)
        score, why = (1.0, "") if parsed == gold else self.source.scores([self._said(task, parsed)])[0]
        right = score > 1 - 1e-9
        reason = f"no verdict: {why}" if why else f"scores {score:.2f}"
        return Verdict(
            correct=right,
            score=1.0 if right else score,
            parsed=parsed,
            well_formed=True,
            detail="right"
            if right
            else f"{shorten(parsed, 80)} is wrong ({reason}): the answer is {shorten(gold, 200)}",
        )

    # -- the scripted teacher ----------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Score and form, nothing of the answer."""
        if not attempts or attempts[-1].parsed is None:
            return UNREAD
        return f"The form is right, the answer is not. {_mark(attempts[-1].score)}"

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """That the answer is nearly right and only its form is not, or the other way round."""
        if not attempts or attempts[-1].parsed is None:
            return "The form is right, the answer is not. It scores nearly full marks."
        return "The answer is nearly right, its form is not. It scores nearly full marks."

    # -- the imperfect student ---------------------------------------------------------------------------------
    def imitate(self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow: bool, right: bool) -> str:
        """Wrong attempts are a number near by, or the answer to another problem of the data set. A hint on score and
        form points nowhere; with `follow` no earlier attempt is repeated."""
        gold = self.answer(task)
        if right:
            return wrap(gold)
        tried = {v.parsed for v in attempts if follow}
        for _ in range(_SLIPS):
            said = self._slip(gold, rng)
            parsed = self.parse(task, said)
            if parsed is not None and parsed not in tried and not self.judge(task, parsed).correct:
                return wrap(said)
        return wrap("0" if read_number(gold) is not None else "none")

    def _slip(self, gold: str, rng: random.Random) -> str:
        number = read_number(gold)
        if number is None:
            return self.source.entry(rng).answer
        step = rng.choice((Fraction(1, number.denominator), Fraction(1)))  # some scorers allow for rounding
        return number_text(number + step * rng.choice((-1, 1)) * rng.choice((1, 1, 2, 3, 10, 100)))

    # -- reference lines ---------------------------------------------------------------------------------------
    def floor(self) -> Floor:
        """The most frequent gold answer and its share, over the first 60 test tasks."""
        answers = Counter(self.answer(self.task("test", i)) for i in range(_FLOOR_TASKS))
        best, count = min(answers.items(), key=lambda item: (-item[1], len(item[0]), item[0]))
        return Floor(best, count / _FLOOR_TASKS)

    # -- for leak detectors ------------------------------------------------------------------------------------
    def candidates(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        """Numbers where the answer is one; else every place where the answer stands in any case."""
        gold = self.answer(task)
        if read_number(gold) is not None:
            return sorted(number_candidates(text))
        words = r"\s+".join(re.escape(word) for word in gold.split())
        return [(m.start(), m.end(), gold) for m in re.finditer(words, text, re.IGNORECASE)]


def clean(text: str) -> str | None:
    """An answer without white space around it and at the ends of its lines; None where it is empty, longer than 4,000
    characters, or holds invisible or control characters, foreign digits or markup of a chat."""
    if len(text) > 2 * MAX_ANSWER:
        return None
    said = "\n".join(line.rstrip() for line in text.strip(" \t\r\n").split("\n"))
    if not said or len(said) > MAX_ANSWER or "<|" in said or "<think" in said.lower() or "<answer" in said.lower():
        return None
    for char in said:
        if char not in "\n\t" and (kind := unicodedata.category(char)) in ("Cc", "Cf", "Cs", "Co", "Cn", "Nd"):
            if kind != "Nd" or not char.isascii():
                return None
    return said


def says_more(said: str, gold: str) -> bool:
    """Whether an answer says the gold answer and something else beside it."""
    tokens, wanted = (_TOKEN.findall(text.casefold()) for text in (said, gold))
    if len(tokens) <= len(wanted):
        return False
    return any(tokens[i : i + len(wanted)] == wanted for i in range(len(tokens) - len(wanted) + 1))


def _mark(score: float) -> str:
    return "It scores nothing." if score < 0.005 else f"It scores {score:.2f} of 1."


def source(name: str, settings: dict[str, Any], seed: int, limit: float) -> GymSource:
    """The data set of these settings, shared by all environments of them."""
    key = (name, repr(sorted(settings.items())), seed, limit)
    if key not in _sources:
        if len(_sources) > 64:
            _sources.clear()
        _sources[key] = GymSource(name, settings, seed, limit)
    return _sources[key]


_sources: dict[tuple[Any, ...], GymSource] = {}
