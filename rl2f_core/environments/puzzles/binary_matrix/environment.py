"""`binary_matrix`: in a matrix of 0 and 1, the distance of each cell to the nearest 0.

The task family is that of RLTF (arXiv 2602.02482): n×n cells, n from 3 to 5, each 0 with probability 0.25, steps up,
down, left and right. In RLTF, 97 of 200 test matrices are training matrices, and answers are passed to `eval`. Here
the splits are disjoint, and an answer is n rows of n digits.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from pydantic import Field, model_validator

from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.environments.base import find_rows, new_task, sample_task, wrap_answer
from rl2f_core.environments.candidates import Box, Candidate, Region, one_of
from rl2f_core.environments.capabilities import (
    AnswerSpace,
    Baselines,
    Demonstrator,
    LeakVocabulary,
    MisleadingHints,
    last_parsed,
)
from rl2f_core.environments.puzzles.binary_matrix.stated_cells import matrices_in, stated_cells
from rl2f_core.environments.puzzles.symmetry import canonical_rows
from rl2f_core.errors import DataError, FieldValueError
from rl2f_core.registry import register
from rl2f_core.types import ConstantBaseline, Split, Task, TaskData, Verdict

BASELINE_TASKS = 400
"""Test tasks of the constant baseline: half select the answer, the other half measure it."""
_FORMS = {
    re.compile(r"[0-9]{2,5}(?:(?: +| ?\r?\n ?|[,;/] ?)[0-9]{2,5}){1,4}"): r"[^0-9]+",
    re.compile(r"\[ ?\[[0-9](?:, ?[0-9]){1,4}\](?:, ?\[[0-9](?:, ?[0-9]){1,4}\]){1,4} ?\]"): r"\],",
    re.compile(r"[0-9](?:[ ,]{1,2}[0-9]){1,4}(?: ?[\r\n;/]{1,2} ?[0-9](?:[ ,]{1,2}[0-9]){1,4}){1,4}"): r"[\r\n;/]+",
}
"""Forms of an answer, each with the separator of its rows."""
_HINT = re.compile(r"The first wrong value in (row|column) ([1-5]) is too (small|large)\.")
_UNREADABLE = "Your answer could not be read. Give {n} rows of {n} digits."
_ZERO = frozenset("0")
_MAX_DRAWS = 100_000


@register("environment")
class BinaryMatrix(MisleadingHints, Demonstrator, Baselines, LeakVocabulary, AnswerSpace):
    """Answers are rows of digits, `010 121 212`; up to 5×5, every distance has one digit.

    Matrices without a 0 or without a 1 are excluded, and, unless `plain` is set, those whose every 1 is next to a 0,
    because they are their own answer. 4 matrices of 2×2 remain (14 with `plain`), 220 of 3×3 (510), 36,874 of 4×4.
    Up to rotation and reflection these are 1 (4), 42 (100) and 4,800 problems, and splits share none.
    """

    class Config(ComponentConfig):
        """Level and seed."""

        type: Literal["binary_matrix"] = "binary_matrix"
        """Name of the environment."""
        smallest: int = Field(3, ge=2, le=5, json_schema_extra=BASIC_FIELD)
        """Minimum number of rows and columns, n."""
        largest: int = Field(5, ge=2, le=5, json_schema_extra=BASIC_FIELD)
        """Maximum number of rows and columns; sizes are uniform."""
        p_zero: float = Field(0.25, gt=0, lt=1)
        """Probability that a cell is 0."""
        plain: bool = False
        """Allow matrices that are their own answer, so that repeating the problem scores."""
        seed: int = 0
        """Seed of the task order."""

        @model_validator(mode="after")
        def _check_sizes(self) -> BinaryMatrix.Config:
            if self.smallest > self.largest:
                raise FieldValueError(f"smallest is {self.smallest} but largest only {self.largest}", "smallest")
            if self.smallest == 2 and not self.plain:
                raise FieldValueError("of 2×2 only four matrices are not their own answer: set plain to true", "plain")
            return self

    config: Config

    # -- tasks -------------------------------------------------------------------------------------------------
    def task(self, split: Split, index: int) -> Task:
        return sample_task(self, split, index, self.config.seed, self._make)

    def _make(self, rng: random.Random) -> Task:
        n = rng.randint(self.config.smallest, self.config.largest)
        for _ in range(_MAX_DRAWS):
            rows = ["".join("0" if rng.random() < self.config.p_zero else "1" for _ in range(n)) for _ in range(n)]
            if is_task(rows, self.config.plain):
                return self._build(rows)
        raise DataError(
            "No matrix of this level was found.",
            value=self.config.model_dump(),
            fix="Choose another p_zero, or set plain to true.",
        )

    def _build(self, rows: Sequence[str]) -> Task:
        n = len(rows)
        return new_task(self, f"{n}x{n}", {"rows": list(rows)}, {"answer": " ".join(distances(rows))})

    def canonical(self, task: Task) -> str:
        """The matrix up to rotation and reflection."""
        return canonical_rows(task.public["rows"])

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Parse the matrix from lines of 0 and 1, with spaces between them or not.

        Raises `DataError` if the problem has no square matrix of 2 to 5 rows with a 0, or if the answer is not its
        distances.
        """
        rows = find_rows(problem, "01")
        if not 2 <= len(rows) <= 5 or {len(row) for row in rows} != {len(rows)} or "0" not in "".join(rows):
            raise DataError(
                "The problem has no square matrix with a 0.",
                value=problem,
                fix="Write 2 to 5 rows of 0 and 1, one per line, e.g. `0 1 1`.",
            )
        task = self._build(rows)
        if self.parse(task, answer) != self.gold_answer(task):
            raise DataError(
                "The gold answer is not the matrix of distances.", value=answer, known=[self.gold_answer(task)]
            )
        return task

    # -- student -----------------------------------------------------------------------------------------------
    def system_prompt(self) -> str:
        return f"Reply with one digit a cell, row after row, as {wrap_answer('01 12')}."

    def prompt(self, public: TaskData) -> str:
        cells = "\n".join(" ".join(row) for row in public["rows"])
        return f"{cells}\nHow many steps is each cell from the nearest 0?"

    # -- verifier ----------------------------------------------------------------------------------------------
    def parse(self, task: Task, text: str) -> str | None:
        """Parse n rows of n digits: `010 121 212` on one or n lines, `0 1 0; 1 2 1; 2 1 2`, or `[[0, 1, 0], …]`."""
        text = text.strip(" \t\r\n")
        if len(text) > 200:
            return None
        n = len(task.public["rows"])
        for form, separator in _FORMS.items():
            if form.fullmatch(text):
                rows = [re.sub("[^0-9]", "", row) for row in re.split(separator, text)]
                return " ".join(rows) if len(rows) == n and all(len(row) == n for row in rows) else None
        return None

    def score_parsed(self, task: Task, parsed: str) -> Verdict:
        """Score: the fraction of correct cells among those that are 1 in the problem or wrongly changed from 0.

        Unchanged zeros earn nothing. Parts: all cells, `row,column` from 1. Distance: 1 − score.
        """
        gold, attempt = self.gold_answer(task).split(), parsed.split()
        cells = [(r, c) for r in range(len(gold)) for c in range(len(gold))]
        correct = [(r, c) for r, c in cells if attempt[r][c] == gold[r][c]]
        scored = [(r, c) for r, c in cells if gold[r][c] != "0" or attempt[r][c] != "0"]
        score = sum(attempt[r][c] == gold[r][c] for r, c in scored) / len(scored)
        wrong = len(cells) - len(correct)
        return Verdict(
            correct=not wrong,
            score=score,
            parsed=parsed,
            detail=f"{wrong} of {len(cells)} cells are wrong; the distances are {self.gold_answer(task)}",
            well_formed=True,
            distance=1 - score,
            parts={_cell(r, c): attempt[r][c] for r, c in cells},
            correct_parts=tuple(_cell(r, c) for r, c in correct),
        )

    # -- scripted teacher --------------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Name the row or column of the first wrong cell of the last attempt, and the direction of its error."""
        last, n = last_parsed(attempts), len(task.public["rows"])
        if last is None:
            return _UNREADABLE.format(n=n)
        error = _first_error(last.split(), self.gold_answer(task).split(), by_row=rng.random() < 0.5)
        return "Right." if error is None else _hint_text(*error)

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Blame a correct row or column, or state the wrong direction, equally often."""
        last, n = last_parsed(attempts), len(task.public["rows"])
        if last is None:
            return _hint_text(rng.choice(("row", "column")), rng.randint(1, n), rng.choice(("small", "large")))
        attempt, gold = last.split(), self.gold_answer(task).split()
        correct = [("row", k + 1) for k in range(n) if attempt[k] == gold[k]]
        correct += [("column", k + 1) for k in range(n) if all(attempt[r][k] == gold[r][k] for r in range(n))]
        error = _first_error(attempt, gold, by_row=rng.random() < 0.5)
        if error is None or (correct and rng.random() < 0.5):
            return _hint_text(*rng.choice(correct), rng.choice(("small", "large")))
        line, number, direction = error
        return _hint_text(line, number, "small" if direction == "large" else "large")

    def claim_agreement(self, task: Task, before: Verdict, hint: str, attempt: Verdict) -> float | None:
        """False claim: a cell of the named line is too small or too large, for cells where this is false.

        An attempt satisfies it if it moves one of these cells in the claimed direction.
        """
        match = _HINT.fullmatch(hint)
        if match is None or before.parsed is None:
            return None
        last, gold = before.parsed.split(), self.gold_answer(task).split()
        k, step = int(match[2]) - 1, 1 if match[3] == "small" else -1
        cells = [(k, i) if match[1] == "row" else (i, k) for i in range(len(gold))]
        false = [(r, c) for r, c in cells if (int(gold[r][c]) - int(last[r][c])) * step <= 0]
        if not false:
            return None
        new = attempt.parsed.split() if attempt.parsed is not None else last
        return float(any((int(new[r][c]) - int(last[r][c])) * step > 0 for r, c in false))

    # -- simulated student -------------------------------------------------------------------------------------
    def simulate_attempt(
        self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow_hint: bool, correct: bool
    ) -> str:
        """Draw the answer with one to three nonzero cells off by one, or the problem's own matrix.

        With `follow_hint`, the first wrong cell moves one step in the hinted direction, which may be correct.
        Otherwise, draw a wrong attempt that differs from the last one.
        """
        gold, last = self.gold_answer(task).split(), last_parsed(attempts)
        if correct:
            return wrap_answer(" ".join(gold))
        if follow_hint and last is not None:
            for i, (digit, right) in enumerate(zip(last, " ".join(gold), strict=True)):
                if digit != right:
                    return wrap_answer(f"{last[:i]}{int(digit) + (1 if digit < right else -1)}{last[i + 1 :]}")
        scored = [(r, c) for r, row in enumerate(gold) for c, digit in enumerate(row) if digit != "0"]
        for _ in range(20):
            cells = [list(row) for row in gold]
            for r, c in rng.sample(scored, min(len(scored), rng.randint(1, 3))):
                cells[r][c] = str(int(cells[r][c]) + (1 if cells[r][c] == "1" else rng.choice((-1, 1))))
            attempt = ["".join(row) for row in cells]
            if rng.random() < 0.2 and task.public["rows"] != gold:
                attempt = task.public["rows"]
            if last != " ".join(attempt):
                return wrap_answer(" ".join(attempt))
        return wrap_answer(" ".join(row.replace("1", "2") for row in gold))

    def worked_solution(self, task: Task) -> str:
        """The cells of each distance, starting with the zeros, then the answer."""
        gold = self.gold_answer(task)
        lines = [f"0s: {re.sub('[^0 ]', '.', gold)}."]
        for distance in range(1, int(max(gold)) + 1):
            reached = "".join(x if x == " " or int(x) <= distance else "." for x in gold)
            lines.append(f"Beside them {distance}: {reached}.")
        return f"{' '.join(lines)} {wrap_answer(gold)}"

    # -- information in a hint ---------------------------------------------------------------------------------
    def answer_space(self, task: Task) -> Region:
        """All matrices with the problem's zeros and a distance of 1 to 2n − 2 in each other cell."""
        rows = task.public["rows"]
        distance = frozenset(map(str, range(1, 2 * len(rows) - 1)))
        cells = {_cell(r, c): digit for r, row in enumerate(rows) for c, digit in enumerate(row)}
        return ({cell: _ZERO if digit == "0" else distance for cell, digit in cells.items()},)

    def answer_values(self, task: Task, parsed: str) -> Candidate:
        return {_cell(r, c): digit for r, row in enumerate(parsed.split()) for c, digit in enumerate(row)}

    def hint_statements(self, task: Task, attempts: Sequence[Verdict], hint: str) -> tuple[Region, ...] | None:
        """The first wrong cell, in reading order, is in the named line and is too small or too large.

        One statement for each cell before the line's first: it is right. One more with a box for each cell of the line
        that may be the first wrong one: the cells from the line's first up to it are right, and it errs as stated.
        """
        last, match, n = last_parsed(attempts), _HINT.fullmatch(hint), len(task.public["rows"])
        if hint == _UNREADABLE.format(n=n) or (last is None and match is not None):
            return ()
        if last is None or match is None or int(match[2]) > n:
            return None
        digits, line = "".join(last.split()), int(match[2]) - 1
        names = [_cell(r, c) for r in range(n) for c in range(n)]
        firsts = range(line * n, (line + 1) * n) if match[1] == "row" else range(line, n * n, n)
        boxes: list[Box] = []
        for first in firsts:
            errs = [x for x in map(str, range(10)) if (x > digits[first] if match[3] == "small" else x < digits[first])]
            right = {names[i]: frozenset(digits[i]) for i in range(firsts[0], first)}
            boxes.append({**right, names[first]: frozenset(errs)})
        return (*(one_of(names[i], digits[i]) for i in range(firsts[0])), tuple(boxes))

    # -- reference lines ---------------------------------------------------------------------------------------
    def constant_baseline(self) -> ConstantBaseline:
        """The most frequent answer of 200 test tasks, and the fraction of 200 others that it solves.

        Repeating the problem solves none, or with `plain` the matrices that are their own answer.
        """
        return _measure_baseline(self.config)

    # -- leak detection ----------------------------------------------------------------------------------------
    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        return matrices_in(text, len(task.public["rows"]))

    def answer_parts(self, task: Task, parsed: str) -> dict[str, str]:
        """The cells that are 1 in the problem."""
        return {
            _cell(r, c): parsed.split()[r][c]
            for r, row in enumerate(task.public["rows"])
            for c, digit in enumerate(row)
            if digit != "0"
        }

    def stated_parts(self, task: Task, text: str) -> list[tuple[int, int, str, str]]:
        """Statements about cells, rows and columns.

        A weak statement (`is`) that repeats the problem's own value does not count; a strong one (`should be`) does.
        """
        rows = task.public["rows"]
        return [
            (start, end, _cell(r, c), value)
            for start, end, r, c, value, strong in stated_cells(text, len(rows))
            if strong or rows[r][c] != value
        ]

    def student_parts(self, task: Task, parsed: Sequence[str]) -> set[tuple[str, str]]:
        """The cells of the last attempt, because there are few distinct distances."""
        return super().student_parts(task, parsed[-1:])


