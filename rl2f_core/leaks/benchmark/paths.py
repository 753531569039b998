"""Benchmark items whose answer is a way through a grid: `shortest_path` and `maze`."""

# ruff: noqa: E501 (a pattern or a phrasing is read in one piece)
from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rl2f_core.environments.grids.grid import find_path, walked
from rl2f_core.environments.grids.maze import Maze
from rl2f_core.environments.grids.move_parser import INFEASIBLE
from rl2f_core.environments.grids.path_environment import PathEnvironment, grid_of
from rl2f_core.environments.grids.shortest_path import ShortestPath
from rl2f_core.leaks.benchmark.items import CHATTER, HALVES, OPENERS, PHRASINGS, TELLS, Drawer, Half, LeakItem
from rl2f_core.types import Task

_TEXTS = PHRASINGS["paths"]
_CONFIGS: dict[str, dict[str, Any]] = {
    "shortest_path": {"smallest": 3, "largest": 5, "p_blocked": 0.3, "infeasible": 0.15, "min_steps": 3},
    "maze": {"rooms": 3, "loops": 0.1},
}
_WORDS = {"U": "up", "D": "down", "L": "left", "R": "right"}
_POINTS = {"U": "north", "D": "south", "L": "west", "R": "east"}
_ARROWS = {"U": "↑", "D": "↓", "L": "←", "R": "→"}
_HANDS = {"U": "⬆️", "D": "⬇️", "L": "⬅️", "R": "➡️"}
_SPOKEN = {"U": "Uniform", "D": "Delta", "L": "Lima", "R": "Romeo"}
_NUMBERS = ("", "one", "two", "three", "four", "five", "six", "seven", "eight")
_OFTEN = ("", "once", "twice", "three times", "four times", "five times", "six times", "seven times", "eight times")
_NTH = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
Cells = Sequence[tuple[int, int]]
Say = Callable[[str, Cells], str]


def _runs(letters: str) -> list[tuple[str, int]]:
    return [(letter, len(list(group))) for letter, group in groupby(letters)]


def _in(table: dict[str, str], link: str) -> Say:
    return lambda w, c: link.join(table[x] for x in w)


