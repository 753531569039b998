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
_LIES = r"liars?|lying|dishonest|untruthful|fibb?ers?|fibbing|deceivers?|insincere|not\s+telling\s+the\s+truth|telling\s+lies"
_TRUTHFUL = r"truthful|truth[- ]?(?:tell|speak)ers?|honest|sincere|(?:telling|speaking)\s+the\s+truth|not\s+lying"
_SET_APART = re.compile(r"\b(?:only|alone|sole|single|but|except|than|besides|apart|save|one)\b", re.IGNORECASE)


@lru_cache(maxsize=64)
def _assertions(names: tuple[str, ...], roles: Roles) -> tuple[re.Pattern[str], ...]:
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
    tells = r"(?:tells?|speaks?)\s+(?:only\s+)?the\s+truth"
    never = r"(?P<not>\s+never|\s+(?:does|do|did|can)\s*n[o'’]t|\s+cannot)?"
    speech = (
        rf"(?:(?P<people>{people})|{everyone}){never}(?:\s+(?:always|only|(?:must|has\s+to|have\s+to)(?:\s+always)?))?\s+"
        rf"(?:(?P<lie>lies?|fibs?|tells?\s+lies)|(?P<truth>{tells}))(?!\w)"
    )
    states = (
        rf"(?:\s+(?:is|are|must\s+be|has\s+to\s+be)(?P<not>\s+not|n['’]t)?(?:\s+an?|\s+the)?\s+(?:\w+\s+who\s+(?:is\s+)?)?{role}"
        rf"|\s+(?:always\s+)?(?:(?P<lie2>lies?)|(?P<truth2>{tells})))(?!\w)"
    )
    every, besides = (
        r"(?:everyone|everybody|all|all\s+of\s+them|they\s+all|nobody|no\s+one|none)",
        r"(?:but|except(?:\s+for)?|other\s+than|besides|apart\s+from|save(?:\s+for)?)",
    )
    except_ = (
        rf"(?<!\w)(?:(?P<every>{every})(?:\s+else)?,?\s+{besides}\s+(?P<people>{people})|"
        rf"(?:{besides.capitalize()})\s+(?P<people2>{people}),?\s+(?P<every2>{every})),?{states}"
    )
    only = (
        rf"(?<!\w)(?:only\s+(?P<people>{people})|(?P<people2>{people})\s+alone){states}"
        rf"|(?P<people3>{people})\s+is\s+the\s+(?:only|sole|one)\s+(?:(?:one|person)\s+)?(?:who\s+)?(?:is\s+)?(?:an?\s+)?(?:(?P<lie3>{re.escape(roles[1])}|{_LIES}|lies)|(?P<truth3>{re.escape(roles[0])}|{_TRUTHFUL}|{tells}))(?!\w)"
        rf"|(?<!\w)(?:only|sole|single)\s+(?:(?:one|person)\s+)?(?:who\s+)?(?:is\s+)?(?:(?P<lie4>{re.escape(roles[1])}|{_LIES}|lies)|(?P<truth4>{re.escape(roles[0])}|{_TRUTHFUL}|{tells}))\s+(?:here\s+)?is\s+(?P<people4>{people})"
    )
    flags = re.IGNORECASE
    gate = rf"{re.escape(roles[0])}|{re.escape(roles[1])}|{_LIES}|{_TRUTHFUL}|truth|\blies?\b|\bfibs?\b"
    return tuple(re.compile(p, flags) for p in (gate, forward, backward, speech, except_, only))


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
    gate, *simple, except_, only = _assertions(tuple(names), roles)
    if not gate.search(text):
        return []

    def listed(words: str | None) -> list[str]:
        return [proper[m.group().casefold()] for m in each.finditer(words or "")]

    found: set[tuple[int, int, str, str]] = set()
    taken: list[tuple[int, int]] = []
    for pattern in (except_, only) if _SET_APART.search(text) else ():
        for match in pattern.finditer(text):
            groups = {key.rstrip("234"): value for key, value in match.groupdict().items() if value is not None}
            apart = listed(groups["people"])
            lies = ("lie" in groups) ^ ("not" in groups)
            if pattern is except_:  # the others are so, unless nobody else is
                lies ^= not groups["every"].casefold().startswith(("no",))
            others = [name for name in names if name not in apart]
            found.update((*match.span(), name, roles[lies]) for name in apart)
            found.update((*match.span(), name, roles[not lies]) for name in others)
            taken.append(match.span())
    for pattern in simple:
        for match in pattern.finditer(text):
            if any(start < match.end() and match.start() < end for start, end in taken):
                continue
            groups = match.groupdict()
            lies = groups["lie"] is not None
            whole = (groups.get("all") or "").casefold()
            negations = (groups.get("not"), groups.get("neither"), whole.startswith(("nobody", "no", "neither")))
            lies ^= sum(map(bool, negations)) % 2 == 1
            people = list(names) if whole else listed(groups["people"])
            found.update((match.start(), match.end(), name, roles[lies]) for name in people)
    order = {name: i for i, name in enumerate(names)}
    return sorted(found, key=lambda item: (item[0], item[1], order[item[2]], item[3]))


