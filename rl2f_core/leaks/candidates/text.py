"""Plain form of a hint: corrected typing errors, digits for number words, and sentences."""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from functools import cache, lru_cache

from rl2f_core.text.normalize import NormalizedText, non_overlapping, normalize, replaced

_KNOWN = """
    one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
    nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand half third quarter twice double triple
    first second fourth fifth sixth last middle number letter digit place position person people right wrong correct
    incorrect knight knave liar honest truth truthful swap exchange instead replace reverse backwards other others
    every everything everyone everybody only exactly between even odd prime square multiple divisible times column row
    corner fine keep change remove answer attempt guess twins same equal start begin left down steps above below
    remaining mistake except neither never nothing
"""
_REAL_WORDS = frozenset("""
    there forth then thee hose fist lats seven sever steeps tow owe on eno though through trough fiend fried
    star beings tens fours fives sixes sevens eights nines lair shame sane tight night might light sight fight
    tings tither whether weather lover cover fever flight fright bright wright eve ever very angle angel
    """.split())  # fmt: skip
"""Words that are one typing error from a known word."""
_WORD = re.compile(r"[a-z]{4,}")
_ONES = dict(zip("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
                 "eighteen nineteen".split(), range(20), strict=True)) | {"nought": 0, "naught": 0, "nil": 0}  # fmt: skip
_TENS = {word: 10 * n for n, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)}
_SMALL = rf"(?:(?P<tens>{'|'.join(_TENS)}|fourty)(?:[- ]?(?P<unit>one|two|three|four|five|six|seven|eight|nine))?|(?P<one>{'|'.join(sorted(_ONES, key=len, reverse=True))}))"
_HUNDRED = rf"(?:(?P<hundreds>an?|the|one|two|three|four|five|six|seven|eight|nine|\d) hundred(?!s)(?:(?: and)? {_SMALL.replace('<', '<h_')})?)"
_NUMBER = re.compile(rf"(?<![\w'-])(?:{_HUNDRED}|{_SMALL})(?![\w]|'[a-z])")
"""A number below 1000 in English words."""
_KNOWLEDGE = {
    r"half (?:a )?dozen|half-a-dozen|(?:legs of an? (?:insect|ant|bee))|sides of an? (?:cube|hexagon)": 6,
    r"days (?:in|of) (?:a|the) week|dwarfs of snow white|wonders of the (?:ancient )?world|colou?rs of (?:the|a) rainbow": 7,
    r"(?:legs of an? spider|spider'?s legs|planets (?:in|of) (?:the|our) solar system|legs of an? octopus)": 8,
    r"an? dozen|months (?:in|of) (?:a|the) year|hours on an? clock": 12,
    r"an? baker'?s dozen": 13,
    r"days in an? fortnight": 14,
    r"hours (?:in|of) (?:a|the) day": 24,
    r"letters (?:in|of) the (?:english )?alphabet": 26,
    r"(?:us |american )?states (?:in|of) the (?:usa?|united states|union)|stars on the (?:us |american )?flag": 50,
    r"weeks (?:in|of) (?:a|the) year|cards in an? (?:deck|pack)": 52,
    r"minutes (?:in|of) an? hour|seconds (?:in|of) a minute": 60,
    r"squares (?:on|of) an? chess ?board": 64,
    r"keys (?:on|of) an? piano": 88,
    r"degrees (?:in|of) an? right angle|minutes (?:in|of) an? football (?:match|game)": 90,
    r"years (?:in|of) a century|cents (?:in|of) a dollar|boiling point of water": 100,
    r"an? gross": 144,
    r"degrees (?:in|of) an? (?:half(?:-| )circle|triangle|straight angle)": 180,
    r"degrees (?:in|of) an? (?:full )?circle": 360,
    r"days (?:in|of) an? (?:ordinary |normal |common )?year(?! in)": 365,
    r"days (?:in|of) an? leap year": 366,
}
"""Numbers by descriptions that everybody knows."""
_SPELLED = re.compile(r"(?<![\w'])[A-Za-z](?:[, .-]{1,2}[A-Za-z](?![\w'])){2,}")
_DESCRIBED = re.compile(
    "|".join(rf"(?P<n{i}>(?<![\w-])(?:the number of )?(?:{p})(?!\w))" for i, p in enumerate(_KNOWLEDGE))
)
_DESCRIBED_WORDS = re.compile(
    r"dozen|gross|week|year|month|day|hour|minute|second|clock|alphabet|states|stars|cards|degrees|spider|insect|octopus|planets|chess|piano|century|dollar|boiling|dwarfs|rainbow|world|hexagon|cube"
)
_SENTENCE = re.compile(r"(?<![\d.])[.!?](?![.\d])[!?]*|[.!?](?=\s|$)(?<!\.\.)[!?]*|[;\n]+")


