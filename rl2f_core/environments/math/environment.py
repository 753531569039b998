"""`math`: problems of a data set, by name or from a file, with answers judged by form and by math-verify.

Duplicates are dropped, splits share no problem, and what comes too close to a test problem is not trained on.
"""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from rl2f_core.config.fields import BASIC_FIELD, PROBLEMS_REF, ComponentConfig
from rl2f_core.environments.base import assign_split
from rl2f_core.environments.math import sources as sources
from rl2f_core.environments.math.answer_text import canonical, read_number
from rl2f_core.environments.math.base import MathEnvironment, normalize_gold
from rl2f_core.environments.math.decontamination import contaminated, distinct
from rl2f_core.errors import DataError, FieldValueError
from rl2f_core.registry import register
from rl2f_core.types import SPLITS, Split, Task

NEEDS_NUMBERS = ("scripted", "misleading", "shuffled")
"""Teachers and controls that speak with the environment's own hints."""


class Problem(NamedTuple):
    """A problem that can be posed."""

    text: str
    answer: str
    """In normal form."""
    solution: str | None
    level: str


class Counts(NamedTuple):
    """What became of the rows that were read."""

    rows: int
    unreadable: int
    """Gold answers that are sentences or cannot be parsed."""
    no_number: int
    """Gold answers that are no numbers, if only numbers are allowed."""
    duplicates: int
    """The same problem again, in its own split or, in training, in another."""
    same_as_test: int
    """Training problems that are test problems."""
    overlapping_test: int
    """Training problems that share a run of words with a test problem."""
    train: int
    validation: int
    test: int

    def text(self, source: str) -> str:
        """In a sentence, what was left out and why."""
        left_out = {
            "without a gold answer that can be read": self.unreadable,
            "whose answer is no number": self.no_number,
            "told twice": self.duplicates,
            "for training that are test problems": self.same_as_test,
            "for training that share a run of words with a test problem": self.overlapping_test,
        }
        named = ", ".join(f"{count:,} {why}" for why, count in left_out.items() if count)
        kept = f"{self.train:,} problems for training, {self.validation:,} for validation, {self.test:,} for the test"
        return f"{source}: {self.rows:,} rows, {kept}; " + (f"left out: {named}." if named else "none was left out.")


class Loaded(NamedTuple):
    """A data set that is ready."""

    problems: dict[Split, tuple[Problem, ...]]
    counts: Counts


@register("environment")
class Math(MathEnvironment):
    """A stream walks through its split in a seeded order, and then again in another one."""

    class Config(ComponentConfig):
        """Where the problems come from, and how answers are written and judged."""

        type: Literal["math"] = "math"
        """Name of the environment."""
        source: str = Field("sample", min_length=1, json_schema_extra={**BASIC_FIELD, **PROBLEMS_REF})
        """omni_math, deepmath, dapo, math500, aime, aime_2024, gsm8k, the small sample that comes along, or the path
        of a .jsonl or .parquet file."""
        test_source: str | None = Field(None, json_schema_extra=PROBLEMS_REF)
        """Source of the test problems; None is the source's own test split, or a fifth of its problems."""
        columns: dict[str, str] | None = None
        """Which columns of the files are problem, answer, solution and level; None finds them out."""
        answers: Literal["numbers", "all"] = Field("numbers", json_schema_extra=BASIC_FIELD)
        """Which problems are kept: those whose answer is a number, which the scripted teacher has hints for, or all."""
        answer_form: Literal["tags", "boxed", "either"] = "tags"
        """How an answer is marked: in answer tags, in the last \\boxed{…}, or either way."""
        ngram: int = Field(13, ge=0, le=100)
        """Words in a run that a training problem may not share with a test problem; 0 compares whole texts alone."""
        time_limit: float = Field(2.0, gt=0, le=60)
        """Seconds that comparing two answers may take."""
        seed: int = 0
        """Fixes the order of the problems."""

        @model_validator(mode="after")
        def _columns_are_of_a_file(self) -> Math.Config:
            if self.columns and self.source in sources.HUB:
                raise FieldValueError(f"columns are those of a file; the columns of {self.source} are known", "columns")
            return self

        def check_run(self, run: Any) -> None:
            """Refuse teachers whose hints need numeric answers. Raises `ValueError`."""
            if self.answers == "numbers":
                return
            teacher = run.teacher
            has_source = teacher.type == "shuffled" and getattr(teacher, "source", None) is not None
            if teacher.type in NEEDS_NUMBERS and not has_source:
                raise FieldValueError(
                    f"teacher {teacher.type!r} has hints on numbers alone, and environment.answers is 'all'; "
                    "set teacher to {type: llm, sees: {answer: true, solution: true}}, "
                    "or environment.answers to 'numbers'",
                    *("environment", "answers"),
                )
            if "misleading" in run.evaluation.conditions:
                raise FieldValueError(
                    "evaluation.conditions has misleading, which needs hints on numbers, and environment.answers is "
                    "'all'; leave misleading out, or set environment.answers to 'numbers'",
                    *("evaluation", "controls"),
                )

    config: Config

    @property
    def loaded(self) -> Loaded:
        """The data set. Raises `DataError` if it cannot be loaded."""
        config = self.config
        stamps = tuple(stamp(source) for source in (config.source, config.test_source) if source is not None)
        columns = tuple(sorted((config.columns or {}).items()))
        return load(config.source, config.test_source, columns, config.answers, config.ngram, stamps)

    def describe_data(self) -> str:
        return self.loaded.counts.text(self.config.source)

    def task(self, split: Split, index: int) -> Task:
        """Raises `DataError` if the data set cannot be loaded or the split is empty."""
        problems = self.loaded.problems[split]
        if not problems:
            raise DataError(
                f"The {split} split has no problems.",
                value=self.config.source,
                fix="Give a larger file, or a test_source.",
            )
        turn, offset = divmod(index, len(problems))
        chosen = problems[order(len(problems), f"{self.config.seed}/{split}/{turn}")[offset]]
        task = self._task(chosen.text, chosen.answer, chosen.solution, chosen.level)
        return task.model_copy(update={"split": split, "id": f"{self.name}/{split}/{index}"})


