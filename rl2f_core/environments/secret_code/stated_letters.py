"""Statements in free text about the letter at a position of the code."""

# ruff: noqa: E501 (a pattern or a phrasing is read in one piece)
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rl2f_core.text.tokens import by_word, find_index, lone_letters, split_tokens

_NUMBERS = by_word(
    "first|1st|initial|leading|opening|leftmost|one;second|2nd|two;third|3rd|three;fourth|4th|four;fifth|5th|five;"
    "sixth|6th|six;seventh|7th|seven;eighth|8th|eight"
)
_ORDINAL = "first|1st|initial|leading|opening|leftmost|second|2nd|third|3rd|fourth|4th|fifth|5th|sixth|6th|seventh|7th|eighth|8th"
_END = "last|final|rightmost|closing|end"
_CARDINAL = r"[1-8]|one|two|three|four|five|six|seven|eight"
_THING = r"(?:letters?|places?|positions?|spots?|slots?|characters?|symbols?|one)"
_SHOULD = r"(?:should|must|has to|needs to|ought to|will|can only|would have to)"
_IS = rf"(?: {_SHOULD} (?:be|read|hold)| is| holds| contains| reads| becomes| takes| gets| wants| needs|'s| ?=| ?:| ?-+>| ?→)"
_FILL = (
    r"(?: (?:a capital|capital|the letter|a letter|letter|an|a|just|exactly|actually|really|in fact|of course|simply))*"
)
_LETTER = r" ?(?P<mark>[\"'“‘*`(]{0,3})(?P<letter>[A-Za-z])(?![\w'’-])(?!\*{0,2} (?:or|nor)\b)"
_OF = (
    r"(?: (?:of|in) (?:the |your )?(?:right |correct |hidden |secret )?(?:code|answer|solution|sequence|combination))?"
)
_SAYS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?P<yours>\byour )?\b(?:(?P<ordinal>{_ORDINAL}|{_END}|middle) {_THING}|(?:letter|place|position|spot|slot|character)(?: number| no\.?|) #?(?P<cardinal>{_CARDINAL})){_OF}{_IS}{_FILL}{_LETTER}",
        rf"(?<![\w'’]){_LETTER.removeprefix(' ?')}[\"'”’*`)]{{0,3}}(?: (?:{_SHOULD} )?(?:is|be|goes?|belongs?|comes?|stands?|sits?|fits?|appears?))?(?: (?:in|at|into|on|as))?(?: the)? (?:(?P<ordinal>{_ORDINAL}|{_END}|middle)(?: {_THING})?|(?:letter|place|position|spot|slot)(?: number| no\.?|) #?(?P<cardinal>{_CARDINAL}))\b",
        rf"\b(?:code|answer|it|solution|sequence|combination|that|and|which) (?:also |{_SHOULD} )?(?P<side>starts?|begins?|opens?|ends?|finish(?:es)?|closes?) (?:with|in|on|by){_FILL}{_LETTER}(?P<more>(?:(?:,? and|,? then|,)? ?[A-Z](?!\w)){{0,7}})",
        rf"(?:^|[.,;:!\n] ?)(?:and )?(?P<ordinal>{_ORDINAL}|{_END}|finally|lastly)(?: comes?| is| the letter|:|,)+{_FILL}{_LETTER}",
    )
]
_PLACED = frozenset(f"{_ORDINAL}|{_END}|middle|one|two|three|four|five|six|seven|eight|1|2|3|4|5|6|7|8".split("|"))
_SIDES = "start starts begin begins open opens end ends finish finishes close closes".split()
_THINGS = frozenset(
    "letter letters place places position positions spot spots slot slots character characters symbol symbols one".split()
)
_NUMBERED = frozenset("letter place position spot slot character".split())
_NAMED = frozenset(f"{_ORDINAL}|{_END}|middle".split("|"))
_CARDINALS = frozenset("1 2 3 4 5 6 7 8 one two three four five six seven eight number no".split())
_GATES: tuple[tuple[frozenset[str], ...], ...] = (
    (_PLACED, _THINGS),
    (_PLACED,),
    (frozenset(_SIDES), frozenset("with in on by".split())),
    (frozenset(f"{_ORDINAL}|{_END}|finally|lastly".split("|")),),
)
"""For each of the patterns sets of words; it needs one of each set."""
_STOP = re.compile(r"[.,;:!\n]")
_MARKS = "\"'“‘*`("
_NOT_SAID = re.compile(
    r"(?:\b(?:if|whether|unless|suppose|is|was|isn't|when|you (?:wrote|said|have|had|put|gave|tried|chose)|your|not|n't|never|alphabet(?:'s)?)\b[^.!?;\n]{0,24}|\balphabet[^.!?;\n]{0,40})$",
    re.IGNORECASE,
)
_AFTER = re.compile(r"[\"'”’*`)]{0,3}(?: (?:is )?(?:wrong|not|isn't|too)\b|,? or\b| of the alphabet|\?)", re.IGNORECASE)
_FRAME = re.compile(
    r"[A-Z?_*.•□■█\-–—…](?<![\w?].)(?:[ ,|]{1,3}|(?=[?_*A-Z.•□■█]))(?:[A-Z?_*.•□■█\-–—…](?:[ ,|]{1,3}|(?=[?_*A-Z.•□■█]))){0,6}[A-Z?_*.•□■█\-–—…](?![\w?])"
)
_SLOT = re.compile(r"[A-Z?_*.•□■█\-–—…]")

