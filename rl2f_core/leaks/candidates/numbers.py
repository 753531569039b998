"""Answers that are numbers: operations on an attempt, intermediate results, properties and digits.

An operation on an attempt is recognized from its result: the difference between attempt and answer (an amount, a
factor, exchanged or replaced digits) is computed, and the hint must name it.
"""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import isqrt

from rl2f_core.leaks.candidates.facts import Memory, Part, Token, Vocabulary, read_sentence
from rl2f_core.leaks.candidates.text import sentences

_NUMBER = re.compile(
    r"(?<![\w.])(?:(?:minus|negative) |-(?=\d))?\d{1,9}(?:,\d{3})*(?:\.\d+)?(?:/\d+)?(?![\w]|\.\d)", re.IGNORECASE
)
_HALF = re.compile(r"(?<![\w.])(\d{1,4}) and a half\b")
_FRACTIONS = {
    "half": 2,
    "halve": 2,
    "third": 3,
    "quarter": 4,
    "fourth": 4,
    "fifth": 5,
    "sixth": 6,
    "eighth": 8,
    "tenth": 10,
}
_APPROXIMATE = re.compile(
    r"\b(?:about|around|roughly|nearly|almost|approximately|some|or so|over a|more than|less than|well over|at least|at most|not even)\W*$",
    re.IGNORECASE,
)
_UNIT = re.compile(
    r"\W*(?:of (?:the|your|its|these) )?(?:digits?|columns?|places?|tr(?:y|ies)|guess(?:es)?|mistakes?|letters?|numbers?|wrong|right|errors?|slips?|thing|more (?:time|try|step|look)|carr(?:y|ies)|attempts?|answers?|sentences?|words?|steps?)\b",
    re.IGNORECASE,
)
_BY_ONE = re.compile(
    r"\W*(?:too|to (?:many|much|high|low|few)|more|short|less|fewer|off|higher|lower|up|down|bigger|smaller|over|under|above|below|shy|away)\b",
    re.IGNORECASE,
)
_ONE_BY = re.compile(
    r"\b(?:add|plus|minus|subtract|take|by|lacks?|missing|drop|remove)(?: just| only| exactly)? $", re.IGNORECASE
)
_UP = re.compile(
    r"\b(?:add|adding|plus|more|on top|extra|higher|increase|toss|put|throw in|short|missing|too (?:low|little|few|small)|below|under|behind|lack\w*|shy|up|raise|give it|bigger|larger|greater|further|beyond|from|away|and)\b",
    re.IGNORECASE,
)
_DOWN = re.compile(
    r"\b(?:subtract\w*|minus|less|fewer|lower|take|drop|remove|too? (?:high|much|many|big|large)|over\w*|above|excess|off|down|reduc\w*|knock|give back|deduct\w*|smaller|lose|without|throw away|cut|away|from|back)\b",
    re.IGNORECASE,
)
_TIMES = re.compile(
    r"\W*(?:times|fold|x\b|×|\*|of (?:yours|those|them|these|your|what you)|copies|-fold|lots of)", re.IGNORECASE
)
_BY = re.compile(r"(?:times|multipl\w+ (?:it |that |yours )?(?:by|with)|by|×|\*)\W*$", re.IGNORECASE)
_DIVIDED = re.compile(r"(?:divid\w+|split|shar\w+|cut)[^.]{0,25}?(?:by|into|in|among|between)\W*$", re.IGNORECASE)
_WORD_FACTORS = [
    (re.compile(r"\b(?:double|doubled|doubling|twice)\b", re.IGNORECASE), Fraction(2)),
    (re.compile(r"\b(?:triple|tripled|thrice)\b", re.IGNORECASE), Fraction(3)),
    (re.compile(r"\bquadruple\b", re.IGNORECASE), Fraction(4)),
    *((re.compile(rf"\b(?:an? |1 |the )?{word}s?\b(?! (?:digit|column|place|number|person|guess|attempt|try))", re.IGNORECASE), Fraction(1, n)) for word, n in _FRACTIONS.items()),
]  # fmt: skip
_SIGN = re.compile(
    r"\b(?:(?:minus |wrong |the |that )?sign|minus|negative|positive|below zero|above zero)\b", re.IGNORECASE
)
_SWAPPED = re.compile(
    r"\b(?:swap\w*|exchang\w+|switch\w*|trad\w+|transpos\w+|interchang\w+|revers\w+|back(?:wards?| to front)|the other way (?:round|around)|turn\w* (?:it|them|that|yours)? ?(?:around|round)|mirror\w*|flip\w*|wrong order|chang\w+ (?:seats|places)|mixed up|from (?:right to left|behind|the back)|upside|inside out|glass door|opposite order)\b",
    re.IGNORECASE,
)
_EDIT = re.compile(
    r"\b(?:make|makes?|chang\w+|put|turn\w*|replac\w+|becomes?|instead|swap\w*|write|set|bump|should (?:be|have been)|needs? to be|wants? to be|ought to be|was meant)\b",
    re.IGNORECASE,
)
_INSERT = re.compile(
    r"\b(?:in front|before|ahead|at the (?:front|start|beginning|end)|behind|after|append|prepend|stick|tack|attach|lack\w*|missing|forgot|front of|squeeze)\b",
    re.IGNORECASE,
)
_REMOVE = re.compile(
    r"\b(?:drop|remov\w+|delet\w+|lose|cross out|strike|rub out|cut|take (?:away|off|out)|without|chop|erase|leave out|throw (?:away|out)|superfluous|too many|extra)\b",
    re.IGNORECASE,
)
_ADD_CUE = re.compile(
    r"\b(?:and|plus|together|add\w*|more|remain\w*|left|lying|introduc\w+|combin\w+|join\w*|sum|put|with|both|then|total)\b|\+|,",
    re.IGNORECASE,
)
_SUBTRACT_CUE = re.compile(
    r"\b(?:from|back off|off|minus|less|ends? up|take|difference|left|fewer|subtract\w*|remov\w+|without|gone|of them|total|out of|away|used|already)\b|-|−",
    re.IGNORECASE,
)
_MULTIPLY_CUE = re.compile(
    r"\b(?:times|as (?:big|much|many)|each|multipl\w+|every|a piece|apiece|per|of them)\b|[×*]", re.IGNORECASE
)
_DIVIDE_CUE = re.compile(
    r"\b(?:divid\w+|shar\w+|split|each|equal\w*|among|between|half|per|apiece)\b|[÷/]", re.IGNORECASE
)
_AGAIN = re.compile(r"\b(?:again|twice|doubl\w+|same (?:amount|again)|once more|lot again)\b", re.IGNORECASE)
_YOURS = re.compile(
    r"\b(?:your (?:number|answer|guess|result|figure|sum)|(?:the )?(?:number|amount|quantity|figure|one|1|what|that) (?:that )?you (?:\w+ )?(?:gave|wrote|said|put|got|guessed|answered|have|had)|what you (?:\w+ )?(?:gave|wrote|said|put|got|have)|yours)\b",
    re.IGNORECASE,
)
_EACH = re.compile(r"\b(?:each|every|apiece|times|full of|holding|containing|copies|lots)\b", re.IGNORECASE)
_BECOMES = re.compile(
    r"\b(?:comes? out|becomes?|gives?|makes?|you(?:'d)? get|yields?|turns? into|is|lands? on|ends? up|equals?|reach\w*)\b",
    re.IGNORECASE,
)
_NTHS = re.compile(
    r"\b(\d{1,3}) (hal(?:f|ves)|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|twelfths?)\b",
    re.IGNORECASE,
)
_SLICES = re.compile(
    r"\b(\d{1,3}) (?:equal |even )?(?:slices?|parts?|pieces?|shares?|heaps?|piles?|groups?|portions?|chunks?)\b",
    re.IGNORECASE,
)
_SMALL = 12
"""A hint that mentions a number above this one and equal to the answer states it."""
_OLDER = re.compile(r"\b(?:first|earlier|previous|before|other|old|original|initial)\b", re.IGNORECASE)
_EQUATION = re.compile(r"(?<![\w.])(-?\d{1,6})\s*\*?\s*[a-z]\s*=\s*(-?\d{1,9})(?!\w)")
_MIXED = re.compile(
    r"\b(\d{1,4}) (?:whole\w*|full|entire|complete)\b[^.]{0,30}?\b(\d{1,3}) (half|halves|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|twelfths?)\b",
    re.IGNORECASE,
)
_NAMES = {
    "hal": 2,
    "thi": 3,
    "qua": 4,
    "fou": 4,
    "fif": 5,
    "six": 6,
    "sev": 7,
    "eig": 8,
    "nin": 9,
    "ten": 10,
    "twe": 12,
}