_CLAUSE = re.compile(r"[.!?;\n]")
_SUPPOSED = re.compile(
    r"\b(?:if|unless|suppos\w*|assum\w*|imagin\w*|pretend|whether|were|would|could|might|may|maybe|perhaps|possibly|case|when|"
    r"either|test|check|consider|hypothe\w*|doubt|try (?:it )?with|in which|wonder|what about)\b",
    re.IGNORECASE,
)
_REPORTED = re.compile(
    r"\b(?:says?|said|saying|claim\w*|remark\w*|tells you|told|states?|stated|statement|statements|according to|believ\w*|accus\w*|calls?|"
    r"called|you (?:wrote|answered|think|thought|have|had|put|guess\w*|assume\w*|treat\w*|made)|your (?:\w+ )?(?:answer|guess|attempt|reading|claim)|words|sentence|puzzle|problem|rules?)\b[^,]*$",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:not (?:true|the case|so|right|correct) that|false that|wrong that|incorrect that|n't (?:think|say|believe|mean)(?: that)?)\s*$",
    re.IGNORECASE,
)
_FLIPS = re.compile(
    r"(?:is|'s|’s|was) (?:not (?:true|the case|so|right|correct)|n't true|false|wrong|incorrect|untrue|a lie) that\s*$",
    re.IGNORECASE,
)
_OPEN_END = re.compile(
    r"\s*(?:,?\s*or\b|[^.!;\n]{0,60}\?|[^.!?;\n,]{0,40}\b(?:if|unless|only if|iff)\b)", re.IGNORECASE
)


def told_roles(text: str, names: Sequence[str], roles: Roles = ("knight", "knave")) -> list[tuple[int, int, str, str]]:
    """The roles of `asserted_roles` that a text really gives: not what it supposes, asks, or quotes of somebody.

    "It is not true that Zoey is a knight" gives the other role.
    """
    found = []
    for start, end, name, role in asserted_roles(text, names, roles):
        breaks = [m.end() for m in _CLAUSE.finditer(text, max(0, start - 300), start)]
        before = text[breaks[-1] if breaks else max(0, start - 300) : start]
        if _FLIPS.search(before):
            role = roles[role == roles[0]]
        elif _DENIED.search(before):
            continue
        line = text[max(text.rfind("\n", 0, start) + 1, start - 300) : start]
        quoted = line.count('"') % 2 == 1 or line.count("“") > line.count("”")
        if quoted or _SUPPOSED.search(before) or _REPORTED.search(before) or _OPEN_END.match(text, end):
            continue
        found.append((start, end, name, role))
    return found


def full_assignments(text: str, names: Sequence[str], roles: Roles = ("knight", "knave")) -> list[tuple[int, int, str]]:
    """Stretches of a text whose told roles cover everybody without contradiction: `(start, end, normal form)`.

    A stretch begins at an assertion about a person of whom no later assertion in it speaks, so each is as short as it
    can be.
    """
    found = told_roles(text, names, roles)
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
