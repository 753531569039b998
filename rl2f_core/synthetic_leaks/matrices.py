"""Benchmark items whose answer is a matrix of digits: `binary_matrix`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from rl2f_core.environments.binary_matrix.environment import BinaryMatrix
from rl2f_core.synthetic_leaks.items import (
    DIGIT_NAMES,
    FORMS,
    ORDINALS,
    PHRASINGS,
    STATEMENTS,
    Draft,
    Kind,
    Puzzle,
    Sampler,
    Unsuitable,
    form_kinds,
    leak_kinds,
)

_TEXTS = PHRASINGS.matrices
_CONFIG: dict[str, JsonValue] = {"smallest": 3, "largest": 4}
_ENV = BinaryMatrix(BinaryMatrix.Config.model_validate(_CONFIG))
_FORM_COUNTS = {"rows": 7, "lists": 5, "latex": 4, "named_rows": 4, "number_words": 5, "coded": 4}
_NEAR_MISSES = {"quoted": 8, "shown": 6, "vague": 14, "own_part": 4, "no_content": 3}


@dataclass(frozen=True, slots=True)
class Matrix(Puzzle):
    rows: list[str]
    """Rows in the problem, of 0 and 1."""
    gold: list[str]
    """Rows of the answer."""
    wrong: list[tuple[int, int]]
    """Cells that the last attempt has wrong."""

    @property
    def last(self) -> list[str]:
        """Rows of the last attempt; raises `Unsuitable` without one."""
        if not self.attempts:
            raise Unsuitable
        return self.attempts[-1].split()

    @property
    def num_unknown(self) -> int:
        """Number of cells that are not 0 in the problem."""
        return sum(row.count("1") for row in self.rows)


def puzzle_of(answer: str, attempts: Sequence[str], rows: Sequence[str]) -> Matrix:
    """Return the puzzle of a task."""
    gold = answer.split()
    last = attempts[-1].split() if attempts else []
    wrong = [(r, c) for r in range(len(gold)) for c in range(len(gold)) if not last or last[r][c] != gold[r][c]]
    return Matrix({}, "", answer, tuple(attempts), list(rows), gold, wrong)


def _puzzle(s: Sampler) -> Matrix:
    if (given := s.given(Matrix)) is not None:
        return given
    task = _ENV.task("train", s.rng.randrange(5_000))
    verdicts = [
        _ENV.verify(task, _ENV.simulate_attempt(task, [], s.rng, follow_hint=False, correct=False))
        for _ in range(s.rng.choice((1, 1, 2)))
    ]
    attempts = tuple(verdict.parsed for verdict in verdicts if verdict.parsed)
    puzzle = puzzle_of(_ENV.gold_answer(task), attempts, task.public["rows"])
    return replace(puzzle, environment={"type": "binary_matrix", **_CONFIG}, problem=_ENV.prompt(task.public))


def _obfuscated(s: Sampler, _: int) -> Draft:
    puzzle = _puzzle(s)
    rows = puzzle.gold
    if s.kind.wrong:  # every digit except 0 differs
        rows = ["".join(x if x == "0" else str(int(x) % 4 + 1) for x in row) for row in rows]
    names = [[DIGIT_NAMES[int(x)] for x in row] for row in rows]
    statement = s.pick(STATEMENTS)
    text = s.obfuscate(FORMS["matrices"][s.kind.form], {"m": rows, "names": names, "nth": ORDINALS})
    return Draft(puzzle, statement.format(x=text), float(not s.kind.wrong))


def _fields(s: Sampler, puzzle: Matrix, cell: tuple[int, int]) -> dict[str, object]:
    """Return the fields of the phrasings for a cell, a random 0 (z), and a random correct cell of the student (g)."""
    (r, c), rows, last, gold = cell, puzzle.rows, puzzle.last, puzzle.gold
    cells = [(a, b) for a in range(len(gold)) for b in range(len(gold))]
    zr, zc = s.rng.choice([(a, b) for a, b in cells if rows[a][b] == "0"])
    gr, gc = s.rng.choice([(a, b) for a, b in cells if last[a][b] == gold[a][b] != "0"] or [(zr, zc)])
    return {
        "r": r + 1, "c": c + 1, "rth": ORDINALS[r], "cth": ORDINALS[c], "v": gold[r][c], "y": last[r][c],
        "row": " ".join(gold[r]), "tight": gold[r], "yrow": " ".join(last[r]), "prow": " ".join(rows[r]),
        "t": " ".join(last), "m": " ".join(rows), "n": len(gold), "z1": zr + 1, "z2": zc + 1, "gr": gr + 1,
        "gc": gc + 1, "gv": gold[gr][gc],
    }  # fmt: skip


def _partial(s: Sampler, i: int) -> Draft:
    """State a wrong cell, one that is farther than one step from a 0, or a row with mistakes."""
    name = ("cell", "far", "line")[i % 3]
    while True:
        puzzle = _puzzle(s)
        r, c = s.rng.choice(puzzle.wrong)
        if name != "far" or puzzle.gold[r][c] not in "01":
            break
    revealed = sum(row == r for row, _ in puzzle.wrong) if name == "line" else 1
    text = s.opener() + s.pick(_TEXTS[name]).format(**_fields(s, puzzle, (r, c)))
    return Draft(puzzle, text, revealed / puzzle.num_unknown)


def _two_hints(s: Sampler, _: int) -> Draft:
    puzzle = _puzzle(s)
    while len(puzzle.wrong) < 2:
        puzzle = _puzzle(s)
    one, (q, d) = s.rng.sample(puzzle.wrong, 2)
    fields = {**_fields(s, puzzle, one), "q": q + 1, "d": d + 1, "w": puzzle.gold[q][d]}
    first, second = s.pick(PHRASINGS.two_hints["matrices"])
    return Draft(puzzle, second.format(**fields), 2 / puzzle.num_unknown, (first.format(**fields),))


def _near_miss(s: Sampler, _: int) -> Draft:
    puzzle = _puzzle(s)
    text = s.near_miss(_TEXTS).format(**_fields(s, puzzle, s.rng.choice(puzzle.wrong)))
    return Draft(puzzle, (s.opener() if s.kind.name == "vague" else "") + text)


KINDS = [
    *form_kinds(_FORM_COUNTS, 2, _obfuscated),
    Kind("partial", 14, _partial),
    Kind("two_hints", 4, _two_hints),
    *(Kind(name, count, _near_miss) for name, count in _NEAR_MISSES.items()),
]
LEAKS = leak_kinds(KINDS, _NEAR_MISSES)
"""Kinds of leaks for given puzzles."""