@dataclass(frozen=True)
class Told:
    """Something a hint says about a number: a test of candidates, or the whole answer."""

    start: int
    end: int
    holds: Callable[[int], bool] | None = None
    """None if the statement is the answer."""
    steps: int = 1
    """Operations from the statement to the answer."""


@dataclass(frozen=True)
class NumberTask:
    """A task whose answer is a number."""

    gold: Fraction
    given: frozenset[Fraction]
    """Numbers of the problem."""
    low: int
    high: int
    """The candidates are the integers from `low` to `high`."""


def numbers_in(text: str) -> list[tuple[int, int, Fraction]]:
    """Return the numbers of a text with their spans."""
    found = []
    halves = {m.start(): m for m in _HALF.finditer(text)}
    for match in _NUMBER.finditer(text):
        half = halves.get(match.start())
        if half:
            found.append((half.start(), half.end(), Fraction(half[1]) + Fraction(1, 2)))
            continue
        digits = re.sub(r"[^\d./]", "", match[0])
        numerator, _, denominator = digits.partition("/")
        if denominator and int(denominator) == 0:
            continue
        value = Fraction(numerator) / (int(denominator) if denominator else 1)
        found.append((*match.span(), -value if match[0][0] in "-mMnN" else value))
    return found


def read_number_hint(
    text: str, task: NumberTask, attempts: Sequence[Fraction | None], earlier: Sequence[str], memory: Memory
) -> list[Told]:
    """Return what a hint says about the answer and is true.

    Args:
        text: The hint in plain form.
        task: The task.
        attempts: The attempts, oldest first.
        earlier: The earlier hints in plain form.
        memory: What the earlier sentences mentioned.
    """
    tried = [attempt for attempt in attempts if attempt is not None]
    told: list[Told] = []
    spans = sentences(text)
    for i, (start, end) in enumerate(spans):
        window = text[start : spans[i + 1][1]] if i + 1 < len(spans) else text[start:end]
        meant = tried if _OLDER.search(window) else tried[-1:]
        for attempt in dict.fromkeys(reversed(meant)):
            span = _operation(window, attempt, task)
            if span:
                told.append(Told(start + span[0], start + span[1]))
    for start, end, value in numbers_in(text):
        if value == task.gold and value not in task.given and value not in tried and abs(value) > _SMALL:
            if not _APPROXIMATE.search(text[max(0, start - 40) : start]) and not _NEGATED.search(text[:start]):
                told.append(Told(start, end))
    told += _intermediate(text, task, tried, earlier)
    if task.gold.denominator == 1:
        told += _properties(text, task, tried)
        told += _digits(text, task, tried, memory)
    return told


