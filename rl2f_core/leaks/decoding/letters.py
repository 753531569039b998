"""Read obfuscated letters: spelling alphabet, alphabet positions, neighbors, initials, separated letters.

For answers of single letters, such as `K Q Z`.
"""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Iterator, Set
from string import ascii_uppercase

from rl2f_core.common.text.normalize import Reading, non_overlapping
from rl2f_core.common.text.tokens import find_index, lone_letters, split_tokens

SPOKEN = {
    word: word[0].upper()
    for word in (
        "alpha alfa bravo charlie delta echo foxtrot golf hotel india juliet juliett kilo lima mike november oscar papa "
        "quebec romeo sierra tango uniform victor whiskey whisky xray yankee zulu"
    ).split()
}
"""The spelling alphabet of NATO and ICAO."""
_SPOKEN = re.compile(rf"\b(?:x-ray|{'|'.join(SPOKEN)})\b", re.IGNORECASE)
_SPOKEN_WORDS = frozenset((*SPOKEN, "ray"))
_ALPHABET_WORDS = frozenset("alphabet alphabetical alphabetically letter letters a".split())
_NEIGHBOR_WORDS = frozenset("after before following preceding follows precedes succeeding".split())
_ORDINALS = {
    word: n
    for n, word in enumerate(
        "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
        "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth twenty-first twenty-second twenty-third "
        "twenty-fourth twenty-fifth twenty-sixth".split(),
        1,
    )
}
_ITEM = rf"(?:\d{{1,2}}(?:st|nd|rd|th)?|{'|'.join(sorted(_ORDINALS, key=len, reverse=True))})\b"
_BETWEEN_ITEMS = r"(?:\s?[,;./|+&-]\s?|\s(?:and|then|the)\s|\s){1,3}(?:(?:and|then|the|finally|next)\s){0,2}"
_LIST = rf"{_ITEM}(?:{_BETWEEN_ITEMS}{_ITEM})*"
_ALPHABET = [
    re.compile(rf"\b(?P<list>{_LIST})(?: letters?)?(?:,)? (?:of|in|from) (?:the |our )?(?:english |latin )?alphabet", re.IGNORECASE),
    re.compile(rf"\balphabet(?:'s|ical(?:ly)?)?(?: letters?| positions?| numbers?| places?| order)*[ :,=]+(?:number(?:s|ed)? |no\.? )?(?P<list>{_LIST})", re.IGNORECASE),
    re.compile(rf"\bletters? (?:number(?:s|ed)?|nos?\.?|#) ?(?P<list>\d{{1,2}}\b(?:{_BETWEEN_ITEMS}\d{{1,2}}\b)*)", re.IGNORECASE),
    re.compile(rf"\ba ?(?:=|is|being|as) ?(?:1|one)\b[^0-9]{{0,60}}?(?P<list>\d{{1,2}}\b(?:{_BETWEEN_ITEMS}\d{{1,2}}\b)+)", re.IGNORECASE),
    re.compile(rf"(?P<list>\b\d{{1,2}}\b(?:{_BETWEEN_ITEMS}\d{{1,2}}\b)+)(?=[^0-9]{{0,60}}(?:\ba ?(?:=|is|being|as) ?(?:1|one)\b|\balphabet|\binto letters|\bto letters|\bas letters))", re.IGNORECASE),
    re.compile(rf"\b(?:alphabet|into letters|as letters)\b[^0-9]{{0,40}}?(?P<list>\d{{1,2}}\b(?:{_BETWEEN_ITEMS}\d{{1,2}}\b)+)", re.IGNORECASE),
]  # fmt: skip
_ALPHABET_CUE = re.compile(
    r"alphabet|\bletters? (?:no|num|#)|\ba ?(?:=|is|being|as) ?(?:1|one)\b|to letters|as letters", re.IGNORECASE
)
_NEIGHBOR = re.compile(
    r"\b(?:the )?(?:letter|one) (?:that )?(?:right |just |directly |immediately |comes |coming |which )*(?:(?P<after>after|following|follows|succeeding)|(?P<before>before|preceding|precedes))"
    r" (?:the letter )?['\"“‘]?(?P<letter>[A-Za-z])\b(?!['’])"
)


def plainer(text: str, words: Set[str]) -> list[tuple[int, int, str]]:
    """Return replacements for `text.normalize.replaced` that make obfuscated letters plain.

    `Kilo`, `the 11th letter of the alphabet` and `the letter after J` all become K.
    """
    pieces = []
    if not _SPOKEN_WORDS.isdisjoint(words):
        pieces = [(*match.span(), match[0][0].upper()) for match in _SPOKEN.finditer(text)]
    if not _ALPHABET_WORDS.isdisjoint(words) and _ALPHABET_CUE.search(text):
        for pattern in _ALPHABET:
            for match in pattern.finditer(text):
                places = [_place(item) for item in re.findall(_ITEM, match["list"], re.IGNORECASE)]
                if all(1 <= place <= 26 for place in places):
                    letters = ", ".join(ascii_uppercase[place - 1] for place in places)
                    start, end = match.span("list")
                    pieces.append((start, match.end() if pattern is _ALPHABET[0] else end, letters))
    if not _NEIGHBOR_WORDS.isdisjoint(words):
        for match in _NEIGHBOR.finditer(text):
            place = ascii_uppercase.index(match["letter"].upper()) + (1 if match["after"] else -1)
            if 0 <= place < 26:
                pieces.append((*match.span(), ascii_uppercase[place]))
    return non_overlapping(sorted(pieces))


