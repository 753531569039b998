"""The digits of a whole number as answer parts, and statements about them in free text."""

# ruff: noqa: E501 (long patterns stay on one line)
from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from rl2f_core.common.text.tokens import by_word, cached_with_args, digit_runs, find_index, split_words

_PLACES = ("ones", "tens", "hundreds", "thousands")
_FROM_RIGHT = by_word(
    "last|final|ones|units|unit|unit's|rightmost|closing;"
    "tens|ten's|penultimate|second-to-last|second to last|next to last|next-to-last|second last;"
    "hundreds|hundred's;thousands",
    start=0,
)
_FROM_LEFT = by_word("first|leading|leftmost|front|initial|opening|1st;second|2nd;third|3rd;fourth|4th")
_PLACE = "|".join(sorted((*_FROM_RIGHT, *_FROM_LEFT, "middle", "central"), key=len, reverse=True))
_SHOULD = r"(?:should|must|has to|needs to|ought to|will|would have to)"
_IS = rf"(?:{_SHOULD} (?:be|read)|is|'s|=|:|equals|becomes|comes out as|are|-+>|→)"
_OF = r"(?: of (?:the |your |our )?(?:right |correct |true |final |hidden |secret )?(?:answer|sum|result|number|total|solution|product|difference|value|one))?"
_ONE = r"(?:an? |the (?:digits? |number )?|just |exactly |actually |really |in fact |of course |simply |[\"'“‘*`])*"
_ENDS = (
    r"(?!\d|[.,]\d|/| ?[+x×*^] ?\d| -? ?\d| (?:or|too|more|less|off|away|digits?|and add|plus|minus|times|places?)\b)"
)
_RUN = r"(?P<run>\d(?:(?:, and |, | and |-| )?\d){0,7})"
_HALF = r"(?:half|part|piece|bit|chunk|portion|section)"
_STATEMENTS = [
    re.compile(pattern)
    for pattern in (
        rf"(?P<yours>\byour )?(?:\b|(?<= ))(?P<place>{_PLACE}) (?:digit|figure|numeral|place|column|position|one|1)(?: in (?:it|the answer))?{_OF} ?{_IS} ?{_ONE}(?P<digit>\d)[\"'”’*`]*{_ENDS}",
        rf"(?<![\d.,])(?P<digit>\d)[\"'”’*`]* (?:(?:goes|belongs|stands|sits|comes|is|should (?:go|be|stand)) )?(?:in|at|for|as|on|into|under) (?:the |its )?(?P<place>{_PLACE})(?: (?:place|digit|column|position|spot|slot))?\b(?! (?:number|operand|sum|row|line|step))",
        rf"(?<!is )(?<!was )(?<![\d.,])(?P<digit>\d)[\"'”’*`]* (?:is|should be|must be|as) (?:the |its )?(?P<place>{_PLACE}) (?:digit|figure)\b(?! of (?!the (?:answer|sum|result|number)))",
        rf"\b(?P<side>first|last|leading|final|opening|closing) (?:\d|two|three|four|few|couple of|pair of) (?:digits|figures){_OF} ?{_IS} ?{_ONE}{_RUN}[\"'”’*`]*{_ENDS}",
        rf"\b(?:answer|it|sum|result|number|total|solution|product|difference|value|that|which|and|also) (?:also |{_SHOULD} )?(?P<side>starts?|begins?|opens?|ends?|finish(?:es)?|closes?) (?:in|with|on|by) {_ONE}{_RUN}[\"'”’*`]*{_ENDS}",
        rf"\b(?P<side>first|opening|second|other|last|final|remaining|closing) {_HALF}{_OF} ?{_IS} ?{_ONE}{_RUN}[\"'”’*`]*{_ENDS}",
        rf"\b(?P<side>the rest|the remainder|what remains|the tail|the beginning|the start|the front|the end|the ending){_OF} ?{_IS} ?{_ONE}{_RUN}[\"'”’*`]*{_ENDS}",
    )
]
_GATE = re.compile(
    r"digit|figure|numeral|\b(?:place|column|position|spot|slot|starts?|begins?|opens?|ends?|finish|closes?|half|part|piece|bit|chunk|portion|section|rest|remain\w*|tail|beginning|start|front|ending|middle|one|1)\b"
)
_NOUN_IS_DIGIT = re.compile(
    rf"(?:digit|figure|numeral|place|column|position|one|1)(?: in (?:it|the answer))?{_OF} ?{_IS} ?{_ONE}\d"
)
"""End of the first pattern."""
_GATES = tuple(
    frozenset(gate.split())
    for gate in (
        "digit figure numeral place column position last first",
        "digit place column position spot slot middle tens ones units hundreds last first end",
        "digit figure",
        "digits figures",
        "start begin open end finish close",
        "half part piece bit chunk portion section",
        "rest remain tail beginning start front end",
    )
)
"""For each pattern, word stems of which it needs at least one."""
_STEMS = frozenset().union(*_GATES)
_NOT_ASSERTED = re.compile(
    r"(?:\b(?:in|of|for|at|from|when|if|whether|unless|suppose|you (?:wrote|said|have|had|put|gave)|given|operand|problem)\b[^.!?;]{0,40}|\b(?:number|operand|addend|problem|factor)(?:'s)? )$"
)
_FRONT = ("first", "leading", "opening", "start", "begin", "open", "the beginning", "the start", "the front")