# -- operations on an attempt ------------------------------------------------------------------------------------------
def _operation(sentence: str, attempt: Fraction, task: NumberTask) -> tuple[int, int] | None:
    """Return the span of words that name the way from an attempt to the answer."""
    gold = task.gold
    if attempt == gold:
        return None
    return _amount(sentence, attempt, task) or _edited(sentence, attempt, gold)


def _amount(sentence: str, attempt: Fraction, task: NumberTask) -> tuple[int, int] | None:
    factors: list[tuple[int, int, Fraction]] = []
    amounts: list[tuple[int, int, Fraction]] = []
    for start, end, value in numbers_in(sentence):
        before, after = sentence[max(0, start - 40) : start], sentence[end : end + 24]
        if _APPROXIMATE.search(before):
            continue
        if _DIVIDED.search(before) and value:
            factors.append((start, end, 1 / value))
        elif _TIMES.match(after) or _BY.search(before):
            factors.append((start, end, value))
        elif abs(value) == 1 and not (_BY_ONE.match(after) or _ONE_BY.search(before)):
            continue
        elif (
            value not in task.given
            and value != attempt
            and value != task.gold
            and (value > 9 or not _UNIT.match(after))
        ):
            amounts.append((start, end, value))
    factors += [(*m.span(), factor) for pattern, factor in _WORD_FACTORS for m in pattern.finditer(sentence)]
    factors += _slices(sentence)
    if _YOURS.search(sentence) and _EACH.search(sentence):
        factors += [(start, end, value) for start, end, value in numbers_in(sentence) if value > 1]
    for start, end, factor in factors:
        result = next((v for _, _, v in numbers_in(sentence) if v == task.gold * factor and v != attempt), None)
        if result is not None and factor not in (0, 1) and _BECOMES.search(sentence):
            return start, end
    bases = [attempt] + ([-attempt] if _SIGN.search(sentence) else [])
    up, down = _UP.search(sentence) is not None, _DOWN.search(sentence) is not None
    for base in bases:
        if base == task.gold:
            sign = _SIGN.search(sentence)
            return (
                sign.span()
                if sign
                and re.search(
                    r"\b(?:only|just|drop|forget|without|lose|remove|flip|apart from|except)\b", sentence, re.IGNORECASE
                )
                else None
            )
        for start, end, factor in [(0, 0, Fraction(1)), *factors]:
            scaled = base * factor
            if factor != 1 and scaled == task.gold and attempt != 0:
                return start, end
            for left, right, amount in amounts:
                if (left, right) == (start, end) or not amount:
                    continue
                if (up and scaled + amount == task.gold) or (down and scaled - amount == task.gold):
                    return min(left, start if end else left), max(right, end)
    return None