_SOUNDS = frozenset(
    "hm hmm hmmm mm mmm mhm ah ahh aha aah oh ohh ooh oho uh uhh huh um umm er erm eh ha hah ho hey hi heh aw aww wow "
    "oops ouch phew psst shh ugh tut yay ok no nah nope yes yep yeah".split()
)
"""Interjections."""
_AFTER_SOUND = re.compile(
    r"(?:[,.!…;~—–-]|\Z| (?!(?:is|was|as|for|it|works?|fits?|would|should|could|must|might|may|looks?|seems?|sounds?)\b))"
)


def is_sound(text: str, start: int, end: int) -> bool:
    """Is a word only an interjection, as in "Hmm, look again."?

    It begins a sentence, stands in no quotation marks or emphasis and in small letters but for the first ("OK" too), and nothing is
    said of it. Where it is called the answer, it follows other words, or other words follow it, or it stands alone.
    """
    fragment = text[start:end]
    if fragment.lower() not in _SOUNDS or (fragment[1:].isupper() and fragment != "OK"):
        return False
    before = text[:start].rstrip(" \t")[-1:]
    begins = before in ("", ".", "!", "?", "…", "\n", "—")
    alone = not any(map(str.isalnum, text[:start] + text[end:]))
    return begins and not alone and _AFTER_SOUND.match(text, end) is not None


def stated_letters(text: str, letters: Sequence[str], length: int) -> list[tuple[int, int, str, str]]:
    """Letters that a text puts at a place of the code: `(start, end, place, letter)`.

    Read are `the first letter is K`, `position 2: Q`, `K goes first`, `it ends in Z`, and frames such as `K ? Z`.
    """
    known = set(letters)
    alone = split_tokens(text) if text.isascii() else [text[at].lower() for at in lone_letters(text)]
    if not any(letter.lower() in alone for letter in known):
        return []
    results = [
        item
        for item in (*_phrases(text, length), *_frames(text, length))
        if item[3] in known and 1 <= int(item[2]) <= length
    ]
    return sorted(set(results))


def _phrases(text: str, length: int) -> Iterator[tuple[int, int, str, str]]:
    tokens = frozenset(split_tokens(text)) if text.isascii() else None
    for number, (gates, pattern) in enumerate(zip(_GATES, _SAYS, strict=True)):
        if tokens is not None and any(map(tokens.isdisjoint, gates)):
            continue
        if tokens is not None and number == 0 and not _numbers_a_thing(split_tokens(text)):
            continue
        starts = _marked(text) if number == 1 else _clauses(text) if number == 3 else None
        for match in pattern.finditer(text) if starts is None else find_index(pattern, text, starts):
            groups = match.groupdict()
            letter, after = groups["letter"], text[match.end() : match.end() + 30]
            small = (
                letter.islower()
                and not groups["mark"]
                and (letter in "ai" or not re.match(r"[\W_]*$|\W*[.!,;]", after))
            )
            reported = groups.get("yours") and not re.search(_SHOULD, match[0], re.IGNORECASE)
            if (
                small
                or reported
                or _AFTER.match(after)
                or _NOT_SAID.search(text[max(0, match.start() - 60) : match.start()])
            ):
                continue
            if groups.get("side"):
                run = [letter.upper(), *re.findall(r"(?<![A-Za-z])[A-Z](?![A-Za-z])", groups["more"] or "")]
                first = 1 if groups["side"].lower().startswith(("start", "begin", "open")) else length - len(run) + 1
                for place, fragment in enumerate(run, first):
                    yield *match.span(), str(place), fragment
                continue
            place = _place((groups.get("ordinal") or groups.get("cardinal") or "").lower(), length)
            if place:
                yield *match.span(), str(place), letter.upper()


def _numbers_a_thing(tokens: Sequence[str]) -> bool:
    """Whether two adjacent words name a position, e.g. `first letter` or `letter number 2`."""
    return any((b in _THINGS and a in _NAMED) or (b in _CARDINALS and a in _NUMBERED) for a, b in pairwise(tokens))


def _clauses(text: str) -> Iterator[int]:
    """Where the text begins, and the marks that end a clause."""
    yield 0
    yield from (match.start() for match in _STOP.finditer(text))


def _marked(text: str) -> Iterator[int]:
    """Start positions of single letters, including up to three marks before each."""
    for at in lone_letters(text):
        first = at
        while first and at - first < 3 and text[first - 1] in _MARKS:
            first -= 1
        yield from range(first, at + 1)


def _place(word: str, length: int) -> int:
    if word == "middle":
        return (length + 1) // 2 if length % 2 else 0
    if word in ("finally", "lastly") or word in _END.split("|"):
        return length
    return int(word) if word.isdigit() else _NUMBERS.get(word, 0)


def _frames(text: str, length: int) -> Iterator[tuple[int, int, str, str]]:
    """A row of `length` slots, some of them letters and some blank."""
    for match in _FRAME.finditer(text):
        slots = _SLOT.findall(match[0])
        known = [k for k, slot in enumerate(slots) if slot.isalpha()]
        if len(slots) == length and 0 < len(known) < length:
            for k in known:
                yield *match.span(), str(k + 1), slots[k]
