"""Leaks of paths through a grid: `shortest_path` and `maze`."""

from __future__ import annotations

from functools import partial
from itertools import groupby

from rl2f_core.environments.puzzles.grids.grid import find_path, walked
from rl2f_core.environments.puzzles.grids.move_parser import INFEASIBLE
from rl2f_core.environments.puzzles.grids.path_environment import PathEnvironment, grid_of
from rl2f_core.leaks.synthetic.draft import ORDINALS, PHRASINGS, Draft, Leak

_TEXTS = PHRASINGS["paths"]
_STEPS = {
    "words": {"U": "up", "D": "down", "L": "left", "R": "right"},
    "points": {"U": "north", "D": "south", "L": "west", "R": "east"},
    "arrows": {"U": "↑", "D": "↓", "L": "←", "R": "→"},
    "hands": {"U": "⬆️", "D": "⬇️", "L": "⬅️", "R": "➡️"},
    "spoken": {"U": "Uniform", "D": "Delta", "L": "Lima", "R": "Romeo"},
}
_WORDS = _STEPS["words"]
_COUNTS = ("", "one", "two", "three", "four", "five", "six", "seven", "eight")
"""Number words for counts of steps, up to the length of the longest path."""
_TIMES = ("", "once", "twice", *(f"{count} times" for count in _COUNTS[3:]))


def _gold(d: Draft, min_steps: int) -> str:
    """Return the letters of the steps; empty if there is no path, or if it is too short or too long."""
    letters = d.answer.replace(" ", "")
    return letters if d.answer != INFEASIBLE and min_steps <= len(letters) < len(_COUNTS) else ""


def _form(d: Draft, kind: str) -> str | None:
    """State a shortest path, not always the one of the gold answer."""
    if not (gold := _gold(d, 3)):
        return None
    grid = grid_of(d.task)
    letters = find_path(grid, [d.rng.randrange(12) for _ in gold]) or ""
    text = d.write(
        _TEXTS["forms"][kind],
        **{name: [table[letter] for letter in letters] for name, table in _STEPS.items()},
        w=letters,
        runs=[(letter, _WORDS[letter], len(list(run))) for letter, run in groupby(letters)],
        cells=walked(grid, letters),
        counts=_COUNTS,
        times=_TIMES,
    )
    return d.state(text)


def _partial(d: Draft) -> str | None:
    """State the first two steps, one step, or the last step, if new."""
    pool = ("prefixes", "steps", "steps", "ends")[d.variant % 4]
    gold = _gold(d, 4)
    if not gold or not d.attempts:
        return None
    assert isinstance(d.environment, PathEnvironment)
    parts = d.environment.answer_parts(d.task, d.last)
    new = [k for k, letter in enumerate(gold) if parts.get(str(k + 1)) != letter]
    if pool == "prefixes":
        words, arrows = ([_STEPS[name][letter] for letter in gold[:2]] for name in ("words", "arrows"))
        return d.write(_TEXTS[pool], words=", ".join(words), arrows=" ".join(arrows)) if 0 in new else None
    end = len(gold) - 1
    if not new or (pool == "ends" and end not in new) or d.last == INFEASIBLE:  # these refer to steps of the attempt
        return None
    k = end if pool == "ends" else d.rng.choice(new)
    d.rng.randrange(3)  # keeps the texts of earlier seeds
    return d.write(_TEXTS[pool], k=k + 1, nth=ORDINALS[k], letter=gold[k], word=_WORDS[gold[k]])


def _no_way(d: Draft) -> str | None:
    return d.opener() + d.write(_TEXTS["no_way"]) if d.answer == INFEASIBLE else None


LEAKS: dict[str, Leak] = {
    **{kind: partial(_form, kind=kind) for kind in _TEXTS["forms"]},
    "partial": _partial,
    "no_way": _no_way,
}
"""Kinds of leaks by name."""