def digit_parts(parsed: str) -> dict[str, str]:
    """Return the digits of a whole number by place, `ones`, `tens`, …, `10^4`, …, without the sign."""
    return {_place_name(k): digit for k, digit in enumerate(reversed(parsed.lstrip("+-")))}


def _place_name(k: int) -> str:
    return _PLACES[k] if k < len(_PLACES) else f"10^{k}"


def stated_digits(text: str, answer: str) -> list[tuple[int, int, str, str]]:
    """Return the digits that a text states for a place of the answer: `(start, end, place, digit)`.

    Examples: `the last digit is 4`, `a 4 in the tens place`, `it starts with 13`, `the last two digits are 3 and 2`,
    `the second half is 2`. Only the length of `answer` is used, to count places from both ends.
    """
    return list(_stated(text, len(answer.lstrip("+-"))))


@lru_cache(1024)
def _stem(word: str) -> frozenset[str]:
    return frozenset(stem for stem in _STEMS if stem in word)


@cached_with_args(1024)
def _stated(text: str, width: int) -> Sequence[tuple[int, int, str, str]]:
    lower = text.lower()
    runs = digit_runs(text)
    if len(lower) != len(text) or not runs:
        return []
    lone = [a for a, b in runs if b == a + 1 and (not a or text[a - 1] not in ".,")]
    stems = frozenset().union(*map(_stem, split_words(text)))
    possible = [number for number, gate in enumerate(_GATES) if (lone or number > 2) and not gate.isdisjoint(stems)]
    if possible[:1] == [0] and not _NOUN_IS_DIGIT.search(lower):
        del possible[0]
    if not possible or not _GATE.search(lower):
        return []
    stated = []
    for number in possible:
        pattern = _STATEMENTS[number]
        for match in find_index(pattern, lower, lone) if number in (1, 2) else pattern.finditer(lower):
            groups = match.groupdict()
            if (groups.get("yours") and not re.search(_SHOULD, match[0])) or _NOT_ASSERTED.search(
                lower[max(0, match.start() - 60) : match.start()]
            ):
                continue
            if groups.get("place"):
                stated += [(*match.span(), name, match["digit"]) for name in _place_names(match["place"], width)]
                continue
            digits = re.sub(r"\D", "", match["run"])
            if len(digits) > width:
                continue
            first = width - 1 if match["side"].startswith(_FRONT) else len(digits) - 1
            stated += [(*match.span(), _place_name(first - k), digit) for k, digit in enumerate(digits)]
    return sorted(stated)


def _place_names(place: str, width: int) -> list[str]:
    if place in _FROM_RIGHT:
        k = _FROM_RIGHT[place]
    elif place in _FROM_LEFT:
        k = width - _FROM_LEFT[place]
    else:
        k = width // 2 if width % 2 else -1
    return [_place_name(k)] if 0 <= k < width else []
