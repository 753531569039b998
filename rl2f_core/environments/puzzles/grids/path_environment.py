"""Common base of `shortest_path` and `maze`: grids, walks as answers, and hints on a walk."""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import new_task, wrap_answer
from rl2f_core.environments.candidates import Candidate, Region, one_of
from rl2f_core.environments.capabilities import (
    AnswerSpace,
    Baselines,
    Demonstrator,
    LeakVocabulary,
    MisleadingHints,
    last_parsed,
)
from rl2f_core.environments.puzzles.grids.grid import (
    GOAL,
    START,
    STEPS,
    Cell,
    Fault,
    Grid,
    PathError,
    distances_to,
    find_path,
    first_path_error,
    length_of,
    moved,
    read_grid,
    to_goal,
    walked,
    ways_of,
)
from rl2f_core.environments.puzzles.grids.move_extraction import runs_of
from rl2f_core.environments.puzzles.grids.move_parser import INFEASIBLE, read_answer
from rl2f_core.environments.puzzles.grids.stated_moves import stated_steps, walks_in
from rl2f_core.environments.puzzles.symmetry import canonical_rows
from rl2f_core.errors import DataError
from rl2f_core.types import ConstantBaseline, Task, TaskData, Verdict

BASELINE_TASKS = 400
"""Test tasks of the constant baseline: half select the answer, the other half measure it."""
UNREADABLE = "Your answer could not be read. Give the steps with the letters U, D, L and R."
REACHABLE, UNREACHABLE = "G can be reached.", "G cannot be reached."
_POSITION = r"(?: You stand in row \d+, column \d+\.)?"
"""What `describe_position` may append."""
_END = ""
"""Value of a step after the end of a walk."""
_OPPOSITE = {"U": "D", "D": "U", "L": "R", "R": "L"}


_MISLEADING: tuple[Fault, ...] = ("wall", "wasted")
"""Errors that a misleading hint claims."""


_BLAMED = re.compile(r"Step (\d+) ")
"""The step that a hint blames."""


def grid_of(task: Task) -> Grid:
    """Return the task's grid."""
    return Grid(tuple(task.public["grid"]))