def _slices(sentence: str) -> Iterator[tuple[int, int, Fraction]]:
    """Yield fractions such as "eleven ninths" and "cut into five slices, keep two"."""
    for match in _NTHS.finditer(sentence):
        yield *match.span(), Fraction(int(match[1]), _NAMES[match[2].lower()[:3]])
    whole = _SLICES.search(sentence)
    if whole and int(whole[1]) > 1:
        n = int(whole[1])
        for start, end, value in numbers_in(sentence):
            if value.denominator == 1 and 0 < value < n and start > whole.start():
                yield start, end, Fraction(int(value), n)
                yield start, end, Fraction(n - int(value), n)


def _edited(sentence: str, attempt: Fraction, gold: Fraction) -> tuple[int, int] | None:
    """Return the span of words for exchanged, replaced, inserted or removed digits."""
    if attempt.denominator != 1 or gold.denominator != 1 or attempt < 0 or gold < 0:
        return None
    old, new = str(attempt), str(gold)
    swapped = _SWAPPED.search(sentence)
    if swapped and sorted(old) == sorted(new):
        moved = [i for i in range(len(old)) if old[i] != new[i]]
        if len(moved) == 2 or old[::-1] == new:
            return swapped.span()
    digits = {m[0]: m.span() for m in re.finditer(r"(?<!\d)\d(?!\d)", sentence)}
    if len(old) == len(new):
        changed = [i for i in range(len(old)) if old[i] != new[i]]
        edit = _EDIT.search(sentence)
        if len(changed) == 1 and edit and new[changed[0]] in digits:
            place = _PLACE_OF_DIGIT.search(sentence)
            if old[changed[0]] in digits or (place and changed[0] in _digit_indices(place, len(old))):
                return edit.span()
    elif len(new) == len(old) + 1:
        insert = _INSERT.search(sentence)
        added = [d for i, d in enumerate(new) if new[:i] + new[i + 1 :] == old]
        if insert and any(d in digits or (d == "0" and "zero" in sentence) for d in added):
            return insert.span()
    elif len(new) == len(old) - 1:
        remove = _REMOVE.search(sentence)
        gone = [i for i in range(len(old)) if old[:i] + old[i + 1 :] == new]
        place = _PLACE_OF_DIGIT.search(sentence)
        if remove and any(old[i] in digits or (place and i in _digit_indices(place, len(old))) for i in gone):
            return remove.span()
    return None


