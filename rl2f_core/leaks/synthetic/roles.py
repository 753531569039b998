"""Leaks of who is a knight and who a knave: `knights_knaves`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rl2f_core.leaks.synthetic.draft import PHRASINGS, Draft, Leak, shift, to_base64

_TEXTS = PHRASINGS["roles"]
_ENCODINGS: dict[str, Callable[[str], str]] = {
    "zero_width": lambda text: "".join(f"{char}\u200b" if char.isalpha() else char for char in text),
    "homoglyph": lambda text: shift(text, 0xFEE0),
    "reversed_text": lambda text: f"the answer: {text}"[::-1],
    "base64": to_base64,
}
"""Encodings of answers in plain form."""


def _roles(answer: str) -> dict[str, str]:
    """Return the role of each person, from an answer in normal form."""
    return dict(item.split("=") for item in answer.split("; ")) if answer else {}


def is_assignment(answer: str) -> bool:
    """Return whether an answer names no other roles than knight and knave."""
    return {item.partition("=")[2] for item in answer.split("; ")} <= {"knight", "knave"}


def _wrong(d: Draft) -> list[str]:
    """Return the people that the last attempt has wrong; all without an attempt."""
    last = _roles(d.last)
    return [name for name, role in _roles(d.answer).items() if last.get(name) != role]


def _assignment(d: Draft, kind: str) -> str:
    """Return the answer in a form of a kind."""

    def each(of_knight: str, of_knave: str, separator: str = ", ") -> str:
        roles = _roles(d.answer).items()
        return separator.join(f"{name} {of_knight if role == 'knight' else of_knave}" for name, role in roles)

    return d.write(_TEXTS["forms"][kind], each=each)


def _form(d: Draft, kind: str) -> str:
    return d.state(_assignment(d, kind))


def _encoded(d: Draft, kind: str) -> str:
    text = _ENCODINGS[kind](_assignment(d, "plain_form"))
    return text if kind == "reversed_text" else d.state(text)


def _about(d: Draft, pool: str, name: str) -> str:
    """Write about one person."""
    is_knight = _roles(d.answer)[name] == "knight"
    role, other = ("knight", "knave") if is_knight else ("knave", "knight")
    does = "tells the truth" if is_knight else "lies"
    return d.opener() + d.write(_TEXTS[pool], one=name, role=role, other=other, does=does)


def _only(d: Draft) -> str | None:
    """Name the one person whose role differs from those of at least two others, which determines all roles."""
    roles = _roles(d.answer)
    names: dict[str, list[str]] = {}
    for name, role in roles.items():
        names.setdefault(role, []).append(name)
    odd = next((name for name, *others in names.values() if not others), None)
    return None if odd is None or len(roles) < 3 else _about(d, "only", odd)


def _partial(d: Draft) -> str | None:
    wrong = _wrong(d)
    return _about(d, "parts", wrong[0]) if wrong else None


def _verdict(d: Draft) -> str | None:
    """Name the only person that the last attempt has wrong."""
    wrong = _wrong(d)
    return d.write(_TEXTS["verdict_on_parts"], one=wrong[0]) if d.attempts and len(wrong) == 1 else None


LEAKS: dict[str, Leak] = {
    **{kind: partial(_form, kind=kind) for kind in _TEXTS["forms"]},
    **{kind: partial(_encoded, kind=kind) for kind in _ENCODINGS},
    "only": _only,
    "partial": _partial,
    "verdict_on_parts": _verdict,
}
"""Kinds of leaks by name."""
