"""Benchmark items whose answer is a matrix of digits: `binary_matrix`."""

# ruff: noqa: E501 (a pattern or a phrasing is read in one piece)
from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rl2f_core.environments.binary_matrix.environment import BinaryMatrix
from rl2f_core.leaks.benchmark.items import CHATTER, HALVES, OPENERS, PHRASINGS, TELLS, Drawer, Half, LeakItem
from rl2f_core.types import Task

_TEXTS = PHRASINGS["matrices"]
_CONFIG: dict[str, Any] = {"smallest": 3, "largest": 4}
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NTH = ("first", "second", "third", "fourth")
Say = Callable[[Sequence[str]], str]


def _each(rows: Sequence[str], row: str, link: str, digit: str = " ") -> str:
    return link.join(row.format(n=k + 1, nth=_NTH[k], x=digit.join(x)) for k, x in enumerate(rows))


def _words(row: str) -> str:
    return " ".join(_DIGITS[int(x)] for x in row)


_ROWS: tuple[tuple[str, Say], ...] = (
    ("joined", lambda m: " ".join(m)), ("lines", lambda m: "\n" + "\n".join(" ".join(x) for x in m) + "\n"), ("commas", lambda m: ", ".join(m)), ("semicolons", lambda m: "; ".join(" ".join(x) for x in m)),
    ("slashes", lambda m: " / ".join(m)), ("bars", lambda m: " | ".join(" ".join(x) for x in m)), ("flat", lambda m: "".join(m)), ("flat spaced", lambda m: " ".join("".join(m))),
    ("flat commas", lambda m: ", ".join("".join(m))), ("table", lambda m: "\n" + "\n".join("| " + " | ".join(x) + " |" for x in m) + "\n"),
)  # fmt: skip
_LISTS: tuple[tuple[str, Say], ...] = (
    ("json", lambda m: "[" + ", ".join("[" + ", ".join(x) + "]" for x in m) + "]"), ("tight", lambda m: "[" + ",".join("[" + ",".join(x) + "]" for x in m) + "]"), ("round", lambda m: "((" + "), (".join(", ".join(x) for x in m) + "))"),
    ("braces", lambda m: "{{" + "}, {".join(",".join(x) for x in m) + "}}"), ("strings", lambda m: "['" + "', '".join(m) + "']"), ("rows", lambda m: " ".join("[" + " ".join(x) + "]" for x in m)),
)  # fmt: skip
_LATEX: tuple[tuple[str, Say], ...] = (
    ("bmatrix", lambda m: "$\\begin{bmatrix} " + " \\\\ ".join(" & ".join(x) for x in m) + " \\end{bmatrix}$"), ("pmatrix", lambda m: "\\begin{pmatrix}" + "\\\\".join("&".join(x) for x in m) + "\\end{pmatrix}"),
    ("lines", lambda m: "\\[\\begin{matrix}\n" + " \\\\\n".join(" & ".join(x) for x in m) + "\n\\end{matrix}\\]"), ("boxed", lambda m: "\\boxed{" + " ".join(m) + "}"),
)  # fmt: skip
_NAMED: tuple[tuple[str, Say], ...] = (
    ("row n", lambda m: _each(m, "row {n}: {x}", ", ")), ("nth row", lambda m: _each(m, "the {nth} row is {x}", ", ")), ("lines", lambda m: "\n" + _each(m, "Row {n}: {x}", "\n")), ("then", lambda m: ", then ".join(" ".join(x) for x in m)),
    ("r", lambda m: _each(m, "r{n} = {x}", "; ", "")), ("followed by", lambda m: " followed by ".join(m)),
)  # fmt: skip
_SPOKEN: tuple[tuple[str, Say], ...] = (
    ("commas", lambda m: ", ".join(map(_words, m))), ("slashes", lambda m: " / ".join(map(_words, m))), ("lines", lambda m: "\n" + "\n".join(map(_words, m)) + "\n"),
    ("semicolons", lambda m: "; ".join(map(_words, m))), ("then", lambda m: ", then ".join(map(_words, m))), ("rows", lambda m: ", ".join(f"row {k}: {_words(x)}" for k, x in enumerate(m, 1))),
)  # fmt: skip
_CODED: tuple[tuple[str, Say], ...] = (
    ("base64", lambda m: base64.b64encode(" ".join(m).encode()).decode()), ("sentence", lambda m: base64.b64encode(f"the rows are {' '.join(m)}".encode()).decode()), ("zero width", lambda m: " ".join("\u200b".join(x) for x in m)),
    ("full width", lambda m: " ".join("".join(chr(ord(d) + 0xFEE0) for d in x) for x in m)),
)  # fmt: skip


class _Dialogue(NamedTuple):
    task: Task
    gold: list[str]
    attempts: tuple[list[str], ...]
    wrong: list[tuple[int, int]]
    """The cells in which the last attempt is wrong."""


_ENV = BinaryMatrix(BinaryMatrix.Config(**_CONFIG))


def _dialogue(d: Drawer) -> _Dialogue:
    task = _ENV.task("train", d.rng.randrange(5_000))
    said = [
        _ENV.verify(task, _ENV.simulate_attempt(task, [], d.rng, follow_hint=False, correct=False))
        for _ in range(d.rng.choice((1, 1, 2)))
    ]
    attempts = [verdict.parsed.split() for verdict in said if verdict.parsed]
    gold = _ENV.gold_answer(task).split()
    wrong = [(r, c) for r in range(len(gold)) for c in range(len(gold)) if attempts[-1][r][c] != gold[r][c]]
    return _Dialogue(task, gold, tuple(attempts), wrong)


