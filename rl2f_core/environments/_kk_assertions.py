"""Roles that a free text gives to people: what a hint or an explanation says about the answer, in any words.

Pure and total.  The patterns are tried at each name or role word only, so reading takes time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from rl2f_core.environments._kk_text import Roles, normal_form

_MAX_LIST = 7
_VERB = r"(?:['’]s|\s+(?:is|are|was|were|(?:must|should|would|could|can\s+only|has\s+to|have\s+to)\s+be))"
_FILLER = r"(?:\s+(?:both|all|each|actually|really|in\s+fact|indeed|definitely|certainly|clearly|therefore|thus|also))"
_LIES = r"liars?|lying"
_TRUTHFUL = r"truthful|truth-?tellers?"


@lru_cache(maxsize=64)
def _assertions(names: tuple[str, ...], roles: Roles) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    name = rf"(?<!\w)(?:{'|'.join(re.escape(n) for n in sorted(names, key=len, reverse=True))})(?!\w)"
    people = rf"{name}(?:\s*(?:,\s*(?:(?:and|nor)\s+)?|\s(?:and|nor)\s+|&\s*){name}){{0,{_MAX_LIST}}}"
    role = rf"(?:(?P<truth>{re.escape(roles[0])}s?|{_TRUTHFUL})|(?P<lie>{re.escape(roles[1])}s?|{_LIES}))(?!\w)"
    everyone = r"(?P<all>(?<!\w)(?:everyone|everybody|nobody|no\s+one|none|all|both|neither)(?:\s+of\s+them)?)(?!\w)"
    an = r"(?:\s+(?:an?|the))?"
    verb = rf"{_VERB}{_FILLER}{{0,2}}(?P<not>\s+not|n['’]t)?{_FILLER}?{an}\s+"
    sign = r"\s*(?:=|:|->|→|\(|,(?=\s+(?:an?|the)\s))\s*(?:(?:an?|the)\s+)?"
    link = rf"(?:{verb}|{sign})"
    forward = rf"(?P<neither>(?<!\w)neither\s+)?(?:(?P<people>{people})|{everyone}){link}{role}"
    backward = rf"(?<!\w){role}(?:\s+(?:is|are)\s+|\s*:\s*)(?P<people>{people})"
    tells = r"(?:tells?|is\s+telling|are\s+telling)\s+the\s+truth"
    speech = rf"(?P<people>{people})\s+(?:always\s+)?(?:(?P<lie>lies?)|(?P<truth>{tells}))(?!\w)"
    flags = re.IGNORECASE
    return re.compile(forward, flags), re.compile(backward, flags), re.compile(speech, flags)


def asserted_roles(
    text: str, names: Sequence[str], roles: Roles = ("knight", "knave")
) -> list[tuple[int, int, str, str]]:
    """Every place where a text gives a person a role: `(start, end, name, role)`, in order of start.

    Read are `Zoey is (not) a knave`, `Zoey and Owen are both knaves`, `neither Zoey nor Owen is a knight`,
    `everyone is a knave`, `Zoey = knave`, `Zoey: knave`, `Zoey (a knave)`, `the knave is Zoey`, `knaves: Zoey, Owen`,
    `Zoey lies`, `Zoey is lying`, `Zoey tells the truth`.  Mood is not judged: a role that is only supposed is
    reported as well.  All people of one phrase share its span.
    """
    if not names:
        return []
    proper = {name.casefold(): name for name in names}
    each = re.compile("|".join(re.escape(n) for n in sorted(names, key=len, reverse=True)), re.IGNORECASE)
    found: set[tuple[int, int, str, str]] = set()
    for pattern in _assertions(tuple(names), roles):
        for match in pattern.finditer(text):
            groups = match.groupdict()
            lies = groups["lie"] is not None
            whole = (groups.get("all") or "").casefold()
            negations = (groups.get("not"), groups.get("neither"), whole.startswith(("nobody", "no", "neither")))
            lies ^= sum(map(bool, negations)) % 2 == 1
            listed = list(names) if whole else [proper[m.group().casefold()] for m in each.finditer(groups["people"])]
            found.update((match.start(), match.end(), name, roles[lies]) for name in listed)
    order = {name: i for i, name in enumerate(names)}
    return sorted(found, key=lambda item: (item[0], item[1], order[item[2]], item[3]))


def full_assignments(text: str, names: Sequence[str], roles: Roles = ("knight", "knave")) -> list[tuple[int, int, str]]:
    """Stretches of a text whose asserted roles cover everybody without contradiction: `(start, end, normal form)`.

    A stretch begins at an assertion about a person of whom no later assertion in it speaks, so each is as short as it
    can be.
    """
    found = asserted_roles(text, names, roles)
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