class PathEnvironment(MisleadingHints, Demonstrator, Baselines, LeakVocabulary, AnswerSpace):
    """Tasks whose answer is a walk from S to G, in letters `R R D`.

    Splits share no grid, also up to rotation and reflection.
    """

    infeasible: ClassVar[bool]
    """Whether `infeasible` is an answer."""
    wasted_hint: ClassVar[str]
    """Hint on a step {k} that comes no nearer to G."""

    def _build(self, grid: Grid) -> Task:
        privileged: TaskData = {"answer": " ".join(find_path(grid) or ()) or INFEASIBLE}
        return new_task(self, f"{len(grid.rows)}x{len(grid.rows[0])}", {"grid": list(grid.rows)}, privileged)

    def canonical(self, task: Task) -> str:
        """The grid up to rotation and reflection; with S and G exchanged it is another."""
        return canonical_rows(task.public["grid"])

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Parse the grid from lines of `.`, `#`, `S` and `G`.

        Raises `DataError` if the problem has no such grid with one S and one G, or if the answer is wrong.
        """
        grid = read_grid(problem)
        if grid is None or (length_of(grid) is None and not self.infeasible):
            raise DataError(
                "The problem has no grid that can be solved.",
                value=problem,
                fix=f"Write rows of `.`, `#`, `{START}` and `{GOAL}`, one {START} and one {GOAL}, e.g. `S . #`.",
            )
        task = self._build(grid)
        parsed = self.parse(task, answer)
        if parsed is None or not self.score_parsed(task, parsed).correct:
            raise DataError("The gold answer is not right for the grid.", value=answer, known=[self.gold_answer(task)])
        return task

    # -- verifier ----------------------------------------------------------------------------------------------
    def parse(self, task: Task, text: str) -> str | None:
        """`R R D`, `RRD`, `right, right, down` or `→ → ↓`; see `move_parser.read_answer`."""
        return read_answer(text, self.infeasible)

    @abstractmethod
    def find_error(self, grid: Grid, letters: str) -> PathError | None:
        """Return the first error of a walk, or None if it is correct."""

    @abstractmethod
    def partial_score(self, grid: Grid, letters: str, error: PathError) -> float:
        """Return the score below 1 of a wrong walk on a feasible grid."""

    def describe_position(self, grid: Grid, letters: str) -> str:
        """Return the position after a walk, which a hint appends; empty by default."""
        return ""

    def score_parsed(self, task: Task, parsed: str) -> Verdict:
        """Parts: the steps; those before the first error are correct. Distance: 1 − score.

        Walks on an infeasible grid and `infeasible` on a feasible grid score 0.
        """
        grid, gold = grid_of(task), self.gold_answer(task)
        if parsed == INFEASIBLE:
            correct = gold == INFEASIBLE
            return Verdict(
                correct=correct,
                score=float(correct),
                parsed=parsed,
                detail="there is no way" if correct else f"there is a way: {gold}",
                well_formed=True,
                distance=float(not correct),
            )
        letters = parsed.replace(" ", "")
        error = self.find_error(grid, letters)
        correct_steps = len(letters) if error is None else error.correct_steps
        if error is None:
            score, detail = 1.0, "a right way"
        else:
            score = 0.0 if gold == INFEASIBLE else self.partial_score(grid, letters, error)
            detail = f"{self._describe_error(error)} The answer is {gold}."
        return Verdict(
            correct=error is None,
            score=score,
            parsed=parsed,
            detail=detail,
            well_formed=True,
            distance=1 - score,
            parts={str(k): letter for k, letter in enumerate(letters, 1)},
            correct_parts=tuple(str(k) for k in range(1, correct_steps + 1)),
        )

    # -- scripted teacher --------------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Name the first wrong step of the last attempt and its error, never the correct step."""
        last = last_parsed(attempts)
        if last is None:
            return UNREADABLE
        if last == INFEASIBLE:
            return REACHABLE
        grid, letters = grid_of(task), last.replace(" ", "")
        error = self.find_error(grid, letters)
        return "Right." if error is None else self._describe_error(error) + self.describe_position(grid, letters)

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Blame another step than the first wrong one, falsely; after `infeasible`, claim that G cannot be reached."""
        last = last_parsed(attempts)
        if last is None:
            return self._describe_error(PathError(1, "wall"))
        if last == INFEASIBLE:
            return UNREACHABLE
        grid, letters = grid_of(task), last.replace(" ", "")
        error = self.find_error(grid, letters)
        steps = [k for k in range(1, len(letters) + 1) if error is None or k != error.step]
        claims = [PathError(k, fault) for k in steps for fault in _MISLEADING]
        false = [claim for claim in claims if self._is_false(grid, letters, claim)]
        claim = rng.choice(false or [PathError(len(letters) + 1, "wall")])
        return self._describe_error(claim) + self.describe_position(grid, letters[: claim.step])

    def _describe_error(self, error: PathError) -> str:
        return self._error_texts()[error.fault].format(k=error.step)

    def _error_texts(self) -> dict[Fault, str]:
        return {
            "wall": "Step {k} hits a wall.",
            "edge": "Step {k} leaves the grid.",
            "wasted": self.wasted_hint,
            "short": "After step {k} you are not at G yet.",
        }

    def _is_false(self, grid: Grid, letters: str, claim: PathError) -> bool:
        """Return whether a claimed error at a step that the walk reaches is false."""
        left, cells = to_goal(grid), walked(grid, letters[: claim.step])
        if claim.fault == "wall":
            near = moved(cells[-1], letters[claim.step - 1]) if len(cells) == claim.step else None
            return near is None or not grid.inside(near)
        if len(cells) <= claim.step or cells[-2] not in left:
            return len(cells) <= claim.step
        return left[cells[-1]] < left[cells[-2]]

    def claim_agreement(self, task: Task, before: Verdict, hint: str, attempt: Verdict) -> float | None:
        """False claims: a correct step is wrong, satisfied by another step; or G cannot be reached."""
        if hint.startswith(UNREACHABLE):
            return float(attempt.parsed == INFEASIBLE) if self.gold_answer(task) != INFEASIBLE else None
        match = _BLAMED.match(hint)
        if match is None or match[1] not in before.correct_parts:
            return None
        return float(attempt.parsed is not None and attempt.parts.get(match[1]) != before.parts[match[1]])

    # -- simulated student -------------------------------------------------------------------------------------
    def simulate_attempt(
        self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow_hint: bool, correct: bool
    ) -> str:
        """Draw a walk that mostly moves toward G.

        With `follow_hint`, keep the steps before the first error and draw the rest with another step there; it may be
        correct. Otherwise draw a new wrong walk, or sometimes answer `infeasible`.
        """
        gold, grid, last = self.gold_answer(task), grid_of(task), last_parsed(attempts)
        if correct:
            picks = [rng.randrange(12) for _ in range(length_of(grid) or 0)]
            return wrap_answer(" ".join(find_path(grid, picks) or ()) or INFEASIBLE)
        if follow_hint and last is not None and last != INFEASIBLE:
            letters = last.replace(" ", "")
            error = self.find_error(grid, letters) or PathError(len(letters), "short")
            wrong = letters[error.correct_steps : error.step]
            return wrap_answer(" ".join(_sample_walk(grid, letters[: error.correct_steps], wrong, rng)))
        if self.infeasible and gold != INFEASIBLE and rng.random() < 0.15 and last != INFEASIBLE:
            return wrap_answer(INFEASIBLE)
        for _ in range(20):
            candidate = _sample_walk(grid, "", "", rng)
            if self.find_error(grid, candidate) is not None and last != " ".join(candidate):
                return wrap_answer(" ".join(candidate))
        candidate = find_path(grid) or "".join(rng.choice("UDLR") for _ in range(3))
        return wrap_answer(" ".join(candidate if gold == INFEASIBLE else candidate + _OPPOSITE[candidate[-1]]))

    def worked_solution(self, task: Task) -> str:
        """The cells of a shortest path one after the other, or all reachable cells; then the answer."""
        grid, gold = grid_of(task), self.gold_answer(task)
        head = f"S {_place(grid.find(START))}, G {_place(grid.find(GOAL))}."
        if gold == INFEASIBLE:
            seen = sorted(distances_to(grid, grid.find(START)))
            return f"{head} From S only {', '.join(map(_place, seen))} can be reached. {wrap_answer(gold)}"
        cells = walked(grid, gold.replace(" ", ""))[1:]
        steps = ", ".join(f"{x} {_place(cell)}" for x, cell in zip(gold.split(), cells, strict=True))
        return f"{head} {steps} is G. {wrap_answer(gold)}"

    # -- information in a hint ---------------------------------------------------------------------------------
    def answer_space(self, task: Task) -> Region | None:
        """All ways from S to G through open cells that visit no cell twice, by step, and `infeasible` if it is allowed.

        Without loops, a maze has one way, so its hints have no information. None above `grid.MAX_WAYS` ways.
        """
        grid = grid_of(task)
        ways = ways_of(grid)
        if ways is None:
            return None
        answers = [*ways, INFEASIBLE] if self.infeasible else ways
        return tuple(
            {step: frozenset([value]) for step, value in self._values(grid, answer).items()} for answer in answers
        )

    def right_answers(self, task: Task, parsed: str | None = None) -> list[Candidate]:
        grid, gold = grid_of(task), self.gold_answer(task)
        ways = (ways_of(grid) or ()) if gold != INFEASIBLE else ()
        letters = "" if parsed in (None, INFEASIBLE) else (parsed or "").replace(" ", "")
        error = self.find_error(grid, letters)
        start = letters if error is None else letters[: error.correct_steps]
        right = [way for way in ways if way.startswith(start) and self.find_error(grid, way) is None]
        return [self._values(grid, way) for way in right] or super().right_answers(task)

    def answer_values(self, task: Task, parsed: str) -> Candidate:
        return self._values(grid_of(task), parsed if parsed == INFEASIBLE else parsed.replace(" ", ""))

    def _values(self, grid: Grid, answer: str) -> dict[str, str]:
        """Return the value of each step, up to one more than a way can have, so that a longer walk is not a way."""
        steps = range(len(grid.rows) * len(grid.rows[0]))
        if answer == INFEASIBLE:
            return {str(k + 1): INFEASIBLE for k in steps}
        return {str(k + 1): answer[k] if k < len(answer) else _END for k in steps}

    def hint_statements(self, task: Task, attempts: Sequence[Verdict], hint: str) -> tuple[Region, ...] | None:
        """The steps before the named one belong to the answer, one statement each; the named one does not.

        Of several right answers, the statements describe those that continue the attempt. A step that comes no nearer
        excludes `infeasible`; a wall, the edge and the end of a walk do not.
        """
        last = last_parsed(attempts)
        if hint == UNREADABLE:
            return ()
        if hint in (REACHABLE, UNREACHABLE):
            return (one_of("1", [INFEASIBLE] if hint == UNREACHABLE else STEPS),)
        error = self._read_error(hint)
        if last is None and error is not None:
            return ()
        if last is None or last == INFEASIBLE or error is None:
            return None
        values, length = self.answer_values(task, last), len(last.split())
        if error.step > length or (error.fault == "short" and error.step < length):
            return None
        others = () if error.fault == "wasted" else (INFEASIBLE,)
        steps = [str(k) for k in range(1, error.correct_steps + 2) if str(k) in values]
        statements = [one_of(step, {values[step], *others}) for step in steps[: error.correct_steps]]
        for named in steps[error.correct_steps :]:
            statements.append(one_of(named, {*STEPS, _END, *others} - {values[named]}))
        return tuple(statements)

    def _read_error(self, hint: str) -> PathError | None:
        """Return the error that a hint names, or None."""
        for fault, text in self._error_texts().items():
            match = re.fullmatch(re.escape(text).replace(r"\{k\}", r"(\d{1,3})") + _POSITION, hint)
            if match:
                return PathError(int(match[1]), fault)
        return None

    # -- reference lines ---------------------------------------------------------------------------------------
    def constant_baseline(self) -> ConstantBaseline:
        """The constant answer that solves most of 200 test tasks, and the fraction of 200 others that it solves."""
        return _measure_baseline(type(self), self.config)

    # -- leak detection ----------------------------------------------------------------------------------------
    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        """Walks in letters, words, arrows, compass points, counts (`twice right`) or cells, and "there is no way"."""
        return walks_in(text, grid_of(task), self.infeasible)

    def answer_parts(self, task: Task, parsed: str) -> dict[str, str]:
        """The steps by number.

        A step before the first error counts as the gold answer's step, because there may be several shortest paths.
        """
        if parsed == INFEASIBLE:
            return {}
        letters, gold = parsed.replace(" ", ""), self.gold_answer(task).split()
        error = first_path_error(grid_of(task), letters)
        steps = (gold if error is None else gold[: error.correct_steps])[: len(letters)]
        return {str(k): letter for k, letter in enumerate([*steps, *letters[len(steps) :]], 1)}

    def stated_parts(self, task: Task, text: str) -> list[tuple[int, int, str, str]]:
        """Steps that a text gives by number or as the beginning or the end of the path.

        A step of any shortest path counts as the gold answer's step at its position.
        """
        gold = self.gold_answer(task).split()
        if gold == [INFEASIBLE]:
            return []
        statements = []
        for start, end, k, letter in stated_steps(text, len(gold)):
            if 1 <= k <= len(gold):
                good = letter in _layers(grid_of(task))[k - 1]
                statements.append((start, end, str(k), gold[k - 1] if good else letter))
        return statements

    def attempt_contains(self, task: Task, parsed: str, answer: str, hint: str) -> bool:
        if parsed == answer or parsed.startswith(f"{answer} "):
            return True
        letters = parsed.replace(" ", "")
        return any(run.letters == letters for run in runs_of(hint))

    def student_parts(self, task: Task, parsed: Sequence[str]) -> set[tuple[str, str]]:
        """The steps of the last attempt, because there are only four directions."""
        return super().student_parts(task, parsed[-1:])


def _place(cell: Cell) -> str:
    return f"({cell[0] + 1},{cell[1] + 1})"


@lru_cache(4096)
def _layers(grid: Grid) -> list[set[str]]:
    """For each step, the directions of that step in any shortest path."""
    left, cells = to_goal(grid), {grid.find(START)}
    layers: list[set[str]] = []
    for _ in range(length_of(grid) or 0):
        good = {(c, x) for c in cells for x in STEPS if left.get(moved(c, x), -1) == left[c] - 1}
        layers.append({x for _, x in good})
        cells = {moved(c, x) for c, x in good}
    return layers


def _sample_walk(grid: Grid, prefix: str, wrong: str, rng: random.Random) -> str:
    """Extend `prefix` by steps mostly toward the goal, the first of them not `wrong`.

    75 % of the steps reduce the distance (Manhattan if there is no path); the others are uniform. Walls are ignored.
    """
    left, goal = to_goal(grid), grid.find(GOAL)
    walk, cell = prefix, walked(grid, prefix)[-1]

    def manhattan(cell: Cell) -> int:
        return abs(cell[0] - goal[0]) + abs(cell[1] - goal[1])

    limit = max(len(prefix) + 1, (length_of(grid) or manhattan(cell)) + 2)
    while len(walk) < limit and (cell != goal or len(walk) == len(prefix)):
        near = left.get(cell)
        letters = [x for x in STEPS if len(walk) > len(prefix) or x != wrong]
        if near is not None:
            good = [x for x in letters if left.get(moved(cell, x), near) < near]
        else:
            good = [x for x in letters if manhattan(moved(cell, x)) < manhattan(cell)]
        walk += rng.choice(good if good and rng.random() < 0.75 else letters)
        cell = moved(cell, walk[-1]) if near is None or grid.is_open(moved(cell, walk[-1])) else cell
    return walk


@lru_cache(32)
def _measure_baseline(kind: type[PathEnvironment], config: ComponentConfig) -> ConstantBaseline:
    environment, half = kind(config), BASELINE_TASKS // 2
    tasks = [environment.task("test", index) for index in range(BASELINE_TASKS)]
    answers = [answer for answer, _ in Counter(map(environment.gold_answer, tasks[:half])).most_common(20)]
    solved = {answer: sum(environment.is_correct_answer(task, answer) for task in tasks[:half]) for answer in answers}
    best = max(answers, key=lambda answer: solved[answer])
    return ConstantBaseline(best, sum(environment.is_correct_answer(task, best) for task in tasks[half:]) / half)