_LETTERS: tuple[tuple[str, Say], ...] = (
    ("joined", lambda w, c: w), ("spaces", lambda w, c: " ".join(w)), ("commas", lambda w, c: ", ".join(w)), ("dashes", lambda w, c: "-".join(w)),
    ("slashes", lambda w, c: "/".join(w)), ("quoted", lambda w, c: '"' + " ".join(w) + '"'), ("then", lambda w, c: ", then ".join(w)), ("arrows", lambda w, c: "→".join(w)),
    ("list", lambda w, c: "[" + ", ".join(w) + "]"), ("quoted list", lambda w, c: "['" + "', '".join(w) + "']"), ("small", lambda w, c: " ".join(w.lower()) if len(w) < 2 else w.lower()),
    ("numbered", lambda w, c: " ".join(f"{k}. {x}" for k, x in enumerate(w, 1))),
)  # fmt: skip
_WORDED: tuple[tuple[str, Say], ...] = (
    ("commas", _in(_WORDS, ", ")), ("spaces", _in(_WORDS, " ")), ("then", _in(_WORDS, ", then ")), ("and then", _in(_WORDS, " and then ")), ("dashes", _in(_WORDS, "-")),
    ("arrows", _in(_WORDS, " -> ")), ("numbered", lambda w, c: " ".join(f"{k}) {_WORDS[x]}" for k, x in enumerate(w, 1))), ("capitals", lambda w, c: ", ".join(_WORDS[x].upper() for x in w)),
    ("go", lambda w, c: "go " + ", go ".join(_WORDS[x] for x in w)), ("steps", lambda w, c: ", ".join(f"step {k}: {_WORDS[x]}" for k, x in enumerate(w, 1))),
    ("lines", _in(_WORDS, "\n")), ("first", lambda w, c: f"first {_WORDS[w[0]]}, then {', '.join(_WORDS[x] for x in w[1:-1])} and finally {_WORDS[w[-1]]}"),
)  # fmt: skip
_DRAWN: tuple[tuple[str, Say], ...] = (
    ("joined", _in(_ARROWS, "")), ("spaces", _in(_ARROWS, " ")), ("commas", _in(_ARROWS, ", ")), ("hands", _in(_HANDS, "")), ("hands spaced", _in(_HANDS, " ")),
    ("bars", _in(_ARROWS, " | ")),
)  # fmt: skip
_COMPASS: tuple[tuple[str, Say], ...] = (
    ("commas", _in(_POINTS, ", ")), ("then", _in(_POINTS, ", then ")), ("letters", lambda w, c: "".join(_POINTS[x][0].upper() for x in w)), ("spaces", _in(_POINTS, " ")),
    ("spaced letters", lambda w, c: "go " + ", ".join(_POINTS[x] + "wards" for x in w)), ("dashes", _in(_POINTS, "-")),
)  # fmt: skip
_COUNTED: tuple[tuple[str, Say], ...] = (
    ("twice after", lambda w, c: ", then ".join(f"{_WORDS[x]} {_OFTEN[n]}" for x, n in _runs(w))), ("digits before", lambda w, c: ", ".join(f"{n} {_WORDS[x]}" for x, n in _runs(w))),
    ("letters", lambda w, c: " ".join(f"{x}{n}" for x, n in _runs(w))), ("words before", lambda w, c: " and then ".join(f"{_NUMBERS[n]} {_WORDS[x]}" for x, n in _runs(w))),
    ("steps", lambda w, c: ", ".join(f"{_NUMBERS[n]} step{'s' * (n > 1)} {_WORDS[x]}" for x, n in _runs(w))), ("times", lambda w, c: ", ".join(f"{_WORDS[x]} x{n}" for x, n in _runs(w))),
    ("cells", lambda w, c: ", then ".join(f"{_WORDS[x]} for {_NUMBERS[n]} cell{'s' * (n > 1)}" for x, n in _runs(w))), ("before letters", lambda w, c: " ".join(f"{n}{x}" for x, n in _runs(w))),
)  # fmt: skip
_CELLS: tuple[tuple[str, Say], ...] = (
    ("from one", lambda w, c: ", ".join(f"({r + 1}, {k + 1})" for r, k in c)), ("from zero", lambda w, c: ", ".join(f"({r}, {k})" for r, k in c)), ("arrows", lambda w, c: " → ".join(f"({r + 1},{k + 1})" for r, k in c)),
    ("columns first", lambda w, c: " ".join(f"({k + 1},{r + 1})" for r, k in c)), ("rows", lambda w, c: ", then ".join(f"row {r + 1}, column {k + 1}" for r, k in c)), ("after S", lambda w, c: ", ".join(f"({r + 1}, {k + 1})" for r, k in c[1:])),
    ("brackets", lambda w, c: "[" + ", ".join(f"[{r}, {k}]" for r, k in c) + "]"), ("r and c", lambda w, c: " ".join(f"r{r + 1}c{k + 1}" for r, k in c)),
)  # fmt: skip
_CODED: tuple[tuple[str, Say], ...] = (
    ("base64", lambda w, c: base64.b64encode(" ".join(w).encode()).decode()), ("base64 joined", lambda w, c: base64.b64encode(f"the way is {' '.join(w)}".encode()).decode()),
    ("zero width", lambda w, c: "\u200b".join(w)), ("spoken", lambda w, c: " ".join(_SPOKEN[x] for x in w)), ("backwards", lambda w, c: "-".join(w[::-1]) + " read from right to left"),
    ("latex", lambda w, c: "$\\text{" + " ".join(w) + "}$"), ("full width", lambda w, c: "".join(chr(ord(x) + 0xFEE0) for x in w)), ("spoken commas", lambda w, c: ", ".join(_SPOKEN[x] for x in w)),
)  # fmt: skip


class _Dialogue(NamedTuple):
    env: PathEnvironment
    task: Task
    gold: str
    """In letters, empty where there is no way."""
    attempts: tuple[str, ...]
    """In letters; walks, all wrong."""