# -- intermediate results ----------------------------------------------------------------------------------------------
def _intermediate(text: str, task: NumberTask, tried: Sequence[Fraction], earlier: Sequence[str]) -> Iterator[Told]:
    """Yield results of the hint that leave one step of arithmetic."""
    gold = task.gold
    for match in _EQUATION.finditer(text):
        if int(match[1]) and Fraction(int(match[2]), int(match[1])) == gold:
            yield Told(*match.span(), steps=1)
    for match in _MIXED.finditer(text):
        if int(match[1]) + Fraction(int(match[2]), _NAMES.get(match[3].lower()[:3], 1)) == gold:
            yield Told(*match.span(), steps=1)
    here = numbers_in(text)
    before = [(0, 0, value) for hint in earlier for _, _, value in numbers_in(hint)]
    new = {v for _, _, v in [*here, *before] if v not in task.given and v not in tried and v != gold and abs(v) > 1}
    for start, end, x in [*here, *before]:
        if x in new and _AGAIN.search(text) and 2 * x == gold:
            yield Told(start, end or len(text), steps=1)
    pairs = [*here, *(item for item in before if item[2] in new)]
    for i, (start, _, x) in enumerate(pairs):
        for _, end, y in pairs[i + 1 :]:
            if not here or not ({x, y} & new) or end - start > 160 or x in tried or y in tried:
                continue
            between = text[max(0, start - 30) : (end or len(text)) + 40]
            if _combines(x, y, gold, between, both=x in new and y in new):
                yield Told(start, end or len(text), steps=2)
                return


def _combines(x: Fraction, y: Fraction, gold: Fraction, words: str, *, both: bool) -> bool:
    """Return whether two numbers give the answer by an operation that the words name."""
    if both and x + y == gold and _ADD_CUE.search(words):
        return True
    if abs(x - y) == abs(gold) and _SUBTRACT_CUE.search(words) and abs(gold) > 2:
        return True
    if x * y == gold and _MULTIPLY_CUE.search(words) and min(abs(x), abs(y)) > 1:
        return True
    return (
        bool(x and y) and gold in (x / y, y / x) and _DIVIDE_CUE.search(words) is not None and min(abs(x), abs(y)) > 1
    )


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
    (rf"\b(?:divisible by|multiple of|divides? (?:evenly )?by) {_N}|{_N} (?:goes into|divides)|\b{_N}[- ]times[- ]table", lambda c, v: v[0] != 0 and c % v[0] == 0),
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
    (rf"\bnot {_N}(?: either)?", lambda c, v: c != v[0]),
]  # fmt: skip
_COMPILED = [(re.compile(pattern, re.IGNORECASE), test) for pattern, test in _PROPERTIES]
_OFF_BY = re.compile(
    r"\b(?:off|out|wrong|missed(?: \w+){0,5}|away)(?: \w+)? by (?:just |only |exactly |a |1 )?(?:single )?(\d{1,3})\b(?! digit)|\b(\d{1,3}) (?:off|out|away)\b",
    re.IGNORECASE,
)
_DECADE = re.compile(rf"\b(?:in|among) (?:the|your|its)? ?(?:\w+ )?({'|'.join(_DECADES)})ies\b", re.IGNORECASE)
_BETWEEN_THOSE = re.compile(
    r"\bbetween (?:those|these|them|the 2|your (?:2|numbers|guesses|tries|attempts|answers)|both)\b|\b(?:stuck|caught|fenced|trapped|sandwiched)\b",
    re.IGNORECASE,
)
_CLOSER = re.compile(
    r"\bcloser to (?:your |the )?(?P<which>first|last|second|previous|earlier|this|latest)", re.IGNORECASE
)
_NEGATED = re.compile(r"\b(?:not|isn't|never|no|neither|isnt)\b[^.,]{0,14}$", re.IGNORECASE)
_PART_OF = re.compile(
    r"\b(?:digit|1|column|ones|tens|hundreds|units|middle|first|last|second|third|each|both|two|2)\b[^.,;]{0,30}$",
    re.IGNORECASE,
)


