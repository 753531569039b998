"""`math`: problems of a data set, by name or from a file; answers are verified by form and by math-verify.

Duplicates are removed, splits share no problem, and training problems too close to a test problem are left out.
"""

from __future__ import annotations

import functools
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field, model_validator

from rl2f_core.config.components import wrapped_teacher
from rl2f_core.config.fields import BASIC_FIELD, PROBLEMS_REF, ComponentConfig
from rl2f_core.environments.base import assign_split, listed_task
from rl2f_core.environments.data_files import stamp
from rl2f_core.environments.math import sources
from rl2f_core.environments.math.answer_text import canonical, folded, read_value
from rl2f_core.environments.math.base import AnswerForm, MathEnvironment, normalize_gold
from rl2f_core.environments.math.decontamination import contaminated, distinct
from rl2f_core.errors import FieldValueError
from rl2f_core.registry import register
from rl2f_core.types import Split, Task

if TYPE_CHECKING:
    from rl2f_core.config.run import RunConfig

NEEDS_NUMBERS = ("scripted", "misleading")
"""Teachers that use the environment's hints, which need numeric answers."""


class Problem(NamedTuple):
    """A problem with a parsed answer."""

    text: str
    answer: str
    """The gold answer in normal form."""
    solution: str | None
    level: str


class Counts(NamedTuple):
    """Numbers of rows of the source, of those left out, and of problems per split."""

    rows: int
    unreadable: int
    """Gold answers that are sentences or cannot be parsed."""
    no_number: int
    """Gold answers that are not numbers, if only numbers are allowed."""
    duplicates: int
    """Repeated problems."""
    same_as_test: int
    """Training problems that are test problems."""
    overlapping_test: int
    """Training problems that share a run of words with a test problem."""
    train: int
    validation: int
    test: int

    def text(self, source: str) -> str:
        """Describe the counts in a sentence."""
        left_out = {
            "without a gold answer that can be read": self.unreadable,
            "whose answer is not a number": self.no_number,
            "that repeat a problem": self.duplicates,
            "for training that are test problems": self.same_as_test,
            "for training that share a run of words with a test problem": self.overlapping_test,
        }
        named = ", ".join(f"{count:,} {why}" for why, count in left_out.items() if count)
        kept = f"{self.train:,} problems for training, {self.validation:,} for validation, {self.test:,} for the test"
        return f"{source}: {self.rows:,} rows, {kept}; " + (f"left out: {named}." if named else "none was left out.")


class Loaded(NamedTuple):
    """A data set, cleaned and split."""

    problems: dict[Split, list[Problem]]
    counts: Counts


@register("environment")
class Math(MathEnvironment):
    """The task order is a seeded permutation of the split, then another one, and so on."""

    class Config(ComponentConfig):
        """Source of the problems, and how answers are marked and verified."""

        type: Literal["math"] = "math"
        """Name of the environment."""
        source: str = Field("sample", min_length=1, json_schema_extra={**BASIC_FIELD, **PROBLEMS_REF})
        """omni_math, deepmath, dapo, math500, aime, aime_2024, gsm8k, the shipped sample, or the path of a .csv,
        .jsonl or .parquet file."""
        test_source: str | None = Field(None, json_schema_extra=PROBLEMS_REF)
        """Source of the test problems; None is the source's own test split, or a fifth of its problems."""
        test_size: int | None = Field(None, ge=1)
        """Number of test problems of a source without a test split; the others are all for training. None takes a fifth
        for the test, and a quarter of the others for validation."""
        columns: dict[str, str] | None = None
        """Columns of the files for problem, answer, solution and level; None detects them."""
        answers: Literal["numbers", "all"] = Field("numbers", json_schema_extra=BASIC_FIELD)
        """Problems to use: those with numeric answers, which the scripted teacher supports, or all."""
        answer_form: AnswerForm = "tags"
        """How an answer is marked: in answer tags, in the last \\boxed{…}, or either way."""
        ngram: int = Field(13, ge=0, le=100)
        """Length of word runs that training and test problems must not share; 0 compares only whole texts."""
        time_limit: float = Field(2.0, gt=0, le=60)
        """Time limit in seconds of the comparison of two answers."""
        seed: int = 0
        """Seed of the task order."""

        @model_validator(mode="after")
        def _check_columns(self) -> Math.Config:
            if self.columns and self.source in sources.HUB:
                raise FieldValueError(f"columns are those of a file; the columns of {self.source} are known", "columns")
            if self.test_size is not None and (self.test_source is not None or sources.has_test_split(self.source)):
                raise FieldValueError("the test problems have a source of their own; leave out test_size", "test_size")
            return self

        def check_run(self, run: RunConfig) -> None:
            """Refuse teachers whose hints need numeric answers. Raises `ValueError`."""
            if self.answers == "numbers":
                return
            teacher = wrapped_teacher(run.teacher)
            if teacher.type in NEEDS_NUMBERS:
                raise FieldValueError(
                    f"teacher {teacher.type!r} has hints on numbers alone, and environment.answers is 'all'; "
                    "set teacher to {type: llm, sees: {answer: true, solution: true}}, "
                    "or environment.answers to 'numbers'",
                    "environment",
                    "answers",
                )
            for name in sorted({*NEEDS_NUMBERS} & {*run.evaluation.conditions}):
                raise FieldValueError(
                    f"evaluation.conditions has {name}, which needs hints on numbers, and environment.answers is "
                    f"'all'; leave {name} out, or set environment.answers to 'numbers'",
                    "evaluation",
                    "conditions",
                )

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config, config.answer_form, config.time_limit)

    @property
    def loaded(self) -> Loaded:
        """The data set. Raises `DataError` if it cannot be loaded."""
        config = self.config
        stamps = tuple(stamp(source) for source in (config.source, config.test_source) if source is not None)
        columns = tuple(sorted((config.columns or {}).items()))
        return load(config.source, config.test_source, columns, config.answers, config.ngram, stamps, config.test_size)

    def canonical(self, task: Task) -> str:
        return folded(task.public["problem"])

    def describe_data(self) -> str:
        return self.loaded.counts.text(self.config.source)

    def task(self, split: Split, index: int) -> Task:
        """Raises `DataError` if the data set cannot be loaded or the split is empty."""
        problems, fix = self.loaded.problems[split], "Give a larger file, or a test_source."
        return listed_task(self, problems, split, index, self.config.seed, lambda problem: self._task(*problem), fix)


