"""Answers that are roles of people: paraphrases of roles, descriptions of people."""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from rl2f_core.leaks.candidates.facts import Part, Token, Vocabulary
from rl2f_core.leaks.candidates.parts import Assignment, Puzzle
from rl2f_core.leaks.candidates.places import ORDINALS

_KNIGHT = r"(?:straight|truth)[- ]?(?:shooters?|talkers?)|upright|candid|credible|dependable|on the side of (?:the )?truth|(?:his|her|their) word is (?:good|gold)|trust(?:ed)?|believe|rely on|count on|spotless|clean(?: as a whistle)?|squeaky clean|saints?|honest(?:ly)?|truthful|truth-?tellers?|(?:tell|speak)s?(?:ing)? (?:only )?(?:the )?truth|sincere|trustworthy|reliable|(?:can|may) be trusted|to trust|on the level|straight"
_KNAVE = r"distrust|beware of|bluff(?:ers?|ing)|phon(?:y|ies)|frauds?|con ?(?:man|artist)s?|two-faced|snakes?|tricksters?|shady|crooked|make(?:s|ing)? things up|mak(?:es|ing) it up|pinocchio|pants on fire|deceiv(?:es|ing)|untrue|bend(?:s|ing) the truth|spin(?:s|ning) (?:a )?(?:yarn|tale)s?|false tongue|scoundrels?|villains?|rascals?|fibbing|telling (?:lies|fibs|tall tales|porkies)|liars?|lies|lie|lying|lied|dishonest|untruthful|fib(?:s|bers?|bing)?|deceivers?|deceitful|crooks?|not to be trusted|untrustworthy|cheats?|rogues?|fraud"


_SAYING = r"statements?|claims?|remarks?|sentence|line|words?|testimony|says?|said|utters?|utterance"
"""A person's statement, whose truth is the person's role."""
_NAME = re.compile(r"\b([^\W\d_]+)(?:'s?)?(?!\w)")
_CLAIM = re.compile(
    rf"\b(?P<name>[^\W\d_]+)(?:'s)? (?P<saying>{_SAYING})[^.,;?]{{0,24}}?\b(?P<verdict>(?P<true>true|correct|right|the truth|accurate)|false|a lie|untrue|wrong|incorrect)\b",
    re.IGNORECASE,
)


@lru_cache(16)
def _role_words(truthful: str, lying: str) -> re.Pattern[str]:
    return re.compile(
        rf"\b(?:(?P<truthful>{re.escape(truthful)}s?|{_KNIGHT})|(?P<lying>{re.escape(lying)}s?|{_KNAVE}))\b",
        re.IGNORECASE,
    )


def roles(words: tuple[str, str], gold: Assignment) -> Puzzle:
    """Return a puzzle of roles; its parts are the people in the order of `gold`.

    Args:
        words: Names of the truthful and of the lying role.
        gold: Role by person.
    """
    order = tuple(gold)
    truthful, lying = words
    by_name = {str(name).lower(): name for name in order}
    role = _role_words(truthful, lying)

    def vocabulary(attempts: Sequence[Assignment | None]) -> Vocabulary:
        attempt = attempts[-1] if attempts else None
        written = list(attempt) if attempt else list(order)

        def read(sentence: str) -> list[Token]:
            found = []
            for m in _NAME.finditer(sentence):
                name = by_name.get(m[1].lower()) or by_name.get(m[0].lower().removesuffix("s"))
                if name is not None:
                    found.append(Token("part", *m.span(), m[0], frozenset([name])))
            for m in _PERSON.finditer(sentence):
                found += _described(m, sentence, written)
            for m in _CALLED.finditer(sentence):
                value = role.search(sentence, m.start())
                if attempt and value:
                    wanted = truthful if value["truthful"] else lying
                    parts = frozenset(p for p, v in attempt.items() if v == wanted)
                    if len(parts) == 1:
                        found.append(Token("part", m.start(), value.end(), sentence[m.start() : value.end()], parts))
            for m in _CLAIM.finditer(sentence):
                if m["name"].lower() not in by_name:
                    continue
                told = truthful if m["true"] else lying
                found.append(Token("value", m.start("saying"), m.end("verdict"), m["verdict"], value=told))
            spans = [(t.start, t.end) for t in found]
            for m in role.finditer(sentence):
                if not any(start < m.end() and m.start() < end for start, end in spans):
                    found.append(Token("value", *m.span(), m[0], value=truthful if m["truthful"] else lying))
            return found

        return Vocabulary(frozenset(order), read, skips_suppositions=True)

    return Puzzle(order, dict.fromkeys(order, words), gold, vocabulary, is_flipped=True)


_PERSON = re.compile(
    rf"\b(?P<which>{'|'.join(ORDINALS)}|last|final) (?:person|name|1|of them|speaker|islander|(?=you (?:wrote|named|listed)))"
    r"|\b(?P<initial>initial|(?:begins?|starts?) w(?:ith)?|first letter)\b\W*(?:is |the |an? )*(?P<letter>[A-Z]\b(?: or [A-Z]\b)?|(?P<nth>\w+) letter)"
    r"|\bnames?\b[^.]{0,20}\b(?P<length>\d) letters"
    r"|\bdouble (?P<double>[A-Z])\b"
    r"|\bnames?\b[^.]{0,30}\b(?P<palindrome>same (?:for|back)wards|palindrome|mirror)",
    re.IGNORECASE,
)  # fmt: skip
_NTH = {word: n for n, word in enumerate(ORDINALS, 1)} | dict(zip("eleventh twelfth thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth".split(), range(11, 21), strict=True))  # fmt: skip
_CALLED = re.compile(
    r"\b(?:only |single |sole |one |1 )?(?:person|one|1|man|woman|soul|islander)?(?: that| who| whom)? ?you (?:called|labell?ed|made|marked|took for|put down as|accused of being|declared|suspect(?:ed)?)(?: as)?(?: an?| the)?\b(?= )"
    r"|\byour (?:only |one |single |1 )(?=\w)",
    re.IGNORECASE,
)


def _described(match: re.Match[str], sentence: str, written: Sequence[Part]) -> Iterator[Token]:
    """Yield the person of a description by place in the answer, initial or length of the name."""
    names = [str(name) for name in written]
    chosen: list[str] = []
    if match["which"]:
        word = match["which"].lower()
        index = ORDINALS.index(word) if word in ORDINALS else -1
        chosen = names[index:][:1] if index < len(names) else []
    elif match["length"]:
        chosen = [name for name in names if len(name) == int(match["length"])]
    elif match["double"]:
        chosen = [name for name in names if match["double"].lower() * 2 in name.lower()]
    elif match["palindrome"]:
        chosen = [name for name in names if name.lower() == name.lower()[::-1]]
    elif match["letter"]:
        initials = re.findall(r"\b[A-Z]\b", match["letter"].upper())
        if match["nth"]:
            initials = [chr(64 + _NTH.get(match["nth"].lower(), 0))]
        chosen = [name for name in names if name[:1].upper() in initials]
    if chosen and (len(chosen) == 1 or match["letter"]):
        parts = frozenset(p for p in written if str(p) in chosen)
        yield Token("part", *match.span(), match[0], parts)
