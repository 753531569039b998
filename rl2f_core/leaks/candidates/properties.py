"""Statements on properties and digits of a number."""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from math import isqrt

from rl2f_core.leaks.candidates.facts import Memory, Part, Token, Vocabulary
from rl2f_core.leaks.candidates.scan import read_sentence
from rl2f_core.leaks.candidates.text import lowered, sentences
from rl2f_core.leaks.candidates.told import NEGATED, NumberTask, Told, numbers_in


# -- properties ----------------------------------------------------------------------------------------------------------
def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, isqrt(n) + 1))


_N = r"(-?\d{1,6})"
_DECADES = {"twent": 20, "thirt": 30, "fort": 40, "fift": 50, "sixt": 60, "sevent": 70, "eight": 80, "ninet": 90}
_PROPERTIES: list[tuple[str, Callable[[int, list[int]], bool]]] = [
    (r"(?:\b(?:is|be|s|it's|its|number|stays|out|comes|are|an|and|also|be an)|^|,|:) ?even\b(?! (?:if|more|so|though|when|in|a |the |closer|your))|\beven (?:number|1)\b", lambda c, _: c % 2 == 0),
    (r"(?<!the )(?<!an )\bodd\b(?! (?:1 out|person|man|thing))|\bodd number\b", lambda c, _: c % 2 == 1),
    (r"\bprime\b", lambda c, _: _is_prime(c)),
    (r"\b(?:perfect square|square number|is (?:itself )?a square|square of an?)\b", lambda c, _: c >= 0 and isqrt(c) ** 2 == c),
    (r"\b(?:perfect cube|cube number|cube of an?)\b", lambda c, _: c >= 0 and round(c ** (1 / 3)) ** 3 == c),
    (r"\bpower of (?:2|two)\b", lambda c, _: c > 0 and c & (c - 1) == 0),
    (rf"\b(?:divisible by|multiple of|divides? (?:\w+ )?by|divided (?:\w+ )?by|shared (?:\w+ )?(?:by|among|between)|times table of|counting (?:up )?(?:by|in)|split (?:\w+ )?(?:into|by|among)) {_N}(?! (?:leaves|gives))|{_N} (?:goes (?:\w+ )?into|divides|fits (?:\w+ )?into|is a (?:factor|divisor))|\b{_N}[- ]times[- ]table", lambda c, v: v[0] != 0 and c % v[0] == 0),
    (rf"\b(?:digits?|them|figures?)\b[^.]{{0,40}}?(?:add(?:s|ed)?(?: up)? to|sums?(?: up)? to|add to|totals?|(?:you )?get|make|makes|give|gives) {_N}|(?:digit sum|cross sum|checksum|sum of (?:its|the|both|all|2|3)? ?(?:\d )?digits)[^.\d]{{0,12}}{_N}", lambda c, v: sum(map(int, str(abs(c)))) == v[0]),
    (r"\bdigits?\b[^.]{0,24}\b(?:the same|equal|identical|twins?|alike|repeated)|\bsame digit|\bidentical digits|\b(?:\d )?equal digits|\bdouble digit(?! n)|\btwin digits", lambda c, _: len(set(str(abs(c)))) == 1 and abs(c) > 9),
    (r"\b([1-6])[- ](?:digits?|figures?)\b(?! (?:is|are|right|wrong|off|correct|incorrect|need))", lambda c, v: len(str(abs(c))) == v[0]),
    (r"\b(?:palindrome|reads the same|unchanged if its digits|same (?:forwards and )?backwards?|same from both)\b", lambda c, _: str(c) == str(c)[::-1] and c > 9),
    (r"\b(?:in|among) the (?:\w+ )?([1-9]) hundreds|\b([1-9]) hundred and something|\b([1-9])-hundreds", lambda c, v: v[0] * 100 <= c < v[0] * 100 + 100),
    (rf"(?:can't|cannot|can not|not|never|won't) be (?:\w+ )?(?:shared|split|divided|halved)(?: (?:up|evenly|equally|fairly))*(?: (?:between|by|into|in|among) {_N})", lambda c, v: c % (v[0] or 1) != 0),
    (rf"{_N}(?: \w+){{0,3}} (?:and|on) (?:down|below|lower)\w*", lambda c, v: c > v[0]),
    (rf"{_N}(?: \w+){{0,3}} (?:and|on) (?:up|above|higher|upwards?)\b", lambda c, v: c < v[0]),
    (rf"\bbetween {_N} and {_N}", lambda c, v: min(v) <= c <= max(v)),
    (rf"\bstrictly between {_N} and {_N}", lambda c, v: min(v) < c < max(v)),
    (rf"(?<!not )(?<!no )\b(?:(?:more|greater|bigger|larger|higher) than|above|over|exceeds|beyond|past|after) {_N}(?! (?:of|times))", lambda c, v: c > v[0]),
    (rf"(?<!not )(?<!no )\b(?:(?:less|fewer|smaller|lower) than|below|under|before|short of) {_N}(?! (?:of|times))", lambda c, v: c < v[0]),
    (rf"\b(?:at least|no (?:less|fewer|smaller|lower) than|not (?:below|under)) {_N}", lambda c, v: c >= v[0]),
    (rf"\b(?:at most|no (?:more|greater|bigger|larger|higher) than|not (?:above|over)) {_N}", lambda c, v: c <= v[0]),
    (rf"\bnot {_N}(?: either)?|\b{_N},? (?:it|that)(?: \w+)? (?:isn't|is not|ain't|won't be)", lambda c, v: c != v[0]),
    (rf"\b(?:among|amongst|one of|within|in) (?:the )?(\d{{1,3}}) (?:numbers|integers|values|ones) (?:that |which )?(?:starting|start|begin|beginning|following|from|after)s? (?:at|with|from|on)? ?{_N}", lambda c, v: v[1] <= c <= v[1] + v[0]),
    (rf"\b(?:from|range) {_N} (?:up )?(?:to|through|till|until) {_N}|\bsomewhere (?:in|from) {_N}(?: to |-){_N}", lambda c, v: min(v) <= c <= max(v)),
]  # fmt: skip
_COMPILED = [(re.compile(pattern), "(-?" in pattern or "([1-" in pattern, test) for pattern, test in _PROPERTIES]
_PROPERTY_WORDS = re.compile(r"even|odd|prime|square|cube|power|digit|twin|palin|same|backward|unchanged|figure|\d")
_OFF_BY = re.compile(
    r"\b(?:off|out|wrong|missed(?: \w+){0,5}|away)(?: \w+)? by (?:just |only |exactly |a |1 )?(?:single )?(\d{1,3})\b(?! digit)|\b(\d{1,3}) (?:off|out|away)\b"
)
_DECADE = re.compile(rf"\b(?:in|among) (?:the|your|its)? ?(?:\w+ )?({'|'.join(_DECADES)})ies\b")
_BETWEEN_THOSE = re.compile(
    r"\bbetween (?:those|these|them|the 2|your (?:2|numbers|guesses|tries|attempts|answers)|both)\b|\b(?:stuck|caught|fenced|trapped|sandwiched)\b"
)
_CLOSER = re.compile(r"\bcloser to (?:your |the )?(?P<which>first|last|second|previous|earlier|this|latest)")
_PART_OF = re.compile(
    r"\b(?:digit|1|column|ones|tens|hundreds|units|middle|first|last|second|third|each|both|two|2)\b[^.,;]{0,30}$"
)