@cache
def _spellings() -> tuple[frozenset[str], dict[str, str]]:
    """Return the known words, and the known word for each spelling that lacks one letter."""
    words = frozenset(_KNOWN.split())
    return words, {word[:i] + word[i + 1 :]: word for word in words if len(word) > 4 for i in range(1, len(word))}


@lru_cache(4096)
def _corrected(word: str) -> str:
    """Return the known word that differs by two exchanged letters, one missing or one extra letter, or `word`."""
    words, lacking = _spellings()
    if word in words or word in _REAL_WORDS or words & {f"{word}s", word[:-1], word[:-2], word[:-3]}:
        return word
    exchanged = (word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1))
    shorter = (word[:i] + word[i + 1 :] for i in range(1, len(word))) if len(word) > 4 else ()
    found = next((other for other in (*exchanged, *shorter) if other in words), None)
    return found or lacking.get(word, word)


@lru_cache(1024)
def plain(hint: str) -> NormalizedText:
    """Return a hint with typing errors corrected and numbers in digits; its case is kept."""
    text = normalize(hint, fold=False, lines=True)
    lower = text.text.lower()
    if len(lower) == len(text.text):
        wrong = {word for word in _WORD.findall(lower) if _corrected(word) != word}
        pieces = (
            [(m.start(), m.end(), _corrected(m[0])) for m in _WORD.finditer(lower) if m[0] in wrong] if wrong else []
        )
        text = replaced(text, pieces) if pieces else text
    letters = ((m, re.sub(r"[^a-z]", "", m[0].lower())) for m in _SPELLED.finditer(text.text))
    words = [(m.start(), m.end(), str((_ONES | _TENS)[word])) for m, word in letters if word in _ONES or word in _TENS]
    text = replaced(text, words) if words else text
    lower = lowered(text.text)
    numbers = [(*m.span(), str(_value(m))) for m in _NUMBER.finditer(lower)]
    if _DESCRIBED_WORDS.search(lower):
        known = list(_KNOWLEDGE.values())
        numbers += [(*m.span(), str(known[int(str(m.lastgroup)[1:])])) for m in _DESCRIBED.finditer(lower)]
    numbers = non_overlapping(sorted(numbers, key=lambda piece: (piece[0], -piece[1])))
    return replaced(text, numbers) if numbers else text


def _value(match: re.Match[str]) -> int:
    """Return the number of a match of `_NUMBER`."""
    groups = {name: (word or "").lower() for name, word in match.groupdict().items()}
    hundreds = groups["hundreds"]
    prefix = "h_" if hundreds else ""
    total = 100 * (int(hundreds) if hundreds.isdigit() else _ONES.get(hundreds, 1)) if hundreds else 0
    tens, unit, one = (groups[prefix + name] for name in ("tens", "unit", "one"))
    return total + _TENS.get(tens, 40 if tens else 0) + _ONES.get(unit or one, 0)


def lowered(text: str) -> str:
    """Return a text in lower case with the same length, for patterns without a flag, which are faster."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text


_QUERY = re.compile(r"[^?]*?\b(?:who|which|what|where|how)\b", re.IGNORECASE)


@lru_cache(4096)
def sentences(text: str) -> tuple[tuple[int, int], ...]:
    """Return the spans of the sentences, each with its final mark; a short question belongs to the answer after it."""
    spans, start = [], 0
    for mark in _SENTENCE.finditer(text):
        if text[start : mark.start()].strip():
            spans.append((start, mark.end()))
        start = mark.end()
    if text[start:].strip():
        spans.append((start, len(text)))
    merged: list[tuple[int, int]] = []
    for span in spans:
        question = text[slice(*merged[-1])] if merged else ""
        if question.endswith("?") and not text[: span[1]].endswith("?") and _is_answered(question, text[slice(*span)]):
            merged[-1] = merged[-1][0], span[1]
        else:
            merged.append(span)
    return tuple(merged)


def _is_answered(question: str, following: str) -> bool:
    """Return whether the text after a question answers it: `Clara? No, she lies.` or `Who lies? Bob.`"""
    return question.count(" ") < 4 or (following.count(" ") < 6 and _QUERY.match(question) is not None)
