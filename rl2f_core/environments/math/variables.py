"""Answers that name their values by variables, such as `x=2 or x=3` and `x=1, y=2`."""

from __future__ import annotations

import re

from rl2f_core.environments.math.answer_text import LIST_SEPARATOR, VARIABLE, flat, relation

_PART = re.compile(rf"(?:({VARIABLE}) ?= ?)?([^=]+)")
_TUPLE = re.compile(rf"\(\s*({VARIABLE}(?:\s*,\s*{VARIABLE})+)\s*\)")

Parts = list[tuple[str, str]]
"""Variables and their values."""


def without_variables(gold: str, answer: str, problem: str) -> tuple[str, str]:
    """Return a gold answer and an answer without variables that only name values.

    `x=2 or x=3` is the list `2,3`. `x=1,y=2` is the tuple `(1,2)` if the other answer has no variables: in the order of
    a tuple such as `(x,y)` in the problem, or else of the gold answer if its variables are in alphabetical order.
    """
    right, named = _parts(gold), _parts(answer)
    if _are_several(right) and "=" not in answer:
        names, values = _order(right, problem) or _alphabetical(right), _listed(answer)
        if len(values) == len(names):
            return _tuple(right, names), answer if answer[0] in "([" else f"({','.join(values)})"
    elif _are_several(named) and "=" not in gold:
        names = _order(named, problem)
        if names and gold[0] == "(":
            return gold, _tuple(named, names)
    elif not right or not named or right[0][0] == named[0][0]:
        if right and not _are_several(right):
            gold = ",".join(value for _, value in right)
        if named and not _are_several(named) and gold[0] not in "([" and "=" not in gold:
            answer = ",".join(value for _, value in named)
    return gold, answer


def names_others(gold: str, answer: str) -> bool:
    """Return whether an answer gives values to other variables than the gold answer, as `x=1,2` does for `x=1,y=2`."""
    right, named = _parts(gold), _parts(answer)
    return _are_several(right) and bool(named) and {name for name, _ in right} != {name for name, _ in named}


def _parts(text: str) -> Parts:
    """Return the variables and values of a list; empty if it has fewer than two values or another form.

    A value without a variable belongs to the only variable of the list.
    """
    parts = [_PART.fullmatch(part) for part in _listed(text)] if "=" in text else []
    if len(parts) < 2 or not all(part and _is_value(part[2]) for part in parts):
        return []
    found = [(_plain(part[1] or ""), part[2]) for part in parts if part]
    names = {name for name, _ in found}
    if not found[0][0] or ("" in names and len(names) > 2):
        return []
    return [(name or found[0][0], value) for name, value in found]


def _listed(text: str) -> list[str]:
    """Return the parts of a list."""
    return [part.strip() for part in re.split(LIST_SEPARATOR, flat(text))]


def _plain(name: str) -> str:
    """Return a variable without the braces of its subscript."""
    return re.sub(r"[{}\s]", "", name)


def _is_value(text: str) -> bool:
    return not relation(text) and all(text.count(a) == text.count(b) for a, b in ("()", "[]", "{}"))


def _are_several(parts: Parts) -> bool:
    """Return whether each of several variables has one value."""
    return len(parts) > 1 and len({name for name, _ in parts}) == len(parts)


def _order(parts: Parts, problem: str) -> list[str]:
    """Return the variables in the order of a tuple in the problem; empty without one."""
    names = {name for name, _ in parts}
    tuples = ([_plain(name) for name in match[1].split(",")] for match in _TUPLE.finditer(problem))
    return next((found for found in tuples if set(found) == names and len(found) == len(names)), [])


def _alphabetical(parts: Parts) -> list[str]:
    """Return the variables if they are in alphabetical order; empty otherwise."""
    names = [name for name, _ in parts]
    return names if names == sorted(names) else []


def _tuple(parts: Parts, names: list[str]) -> str:
    values = dict(parts)
    return f"({','.join(values[name] for name in names)})"