_COMPARISON_WORDS = re.compile(
    r"\b(?:off|out|wrong|missed|away|in|among|between|stuck|caught|fenced|trapped|sandwiched|closer)\b"
)
Test = Callable[[int, list[int]], bool]


@lru_cache(4096)
def _stated(text: str) -> tuple[tuple[int, int, Test, list[int], bool], ...]:
    """Return the properties that a text names: span, test, its numbers, and whether it is affirmed."""
    has_number = re.search(r"\d", text) is not None
    found: list[tuple[int, int, Test, list[int], bool]] = []
    for pattern, needs_number, test in _COMPILED if _PROPERTY_WORDS.search(text) else ():
        for match in pattern.finditer(text) if has_number or not needs_number else ():
            positive = NEGATED.search(text[: match.start()]) is None or match[0].startswith(("no", "at"))
            about_digit = "even" in pattern.pattern or "odd" in match[0]
            if not (about_digit and _PART_OF.search(text[: match.start() + 1])):
                found.append((*match.span(), test, [int(group) for group in match.groups() if group], positive))
    return tuple(found)


def properties(text: str, task: NumberTask, tried: Sequence[Fraction]) -> Iterator[Told]:
    """Yield true statements about the whole number: parity, divisors, digit sum, bounds, and the like."""
    gold = int(task.gold)
    for start, end, test, values, positive in _stated(text):
        holds = _property(test, values, positive)
        if holds(gold):
            yield Told(start, end, holds=holds)
    if not _COMPARISON_WORDS.search(text):
        return
    off = _OFF_BY.search(text)
    if off and tried:
        n, attempt = int(off[1] or off[2]), tried[-1]
        yield from _if_true(Told(*off.span(), holds=lambda c: abs(c - attempt) == n), gold)
    decade = _DECADE.search(text)
    if decade:
        ten = _DECADES[decade[1]]
        yield from _if_true(Told(*decade.span(), holds=lambda c: c % 100 // 10 == ten // 10), gold)
    ends = sorted(int(a) for a in tried if a.denominator == 1)
    named = sorted({int(v) for _, _, v in numbers_in(text) if v.denominator == 1} | set(ends))
    between = _BETWEEN_THOSE.search(text)
    below, above = [v for v in named if v < gold], [v for v in named if v > gold]
    if between and below and above:
        low, high = below[-1], above[0]
        if not (low in ends and high in ends):
            yield Told(*between.span(), holds=lambda c: low < c < high)
    closer = _CLOSER.search(text)
    if closer and len(tried) > 1:
        one, two = (
            (tried[0], tried[-1]) if closer["which"] in ("first", "previous", "earlier") else (tried[-1], tried[0])
        )
        yield from _if_true(Told(*closer.span(), holds=lambda c: abs(c - one) < abs(c - two)), gold)


def _property(test: Callable[[int, list[int]], bool], values: list[int], positive: bool) -> Callable[[int], bool]:
    return lambda c: test(c, values) == positive


def _if_true(told: Told, gold: int) -> Iterator[Told]:
    if told.holds is not None and told.holds(gold):
        yield told


# -- digits --------------------------------------------------------------------------------------------------------------
PLACE_OF_DIGIT = re.compile(
    r"\b(?:(?! ?(?:first|last|final|opening|closing|leading) (?:\d (?!digits|figures|of)|(?:_ )?(?:terms?|signs?|amounts?)\b))(?P<R1>ones|rightmost|units?|last|final|ends?|ending|closing|closes|finish(?:es)?|back|right-?hand|unit's)|(?P<R2>tens?(?!th))|(?P<R3>(?<!\d )(?<!\d-)hundreds?)"
    r"|(?P<L1>first|front|leading|leftmost|starts?|starting|begins?|beginning|opening|opens|left-?hand)|(?P<M>middle|cent(?:er|re)|in between|between the (?:ends|2|outer)|inner|second(?= digit| 1\b))"
    r"|(?P<E>outer|outside|both ends|on the outside))\b(?: 1\b(?=\s|$))?"
)
_BIGGEST = re.compile(
    r"\b(?:big|fat|larg|high|great)(?:g|t)?est (?:possible )?(?:digit|1|figure)(?: (?:there is|of all|available))?"
)
_TWO_DIGITS = re.compile(
    r"\b(?:(?P<front>first|opening|leading|front)|last|final|closing) (?:2|pair of) (?:digits|figures|numbers|of them)"
)
_SINGLE_DIGIT = re.compile(
    r"(?<![\d.,-])\d(?![\d]|[.,]\d)(?! (?:digits?|hundreds?|times|of|more|less|too|goes|wrong|right))"
)
_ENDING = re.compile(
    r"\b(?:ends? (?:in|with|on)|ending)\b (?:an? )?(\d{2,3})\b|\b(?:the|that|your) (\d{2,3}) at the end|\b(?:the|that|your) (\d{2,3}),? (?:hang on|keep|hold|stays?)"
)
_STARTING = re.compile(r"\b(?:starts?|begins?|opens?) (?:in|with|on) (?:an? )?(\d{2,3})\b")


def digit_indices(place: re.Match[str], length: int) -> set[int]:
    """Return the indices of the digits that a place means, in a number of `length` digits."""
    match str(place.lastgroup):
        case "R1":
            return {length - 1}
        case "R2":
            return {length - 2}
        case "R3":
            return {length - 3}
        case "L1":
            return {0}
        case "M":
            return set(range(1, length - 1))
        case _:
            return {0, length - 1}


@lru_cache(50_000)
def _digits_of(number: int) -> dict[Part, str]:
    """Return the digits of a number by place: from the left, from the right, and in the middle."""
    text = str(abs(number))
    return {
        "L1": text[0], "L2": text[1:2], "R1": text[-1], "R2": text[-2:-1] if len(text) > 1 else "", "R3": text[-3:-2] if len(text) > 2 else "",
        "M": text[1:-1],
    }  # fmt: skip


_DIGIT_PARTS: frozenset[Part] = frozenset(("L1", "L2", "R1", "R2", "R3", "M"))


def _read_digits(sentence: str) -> list[Token]:
    found = []
    sentence = lowered(sentence)
    for match in PLACE_OF_DIGIT.finditer(sentence):
        kind = str(match.lastgroup)
        parts = frozenset(("L1", "R1")) if kind == "E" else frozenset((kind,))
        found.append(Token("part", *match.span(), match[0], parts))
    for match in _TWO_DIGITS.finditer(sentence):
        parts = frozenset(("L1", "L2")) if match["front"] else frozenset(("R1", "R2"))
        found = [t for t in found if not (match.start() < t.end and t.start < match.end())]
        found.append(Token("part", *match.span(), match[0], parts))
    found += [Token("value", *m.span(), m[0], value="9") for m in _BIGGEST.finditer(sentence)]
    spans = [(t.start, t.end) for t in found]
    for match in _SINGLE_DIGIT.finditer(sentence):
        if not any(start < match.end() and match.start() < end for start, end in spans):
            found.append(Token("value", *match.span(), match[0], value=match[0]))
    return found


_DIGITS = Vocabulary(_DIGIT_PARTS, _read_digits, is_shared=True)


def digits(text: str, task: NumberTask, tried: Sequence[Fraction], memory: Memory) -> Iterator[Told]:
    """Yield statements about single digits, and about the beginning and end of the number."""
    gold = int(task.gold)
    attempts = [_digits_of(int(a)) for a in tried if a.denominator == 1]
    same_length = [len(str(abs(int(a)))) == len(str(abs(gold))) for a in tried if a.denominator == 1]
    for start, end in sentences(text):
        for fact in read_sentence(text[start:end], start, _DIGITS, memory):
            if fact.relation == "is":
                yield from _if_true(
                    Told(fact.start, fact.end, holds=_digit_is(fact.parts, fact.value, fact.positive)), gold
                )
            elif fact.relation == "right":
                for attempt, same in zip(reversed(attempts), reversed(same_length), strict=True):
                    parts = fact.parts
                    if parts >= _DIGIT_PARTS - {"L1", "L2"}:  # "the others"
                        continue
                    length = len(str(abs(gold))) if same and fact.positive else None
                    holds = _digits_agree(parts, attempt, fact.positive, length)
                    if holds(gold):
                        yield Told(fact.start, fact.end, holds=holds)
                        break
    lower = lowered(text)
    for pattern, is_end in ((_ENDING, True), (_STARTING, False)):
        for match in pattern.finditer(lower):
            digits = next(group for group in match.groups() if group)
            yield from _if_true(Told(*match.span(), holds=_affix(digits, is_end)), gold)


def _digit_is(parts: frozenset[Part], value: str, positive: bool) -> Callable[[int], bool]:
    return lambda c: all((_digits_of(c)[p] == value) == positive for p in parts)


def _digits_agree(
    parts: frozenset[Part], attempt: dict[Part, str], positive: bool, length: int | None
) -> Callable[[int], bool]:
    def holds(c: int) -> bool:
        digits = _digits_of(c)
        return (length is None or len(str(abs(c))) == length) and all(
            (digits[p] == attempt[p]) == positive for p in parts
        )

    return holds


def _affix(digits: str, is_end: bool) -> Callable[[int], bool]:
    return lambda c: str(c).endswith(digits) if is_end else str(c).startswith(digits)