def stamp(source: str) -> tuple[str, int, int]:
    """A file's path, modification time and size, to reload a changed file."""
    path = Path(source).expanduser()
    if source in sources.known() or not path.is_file():
        return source, 0, 0
    info = path.stat()
    return source, info.st_mtime_ns, info.st_size


@functools.lru_cache(64)
def order(count: int, seed: str) -> tuple[int, ...]:
    """A permutation of `count` places."""
    places = list(range(count))
    random.Random(seed).shuffle(places)
    return tuple(places)


@functools.lru_cache(8)
def load(
    source: str,
    test_source: str | None,
    columns: tuple[tuple[str, str], ...],
    answers: str,
    ngram: int,
    stamps: tuple[tuple[str, int, int], ...],
) -> Loaded:
    """Read, clean, split and decontaminate.

    A test split is the test source, else the source's own, else the problems whose key falls into the last fifth. The
    rest is split by key into train and validation, 4 : 1 beside a test source and 3 : 1 else. Each problem stands in
    one split once.
    """
    given = dict(columns)
    if test_source is not None:
        mixed = sources.rows(source, given)
        held_out = sources.rows(test_source, None if test_source in sources.known() else given)
    elif sources.own_test(source):
        splits = sources.HUB[source].splits
        mixed = [row for split in splits[:-1] for row in sources.rows(source, None, split)]
        held_out = sources.rows(source, None, splits[-1])
    else:
        mixed, held_out = sources.rows(source, given), []
    counted = {"rows": len(mixed) + len(held_out), "unreadable": 0, "no_number": 0, "duplicates": 0}
    learned, test = _problems(mixed, answers, counted), _problems(held_out, answers, counted)
    if not held_out:
        test = [p for p in learned if assign_split(canonical(p.text)) == "test"]
        learned = [p for p in learned if assign_split(canonical(p.text)) != "test"]
    close = contaminated([p.text for p in learned], [p.text for p in test], ngram)
    learned = [p for i, p in enumerate(learned) if i not in close.same and i not in close.overlapping]
    shares = (0.8, 0.2, 0.0) if held_out else (0.6, 0.4, 0.0)
    train = [p for p in learned if assign_split(canonical(p.text), shares) == "train"]
    validation = [p for p in learned if assign_split(canonical(p.text), shares) != "train"]
    problems: dict[Split, tuple[Problem, ...]] = dict(
        zip(SPLITS, (tuple(train), tuple(validation), tuple(test)), strict=True)
    )
    counts = Counts(
        **counted,
        same_as_test=len(close.same),
        overlapping_test=len(close.overlapping),
        train=len(train),
        validation=len(validation),
        test=len(test),
    )
    return Loaded(problems, counts)


def _problems(rows: list[sources.Row], answers: str, counted: dict[str, int]) -> list[Problem]:
    """The rows that can be posed, each problem once."""
    usable = []
    for row in rows:
        gold = normalize_gold(row.answer)
        if gold is None:
            counted["unreadable"] += 1
        elif answers == "numbers" and read_number(gold) is None:
            counted["no_number"] += 1
        else:
            usable.append(Problem(row.problem.strip(), gold, row.solution, row.level))
    first = distinct([p.text for p in usable])
    counted["duplicates"] += len(usable) - len(first)
    return [usable[i] for i in first]
