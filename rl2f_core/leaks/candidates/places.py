"""Words for places in a row: ordinals from both ends, ranges, lists of numbers, ends and middle."""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from rl2f_core.leaks.candidates.facts import Token
from rl2f_core.leaks.candidates.lexicon import Phrases, PhraseSpan, Word, words_of

ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth".split()
_FRONT = "first|opening|initial|top|front|leading|upper|left|starting|earliest|foremost|leftmost|frontmost|beginning"
_BACK = "last|final|closing|bottom|rear|back|lower|right|ending|trailing|latter|rightmost|hindmost|concluding"
_NOUNS = (
    "place places spot spots position positions slot slots seat seats letter letters number numbers numero no digit "
    "digits row rows line lines guess guesses box boxes step steps move moves char chars character characters symbol "
    "symbols entry entries item items cell cells pos tile tiles chair chairs card cards peg pegs square squares drawer "
    "drawers wheel wheels dial dials column columns field fields element elements person"
).split()
_PHRASES = Phrases(
    {
        "front": f"{_FRONT} # (of), # upper|top|opening|initial|leading, {_FRONT} pair|couple|duo|trio|half|triple|quartet, # up front, # (_) in front, # (_) at|on|to (the|its|your) (very|far) front|start|head|beginning|left|top",
        "back": f"{_BACK} # (of), # lower|bottom|final|closing|trailing, {_BACK} pair|couple|duo|trio|half|triple|quartet, # (_) at|on|to (the|its|your) (very|far) back|end|rear|tail|right|bottom",
        "core": "middle|central|inner|inside|centre|center #|pair|couple|duo|trio, # in|at (the|its) middle|centre|center|"
        "interior, # inside|between|middle, between the two, both in between",
        "from_end": "second|third|fourth|2nd|3rd|4th|2|3 (1) to|from (the|your) (far|very|right|right-hand) last|end|back|right|"
        "bottom|rear|finish, second|2nd|third|3rd last, next to (the) last, penultimate, last|final|bottom (letter|row|"
        "line|digit|1|place|step) but 1|2|one|two, 1|one|row|line|letter|place|step before|above (the) last|end|final|bottom, last but 1|2|one|two, second-to-last, "
        "next-to-last, second-last",
        "ordinal": f"{'|'.join(ORDINALS)} (1)",
        "ends": "both|the|either|its|two|outer|opposite|far ends, outer, outside, outsides, outermost, bookend*, flank*, "
        "either end, ends (of), extremes, extremities, edges, on the outside, both sides, two|2 ends",
        "last": "last|final|closing (1), rear, tail, back, bottom, bottommost, lowest, rightmost, closer, closes, close, "
        "end, ends, ending, terminate*, finale, hindmost, caboose, finisher, finish, finishes, conclusion, concludes, far end, finishing, "
        "right-hand (end|side|edge), right end|side|edge|flank|hand, last place, very last, right-most, lastly, finally",
        "first": "front, leading, lead, leads, start, starts, starting, begin, begins, beginning, commence*, opening, opens, opener, "
        "head, heads, uppermost, topmost, leftmost, top, initial, leader, kick* off, left-hand (end|side|edge), left end|"
        "side|edge|flank|hand, very first, left-most, starter, begins, outset, foremost, vanguard, pole position, "
        "opened, started, began",
        "center": "middle (1), centre, center, central, heart, midpoint, halfway, mid, dead centre|center, middlemost",
        "middle": "inside, inner, in between, between, in-between, interior, innards, insides, sandwiched, inward",
        "ignored": "front of, back up|on|to|at|from|and|together|in, start with|over|from|by|again|at|out|your|the|afresh, begin "
        "with|by|from|at, in the end, at first, at the start of, to begin, to start, first of all, between you|us, first|last|"
        "final|opening|second|third|other|initial|earlier try|attempt|guess|answer|go|time|code|round|version|effort|proposal|"
        "sheet|grid|shot|submission|entry|take|turn|one's, dead end, end of story, no end, week ends, on top, on top of, top "
        "marks|notch|job|form, lead to|you|us|him|her, head|heads up|over|to|off|down|for|in|is|and, first|second thing, second time|"
        "look|nature|thought|thoughts|chance, a second, finish line|it|off, end up, ends up, ended up, close|closer to, so|very|"
        "quite|too|pretty|super|really|that|getting|are|is|soooo|now|come close|closer, close attention|enough|look|call|"
        "but, back|front page|row seat, lies at the heart, last|first step|hint|clue|word|night|week|year|resort",
    }
)
_SIZES = {"pair": 2, "couple": 2, "duo": 2, "trio": 3, "triple": 3, "quartet": 4, "two": 2, "both": 2}
_LIST = re.compile(r"(?:[ .:]{0,2}#?)(?P<list>\d(?:(?:,? and |, ?| & | ?/ ?|&)(?:then )?\d)*)(?![\w/])")
_RANGE = re.compile(
    r",? ?(?:to|through|thru|until|till|up to|-|–)(?: and including)?(?: the)?(?: \w+)? ?$", re.IGNORECASE
)
_START = re.compile(
    r"(?<!\w)(?<!that )(?<!this )(?<!the )(?<!each )(?<!which )(?<!no )(?P<start>\d(?:(?:, | and |, and |/|&| & )\d)*)(?=:| (?:is|are|stays?|was|were)\b)|(?<!\w)#(?P<hash>\d)(?!\d)"
)
_NTH = re.compile(r"\b(\d)(?:st|nd|rd|th)\b(?: 1(?!\w))?", re.IGNORECASE)
_DIGIT_RANGE = re.compile(r"(?<![\w-])(\d) ?(?:-|–|to|through|thru) ?(\d)(?![\w-])")
_UP_TO = re.compile(
    r"\b(?:up to|until|till|before|preceding|ahead of)(?: the| your| its| that)?(?: very)? $", re.IGNORECASE
)
_AFTER = re.compile(r"\b(?:after|past|beyond|following|behind)(?: the| your| its| that)?(?: very)? $", re.IGNORECASE)
_FROM = re.compile(r"\b(?:from|starting (?:at|with|from))(?: the| your| its)?(?: very)? $", re.IGNORECASE)
_ONWARD = re.compile(r"^(?: \w+){0,2}? (?:on(?:wards?)?(?! the)|forward|to the (?:end|last|right))\b", re.IGNORECASE)


