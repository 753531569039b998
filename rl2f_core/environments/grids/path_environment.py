"""Common base of `shortest_path` and `maze`: grids, walks as answers, and hints on a walk."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import new_task, wrap_answer
from rl2f_core.environments.capabilities import (
    Baselines,
    Demonstrator,
    LeakVocabulary,
    MisleadingHints,
)
from rl2f_core.environments.grids.grid import (
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
)
from rl2f_core.environments.grids.move_extraction import runs_of
from rl2f_core.environments.grids.move_parser import INFEASIBLE, read_answer
from rl2f_core.environments.grids.stated_moves import stated_steps, walks_in
from rl2f_core.errors import DataError
from rl2f_core.types import ConstantBaseline, Task, TaskData, Verdict

BASELINE_TASKS = 400
"""Test tasks of the constant baseline: half select the answer, the other half measure it."""
_OPPOSITE = {"U": "D", "D": "U", "L": "R", "R": "L"}


@lru_cache(4096)
def _grid(rows: tuple[str, ...]) -> Grid:
    return Grid(rows)


def grid_of(task: Task) -> Grid:
    """The task's grid."""
    return _grid(tuple(task.public["grid"]))


class PathEnvironment(MisleadingHints, Demonstrator, Baselines, LeakVocabulary):
    """Tasks whose answer is a walk from S to G, in letters `R R D`.

    Splits share no grid. Rotated or mirrored copies are other tasks, so a training grid may be a copy of a test grid.
    """

    infeasible: ClassVar[bool]
    """Whether `infeasible` is an answer."""
    faults: ClassVar[dict[Fault, str]]
    """Hint text for an error at step {k}."""

    def _build(self, grid: Grid) -> Task:
        privileged: TaskData = {"answer": " ".join(find_path(grid) or ()) or INFEASIBLE}
        return new_task(self, f"{len(grid.rows)}x{len(grid.rows[0])}", {"grid": list(grid.rows)}, privileged)

    def canonical(self, task: Task) -> str:
        """The grid; rotated and mirrored copies are other tasks."""
        return grid_of(task).key

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Reads the grid from lines of `.`, `#`, `S` and `G`.

        Raises `DataError` where the problem has no such grid with one S and one G, or where the answer is wrong.
        """
        grid = read_grid(problem)
        if grid is None or (length_of(grid) is None and not self.infeasible):
            raise DataError(
                "The problem shows no grid that can be solved.",
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
    def _slip(self, grid: Grid, letters: str) -> PathError | None:
        """The first error of a walk, or None if it is correct."""

    @abstractmethod
    def _score(self, grid: Grid, letters: str, slip: PathError) -> float:
        """Partial credit of a wrong walk on a grid that has a way, below 1."""

    def score_parsed(self, task: Task, parsed: str) -> Verdict:
        """Parts: the steps; those before the first error are correct. Distance: 1 − score.

        Walks on an infeasible grid and `infeasible` on a feasible grid score 0.
        """
        grid, gold = grid_of(task), self.gold_answer(task)
        if parsed == INFEASIBLE:
            right = gold == INFEASIBLE
            detail = "there is no way" if right else f"there is a way: {gold}"
            return Verdict(
                correct=right,
                score=float(right),
                parsed=parsed,
                detail=detail,
                well_formed=True,
                distance=float(not right),
            )
        letters = parsed.replace(" ", "")
        slip = self._slip(grid, letters)
        good = len(letters) if slip is None else slip.step - (slip.fault != "short")
        score = 1.0 if slip is None else 0.0 if gold == INFEASIBLE else self._score(grid, letters, slip)
        detail = "a right way" if slip is None else f"{_fault(self.faults, slip)} The answer is {gold}."
        return Verdict(
            correct=slip is None,
            score=score,
            parsed=parsed,
            detail=detail,
            well_formed=True,
            distance=1 - score,
            parts={str(k): letter for k, letter in enumerate(letters, 1)},
            correct_parts=tuple(str(k) for k in range(1, good + 1)),
        )

    def is_correct_answer(self, task: Task, answer: str) -> bool:
        parsed = self.parse(task, answer)
        if parsed is None or parsed == INFEASIBLE:
            return parsed is not None and self.gold_answer(task) == INFEASIBLE
        return self.gold_answer(task) != INFEASIBLE and self._slip(grid_of(task), parsed.replace(" ", "")) is None

    # -- scripted teacher --------------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """The first wrong step of the last attempt and its error, never the correct step."""
        last = attempts[-1] if attempts else None
        if last is None or last.parsed is None:
            return "Your answer could not be read. Give the steps with the letters U, D, L and R."
        if last.parsed == INFEASIBLE:
            return "G can be reached."
        grid, letters = grid_of(task), last.parsed.replace(" ", "")
        slip = self._slip(grid, letters)
        return "Right." if slip is None else _fault(self.faults, slip) + self._seen(grid, letters, slip)

    def _seen(self, grid: Grid, letters: str, slip: PathError) -> str:
        """Position information that the hint appends."""
        return ""

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Blame a step falsely; after `infeasible`, claim that G cannot be reached."""
        last = attempts[-1] if attempts else None
        if last is None or last.parsed is None:
            return _fault(self.faults, PathError(1, "wall"))
        if last.parsed == INFEASIBLE:
            return "G cannot be reached."
        grid, letters = grid_of(task), last.parsed.replace(" ", "")
        true = self._slip(grid, letters)
        reached = len(walked(grid, letters)) - 1
        blamed = [PathError(k, fault) for k in range(1, min(len(letters), reached + 1) + 1) for fault in _MISLEADING]
        candidate = [s for s in blamed if s != true and self._is_false(grid, letters, s)] or [
            PathError(len(letters) + 1, "wall")
        ]
        slip = rng.choice(candidate)
        return _fault(self.faults, slip) + self._seen(grid, letters[: slip.step], slip)

    def _is_false(self, grid: Grid, letters: str, candidate: PathError) -> bool:
        """Whether a claimed error at a step that the walk reaches is false."""
        left, cells = to_goal(grid), walked(grid, letters[: candidate.step])
        if candidate.fault == "wall":
            near = moved(cells[-1], letters[candidate.step - 1]) if len(cells) == candidate.step else None
            return near is None or not grid.inside(near)
        if len(cells) <= candidate.step or cells[-2] not in left:
            return len(cells) <= candidate.step
        return left[cells[-1]] < left[cells[-2]]

    # -- simulated student -------------------------------------------------------------------------------------
    def simulate_attempt(
        self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow_hint: bool, correct: bool
    ) -> str:
        """A walk that mostly moves toward G.

        With `follow_hint`, keep the steps before the first error and draw the rest with another step there; it may be
        correct. Otherwise draw a new wrong walk, or sometimes answer `infeasible`.
        """
        gold = self.gold_answer(task)
        if correct:
            return wrap_answer(gold if gold == INFEASIBLE else " ".join(self._any_way(grid_of(task), rng)))
        grid, last = grid_of(task), attempts[-1] if attempts else None
        if follow_hint and last is not None and last.parts:
            letters = last.parsed.replace(" ", "") if last.parsed else ""
            slip = self._slip(grid, letters) or PathError(len(letters), "short")
            kept = letters[: slip.step - (slip.fault != "short")]
            wrong = letters[slip.step - 1] if slip.fault != "short" else ""
            return wrap_answer(" ".join(_stroll(grid, kept, wrong, rng)))
        if (
            self.infeasible
            and gold != INFEASIBLE
            and rng.random() < 0.15
            and (last is None or last.parsed != INFEASIBLE)
        ):
            return wrap_answer(INFEASIBLE)
        for _ in range(20):
            candidate = _stroll(grid, "", "", rng)
            if self._slip(grid, candidate) is not None and (last is None or last.parsed != " ".join(candidate)):
                return wrap_answer(" ".join(candidate))
        candidate = find_path(grid) or "".join(rng.choice("UDLR") for _ in range(3))
        return wrap_answer(" ".join(candidate if gold == INFEASIBLE else candidate + _OPPOSITE[candidate[-1]]))

    def _any_way(self, grid: Grid, rng: random.Random) -> str:
        return find_path(grid, [rng.randrange(12) for _ in range(length_of(grid) or 0)]) or ""

    def worked_solution(self, task: Task) -> str:
        """The cells of a shortest way one after the other, or all that can be reached; then the answer."""
        grid, gold = grid_of(task), self.gold_answer(task)
        head = f"S {_place(grid.find(START))}, G {_place(grid.find(GOAL))}."
        if gold == INFEASIBLE:
            seen = sorted(distances_to(grid, grid.find(START)))
            return f"{head} From S only {', '.join(map(_place, seen))} can be reached. {wrap_answer(gold)}"
        cells = walked(grid, gold.replace(" ", ""))[1:]
        steps = ", ".join(f"{x} {_place(cell)}" for x, cell in zip(gold.split(), cells, strict=True))
        return f"{head} {steps} is G. {wrap_answer(gold)}"

    # -- reference lines ---------------------------------------------------------------------------------------
    def constant_baseline(self) -> ConstantBaseline:
        """The constant answer that solves most of 200 test tasks, and the share of 200 others it solves."""
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
        letters, gold, grid = parsed.replace(" ", ""), self.gold_answer(task).split(), grid_of(task)
        slip = first_path_error(grid, letters)
        good = len(letters) if slip is None else slip.step - (slip.fault != "short")
        candidate = [gold[k] if k < good and k < len(gold) else letter for k, letter in enumerate(letters)]
        return {str(k): letter for k, letter in enumerate(candidate, 1)}

    def stated_parts(self, task: Task, text: str) -> list[tuple[int, int, str, str]]:
        """Steps that a text gives by their number or as the beginning or the end of the way. A step of any shortest
        way counts as the gold answer's step at its place."""
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