def _place(item: str) -> int:
    digits = re.match(r"\d+", item)
    return int(digits[0]) if digits else _ORDINALS[item.lower()]


_TOKEN = re.compile(r"[^\W_]+|\.{2,}|…|[?_]")
_FILL = frozenset(
    "then and followed by next finally lastly last the letter letters capital comes goes after that afterwards with "
    "plus first second third fourth fifth sixth seventh eighth at end is it".split()
)
_TIGHT = re.compile(r"(?<![\w])[A-Za-z](?:[._/|+&~•·:→>-][A-Za-z]){1,11}(?![\w])")
_QUOTED = "'\"“”‘’`*(["
_FAR = 40


def rows(text: str, length: int) -> Iterator[Reading]:
    """Read sequences of `length` single letters: `K.Q.Z`, `first K, then Q, then Z`.

    Only punctuation and filler words may separate the letters; a blank (`?`, `_`, dots) ends a sequence. Letters must
    be capitals or quoted.
    """
    if length < 2 or (text.isascii() and [*map(len, split_tokens(text))].count(1) < length):
        return
    lone = lone_letters(text)
    if len(lone) < length:
        return
    for match in find_index(_TIGHT, text, lone):
        letters = re.sub(r"[^A-Za-z]", "", match[0]).upper()
        if len(letters) == length:
            yield Reading(
                match.start(), match.end(), " ".join(letters), letters.lower() in ("eg", "ie", "aka", "am", "pm")
            )
    row: list[tuple[int, int, str]] = []
    for at in lone:
        if not (text[at].isupper() or _is_quoted(text, at, at + 1)):
            continue
        if row and (at - row[-1][1] > _FAR or not _is_filled(text, row[-1][1], at)):
            row = []
        row = [*row[-(length - 1) :], (at, at + 1, text[at].upper())]
        if len(row) == length:
            yield Reading(row[0][0], row[-1][1], " ".join(letter for _, _, letter in row))


def _is_filled(text: str, start: int, end: int) -> bool:
    """Return whether only filler words separate two letters."""
    return all(match[0].lower() in _FILL for match in _TOKEN.finditer(text, start, end))


def _is_quoted(text: str, start: int, end: int) -> bool:
    return bool(start) and text[start - 1] in _QUOTED and end < len(text) and text[end] in _QUOTED + "')]"


_INITIALS_CUE = re.compile(
    r"\binitials?\b|\bacrostic|\b(?:first|initial|leading|starting|opening) letters?\b.{0,30}\b(?:each|every|words?|lines?|sentences?|these|following|below)\b"
    r"|\b(?:words?|lines?) (?:begin|start)", re.IGNORECASE)  # fmt: skip
_BOLD = re.compile(r"(?:\*\*|__|\*|_|<b>)([A-Za-z])(?:\*\*|__|\*|_|</b>)(?=[a-z])")
_SENTENCE = re.compile(r"[^.!?\n]+[.!?\n]*")


def initials(text: str, length: int) -> Iterator[Reading]:
    """Read initials: of `length` lines or sentences, of bold beginnings, and of consecutive words after a cue."""
    if length < 2:
        return
    bold = list(_BOLD.finditer(text)) if any(mark in text for mark in "*_<") else []
    for i in range(len(bold) - length + 1):
        part = bold[i : i + length]
        yield Reading(part[0].start(), part[-1].end(), " ".join(m[1].upper() for m in part))
    cued = _INITIALS_CUE.search(text) is not None
    if not cued and sum(map(text.count, ".!?\n")) + (text[-1:] not in ".!?\n") < length:
        return
    lines = [m for m in re.finditer(r"[^\n]+", text) if m[0].strip()]
    units = [lines, [m for m in _SENTENCE.finditer(text) if m[0].strip(" .!?\n\"'*-")]]
    for unit in units:
        for offset in range(len(unit) - length + 1) if cued or len(unit) == length else ():
            part = unit[offset : offset + length]
            spelled = [next((c for c in m[0] if c.isalpha()), "") for m in part]
            if all(c.isascii() and c for c in spelled) and (cued or length > 2):
                yield Reading(
                    part[0].start(), part[-1].end(), " ".join(c.upper() for c in spelled), length < 3 and not cued
                )
    if cued:
        words = list(re.finditer(r"[^\W\d_]+", text))[:200]
        for i in range(len(words) - length + 1):
            part = words[i : i + length]
            yield Reading(part[0].start(), part[-1].end(), " ".join(m[0][0].upper() for m in part))