@lru_cache(4096)
def place_tokens(sentence: str, count: int) -> tuple[Token, ...]:
    """Return the places that a sentence names, as parts 1 to `count`."""
    if count < 1:
        return ()
    found: list[Token] = []
    for start, end, places in (*_named(sentence, count), *_listed(sentence)):
        places = frozenset(_extended(sentence, start, end, places, count))
        if places and max(places) <= count and min(places) > 0:
            if not any(start < token.end and token.start < end for token in found):
                found.append(Token("part", start, end, sentence[start:end], places))
    return tuple(_ranges(sentence, sorted(found, key=lambda token: token.start)))


def _listed(sentence: str) -> Iterator[tuple[int, int, frozenset[int]]]:
    """Yield places in digits: `slots 2 and 4`, `2nd`, `3:`, `2-4`."""
    for word in words_of(sentence):
        if word.text in _NOUNS:
            match = _LIST.match(sentence, word.end)
            span = _DIGIT_RANGE.match(sentence, word.end + 1)
            if span and span[1] < span[2]:
                yield word.start, span.end(), frozenset(range(int(span[1]), int(span[2]) + 1))
            elif match:
                yield word.start, match.end(), frozenset(int(d) for d in re.findall(r"\d", match["list"]))
    if not any(c.isdigit() for c in sentence):
        return
    for match in _START.finditer(sentence):
        yield *match.span(), frozenset(int(d) for d in re.findall(r"\d", match["start"] or match["hash"]))
    for match in _NTH.finditer(sentence):
        yield *match.span(), frozenset([int(match[1])])


def _named(sentence: str, count: int) -> Iterator[tuple[int, int, frozenset[int]]]:
    words = words_of(sentence)
    for found in _PHRASES.find(words):
        chosen = words[found.first : found.last]
        places = _places(found, chosen, count)
        if places:
            yield chosen[0].start, chosen[-1].end, places


def _places(found: PhraseSpan, words: tuple[Word, ...], count: int) -> frozenset[int]:
    half = count // 2
    size = next(
        (int(w.text) if w.text.isdigit() else _SIZES[w.text] for w in words if w.text.isdigit() or w.text in _SIZES),
        half,
    )
    match found.symbol:
        case "front":
            return frozenset(range(1, size + 1))
        case "back":
            return frozenset(range(count - size + 1, count + 1)) if size <= count else frozenset()
        case "core":
            margin = (count - size) // 2
            return (
                frozenset(range(margin + 1, margin + size + 1))
                if size < count and not (count - size) % 2
                else frozenset(range(2, count))
            )
        case "from_end":
            second = not any(w.text.startswith(("third", "3", "two")) for w in words) and words[-1].text != "2"
            return frozenset([count - (1 if second else 2)])
        case "ordinal":
            return frozenset([ORDINALS.index(words[0].text) + 1])
        case "ends":
            return frozenset((1, count))
        case "last":
            return frozenset([count])
        case "first":
            return frozenset([1])
        case "center":
            return frozenset([half + 1]) if count % 2 else frozenset((half, half + 1))
        case "middle":
            return frozenset(range(2, count))
    return frozenset()


def _extended(sentence: str, start: int, end: int, places: frozenset[int], count: int) -> frozenset[int]:
    """Return the places before, after or from a place, as in "up to the third" and "from the second on"."""
    if len(places) != 1:
        return places
    (place,) = places
    before = sentence[max(0, start - 30) : start]
    if _UP_TO.search(before) and place > 1:
        return frozenset(range(1, place))
    if _AFTER.search(before) and place < count:
        return frozenset(range(place + 1, count + 1))
    if _FROM.search(before) and _ONWARD.match(sentence[end:]):
        return frozenset(range(place, count + 1))
    return places


def _ranges(sentence: str, tokens: list[Token]) -> Iterator[Token]:
    """Yield tokens with `second to fourth` joined to one range."""
    i = 0
    while i < len(tokens):
        one = tokens[i]
        if i + 1 < len(tokens):
            other = tokens[i + 1]
            low, high = max(map(int, one.parts)), min(map(int, other.parts))
            if low < high and other.start - one.end < 24 and _RANGE.fullmatch(sentence, one.end, other.start):
                yield Token(
                    "part", one.start, other.end, sentence[one.start : other.end], frozenset(range(low, high + 1))
                )
                i += 2
                continue
        yield one
        i += 1