_MISLEADING: tuple[Fault, ...] = ("wall", "wasted")


def _fault(faults: dict[Fault, str], slip: PathError) -> str:
    return faults[slip.fault].format(k=slip.step)


def _place(cell: Cell) -> str:
    return f"({cell[0] + 1},{cell[1] + 1})"


@lru_cache(4096)
def _layers(grid: Grid) -> list[set[str]]:
    """For each step, the directions that some shortest way takes there."""
    left, cells = to_goal(grid), {grid.find(START)}
    layers: list[set[str]] = []
    for _ in range(length_of(grid) or 0):
        good = {(c, x) for c in cells for x in STEPS if left.get(moved(c, x), -1) == left[c] - 1}
        layers.append({x for _, x in good})
        cells = {moved(c, x) for c, x in good}
    return layers


def _stroll(grid: Grid, kept: str, wrong: str, rng: random.Random) -> str:
    """Extend `kept` by steps mostly toward the goal, the first of them not `wrong`.

    75 % of the steps reduce the distance (Manhattan if there is no path); the others are uniform. Walls are ignored.
    """
    left, goal = to_goal(grid), grid.find(GOAL)
    candidate, cell = kept, walked(grid, kept)[-1]
    limit = max(len(kept) + 1, (length_of(grid) or sum(abs(a - b) for a, b in zip(cell, goal, strict=True))) + 2)
    while len(candidate) < limit and (cell != goal or len(candidate) == len(kept)):
        near = left.get(cell)
        letters = [x for x in STEPS if len(candidate) > len(kept) or x != wrong]
        if near is not None:
            good = [x for x in letters if left.get(moved(cell, x), near) < near]
        else:
            far = abs(cell[0] - goal[0]) + abs(cell[1] - goal[1])
            good = [x for x in letters if sum(abs(a - b) for a, b in zip(moved(cell, x), goal, strict=True)) < far]
        candidate += rng.choice(good if good and rng.random() < 0.75 else letters)
        cell = moved(cell, candidate[-1]) if near is None or grid.is_open(moved(cell, candidate[-1])) else cell
    return candidate


@lru_cache(32)
def _measure_baseline(kind: type[PathEnvironment], config: ComponentConfig) -> ConstantBaseline:
    environment, half = kind(config), BASELINE_TASKS // 2
    tasks = [environment.task("test", index) for index in range(BASELINE_TASKS)]
    answers = [answer for answer, _ in Counter(map(environment.gold_answer, tasks[:half])).most_common(20)]
    solved = {answer: sum(environment.is_correct_answer(task, answer) for task in tasks[:half]) for answer in answers}
    best = max(answers, key=lambda answer: solved[answer])
    return ConstantBaseline(best, sum(environment.is_correct_answer(task, best) for task in tasks[half:]) / half)