def distances(rows: Sequence[str]) -> list[str]:
    """Return the rows of distances |Δrow| + |Δcolumn| to the nearest 0."""
    zeros = [(r, c) for r, row in enumerate(rows) for c, digit in enumerate(row) if digit == "0"]
    return [
        "".join(str(min(abs(r - a) + abs(c - b) for a, b in zeros)) for c in range(len(row)))
        for r, row in enumerate(rows)
    ]


def is_task(rows: Sequence[str], plain: bool) -> bool:
    """Return whether a matrix has a 0 and a 1 and, unless `plain`, is not its own answer."""
    digits = set("".join(rows))
    return digits == {"0", "1"} and (plain or distances(rows) != list(rows))


def _cell(row: int, column: int) -> str:
    return f"{row + 1},{column + 1}"


def _first_error(attempt: Sequence[str], gold: Sequence[str], by_row: bool) -> tuple[str, int, str] | None:
    """Return the line of the first wrong cell, its number, and whether the cell is too small or too large."""
    for r, row in enumerate(gold):
        for c, digit in enumerate(row):
            if attempt[r][c] != digit:
                line, number = ("row", r + 1) if by_row else ("column", c + 1)
                return line, number, "large" if attempt[r][c] > digit else "small"
    return None


def _hint_text(line: str, number: int, direction: str) -> str:
    return f"The first wrong value in {line} {number} is too {direction}."


@lru_cache(maxsize=32)
def _measure_baseline(config: BinaryMatrix.Config) -> ConstantBaseline:
    environment, half = BinaryMatrix(config), BASELINE_TASKS // 2
    answers = [environment.gold_answer(environment.task("test", index)) for index in range(BASELINE_TASKS)]
    best = min(Counter(answers[:half]).items(), key=lambda item: (-item[1], item[0]))[0]
    return ConstantBaseline(best, answers[half:].count(best) / half)