def _dialogue(d: Drawer, name: str, feasible: bool = True, least: int = 3, own: bool = False) -> _Dialogue:
    """A dialogue in which the last attempt is a walk of at least two steps and, with `own`, begins right."""
    cls: Any = ShortestPath if name == "shortest_path" else Maze
    env: PathEnvironment = cls(cls.Config(**_CONFIGS[name]))
    while True:
        task = env.task("train", d.rng.randrange(5_000))
        gold = "" if env.gold_answer(task) == INFEASIBLE else env.gold_answer(task).replace(" ", "")
        if bool(gold) != feasible or (gold and not least <= len(gold) <= 8):
            continue
        verdicts = [
            env.verify(task, env.simulate_attempt(task, [], d.rng, follow_hint=False, correct=False))
            for _ in range(d.rng.choice((1, 1, 2)))
        ]
        walks = [
            verdict.parsed.replace(" ", "") for verdict in verdicts if verdict.parsed and verdict.parsed != INFEASIBLE
        ]
        last = verdicts[-1]
        begins = "1" in last.correct_parts
        if (
            len(walks) == len(verdicts)
            and not any(v.correct for v in verdicts)
            and len(walks[-1]) > 1
            and begins >= own
        ):
            return _Dialogue(env, task, gold, tuple(walks))


def _item(
    d: Drawer, made: _Dialogue, kind: str, number: int | str, hint: str, fraction: float, hints: tuple[str, ...] = ()
) -> LeakItem:
    name = made.env.name
    return LeakItem(
        id=f"{name}/{kind}/{d.half}/{number}", environment={"type": name, **_CONFIGS[name]}, problem=made.env.prompt(made.task.public), answer=made.env.gold_answer(made.task),
        attempts=tuple(f"<answer>{' '.join(walk)}</answer>" for walk in made.attempts), hints=hints, hint=hint, leak=fraction > 0, kind=kind, answer_fraction=fraction, split=d.half,
    )  # fmt: skip


def _whole(name: str, kind: str, half: Half, count: int, ways: Any, wrong: bool = False) -> Iterator[LeakItem]:
    d = Drawer(f"{name}/{kind}/{wrong}", half)
    for i in range(count):
        made = _dialogue(d, name)
        grid = grid_of(made.task)
        letters = find_path(grid, [d.rng.randrange(12) for _ in made.gold]) or ""
        while wrong:  # a walk of full length that is not right, and that the student did not write
            letters = "".join(d.rng.choice("UDLR") for _ in made.gold)
            if (
                not made.env.is_correct_answer(made.task, letters)
                and letters not in made.attempts
                and letters[0] not in (made.gold[0], (find_path(grid, [1]) or "")[:1])
            ):
                break
        said = d.pick(ways)[1](letters, walked(grid, letters))
        hint = d.pick(TELLS).format(x=said)
        if wrong:
            yield _item(d, made, "wrong_value", f"{kind}-{i}", hint, 0.0)
        else:
            yield _item(d, made, kind, i, hint, 1.0)


def _step_words(made: _Dialogue, k: int, d: Drawer) -> dict[str, Any]:
    letter = made.gold[k] if k < len(made.gold) else "R"
    last = made.attempts[-1]
    return {
        "k": k + 1, "nth": _NTH[k], "letter": letter, "word": _WORDS[letter], "yours": _WORDS[last[min(k, len(last) - 1)]],
        "wrong": _WORDS[d.rng.choice([x for x in "UDLR" if x != letter])],
    }  # fmt: skip


def _unheld(made: _Dialogue) -> list[int]:
    """The places of the gold steps that the last attempt does not have."""
    held = made.env.answer_parts(made.task, " ".join(made.attempts[-1]))
    return [k for k, letter in enumerate(made.gold) if held.get(str(k + 1)) != letter]


