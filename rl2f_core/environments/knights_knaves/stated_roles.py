"""Statements in free text about people's roles, and complete assignments."""

# ruff: noqa: E501 (a pattern or a phrasing is read in one piece)
from __future__ import annotations

import re
from collections.abc import Sequence

from rl2f_core.environments.knights_knaves.assertions import asserted_roles
from rl2f_core.environments.knights_knaves.text import Roles, normal_form
from rl2f_core.text.tokens import cached_with_args

_BACK = 300
"""Characters before a role in which its sentence may begin."""
_CLAUSE = re.compile(r"[.!?;\n]")
_SUPPOSED = re.compile(
    r"\b(?:if|unless|suppos\w*|assum\w*|imagin\w*|pretend|whether|were|would(?! be\b)|could|might|may|maybe|perhaps|possibly|case|when|"
    r"either|test|check|consider (?:the case|whether|if|what)|hypothe\w*|doubt|try (?:it )?with|in which|wonder|what about)\b",
    re.IGNORECASE,
)
_REPORTED = re.compile(
    r"\b(?:says?|said|saying|claim\w*|remark\w*|tells you|told|states?|stated|statement|statements|according to|believ\w*|accus\w*|calls?|"
    r"called|you (?:wrote|answered|think|thought(?! of\b)|have(?! to\b)|had(?! to\b)|put|guess\w*|assume\w*|treat\w*|made)|your (?:\w+ )?(?:answer|guess|attempt|reading|claim)|words|sentence|puzzle|problem|rules?)\b[^,]*$",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:not (?:true|the case|so|right|correct) that|false that|wrong that|incorrect that|(?:n't|\bnot) (?:think|say|believe|mean)(?: that)?)\s*$",
    re.IGNORECASE,
)
_FLIPS = re.compile(
    r"(?:is|'s|’s|was) (?:not (?:true|the case|so|right|correct)|n't true|false|wrong|incorrect|untrue|a lie) that\s*$",
    re.IGNORECASE,
)
_OPEN_END = re.compile(r"\s*(?:,?\s*or\b|[^.!?;\n,]{0,40}\b(?:if|unless|only if|iff)\b)", re.IGNORECASE)
_ASKED = re.compile(r"[^.!;\n]{0,60}\?")


def stated_roles(
    text: str, names: Sequence[str], roles: Roles = ("knight", "knave")
) -> list[tuple[int, int, str, str]]:
    """The roles of `asserted_roles` that a text really gives: not what it supposes, asks, or quotes of somebody.

    "It is not true that Zoey is a knight" gives the other role.
    """
    return [item for item in _asserted(text, tuple(names), roles) if not _ASKED.match(text, item[1])]


@cached_with_args(256)
def _asserted(text: str, names: tuple[str, ...], roles: Roles) -> list[tuple[int, int, str, str]]:
    found = []
    for start, end, name, role in asserted_roles(text, names, roles):
        breaks = [m.end() for m in _CLAUSE.finditer(text, max(0, start - _BACK), start)]
        before = text[breaks[-1] if breaks else max(0, start - _BACK) : start]
        if _FLIPS.search(before):
            role = roles[role == roles[0]]
        elif _DENIED.search(before):
            continue
        line = text[max(text.rfind("\n", 0, start) + 1, start - _BACK) : start]
        quoted = line.count('"') % 2 == 1 or line.count("“") > line.count("”")
        if quoted or _SUPPOSED.search(before) or _REPORTED.search(before) or _OPEN_END.match(text, end):
            continue
        found.append((start, end, name, role))
    return found


def full_assignments(text: str, names: Sequence[str], roles: Roles = ("knight", "knave")) -> list[tuple[int, int, str]]:
    """Stretches of a text whose roles cover everybody without contradiction: `(start, end, normal form)`.

    The roles are those of `stated_roles`, and those that are asked about: "could it be that …?" names the answer as well.

    A stretch begins at an assertion about a person of whom no later assertion in it speaks, so each is as short as it
    can be.
    """
    found = _asserted(text, tuple(names), roles)
    whole = []
    for i, (start, end, first, _) in enumerate(found):
        assigned: dict[str, str] = {}
        for j in range(i, len(found)):
            _, stop, name, role = found[j]
            if (assigned and name == first) or assigned.get(name, role) != role:
                break
            assigned[name] = role
            end = max(end, stop)
            if len(assigned) == len(names):
                whole.append((start, end, normal_form(assigned)))
                break
    return whole