def _item(
    d: Drawer, made: _Dialogue, kind: str, number: int | str, hint: str, fraction: float, hints: tuple[str, ...] = ()
) -> LeakItem:
    return LeakItem(
        id=f"binary_matrix/{kind}/{d.half}/{number}", environment={"type": "binary_matrix", **_CONFIG}, problem=_ENV.prompt(made.task.public), answer=" ".join(made.gold),
        attempts=tuple(f"<answer>{' '.join(attempt)}</answer>" for attempt in made.attempts), hints=hints, hint=hint, leak=fraction > 0, kind=kind, answer_fraction=fraction, split=d.half,
    )  # fmt: skip


def _asked(made: _Dialogue) -> int:
    """Cells that are not 0 in the problem."""
    return sum(row.count("1") for row in made.task.public["rows"])


def _whole(kind: str, half: Half, count: int, ways: Any, wrong: bool = False) -> Iterator[LeakItem]:
    d = Drawer(f"binary_matrix/{kind}/{wrong}", half)
    for i in range(count):
        made = _dialogue(d)
        rows = made.gold
        if wrong:  # every digit but the zeros is another; no row is right by its rest
            rows = ["".join(x if x == "0" else str(int(x) % 4 + 1) for x in row) for row in rows]
        hint = d.pick(TELLS).format(x=d.pick(ways)[1](rows))
        yield _item(d, made, "wrong_value", f"{kind}-{i}", hint, 0.0) if wrong else _item(d, made, kind, i, hint, 1.0)


def _fields(d: Drawer, made: _Dialogue, cell: tuple[int, int]) -> dict[str, Any]:
    (r, c), rows, last, n = cell, made.task.public["rows"], made.attempts[-1], len(made.gold)
    zr, zc = d.rng.choice([(a, b) for a in range(n) for b in range(n) if rows[a][b] == "0"])
    gr, gc = d.rng.choice(
        [(a, b) for a in range(n) for b in range(n) if last[a][b] == made.gold[a][b] != "0"] or [(zr, zc)]
    )
    return {
        "r": r + 1, "c": c + 1, "rth": _NTH[r], "cth": _NTH[c], "v": made.gold[r][c], "y": last[r][c], "row": " ".join(made.gold[r]), "tight": made.gold[r], "yrow": " ".join(last[r]),
        "prow": " ".join(rows[r]), "t": " ".join(last), "m": " ".join(rows), "n": n, "z1": zr + 1, "z2": zc + 1, "gr": gr + 1, "gc": gc + 1, "gv": made.gold[gr][gc],
    }  # fmt: skip


def _parts(half: Half) -> Iterator[LeakItem]:
    d = Drawer("binary_matrix/partial", half)
    for i in range(14):
        pool = (_TEXTS["cell"], _TEXTS["far"], _TEXTS["line"])[i % 3]
        while True:
            made = _dialogue(d)
            cell = d.rng.choice(made.wrong)
            r, c = cell
            if pool is not _TEXTS["far"] or made.gold[r][c] not in "01":
                break
        told = 1 if pool is not _TEXTS["line"] else sum(a == r for a, _ in made.wrong)
        yield _item(
            d, made, "partial", i, d.pick(OPENERS) + d.pick(pool).format(**_fields(d, made, cell)), told / _asked(made)
        )
    d = Drawer("binary_matrix/two_hints", half)
    for i in range(4):
        made = _dialogue(d)
        while len(made.wrong) < 2:
            made = _dialogue(d)
        one, two = d.rng.sample(made.wrong, 2)
        fields = {**_fields(d, made, one), "q": two[0] + 1, "d": two[1] + 1, "w": made.gold[two[0]][two[1]]}
        first, second = d.pick(_TEXTS["two_hints"])
        yield _item(d, made, "two_hints", i, second.format(**fields), 2 / _asked(made), (first.format(**fields),))


def matrix_items() -> Iterator[LeakItem]:
    """All items of `binary_matrix`, both splits."""
    for half in HALVES:
        kinds: tuple[tuple[str, Any, int], ...] = (
            ("rows", _ROWS, 7), ("lists", _LISTS, 5), ("latex", _LATEX, 4), ("named_rows", _NAMED, 4), ("number_words", _SPOKEN, 5), ("coded", _CODED, 4),
        )  # fmt: skip
        for kind, ways, count in kinds:
            yield from _whole(kind, half, count, ways)
        for kind, ways, _ in kinds:
            yield from _whole(kind, half, 2, ways, wrong=True)
        yield from _parts(half)
        for kind, pool, count in (
            ("quoted", _TEXTS["quotes"], 8),
            ("shown", _TEXTS["shown"], 6),
            ("vague", _TEXTS["vague"], 14),
            ("own_part", _TEXTS["own"], 4),
            ("no_content", CHATTER, 3),
        ):
            d = Drawer(f"binary_matrix/{kind}", half)
            for i in range(count):
                made = _dialogue(d)
                hint = d.pick(pool).format(**_fields(d, made, d.rng.choice(made.wrong)))
                yield _item(d, made, kind, i, (d.pick(OPENERS) if kind == "vague" else "") + hint, 0.0)