@functools.lru_cache(8)
def load(
    source: str,
    test_source: str | None,
    columns: tuple[tuple[str, str], ...],
    answers: str,
    ngram: int,
    stamps: tuple[tuple[str, int, int], ...],
    test_size: int | None,
) -> Loaded:
    """Read, clean, split and decontaminate a data set.

    The test split is the test source, or the source's own, or the fifth of the problems that `assign_split` selects.
    The rest is split by key into train and validation, 4 : 1 or (without a separate test split) 3 : 1. With
    `test_size`, so many problems in the order of their hashes are the test split, and all others the train split. Each
    problem occurs once.
    """
    given = dict(columns)
    if test_source is not None:
        mixed = sources.rows(source, given)
        held_out = sources.rows(test_source, None if test_source in sources.known() else given)
    elif sources.has_test_split(source):
        splits = sources.HUB[source].splits
        mixed = [row for split in splits[:-1] for row in sources.rows(source, None, split)]
        held_out = sources.rows(source, None, splits[-1])
    else:
        mixed, held_out = sources.rows(source, given), []
    counted = {"rows": len(mixed) + len(held_out), "unreadable": 0, "no_number": 0, "duplicates": 0}
    learned, test = _problems(mixed, answers, counted), _problems(held_out, answers, counted)
    if test_size is not None:
        test = sorted(learned, key=lambda problem: sha256(canonical(problem.text).encode()).digest())[:test_size]
        chosen = {problem.text for problem in test}
        learned = [p for p in learned if p.text not in chosen]
    elif not held_out:
        test = [p for p in learned if assign_split(canonical(p.text)) == "test"]
        learned = [p for p in learned if assign_split(canonical(p.text)) != "test"]
    close = contaminated([p.text for p in learned], [p.text for p in test], ngram)
    fractions = (1.0, 0.0, 0.0) if test_size is not None else (0.8, 0.2, 0.0) if held_out else (0.6, 0.4, 0.0)
    problems: dict[Split, list[Problem]] = {"train": [], "validation": [], "test": test}
    for i, problem in enumerate(learned):
        if i not in close.same | close.overlapping:
            split = assign_split(canonical(problem.text), fractions)
            problems["train" if split == "train" else "validation"].append(problem)
    sizes = {split: len(members) for split, members in problems.items()}
    counts = Counts(**counted, same_as_test=len(close.same), overlapping_test=len(close.overlapping), **sizes)
    return Loaded(problems, counts)


def _problems(rows: list[sources.Row], answers: str, counted: dict[str, int]) -> list[Problem]:
    """Return the usable rows, each problem once, and count the others."""
    usable = []
    for row in rows:
        gold = normalize_gold(row.answer)
        if gold is None:
            counted["unreadable"] += 1
        elif answers == "numbers" and read_value(gold) is None:
            counted["no_number"] += 1
        else:
            usable.append(Problem(row.problem.strip(), gold, row.solution, row.level))
    first = distinct([p.text for p in usable])
    counted["duplicates"] += len(usable) - len(first)
    return [usable[i] for i in first]
