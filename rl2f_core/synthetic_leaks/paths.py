"""Benchmark items whose answer is a path through a grid: `shortest_path` and `maze`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from pydantic import JsonValue

from rl2f_core.environments.grids.grid import find_path, walked
from rl2f_core.environments.grids.maze import Maze
from rl2f_core.environments.grids.move_parser import INFEASIBLE
from rl2f_core.environments.grids.path_environment import PathEnvironment, grid_of
from rl2f_core.environments.grids.shortest_path import ShortestPath
from rl2f_core.synthetic_leaks.items import (
    FORMS,
    ORDINALS,
    PHRASINGS,
    Draft,
    Kind,
    Puzzle,
    Sampler,
    Unsuitable,
    form_kinds,
    leak_kinds,
)
from rl2f_core.types import Task

_TEXTS = PHRASINGS.paths
_CONFIGS: dict[str, dict[str, JsonValue]] = {
    "shortest_path": {"smallest": 3, "largest": 5, "p_blocked": 0.3, "infeasible": 0.15, "min_steps": 3},
    "maze": {"rooms": 3, "loops": 0.1},
}
_WORDS = {"U": "up", "D": "down", "L": "left", "R": "right"}
_POINTS = {"U": "north", "D": "south", "L": "west", "R": "east"}
_ARROWS = {"U": "↑", "D": "↓", "L": "←", "R": "→"}
_HANDS = {"U": "⬆️", "D": "⬇️", "L": "⬅️", "R": "➡️"}
_SPOKEN = {"U": "Uniform", "D": "Delta", "L": "Lima", "R": "Romeo"}
MAX_STEPS = 8
"""Length of the longest path with a number word for each count of steps."""
_COUNTS = ("", "one", "two", "three", "four", "five", "six", "seven", "eight")
_TIMES = ("", "once", "twice", *(f"{count} times" for count in _COUNTS[3:]))
_FORM_COUNTS = {"letters": 7, "words": 7, "arrows": 4, "compass": 4, "counts": 5, "cells": 5, "coded": 4}
_NEAR_MISSES = {"quoted": 9, "vague": 18, "own_part": 5, "no_content": 4}


@dataclass(frozen=True, slots=True)
class Path(Puzzle):
    env: PathEnvironment
    task: Task
    gold: str
    """Letters of the steps; empty if there is no path."""

    @property
    def last(self) -> str:
        """Letters of the last attempt's steps; raises `Unsuitable` without an attempt that is a walk."""
        if not self.attempts or self.attempts[-1] == INFEASIBLE:
            raise Unsuitable
        return self.attempts[-1].replace(" ", "")

    @property
    def new_steps(self) -> list[int]:
        """Indices of the steps that the last attempt does not have."""
        if not self.attempts:
            raise Unsuitable
        parts = self.env.answer_parts(self.task, self.attempts[-1])
        return [k for k, letter in enumerate(self.gold) if parts.get(str(k + 1)) != letter]


def puzzle_of(env: PathEnvironment, task: Task, attempts: Sequence[str]) -> Path:
    """Return the puzzle of a task."""
    answer = env.gold_answer(task)
    gold = "" if answer == INFEASIBLE else answer.replace(" ", "")
    return Path({}, "", answer, tuple(attempts), env, task, gold)


def _puzzle(s: Sampler, feasible: bool = True, min_steps: int = 3, own: bool = False) -> Path:
    """Return the given puzzle, or draw one.

    The last attempt of a drawn puzzle has at least two steps and, with `own`, a correct first step.
    """
    if (given := s.given(Path)) is not None:
        if bool(given.gold) != feasible or (given.gold and not min_steps <= len(given.gold) <= MAX_STEPS):
            raise Unsuitable
        return given
    name = s.environment
    cls: type[PathEnvironment] = ShortestPath if name == "shortest_path" else Maze
    env = cls(cls.Config.model_validate(_CONFIGS[name]))
    while True:
        task = env.task("train", s.rng.randrange(5_000))
        answer = env.gold_answer(task)
        gold = "" if answer == INFEASIBLE else answer.replace(" ", "")
        if bool(gold) != feasible or (gold and not min_steps <= len(gold) <= MAX_STEPS):
            continue
        verdicts = [
            env.verify(task, env.simulate_attempt(task, [], s.rng, follow_hint=False, correct=False))
            for _ in range(s.rng.choice((1, 1, 2)))
        ]
        walks = tuple(" ".join(v.parsed.replace(" ", "")) for v in verdicts if v.parsed and v.parsed != INFEASIBLE)
        if (
            len(walks) == len(verdicts)
            and not any(verdict.correct for verdict in verdicts)
            and len(walks[-1]) > 1
            and ("1" in verdicts[-1].correct_parts or not own)
        ):
            environment = {"type": name, **_CONFIGS[name]}
            return Path(environment, env.prompt(task.public), answer, walks, env, task, gold)


def _form_fields(letters: str, cells: Sequence[tuple[int, int]]) -> dict[str, object]:
    """Return the fields of `FORMS`."""
    tables = {"words": _WORDS, "points": _POINTS, "arrows": _ARROWS, "hands": _HANDS, "spoken": _SPOKEN}
    steps = {name: [table[letter] for letter in letters] for name, table in tables.items()}
    runs = [(letter, _WORDS[letter], len(list(run))) for letter, run in groupby(letters)]
    return {**steps, "w": letters, "runs": runs, "cells": cells, "counts": _COUNTS, "times": _TIMES}