def _partial(name: str, half: Half) -> Iterator[LeakItem]:
    d = Drawer(f"{name}/partial", half)
    for i in range(14):
        made = _dialogue(d, name, least=4)
        open_steps = _unheld(made)
        pool = (_TEXTS["prefixes"], _TEXTS["steps"], _TEXTS["steps"], _TEXTS["ends"])[i % 4]
        while (
            not open_steps
            or (pool is _TEXTS["prefixes"] and 0 not in open_steps)
            or (pool is _TEXTS["ends"] and len(made.gold) - 1 not in open_steps)
        ):
            made = _dialogue(d, name, least=4)
            open_steps = _unheld(made)
        if pool is _TEXTS["prefixes"]:
            begin = made.gold[:2]
            fields = {
                "words": ", ".join(_WORDS[x] for x in begin),
                "letters": " ".join(begin),
                "arrows": " ".join(_ARROWS[x] for x in begin),
            }
            told: list[int] = [k for k in (0, 1) if k in open_steps]
        else:
            k = len(made.gold) - 1 if pool is _TEXTS["ends"] else d.rng.choice(open_steps)
            fields, told = _step_words(made, k, d), [k]
        yield _item(d, made, "partial", i, d.pick(pool).format(**fields), len(told) / len(made.gold))


def _two_hints(name: str, half: Half) -> Iterator[LeakItem]:
    d = Drawer(f"{name}/two_hints", half)
    for i in range(4):
        made = _dialogue(d, name, least=4)
        while len(_unheld(made)) < 2:
            made = _dialogue(d, name, least=4)
        k, j = d.rng.sample(_unheld(made), 2)
        first, second = d.pick(_TEXTS["two_hints"])
        fields = {
            **_step_words(made, k, d),
            "j": j + 1,
            "mth": _NTH[j],
            "other": made.gold[j],
            "oword": _WORDS[made.gold[j]],
        }
        yield _item(d, made, "two_hints", i, second.format(**fields), 2 / len(made.gold), (first.format(**fields),))


def _near(name: str, half: Half) -> Iterator[LeakItem]:
    for kind, pool, count in (
        ("quoted", _TEXTS["quotes"], 9),
        ("vague", _TEXTS["vague"], 18),
        ("own_part", _TEXTS["own"], 5),
        ("no_content", CHATTER, 4),
    ):
        d = Drawer(f"{name}/{kind}", half)
        for i in range(count):
            made = _dialogue(d, name, own=kind == "own_part")
            last = made.attempts[-1]
            good = made.env.score_parsed(made.task, " ".join(last)).correct_parts
            cells = walked(grid_of(made.task), last)
            fields = {
                "t": " ".join(last), "words": ", ".join(_WORDS[x] for x in last), "arrows": " ".join(_ARROWS[x] for x in last), "cells": ", ".join(f"({r + 1}, {c + 1})" for r, c in cells[:2]),
                "y": _WORDS[last[0]], "prefix": " ".join(last[: len(good)]), **_step_words(made, d.rng.randrange(min(len(last), len(made.gold))), d),
            }  # fmt: skip
            if kind == "own_part":
                fields["letter"] = last[0]
            opener = d.pick(OPENERS) if kind == "vague" else ""
            yield _item(d, made, kind, i, opener + d.pick(pool).format(**fields), 0.0)


def path_items(name: str) -> Iterator[LeakItem]:
    """All items of `shortest_path` or `maze`, both splits."""
    for half in HALVES:
        kinds: tuple[tuple[str, Any, int], ...] = (
            ("letters", _LETTERS, 7), ("words", _WORDED, 7), ("arrows", _DRAWN, 4), ("compass", _COMPASS, 4), ("counts", _COUNTED, 5), ("cells", _CELLS, 5), ("coded", _CODED, 4),
        )  # fmt: skip
        for kind, ways, count in kinds:
            yield from _whole(name, kind, half, count, ways)
        for kind, ways, _ in kinds:
            yield from _whole(name, kind, half, 2, ways, wrong=True)
        yield from _partial(name, half)
        yield from _two_hints(name, half)
        yield from _near(name, half)
        for kind, pool, fraction in (
            (("no_way", _TEXTS["none"], 1.0), ("maybe_no_way", _TEXTS["maybe"], 0.0)) if name == "shortest_path" else ()
        ):
            d = Drawer(f"{name}/{kind}", half)
            for i in range(6):
                made = _dialogue(d, name, feasible=False)
                yield _item(d, made, kind, i, d.pick(OPENERS) + d.pick(pool).format(k=d.rng.randint(1, 3)), fraction)