def _properties(text: str, task: NumberTask, tried: Sequence[Fraction]) -> Iterator[Told]:
    gold = int(task.gold)
    for pattern, test in _COMPILED:
        for match in pattern.finditer(text):
            values = [int(group) for group in match.groups() if group is not None]
            positive = _NEGATED.search(text[: match.start()]) is None or match[0].lower().startswith(("no", "at"))
            about_digit = pattern.pattern.find("even") >= 0 or "odd" in match[0].lower()
            if about_digit and _PART_OF.search(text[: match.start() + 1]):
                continue
            holds = _property(test, values, positive)
            if holds(gold):
                yield Told(*match.span(), holds=holds)
    off = _OFF_BY.search(text)
    if off and tried:
        n, attempt = int(off[1] or off[2]), tried[-1]
        yield from _if_true(Told(*off.span(), holds=lambda c: abs(c - attempt) == n), gold)
    decade = _DECADE.search(text)
    if decade:
        ten = _DECADES[decade[1].lower()]
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
            (tried[0], tried[-1])
            if closer["which"].lower() in ("first", "previous", "earlier")
            else (tried[-1], tried[0])
        )
        yield from _if_true(Told(*closer.span(), holds=lambda c: abs(c - one) < abs(c - two)), gold)


def _property(test: Callable[[int, list[int]], bool], values: list[int], positive: bool) -> Callable[[int], bool]:
    return lambda c: test(c, values) == positive


def _if_true(told: Told, gold: int) -> Iterator[Told]:
    if told.holds is not None and told.holds(gold):
        yield told


# -- digits --------------------------------------------------------------------------------------------------------------
_PLACE_OF_DIGIT = re.compile(
    r"\b(?:(?P<R1>ones|rightmost|units?|last|final|ends?|ending|closing|closes|finish(?:es)?|back|right-?hand|unit's)|(?P<R2>tens?(?!th))|(?P<R3>(?<!\d )(?<!\d-)hundreds?)"
    r"|(?P<L1>first|front|leading|leftmost|starts?|starting|begins?|beginning|opening|opens|left-?hand)|(?P<M>middle|cent(?:er|re)|in between|between the (?:ends|2|outer)|inner|second(?= digit| 1\b))"
    r"|(?P<E>outer|outside|both ends|on the outside))\b(?: 1\b(?=\s|$))?",
    re.IGNORECASE,
)
_BIGGEST = re.compile(
    r"\b(?:big|fat|larg|high|great)(?:g|t)?est (?:possible )?(?:digit|1|figure)(?: (?:there is|of all|available))?",
    re.IGNORECASE,
)
_TWO_DIGITS = re.compile(
    r"\b(?:(?P<front>first|opening|leading|front)|last|final|closing) (?:2|pair of) (?:digits|figures|numbers|of them)",
    re.IGNORECASE,
)
_SINGLE_DIGIT = re.compile(
    r"(?<![\d.,-])\d(?![\d]|[.,]\d)(?! (?:digits?|hundreds?|times|of|more|less|too|goes|wrong|right))"
)
_ENDING = re.compile(
    r"\b(?:ends? (?:in|with|on)|ending)\b (?:an? )?(\d{2,3})\b|\b(?:the|that|your) (\d{2,3}) at the end|\b(?:the|that|your) (\d{2,3}),? (?:hang on|keep|hold|stays?)",
    re.IGNORECASE,
)
_STARTING = re.compile(r"\b(?:starts?|begins?|opens?) (?:in|with|on) (?:an? )?(\d{2,3})\b", re.IGNORECASE)


def _digit_indices(place: re.Match[str], length: int) -> set[int]:
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
    for match in _PLACE_OF_DIGIT.finditer(sentence):
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


_DIGITS = Vocabulary(_DIGIT_PARTS, _read_digits)


def _digits(text: str, task: NumberTask, tried: Sequence[Fraction], memory: Memory) -> Iterator[Told]:
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
                    holds = _digits_agree(parts, attempt, fact.positive, len(str(abs(gold))) if same else None)
                    if holds(gold):
                        yield Told(fact.start, fact.end, holds=holds)
                        break
    for pattern, is_end in ((_ENDING, True), (_STARTING, False)):
        for match in pattern.finditer(text):
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