def _obfuscated(s: Sampler, _: int) -> Draft:
    puzzle = _puzzle(s)
    grid = grid_of(puzzle.task)
    letters = find_path(grid, [s.rng.randrange(12) for _ in puzzle.gold]) or ""
    first_steps = (puzzle.gold[0], (find_path(grid, [1]) or "")[:1])
    while s.kind.wrong:  # a wrong walk of full length that is not an attempt
        letters = "".join(s.rng.choice("UDLR") for _ in puzzle.gold)
        is_correct = puzzle.env.is_correct_answer(puzzle.task, letters)
        if not is_correct and " ".join(letters) not in puzzle.attempts and letters[0] not in first_steps:
            break
    text = s.obfuscate(FORMS["paths"][s.kind.form], _form_fields(letters, walked(grid, letters)))
    return Draft(puzzle, s.state(text), float(not s.kind.wrong))


def _step_fields(s: Sampler, puzzle: Path, k: int) -> dict[str, object]:
    """Return the fields of the phrasings for the step at index `k`."""
    letter = puzzle.gold[k] if k < len(puzzle.gold) else "R"
    last = puzzle.last
    return {
        "k": k + 1, "nth": ORDINALS[k], "letter": letter, "word": _WORDS[letter],
        "yours": _WORDS[last[min(k, len(last) - 1)]],
        "wrong": _WORDS[s.rng.choice([x for x in "UDLR" if x != letter])],
    }  # fmt: skip


def _partial(s: Sampler, i: int) -> Draft:
    """State the first two steps, one step, or the last step, if new."""
    pool = ("prefixes", "steps", "steps", "ends")[i % 4]
    while True:
        puzzle = _puzzle(s, min_steps=4)
        new, end = puzzle.new_steps, len(puzzle.gold) - 1
        if {"prefixes": 0 in new, "ends": end in new}.get(pool, bool(new)):
            break
    if pool == "prefixes":
        begin = puzzle.gold[:2]
        revealed = sum(k in new for k in (0, 1))
        fields: dict[str, object] = {
            "words": ", ".join(_WORDS[x] for x in begin),
            "letters": " ".join(begin),
            "arrows": " ".join(_ARROWS[x] for x in begin),
        }
    else:
        revealed = 1
        fields = _step_fields(s, puzzle, end if pool == "ends" else s.rng.choice(new))
    return Draft(puzzle, s.pick(_TEXTS[pool]).format(**fields), revealed / len(puzzle.gold))


def _two_hints(s: Sampler, _: int) -> Draft:
    puzzle = _puzzle(s, min_steps=4)
    while len(puzzle.new_steps) < 2:
        puzzle = _puzzle(s, min_steps=4)
    k, j = s.rng.sample(puzzle.new_steps, 2)
    first, second = s.pick(PHRASINGS.two_hints["paths"])
    other = puzzle.gold[j]
    fields = {**_step_fields(s, puzzle, k), "j": j + 1, "mth": ORDINALS[j], "other": other, "oword": _WORDS[other]}
    return Draft(puzzle, second.format(**fields), 2 / len(puzzle.gold), (first.format(**fields),))


def _near_miss(s: Sampler, _: int) -> Draft:
    puzzle = _puzzle(s, own=s.kind.name == "own_part")
    last = puzzle.last
    good = puzzle.env.score_parsed(puzzle.task, puzzle.attempts[-1]).correct_parts
    cells = walked(grid_of(puzzle.task), last)
    fields = {
        "t": " ".join(last), "words": ", ".join(_WORDS[x] for x in last), "arrows": " ".join(_ARROWS[x] for x in last),
        "cells": ", ".join(f"({r + 1}, {c + 1})" for r, c in cells[:2]), "y": _WORDS[last[0]],
        "prefix": " ".join(last[: len(good)]),
        **_step_fields(s, puzzle, s.rng.randrange(min(len(last), len(puzzle.gold)))),
    }  # fmt: skip
    if s.kind.name == "own_part":
        fields["letter"] = last[0]
    opener = s.opener() if s.kind.name == "vague" else ""
    return Draft(puzzle, opener + s.near_miss(_TEXTS).format(**fields))


def _no_path(s: Sampler, _: int) -> Draft:
    """State, or only mention, that there is no path."""
    puzzle = _puzzle(s, feasible=False)
    text = s.opener() + s.pick(_TEXTS[s.kind.name]).format(k=s.rng.randint(1, 3))
    return Draft(puzzle, text, float(s.kind.name == "no_way"))


KINDS = [
    *form_kinds(_FORM_COUNTS, 2, _obfuscated),
    Kind("partial", 14, _partial),
    Kind("two_hints", 4, _two_hints),
    *(Kind(name, count, _near_miss) for name, count in _NEAR_MISSES.items()),
]
SHORTEST_PATH_KINDS = [*KINDS, Kind("no_way", 6, _no_path), Kind("maybe_no_way", 6, _no_path)]
LEAKS = leak_kinds(SHORTEST_PATH_KINDS, {*_NEAR_MISSES, "maybe_no_way"})
"""Kinds of leaks for given puzzles."""
