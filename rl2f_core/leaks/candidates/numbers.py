"""Answers that are numbers: operations on an attempt, intermediate results, properties and digits.

An operation on an attempt is recognized from its result: the difference between attempt and answer (an amount, a
factor, exchanged or replaced digits) is computed, and the hint must name it.
"""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from rl2f_core.leaks.candidates.described import SWAPPED, described
from rl2f_core.leaks.candidates.facts import Memory
from rl2f_core.leaks.candidates.properties import PLACE_OF_DIGIT, digit_indices, digits, properties
from rl2f_core.leaks.candidates.text import lowered, sentences
from rl2f_core.leaks.candidates.told import NEGATED, NumberTask, Told, numbers_in

_DENOMINATOR = r"hal(?:f|ves)|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|twelfths?"
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
    r"\b(?:about|around|roughly|nearly|almost|approximately|some|or so|over a|more than|less than|well over|at least|at most|not even)\W*$"
)
_UNIT = re.compile(
    r"\W*(?:of (?:the|your|its|these) )?(?:digits?|columns?|places?|tr(?:y|ies)|guess(?:es)?|mistakes?|letters?|numbers?|wrong|right|errors?|slips?|thing|more (?:time|try|step|look)|carr(?:y|ies)|attempts?|answers?|sentences?|words?|steps?|terms?|signs?|amounts?|rows?|halves|hints?|minutes?|people|questions?|parts?|operations?|brackets?|lines?|times you|options?|facts?|clues?|reasons?|thirds)\b"
)
_BY_ONE = re.compile(
    r"\W*(?:too|to (?:many|much|high|low|few)|more|short|less|fewer|off|higher|lower|up|down|bigger|smaller|over|under|above|below|shy|away|further|farther|further|on top|extra|past|larger|greater|back|further|step|notch|unit|tad|hair|point|behind|ahead|beyond)\b"
)
_ONE_BY = re.compile(
    r"\b(?:add|plus|minus|subtract|take|by|lacks?|missing|drop|remove|want|need|give|knock|shave|trim|deduct)(?: \w+)?(?: just| only| exactly)? $"
)
_UP = re.compile(
    r"\b(?:add|adding|plus|more|on top|extra|higher|increase|toss|put|throw in|short|missing|too (?:low|little|few|small)|below|under|behind|lack\w*|lost|shy|up|raise|give it|bigger|larger|greater|further|beyond|from|away|and|under\w*|needs?|needed|climb\w*|rais\w+|bump\w*|ahead|on|behind|stingy|forgot|miss\w*|owe\w*|another|too soon|less than|add\w*|top up|boost\w*|gain\w*|not enough|fell|fall\w*|lift\w*|grow\w*|to go)\b"
)
_DOWN = re.compile(
    r"\b(?:subtract\w*|minus|less|fewer|lower|take|drop|remove|too? (?:high|much|many|big|large)|over\w*|above|excess|off|down|reduc\w*|knock|give back|deduct\w*|smaller|lose|without|throw away|cut|away|from|back|exceed\w*|surplus|extra|past|beyond|shav\w+|trim\w*|strip\w*|generous|shed|refund\w*|return|too far|more than|sink|shrink\w*|drop\w*|ahead|return\w*|remove|beyond|greedy|return)\b"
)
_TIMES = re.compile(r"\W*(?:times|fold|x\b|×|\*|of (?:yours|those|them|these|your|what you)|copies|-fold|lots of)")
_BY = re.compile(r"(?:times|multipl\w+ (?:it |that |yours )?(?:by|with)|by|×|\*)\W*$")
_DIVIDED = re.compile(r"(?:divid\w+|split|shar\w+|cut)[^.]{0,25}?(?:by|into|in|among|between)\W*$")
_WORD_FACTORS = [
    (re.compile(r"\b(?:doubl\w+|twice|twofold|(?:same|that|as much|as many|equal)\b[^.]{0,24}\b(?:again|(?:second|2nd) time|once more|over)|half (?:full|way|of (?:it|what|the))|halfway)\b"), Fraction(2)),
    (re.compile(r"\b(?:tripl\w+|trebl\w+|thrice|threefold)\b"), Fraction(3)),
    (re.compile(r"\b(?:quadrupl\w+|fourfold)\b"), Fraction(4)),
    *((re.compile(rf"\b(?:an? |1 |the )?{word}s?\b(?! (?:digit|column|place|number|person|guess|attempt|try))"), Fraction(1, n)) for word, n in _FRACTIONS.items()),
]  # fmt: skip
_FREQUENCY = re.compile(
    r"\b(?:counted|used|read|checked|looked|appears?|occurs?|happens?|mentioned|listed|written|said|tried)(?: \w+){0,2} $"
)
"""A verb before "twice" that says how often something happens."""
_EACH_TIME = re.compile(r"(?: \w+){0,2} (?:each|every) (?:time|step|round|turn|guess)\b")
"""A method after a factor, rather than one operation."""
_QUOTED = re.compile(
    r"\b(?:your|you(?: \w+)? (?:found|said|wrote|answered|got|gave|guessed|put|tried|typed|submitted|computed))(?: \w+)? $"
)
"""Words before an attempt that the hint only mentions."""
_FACTOR_WORDS = re.compile(
    r"doubl|twice|twofold|threefold|fourfold|again|second|2nd|once more|half|halve|tripl|trebl|thrice|quadrupl|third|quarter|fourth|fifth|sixth|eighth"
    r"|tenth|ninth|twelfth|seventh|slice|parts?\b|piece|share|heap|pile|group|portion|chunk"
)
_SIGN = re.compile(r"\b(?:(?:minus |wrong |the |that )?sign|minus|negative|positive|below zero|above zero)\b")
_SIGN_ALONE = re.compile(r"\b(?:only|just|drop|forget|without|lose|remove|flip|apart from|except)\b")
_EDIT = re.compile(
    r"\b(?:make|makes?|chang\w+|put|turn\w*|replac\w+|becomes?|instead|swap\w*|write(?! (?:your|down|out))|set|bump|should (?:be|have been)|needs? to be|wants? to be|ought to be|was meant)\b"
)
_INSERT = re.compile(
    r"\b(?:in front|before(?! (?:you|we|i|\w+ing)\b)|ahead|at the (?:front|start|beginning|end)|behind|after|append|prepend|stick|tack|attach|lack\w*|missing|forgot|front of|squeeze)\b"
)
_REMOVE = re.compile(
    r"\b(?:drop|remov\w+|delet\w+|lose|cross out|strike|rub out|cut|take (?:away|off|out)|without|chop|erase|leave out|throw (?:away|out)|superfluous|too many|extra)\b"
)
_ADD_CUE = re.compile(
    r"\b(?:and|plus|together|add\w*|more|remain\w*|left|lying|introduc\w+|combin\w+|join\w*|sum|put|with|both|then|total)\b|\+|,"
)
_SUBTRACT_CUE = re.compile(
    r"\b(?:from|back off|off|apart|gap|how far|distance|empty|free|spare|rest|of the|exceed\w*|more than|compare\w*|shorter|longer|minus|less|ends? up|take|difference|left|fewer|subtract\w*|remov\w+|without|gone|of them|total|out of|away|used|already)\b|-|−"
)
_MULTIPLY_CUE = re.compile(r"\b(?:times|as (?:big|much|many)|each|multipl\w+|every|a piece|apiece|per|of them)\b|[×*]")
_DIVIDE_CUE = re.compile(r"\b(?:divid\w+|shar\w+|split|each|equal\w*|among|between|half|per|apiece)\b|[÷/]")
_RETRY = re.compile(
    r"\b(?:read|answer|try|look|check|think|guess|start|begin|writ\w+|consider|go (?:over|through|back))(?: \w+){0,4} (?:again|twice|once more)\b"
)
"""Advice to do something again, which repeats no amount."""
_AGAIN = re.compile(r"\b(?:again|twice|doubl\w+|same (?:amount|again)|once more|lot again)\b")
_YOURS = re.compile(
    r"\b(?:your (?:number|answer|guess|result|figure|sum)|(?:the )?(?:number|amount|quantity|figure|one|1|what|that) (?:that )?you (?:\w+ )?(?:gave|wrote|said|put|got|guessed|answered|have|had)|what you (?:\w+ )?(?:gave|wrote|said|put|got|have)|yours)\b"
)
_EACH = re.compile(r"\b(?:each|every|apiece|times|full of|holding|containing|copies|lots)\b")
_BECOMES = re.compile(
    r"\b(?:comes? out|becomes?|gives?|makes?|you(?:'d)? get|yields?|turns? into|is|lands? on|ends? up|equals?|out (?:it )?(?:comes?|came|pops?)|produces?|result\w*|emerges?|reach\w*)\b"
)
_NTHS = re.compile(rf"\b(\d{{1,3}}) ({_DENOMINATOR})\b")
_SLICES = re.compile(
    r"\b(\d{1,3}) (?:equal |even )?(?:slices?|parts?|pieces?|shares?|heaps?|piles?|groups?|portions?|chunks?)\b"
)
_SMALL = 12
"""A hint that mentions a number above this one and equal to the answer states it."""
_STEP = re.compile(
    r"\b(?:more|less|higher|lower|up|down|rais\w+|lower\w*|bump|too (?:big|small|high|low|large)|by \d)\b"
)
_PLACE_VALUES = re.compile(
    r"(?:(\d{1,2}) (thousands?|hundreds?|tens?|ones|units?))(?:[\s,;]*(?:and|plus|with|then)?\s*(?:(\d{1,2}|no) (hundreds?|tens?|ones|units?)))+"
)
_PLACE_VALUE = re.compile(r"(\d{1,2}) (thousand|hundred|ten|one|unit)s?")
_VALUES = {"thousand": 1000, "hundred": 100, "ten": 10, "one": 1, "unit": 1}
_OLDER = re.compile(
    r"\b(?:first|earlier|earliest|previous\w*|1 before|one before|before that|other (?:try|answer|attempt|guess|number|1)|old|original\w*|initial\w*|at the (?:very )?(?:start|beginning|outset)|(?:began|started|opened) with|opening|go back|ago|former|prior|1st|last time|that time)\b"
)
_EQUATION = re.compile(r"(?<![\w.])(-?\d{1,6})\s*\*?\s*[a-z]\s*=\s*(-?\d{1,9})(?!\w)")
_MIXED = re.compile(rf"\b(\d{{1,4}}) (?:whole\w*|full|entire|complete)\b[^.]{{0,30}}?\b(\d{{1,3}}) ({_DENOMINATOR})\b")
_DENOMINATORS = {
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


_ONE = re.compile(
    r"\b(?:this|that|which|each|every|another|any|next|same|such|only|easy|hard|tough|tricky|right|wrong|good|bad|close|nice|no|other|careful with this|a hard|new|old|your) 1\b"
    r"|\b1(?= (?:of (?!(?:the )?\d)|after|by 1|another|that|who|which|where|at a time|from)\b)"
    r"|\b(?:any|some|all|every|these|those|other|next|which) \d(?= (?:of (?:them|these|those|the)|numbers|amounts|terms|signs)\b)"
    r"|\b(?:first|last) \d(?= (?:terms|signs|amounts)\b)",
    re.IGNORECASE,
)
"""The pronoun "one", and numbers that only quantify, as in "any two of them"."""


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
    text, *earlier = map(_without_quantifiers, (text, *earlier))
    tried = [attempt for attempt in attempts if attempt is not None]
    told: list[Told] = []
    original, text = text, lowered(text)
    spans = sentences(original)
    here = {value for _, _, value in numbers_in(text)}
    mentioned = here if here & set(tried) else here.union(value for t in earlier for _, _, value in numbers_in(t))
    named = [a for a in tried[:-1] if a in mentioned]
    quoted = {v for start, _, v in numbers_in(text) if v in tried and _QUOTED.search(text, max(0, start - 50), start)}
    for i, (start, end) in enumerate(spans):
        window = text[start : spans[i + 1][1]] if i + 1 < len(spans) else text[start:end]
        meant = tried if _OLDER.search(window) else [*named, *tried[-1:]]
        for attempt in dict.fromkeys(reversed(meant)):
            span = _operation(window, attempt, task, quoted if attempt == tried[-1] else {*quoted, tried[-1]})
            if span:
                told.append(Told(start + span[0], start + span[1]))
    for start, end, value in numbers_in(text):
        if value == task.gold and value not in task.given and value not in tried and abs(value) > _SMALL:
            if not _APPROXIMATE.search(text[max(0, start - 40) : start]) and not NEGATED.search(text[:start]):
                told.append(Told(start, end))
    for match in _PLACE_VALUES.finditer(text):
        if sum(int(m[1]) * _VALUES[m[2]] for m in _PLACE_VALUE.finditer(match[0])) == task.gold:
            told.append(Told(*match.span()))
    told += described(text, original, task, tried)
    told += _intermediate(text, task, tried, earlier)
    if task.gold.denominator == 1:
        told += properties(text, task, tried)
        told += digits(original, task, tried if _OLDER.search(text) else [*named, *tried[-1:]], memory)
    return told


@lru_cache(4096)
def _without_quantifiers(text: str) -> str:
    return _ONE.sub(lambda match: match[0][:-1] + "_", text)


# -- operations on an attempt ------------------------------------------------------------------------------------------
def _operation(sentence: str, attempt: Fraction, task: NumberTask, quoted: Set[Fraction]) -> tuple[int, int] | None:
    """Return the span of words that name the way from an attempt to the answer."""
    gold = task.gold
    if attempt == gold:
        return None
    return _amount(sentence, attempt, task, quoted) or _edited(sentence, attempt, gold, quoted)


class _Cues(NamedTuple):
    """What a sentence says about amounts and factors."""

    factors: tuple[tuple[int, int, Fraction], ...]
    amounts: tuple[tuple[int, int, Fraction], ...]
    up: bool
    down: bool
    sign: re.Match[str] | None


@lru_cache(8192)
def _cues(sentence: str) -> _Cues:
    factors: list[tuple[int, int, Fraction]] = []
    amounts: list[tuple[int, int, Fraction]] = []
    found = numbers_in(sentence)
    for start, end, value in found:
        before, after = sentence[max(0, start - 40) : start], sentence[end : end + 24]
        if _APPROXIMATE.search(before):
            continue
        if _DIVIDED.search(before) and value:
            factors.append((start, end, 1 / value))
        elif _TIMES.match(after) or _BY.search(before):
            factors.append((start, end, value))
        if abs(value) == 1:
            if _BY_ONE.match(after) or _ONE_BY.search(before):
                amounts.append((start, end, value))
        elif value and (value > 9 or not _UNIT.match(after)):
            amounts.append((start, end, value))
    if _FACTOR_WORDS.search(sentence):
        factors += [
            (*m.span(), factor)
            for pattern, factor in _WORD_FACTORS
            for m in pattern.finditer(sentence)
            if not _FREQUENCY.search(sentence, max(0, m.start() - 40), m.start())
            and not _EACH_TIME.match(sentence, m.end())
        ]
        factors += _slices(sentence, found)
    if found and _YOURS.search(sentence) and _EACH.search(sentence):
        factors += [each for each in found if each[2] > 1]
    up, down = bool(amounts) and _UP.search(sentence) is not None, bool(amounts) and _DOWN.search(sentence) is not None
    return _Cues(tuple(factors), tuple(amounts), up, down, _SIGN.search(sentence))


def _amount(sentence: str, attempt: Fraction, task: NumberTask, quoted: Set[Fraction]) -> tuple[int, int] | None:
    """Return the span of a factor, an amount, or both, that lead from an attempt to the answer."""
    cues, gold = _cues(sentence), task.gold
    for start, end, factor in cues.factors:
        result = next((v for _, _, v in numbers_in(sentence) if v == gold * factor and v != attempt), None)
        if result is not None and factor not in (0, 1) and _BECOMES.search(sentence):
            return start, end
    given = task.given | {attempt, gold}
    amounts = [each for each in cues.amounts if each[2] not in quoted and (each[2] not in given or abs(each[2]) == 1)]
    for base in [attempt, -attempt] if cues.sign else [attempt]:
        if base == gold:
            return cues.sign.span() if cues.sign and _SIGN_ALONE.search(sentence) else None
        for start, end, factor in [(0, 0, Fraction(1)), *cues.factors]:
            scaled = base * factor
            if factor != 1 and scaled == gold and attempt != 0:
                return start, end
            for left, right, amount in amounts:
                if (left, right) == (start, end):
                    continue
                if (cues.up and scaled + amount == gold) or (cues.down and scaled - amount == gold):
                    return min(left, start if end else left), max(right, end)
    return None


def _changed_digit(
    sentence: str, index: int, old: int, new: int, places: Sequence[tuple[re.Match[str], set[int]]]
) -> tuple[int, int] | None:
    """Return the span of a digit's place if its new value, or the difference, follows in the sentence."""
    for n, (place, indices) in enumerate(places):
        if index not in indices or len(indices) > 1:
            continue
        end = places[n + 1][0].start() if n + 1 < len(places) else len(sentence)
        words = sentence[max(0, place.start() - 30) : end]
        told = {int(d) for d in re.findall(r"(?<!\d)\d(?!\d)", words)}
        if new in told or (abs(new - old) in told and (_UP if new > old else _DOWN).search(words)):
            return place.span()
    return None


def _slices(sentence: str, found: Sequence[tuple[int, int, Fraction]]) -> Iterator[tuple[int, int, Fraction]]:
    """Yield fractions such as "eleven ninths" and "cut into five slices, keep two"; `found` are its numbers."""
    for match in _NTHS.finditer(sentence):
        yield *match.span(), Fraction(int(match[1]), _DENOMINATORS[match[2][:3]])
    whole = _SLICES.search(sentence)
    if whole and int(whole[1]) > 1:
        n = int(whole[1])
        for start, end, value in found:
            if value.denominator == 1 and 0 < value < n and start > whole.start():
                yield start, end, Fraction(int(value), n)
                yield start, end, Fraction(n - int(value), n)


def _edited(sentence: str, attempt: Fraction, gold: Fraction, quoted: Set[Fraction]) -> tuple[int, int] | None:
    """Return the span of words for exchanged, replaced, inserted or removed digits."""
    if attempt.denominator != 1 or gold.denominator != 1 or attempt < 0 or gold < 0:
        return None
    old, new = str(attempt), str(gold)
    if abs(len(old) - len(new)) > 1:
        return None
    swapped = SWAPPED.search(sentence) if sorted(old) == sorted(new) else None
    if swapped:
        moved = [i for i in range(len(old)) if old[i] != new[i]]
        if len(moved) == 2 or old[::-1] == new:
            return swapped.span()
    digits = set(re.findall(r"(?<!\d)\d(?!\d)", sentence))
    if len(old) == len(new):
        changed = [i for i in range(len(old)) if old[i] != new[i]]
        edit = _EDIT.search(sentence)
        if len(changed) == 1 and edit and new[changed[0]] in digits and old[changed[0]] in digits:
            return edit.span()
        places = [(m, digit_indices(m, len(old))) for m in PLACE_OF_DIGIT.finditer(sentence)]
        spans = [_changed_digit(sentence, i, int(old[i]), int(new[i]), places) for i in changed]
        if spans and len(spans) <= 2 and all(spans) and (edit or _STEP.search(sentence)):
            return spans[0]
    elif len(new) == len(old) + 1:
        insert = _INSERT.search(sentence)
        added = {d for i, d in enumerate(new) if new[:i] + new[i + 1 :] == old} - {str(value) for value in quoted}
        if insert and any(d in digits or (d == "0" and "zero" in sentence) for d in added):
            return insert.span()
    elif len(new) == len(old) - 1:
        remove = _REMOVE.search(sentence)
        gone = [i for i in range(len(old)) if old[:i] + old[i + 1 :] == new]
        place = PLACE_OF_DIGIT.search(sentence)
        if remove and any(old[i] in digits or (place and i in digit_indices(place, len(old))) for i in gone):
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
        if int(match[1]) + Fraction(int(match[2]), _DENOMINATORS[match[3][:3]]) == gold:
            yield Told(*match.span(), steps=1)
    here = numbers_in(text)
    before = [(0, 0, value) for hint in earlier for _, _, value in numbers_in(hint)]
    new = {v for _, _, v in [*here, *before] if v not in task.given and v not in tried and v != gold and abs(v) > 1}
    again = _AGAIN.search(_RETRY.sub("", text)) is not None
    for start, end, x in [*here, *before] if again else ():
        if x in new and 2 * x == gold:
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
