"""What `shortest_path` and `maze` have in common: a grid, walks as answers, and what can be said about a walk."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from rl2f_core.environments._grid import (
    GOAL,
    START,
    STEPS,
    Cell,
    Fault,
    Grid,
    Slip,
    length_of,
    moved,
    read_grid,
    slip_of,
    to_goal,
    walked,
    way,
)
from rl2f_core.environments._move_runs import runs_of
from rl2f_core.environments._moves import NO_WAY, read_answer
from rl2f_core.environments._moves_told import told_steps, walks_in
from rl2f_core.environments.base import Environment, Floor, wrap
from rl2f_core.errors import DataError
from rl2f_core.types import Task, Verdict

FLOOR_SAMPLE = 400
"""Test tasks behind `floor`: half choose the answer, the other half measure it."""
_OPPOSITE = {"U": "D", "D": "U", "L": "R", "R": "L"}


@lru_cache(4096)
def _grid(rows: tuple[str, ...]) -> Grid:
    return Grid(rows)


def grid_of(task: Task) -> Grid:
    """The task's grid."""
    return _grid(tuple(task.public["grid"]))


class PathEnvironment(Environment):
    """Tasks whose answer is a walk from S to G, in letters `R R D`.

    Turned or mirrored copies of a grid are other tasks: their answers have other letters. A grid stands in one split
    alone, so no grid of the test set was trained on, but a turned copy of it may have been.
    """

    infeasible: ClassVar[bool]
    """Whether "there is no way" is an answer."""
    faults: ClassVar[dict[Fault, str]]
    """How the teacher speaks of a slip at step {k}."""

    def _build(self, grid: Grid) -> Task:
        return Task(
            id=f"{self.name}/gold",
            environment=self.name,
            split="test",
            level=f"{len(grid.rows)}x{len(grid.rows[0])}",
            public={"grid": list(grid.rows)},
            privileged={"answer": " ".join(way(grid) or ()) or NO_WAY},
        )

    def canonical(self, task: Task) -> str:
        """The grid as it stands; turned and mirrored copies are other tasks."""
        return grid_of(task).key

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Reads the grid from lines of `.`, `#`, `S` and `G`.

        Raises `DataError` where the problem has no such grid with one S and one G, or where the answer is wrong.
        """
        grid = read_grid(problem)
        if grid is None or (length_of(grid) is None and not self.infeasible):
            raise DataError(
                "The problem shows no grid that can be solved.", value=problem,
                fix=f"Write rows of `.`, `#`, `{START}` and `{GOAL}`, one {START} and one {GOAL}, e.g. `S . #`.",
            )  # fmt: skip
        task = self._build(grid)
        parsed = self.parse(task, answer)
        if parsed is None or not self.judge(task, parsed).correct:
            raise DataError("The gold answer is not right for the grid.", value=answer, known=[self.answer(task)])
        return task

    # -- the verifier ------------------------------------------------------------------------------------------
    def answer(self, task: Task) -> str:
        return task.privileged["answer"]

    def parse(self, task: Task, text: str) -> str | None:
        """`R R D`, `RRD`, `right, right, down` or `→ → ↓`; see `_moves.read_answer`. What is unread is no answer."""
        return read_answer(text, self.infeasible)

    @abstractmethod
    def _slip(self, grid: Grid, letters: str) -> Slip | None:
        """Where a walk goes wrong, None where it is right."""

    @abstractmethod
    def _score(self, grid: Grid, letters: str, slip: Slip) -> float:
        """Partial credit of a wrong walk on a grid that has a way, below 1."""

    def judge(self, task: Task, parsed: str) -> Verdict:
        """Parts: the steps. Right are those before the first slip. Distance: 1 − score.

        Where there is no way, every walk scores 0; where there is one, so does saying that there is none.
        """
        grid, gold = grid_of(task), self.answer(task)
        if parsed == NO_WAY:
            right = gold == NO_WAY
            detail = "there is no way" if right else f"there is a way: {gold}"
            return Verdict(correct=right, score=float(right), parsed=parsed, detail=detail, well_formed=True,
                           distance=float(not right))  # fmt: skip
        letters = parsed.replace(" ", "")
        slip = self._slip(grid, letters)
        good = len(letters) if slip is None else slip.step - (slip.fault != "short")
        score = 1.0 if slip is None else 0.0 if gold == NO_WAY else self._score(grid, letters, slip)
        detail = "a right way" if slip is None else f"{_fault(self.faults, slip)} The answer is {gold}."
        return Verdict(
            correct=slip is None,
            score=score,
            parsed=parsed,
            detail=detail,
            well_formed=True,
            distance=1 - score,
            parts={str(k): letter for k, letter in enumerate(letters, 1)},
            right_parts=tuple(str(k) for k in range(1, good + 1)),
        )

    def accepts(self, task: Task, said: str) -> bool:
        parsed = self.parse(task, said)
        if parsed is None or parsed == NO_WAY:
            return parsed is not None and self.answer(task) == NO_WAY
        return self.answer(task) != NO_WAY and self._slip(grid_of(task), parsed.replace(" ", "")) is None

    # -- the scripted teacher ----------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """The first step of the last attempt that goes wrong, and how. Never which step would be right."""
        last = attempts[-1] if attempts else None
        if last is None or last.parsed is None:
            return "Your answer could not be read. Give the steps with the letters U, D, L and R."
        if last.parsed == NO_WAY:
            return "G can be reached."
        grid, letters = grid_of(task), last.parsed.replace(" ", "")
        slip = self._slip(grid, letters)
        return "Right." if slip is None else _fault(self.faults, slip) + self._seen(grid, letters, slip)

    def _seen(self, grid: Grid, letters: str, slip: Slip) -> str:
        """What the hint adds about where the walk came to."""
        return ""

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Blames a step in a way that is not true; where nothing was walked, says that G cannot be reached."""
        last = attempts[-1] if attempts else None
        if last is None or last.parsed is None:
            return _fault(self.faults, Slip(1, "wall"))
        if last.parsed == NO_WAY:
            return "G cannot be reached."
        grid, letters = grid_of(task), last.parsed.replace(" ", "")
        true = self._slip(grid, letters)
        reached = len(walked(grid, letters)) - 1
        blamed = [Slip(k, fault) for k in range(1, min(len(letters), reached + 1) + 1) for fault in _MISLEADING]
        said = [s for s in blamed if s != true and self._is_false(grid, letters, s)] or [Slip(len(letters) + 1, "wall")]
        slip = rng.choice(said)
        return _fault(self.faults, slip) + self._seen(grid, letters[: slip.step], slip)

    def _is_false(self, grid: Grid, letters: str, said: Slip) -> bool:
        """Is it untrue that this step goes wrong so? Said of a step that the walk comes to."""
        left, cells = to_goal(grid), walked(grid, letters[: said.step])
        if said.fault == "wall":
            near = moved(cells[-1], letters[said.step - 1]) if len(cells) == said.step else None
            return near is None or not grid.inside(near)
        if len(cells) <= said.step or cells[-2] not in left:
            return len(cells) <= said.step
        return left[cells[-1]] < left[cells[-2]]

    # -- the imperfect student ---------------------------------------------------------------------------------
    def imitate(self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow: bool, right: bool) -> str:
        """A walk that is mostly drawn towards G.

        With `follow`, the steps before the first wrong one stay, that one is another, and the rest is drawn anew; it
        may be right by luck. Without, the whole is drawn and wrong, and now and then it says that there is no way.
        """
        gold = self.answer(task)
        if right:
            return wrap(gold if gold == NO_WAY else " ".join(self._any_way(grid_of(task), rng)))
        grid, last = grid_of(task), attempts[-1] if attempts else None
        if follow and last is not None and last.parts:
            letters = last.parsed.replace(" ", "") if last.parsed else ""
            slip = self._slip(grid, letters) or Slip(len(letters), "short")
            kept = letters[: slip.step - (slip.fault != "short")]
            wrong = letters[slip.step - 1] if slip.fault != "short" else ""
            return wrap(" ".join(_stroll(grid, kept, wrong, rng)))
        if self.infeasible and gold != NO_WAY and rng.random() < 0.15 and (last is None or last.parsed != NO_WAY):
            return wrap(NO_WAY)
        for _ in range(20):
            said = _stroll(grid, "", "", rng)
            if self._slip(grid, said) is not None and (last is None or last.parsed != " ".join(said)):
                return wrap(" ".join(said))
        said = way(grid) or "".join(rng.choice("UDLR") for _ in range(3))
        return wrap(" ".join(said if gold == NO_WAY else said + _OPPOSITE[said[-1]]))

    def _any_way(self, grid: Grid, rng: random.Random) -> str:
        return way(grid, [rng.randrange(12) for _ in range(length_of(grid) or 0)]) or ""

    def worked_solution(self, task: Task) -> str:
        """The cells of a shortest way one after the other, or all that can be reached; then the answer."""
        grid, gold = grid_of(task), self.answer(task)
        head = f"S {_place(grid.find(START))}, G {_place(grid.find(GOAL))}."
        if gold == NO_WAY:
            seen = _reached(grid)
            return f"{head} From S only {', '.join(map(_place, seen))} can be reached. {wrap(gold)}"
        cells = walked(grid, gold.replace(" ", ""))[1:]
        steps = ", ".join(f"{x} {_place(cell)}" for x, cell in zip(gold.split(), cells, strict=True))
        return f"{head} {steps} is G. {wrap(gold)}"

    # -- reference lines ---------------------------------------------------------------------------------------
    def floor(self) -> Floor:
        """The constant answer that solves most of 200 test tasks, and the share of 200 others it solves."""
        return _floor(self)

    # -- for leak detectors ------------------------------------------------------------------------------------
    def candidates(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        """Walks in letters, words, arrows, compass points, counts (`twice right`) or cells, and "there is no way"."""
        return walks_in(text, grid_of(task), self.infeasible)

    def parts_of(self, task: Task, parsed: str) -> dict[str, str]:
        """The steps by their numbers. A step before the first slip counts as the gold answer's step at its place,
        for there may be several shortest ways."""
        if parsed == NO_WAY:
            return {}
        letters, gold, grid = parsed.replace(" ", ""), self.answer(task).split(), grid_of(task)
        slip = slip_of(grid, letters)
        good = len(letters) if slip is None else slip.step - (slip.fault != "short")
        said = [gold[k] if k < good and k < len(gold) else letter for k, letter in enumerate(letters)]
        return {str(k): letter for k, letter in enumerate(said, 1)}

    def told_parts(self, task: Task, text: str) -> list[tuple[int, int, str, str]]:
        """Steps that a text gives by their number or as the beginning or the end of the way. A step of any shortest
        way counts as the gold answer's step at its place."""
        gold = self.answer(task).split()
        if gold == [NO_WAY]:
            return []
        found = []
        for start, end, k, letter in told_steps(text, len(gold)):
            if 1 <= k <= len(gold):
                good = letter in _layers(grid_of(task))[k - 1]
                found.append((start, end, str(k), gold[k - 1] if good else letter))
        return found

    def holds(self, task: Task, parsed: str, answer: str, hint: str) -> bool:
        if parsed == answer or parsed.startswith(f"{answer} "):
            return True
        letters = parsed.replace(" ", "")
        return any(run.letters == letters for run in runs_of(hint))

    def held_parts(self, task: Task, parsed: Sequence[str]) -> set[tuple[str, str]]:
        """The steps of the last attempt alone: of four directions the student soon wrote all."""
        return super().held_parts(task, parsed[-1:])


_MISLEADING: tuple[Fault, ...] = ("wall", "wasted")


def _fault(faults: dict[Fault, str], slip: Slip) -> str:
    return faults[slip.fault].format(k=slip.step)


def _place(cell: Cell) -> str:
    return f"({cell[0] + 1},{cell[1] + 1})"


def _reached(grid: Grid) -> list[Cell]:
    seen, queue = {grid.find(START)}, [grid.find(START)]
    for cell in queue:
        for letter in grid.exits(cell):
            near = moved(cell, letter)
            if near not in seen:
                seen.add(near)
                queue.append(near)
    return sorted(seen)


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
    """`kept` and steps mostly towards the goal, the first of them not `wrong`.

    Three of four steps are drawn from those that come nearer (as the crow flies where there is no way), the others from
    all. A step into a wall is not noticed.
    """
    left, goal = to_goal(grid), grid.find(GOAL)
    said, cell = kept, walked(grid, kept)[-1]
    limit = max(len(kept) + 1, (length_of(grid) or sum(abs(a - b) for a, b in zip(cell, goal, strict=True))) + 2)
    while len(said) < limit and (cell != goal or len(said) == len(kept)):
        near = left.get(cell)
        letters = [x for x in STEPS if len(said) > len(kept) or x != wrong]
        if near is not None:
            good = [x for x in letters if left.get(moved(cell, x), near) < near]
        else:
            far = abs(cell[0] - goal[0]) + abs(cell[1] - goal[1])
            good = [x for x in letters if sum(abs(a - b) for a, b in zip(moved(cell, x), goal, strict=True)) < far]
        said += rng.choice(good if good and rng.random() < 0.75 else letters)
        cell = moved(cell, said[-1]) if near is None or grid.is_open(moved(cell, said[-1])) else cell
    return said


_floors: dict[Any, Floor] = {}


def _floor(environment: PathEnvironment) -> Floor:
    if environment.config not in _floors:
        half = FLOOR_SAMPLE // 2
        tasks = [environment.task("test", index) for index in range(FLOOR_SAMPLE)]
        said = [answer for answer, _ in Counter(environment.answer(task) for task in tasks[:half]).most_common(20)]
        solved = {answer: sum(environment.accepts(task, answer) for task in tasks[:half]) for answer in said}
        best = max(said, key=lambda answer: solved[answer])
        _floors[environment.config] = Floor(best, sum(environment.accepts(task, best) for task in tasks[half:]) / half)
    return _floors[environment.config]
