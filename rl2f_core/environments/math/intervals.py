r"""Intervals in one notation: `2<x<5` and `x\in(2,5)` are `(2, 5)`, `x>3` is `(3, \infty)`."""

from __future__ import annotations

import re
from typing import NamedTuple

_VARIABLE = re.compile(r"(?:[A-Za-z]|\\(?!pi|infty)[a-z]+)(?:_(?:\w|\{\w+\}))?")
_MEMBER = re.compile(rf"({_VARIABLE.pattern})\s*\\in(?![a-zA-Z])\s*(.*)")
_REALS = re.compile(r"\\mathbb ?(?:\{ ?R ?\}|R)|ℝ")
_BRACKETS = re.compile(r"([(\[])([^,]*),([^,]*)([)\]])")
_SIGN = re.compile(r"\s*(<=?|>=?|\\(?:[lg]eq?(?:slant)?|lt|gt)(?![a-zA-Z]))\s*")
_NUMBER = re.compile(r"(?:[\d\s.+*/^{}-]|\\(?:frac|sqrt|pi|infty|cdot|times|ln|log)(?![a-zA-Z]))+")
_CLOSED_INFINITY = re.compile(r"\[-? ?\\infty|\\infty\]")


class Interval(NamedTuple):
    """An interval whose ends are numbers."""

    text: str
    """The ends in brackets."""
    variable: str
    """The variable of an inequality or membership; empty for brackets alone."""
    may_be_point: bool
    """Two numbers in parentheses, which may be the coordinates of a point."""


def read_interval(text: str) -> Interval | None:
    """Return the interval that an answer states, or None; an infinite end is open."""
    member = _MEMBER.fullmatch(text)
    variable, inner = member.groups() if member else ("", text)
    match = _BRACKETS.fullmatch(r"(-\infty,\infty)" if _REALS.fullmatch(inner) else inner)
    parts = match.groups() if match else None if member else _read_inequality(text)
    if parts is None:
        return None
    left, low, high, right, *bounded = parts
    variable = variable or "".join(bounded)
    ends = [end.strip().removeprefix("+") for end in (low, high)]
    interval = f"{left}{', '.join(ends)}{right}"
    if not all(map(_NUMBER.fullmatch, ends)) or _CLOSED_INFINITY.search(interval):
        return None
    is_pair = not variable and left + right == "()" and "infty" not in interval
    return Interval(interval, variable, is_pair)


def _read_inequality(text: str) -> tuple[str, ...] | None:
    """Return left bracket, ends, right bracket and the variable between them; None for another chain."""
    terms, signs = _SIGN.split(text)[::2], _SIGN.findall(text)
    if len(signs) not in (1, 2) or len({sign.startswith((">", r"\g")) for sign in signs}) != 1:
        return None
    is_open = [sign in ("<", ">", r"\lt", r"\gt") for sign in signs]
    if signs[0].startswith((">", r"\g")):
        terms, is_open = terms[::-1], is_open[::-1]
    if len(terms) == 2 and _VARIABLE.fullmatch(terms[0]):
        terms, is_open = [r"-\infty", *terms], [True, *is_open]
    elif len(terms) == 2:
        terms, is_open = [*terms, r"\infty"], [*is_open, True]
    if not _VARIABLE.fullmatch(terms[1]):
        return None
    return "(" if is_open[0] else "[", terms[0], terms[2], ")" if is_open[1] else "]", terms[1]
