"""Leaks of codes of letters: `secret_code`."""

from __future__ import annotations

from functools import partial
from string import ascii_uppercase

from rl2f_core.leaks.synthetic.draft import ORDINALS, PHRASINGS, TABLES, Draft, Leak

_TEXTS = PHRASINGS["letters"]
_SPOKEN, _COVER = (dict(zip(ascii_uppercase, TABLES[name], strict=True)) for name in ("spoken", "cover"))
_SUFFIXES = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd"}


def _form(d: Draft, kind: str) -> str:
    """State the code in another notation; an acrostic is a sentence of its own."""
    code = d.answer.split()
    places = [ascii_uppercase.index(letter) + 1 for letter in code]
    text = d.write(
        _TEXTS["forms"][kind],
        x=code,
        spoken=[_SPOKEN[letter] for letter in code],
        cover=[_COVER[letter] for letter in code],
        places=places,
        ordinals=[f"{place}{_SUFFIXES.get(place, 'th')}" for place in places],
    )
    return text if kind == "acrostic" else d.state(text)


def _wrong_indices(d: Draft) -> list[int]:
    """Return the places that the last attempt has wrong, from 0; empty without an attempt."""
    return [i for i, (x, y) in enumerate(zip(d.answer.split(), d.last.split(), strict=False)) if x != y]


def _partial(d: Draft) -> str | None:
    if not (wrong := _wrong_indices(d)):
        return None
    i, code = d.rng.choice(wrong), d.answer.split()
    opener, pool = ("", "frames") if d.variant % 4 == 0 else (d.opener(), "parts")
    frame = " ".join(x if j == i else "?" for j, x in enumerate(code))
    return opener + d.write(_TEXTS[pool], place=ORDINALS[i], n=i + 1, x=code[i], spoken=_SPOKEN[code[i]], frame=frame)


def _exchange(d: Draft) -> str | None:
    """Name the two places of the last attempt whose exchange gives the code."""
    wrong = _wrong_indices(d)
    if len(wrong) != 2 or sorted(d.last) != sorted(d.answer):
        return None
    i, j = wrong
    return d.write(_TEXTS["exchange_of_places"], i=i + 1, j=j + 1, nth=ORDINALS[i], mth=ORDINALS[j])


LEAKS: dict[str, Leak] = {
    **{kind: partial(_form, kind=kind) for kind in _TEXTS["forms"]},
    "partial": _partial,
    "exchange_of_places": _exchange,
}
"""Kinds of leaks by name."""
