"""Statements in free text about people's roles, and complete assignments.

Pure and total.  The patterns are tried only at names and role words, so the scan takes time linear in the text.
"""

# ruff: noqa: E501 (long patterns stay on one line)
from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from rl2f_core.common.text.tokens import cached_with_args
from rl2f_core.environments.puzzles.knights_knaves.text import Roles, normal_form

_MAX_LIST = 7
_VERB = r"(?:['’]s|\s+(?:is|are|was|were|(?:must|should|would|could|can\s+only|has\s+to|have\s+to)\s+be))"
_FILLER = r"(?:\s+(?:both|all|each|actually|really|in\s+fact|indeed|definitely|certainly|clearly|therefore|thus|also))"
_LIES = r"liars?|lying|dishonest|untruthful|fibb?ers?|fibbing|deceivers?|insincere|not\s+telling\s+the\s+truth|telling\s+lies"
_TRUTHFUL = r"truthful|truth[- ]?(?:tell|speak)ers?|honest|sincere|(?:telling|speaking)\s+the\s+truth|not\s+lying"
_EXCEPTION = re.compile(r"\b(?:only|alone|sole|single|but|except|than|besides|apart|save|one)\b")
_PERSON, _PADDING = 0xE000, "\ue0ff"
"""In masked text, person i is one private character and padding to the length of the name."""
_PRIVATE = re.compile("[\ue000-\ue0ff]")
_HINTS = ("truth", "lie", "liar", "lying", "honest", "fib", "deceiver", "sincere")


@lru_cache(maxsize=64)
def _assertions(roles: Roles) -> tuple[re.Pattern[str], ...]:
    name = "[\ue000-\ue0fe]\ue0ff*"
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
    every = r"(?:everyone|everybody|all|all\s+of\s+them|they\s+all|nobody|no\s+one|none)"
    besides = r"(?:but|except(?:\s+for)?|other\s+than|besides|apart\s+from|save(?:\s+for)?)"
    except_ = (
        rf"(?<!\w)(?:(?P<every>{every})(?:\s+else)?,?\s+{besides}\s+(?P<people>{people})|"
        rf"(?:{besides})\s+(?P<people2>{people}),?\s+(?P<every2>{every})),?{states}"
    )
    only = (
        rf"(?<!\w)(?:only\s+(?P<people>{people})|(?P<people2>{people})\s+alone){states}"
        rf"|(?P<people3>{people})\s+is\s+the\s+(?:only|sole|one)\s+(?:(?:one|person)\s+)?(?:who\s+)?(?:is\s+)?(?:an?\s+)?(?:(?P<lie3>{re.escape(roles[1])}|{_LIES}|lies)|(?P<truth3>{re.escape(roles[0])}|{_TRUTHFUL}|{tells}))(?!\w)"
        rf"|(?<!\w)(?:only|sole|single)\s+(?:(?:one|person)\s+)?(?:who\s+)?(?:is\s+)?(?:(?P<lie4>{re.escape(roles[1])}|{_LIES}|lies)|(?P<truth4>{re.escape(roles[0])}|{_TRUTHFUL}|{tells}))\s+(?:here\s+)?is\s+(?P<people4>{people})"
    )
    return tuple(re.compile(p) for p in (forward, backward, speech, except_, only))


def asserted_roles(
    text: str, names: Sequence[str], roles: Roles = ("knight", "knave")
) -> list[tuple[int, int, str, str]]:
    """Return every assertion of a person's role, `(start, end, name, role)`, ordered by start.

    Examples: `Zoey is (not) a knave`, `Zoey and Owen are both knaves`, `neither Zoey nor Owen is a knight`,
    `everyone is a knave`, `Zoey = knave`, `Zoey: knave`, `Zoey (a knave)`, `the knave is Zoey`, `knaves: Zoey, Owen`,
    `Zoey lies`, `Zoey is lying`, `Zoey tells the truth`.  Suppositions count as well.  All people of one phrase share
    its span.
    """
    if not names or len(names) > ord(_PADDING) - _PERSON:
        return []
    low = text.lower()
    if not any(word in low for word in (*roles, *_HINTS)):
        return []
    text = _masked(low if len(low) == len(text) else "".join(c.lower()[:1] for c in text), names)
    *simple, except_, only = _assertions(roles)

    def listed(symbols: str | None) -> list[str]:
        return [names[ord(c) - _PERSON] for c in symbols or "" if _PERSON <= ord(c) < ord(_PADDING)]

    results: set[tuple[int, int, str, str]] = set()
    taken: list[tuple[int, int]] = []
    for pattern in (except_, only) if _EXCEPTION.search(text) else ():
        for match in pattern.finditer(text):
            groups = {key.rstrip("234"): value for key, value in match.groupdict().items() if value is not None}
            excepted = listed(groups["people"])
            lies = ("lie" in groups) ^ ("not" in groups)
            if pattern is except_:  # states the role of the others
                lies ^= not groups["every"].startswith("no")
            others = [name for name in names if name not in excepted]
            results.update((*match.span(), name, roles[lies]) for name in excepted)
            results.update((*match.span(), name, roles[not lies]) for name in others)
            taken.append(match.span())
    for pattern in simple:
        for match in pattern.finditer(text):
            if any(start < match.end() and match.start() < end for start, end in taken):
                continue
            groups = match.groupdict()
            lies = groups["lie"] is not None
            whole = groups.get("all") or ""
            negations = (groups.get("not"), groups.get("neither"), whole.startswith(("nobody", "no", "neither")))
            lies ^= sum(map(bool, negations)) % 2 == 1
            people = list(names) if whole else listed(groups["people"])
            results.update((match.start(), match.end(), name, roles[lies]) for name in people)
    order = {name: i for i, name in enumerate(names)}
    return sorted(results, key=lambda item: (item[0], item[1], order[item[2]], item[3]))


def _masked(text: str, names: Sequence[str]) -> str:
    """Replace each name, as a whole word, by its person's character and padding; `text` is in small letters."""
    text = _PRIVATE.sub("\ufffd", text)
    for i in sorted(range(len(names)), key=lambda i: -len(names[i])):
        name = names[i].lower()
        if name in text:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", chr(_PERSON + i) + _PADDING * (len(name) - 1), text)
    return text


# -- asserted, not supposed ----------------------------------------------------------------------------------------
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
    """Return the assertions of `asserted_roles` without suppositions, questions and quotations.

    "It is not true that Zoey is a knight" gives the other role.
    """
    return [item for item in _asserted(text, tuple(names), roles) if not _ASKED.match(text, item[1])]


@cached_with_args(256)
def _asserted(text: str, names: tuple[str, ...], roles: Roles) -> list[tuple[int, int, str, str]]:
    asserted = []
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
        asserted.append((start, end, name, role))
    return asserted


def full_assignments(text: str, names: Sequence[str], roles: Roles = ("knight", "knave")) -> list[tuple[int, int, str]]:
    """Return spans whose roles cover everybody without contradiction: `(start, end, normal form)`.

    The roles are those of `stated_roles`, and those in questions: "could it be that …?" names the answer as well.  No
    later assertion of a span is about the person of its first, so each span is as short as possible.
    """
    asserted = _asserted(text, tuple(names), roles)
    whole = []
    for i, (start, end, first, _) in enumerate(asserted):
        assigned: dict[str, str] = {}
        for _, stop, name, role in asserted[i:]:
            if (assigned and name == first) or assigned.get(name, role) != role:
                break
            assigned[name] = role
            end = max(end, stop)
            if len(assigned) == len(names):
                whole.append((start, end, normal_form(assigned)))
                break
    return whole
