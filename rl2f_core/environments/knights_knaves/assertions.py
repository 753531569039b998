"""Roles that a free text gives to people: what a hint or an explanation says about the answer, in any words.

Pure and total.  The patterns are tried at each name or role word only, so reading takes time linear in the text.
"""

# ruff: noqa: E501 (a pattern or a phrasing is read in one piece)
from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from rl2f_core.environments.knights_knaves.text import Roles

_MAX_LIST = 7
_VERB = r"(?:['’]s|\s+(?:is|are|was|were|(?:must|should|would|could|can\s+only|has\s+to|have\s+to)\s+be))"
_FILLER = r"(?:\s+(?:both|all|each|actually|really|in\s+fact|indeed|definitely|certainly|clearly|therefore|thus|also))"
_LIES = r"liars?|lying|dishonest|untruthful|fibb?ers?|fibbing|deceivers?|insincere|not\s+telling\s+the\s+truth|telling\s+lies"
_TRUTHFUL = r"truthful|truth[- ]?(?:tell|speak)ers?|honest|sincere|(?:telling|speaking)\s+the\s+truth|not\s+lying"
_SET_APART = re.compile(r"\b(?:only|alone|sole|single|but|except|than|besides|apart|save|one)\b")


_PERSON, _PADDING = 0xE000, "\ue0ff"
"""In the text that the patterns read, person i is one private character and as much padding as the name is long."""
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
    every, besides = (
        r"(?:everyone|everybody|all|all\s+of\s+them|they\s+all|nobody|no\s+one|none)",
        r"(?:but|except(?:\s+for)?|other\s+than|besides|apart\s+from|save(?:\s+for)?)",
    )
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
    """Every place where a text gives a person a role: `(start, end, name, role)`, in order of start.

    Read are `Zoey is (not) a knave`, `Zoey and Owen are both knaves`, `neither Zoey nor Owen is a knight`,
    `everyone is a knave`, `Zoey = knave`, `Zoey: knave`, `Zoey (a knave)`, `the knave is Zoey`, `knaves: Zoey, Owen`,
    `Zoey lies`, `Zoey is lying`, `Zoey tells the truth`.  Mood is not judged: a role that is only supposed is
    reported as well.  All people of one phrase share its span.
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
    for pattern in (except_, only) if _SET_APART.search(text) else ():
        for match in pattern.finditer(text):
            groups = {key.rstrip("234"): value for key, value in match.groupdict().items() if value is not None}
            apart = listed(groups["people"])
            lies = ("lie" in groups) ^ ("not" in groups)
            if pattern is except_:  # the others are so, unless nobody else is
                lies ^= not groups["every"].startswith("no")
            others = [name for name in names if name not in apart]
            results.update((*match.span(), name, roles[lies]) for name in apart)
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
    """The text, in small letters, with each name as a whole word put as its person's character and padding."""
    if _PRIVATE.search(text):
        text = _PRIVATE.sub("\ufffd", text)
    for i in sorted(range(len(names)), key=lambda i: -len(names[i])):
        name, parts, start = names[i].lower(), [], 0
        mark = chr(_PERSON + i) + _PADDING * (len(name) - 1)
        at = text.find(name)
        while at >= 0:
            end = at + len(name)
            if not (_in_word(text[at - 1 : at]) or _in_word(text[end : end + 1])):
                parts += [text[start:at], mark]
                start = end
            at = text.find(name, end)
        if parts:
            text = "".join((*parts, text[start:]))
    return text


def _in_word(char: str) -> bool:
    return char.isalnum() or char == "_"
