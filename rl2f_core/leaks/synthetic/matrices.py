"""Leaks of matrices of digits: `binary_matrix`."""

from __future__ import annotations

from functools import partial

from rl2f_core.leaks.synthetic.draft import ORDINALS, PHRASINGS, TABLES, Draft, Leak

_TEXTS = PHRASINGS["matrices"]


def _form(d: Draft, kind: str) -> str:
    rows = d.answer.split()
    names = [[TABLES["small"][int(digit)] for digit in row] for row in rows]
    statement = d.state("{}")  # drawn first, which keeps the texts of earlier seeds
    return statement.format(d.write(_TEXTS["forms"][kind], m=rows, names=names, nth=ORDINALS))


def _partial(d: Draft) -> str | None:
    """State a wrong cell, one that is farther than one step from a 0, or a row with mistakes."""
    pool = ("cell", "far", "line")[d.variant % 3]
    gold, last = d.answer.split(), d.last.split()
    wrong = [(r, c) for r, row in enumerate(last) for c, digit in enumerate(row) if digit != gold[r][c]]
    if not any(pool != "far" or gold[r][c] not in "01" for r, c in wrong):
        return None
    r, c = d.rng.choice(wrong)
    while pool == "far" and gold[r][c] in "01":
        r, c = d.rng.choice(wrong)
    fields = {"r": r + 1, "c": c + 1, "rth": ORDINALS[r], "cth": ORDINALS[c], "v": gold[r][c], "row": gold[r]}
    return d.opener() + d.write(_TEXTS[pool], **fields)


LEAKS: dict[str, Leak] = {
    **{kind: partial(_form, kind=kind) for kind in _TEXTS["forms"]},
    "partial": _partial,
}
"""Kinds of leaks by name."""
