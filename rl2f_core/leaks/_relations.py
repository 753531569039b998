"""Numbers that a text describes by other numbers: "one more than 131", "twice 66", "greater than 41 but less than 43".

The text is in small letters with its number words already written as digits.  Nothing is ever evaluated but these
fixed forms; every reader is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rl2f_core.leaks._text import Reading

_N = r"(?<![\d.,/^])[+-]?\d{1,15}(?:,\d{3}){0,4}(?![\d^]|[.,/:]\d)"
YOURS = re.compile(
    r"\b(?:your|the student'?s|his|her|their) (?:(?:own|last|latest|previous|current|first|second|third|wrong|most recent|"
    r"present|submitted) ){0,2}(?:answer|guess|attempt|number|result|sum|value|total|reply|try|response|one|figure)\b"
    r"|\b(?:what|the (?:number|value|answer|one)(?: that)?) you(?:'ve| have| just)? (?:wrote|written|said|gave|given|got|guessed|answered|tried|put|submitted|found)\b"
)
"""The student's last answer, as a text speaks of it."""
MINE = re.compile(
    r"\b(?:(?:the|my|that|this) (?:\w+ )?(?:number|value|figure|one|amount|piece|part|clue|hint)(?: that| which)? (?:i |we |from |in |of )"
    r"[^.;,!?]{0,30}?(?:told|gave|given|mentioned|said|named|earlier|before|hint|message|clue|time|remark)(?: (?:you|earlier|before|last time|just now))*"
    r"|(?:my|the) (?:earlier|previous|last|first) (?:number|hint|value|clue|figure))\b"
)
"""A number of an earlier hint, as a later one speaks of it."""
_K = rf"(?P<k>{_N}|\b(?:an?|exactly 1|just 1|only 1))"
_V = rf"(?P<v>{_N})"
_UNIT = r"(?: (?:units?|points?|numbers?|steps?|places?))?"
_OF = r" (?:of|the value of) "
_NUMBER_THE = r"(?:the (?:number|value|integer|figure|one|amount|whole number) |exactly |just |precisely )*"
_RIGHT = r"(?:right|just|directly|immediately|straight|exactly|that comes|which comes|coming|comes|that is|that follows|you get|sitting|standing|next| )*"
_WHAT = r"\b(?:(?<!a )(?:number|integer|one|value|whole number|digit string)|what(?:ever)?(?: number)?|it|that|which)"


class _Form(NamedTuple):
    gate: str
    """A word without which the form cannot stand."""
    pattern: re.Pattern[str]
    worth: Callable[[int, int], int | None]
    """The value from v and k (0 where the form has no k)."""


def _form(gate: str, pattern: str, worth: Callable[[int, int], int | None]) -> _Form:
    return _Form(gate, re.compile(pattern), worth)


def _quotient(v: int, k: int) -> int | None:
    return v // k if k and v % k == 0 else None


def _root(v: int, k: int) -> int | None:
    root = round(v**0.5) if 0 <= v < 10**14 else -1
    return root if root * root == v else None


_FORMS = [
    _form("than", rf"{_K}{_UNIT} (?:more|greater|higher|larger|bigger|further|up) than {_NUMBER_THE}{_V}", lambda v, k: v + k),
    _form("than", rf"{_K}{_UNIT} (?:less|fewer|smaller|lower|shorter) than {_NUMBER_THE}{_V}", lambda v, k: v - k),
    _form("than", rf"\b(?:more|greater|higher|larger|bigger) than {_NUMBER_THE}{_V} by (?:exactly |just |only )?{_K}", lambda v, k: v + k),
    _form("than", rf"\b(?:less|fewer|smaller|lower) than {_NUMBER_THE}{_V} by (?:exactly |just |only )?{_K}", lambda v, k: v - k),
    _form("", rf"{_K}{_UNIT} (?:above|over|past|beyond|after|up from|on top of|added to|on from) {_NUMBER_THE}{_V}", lambda v, k: v + k),
    _form("", rf"{_K}{_UNIT} (?:below|under|before|short of|shy of|down from|subtracted from|taken (?:away )?from|off) {_NUMBER_THE}{_V}", lambda v, k: v - k),
    _form("add", rf"\badd(?:ing)? (?:another |exactly |just )?{_K}{_UNIT} (?:more )?(?:to|onto) {_NUMBER_THE}{_V}", lambda v, k: v + k),
    _form("add", rf"\badd(?:ing)? {_V} (?:and|with) {_K}", lambda v, k: v + k),
    _form("from", rf"\b(?:subtract(?:ing)?|tak(?:e|ing)(?: away)?|remov(?:e|ing)|deduct(?:ing)?) (?:exactly |just )?{_K}{_UNIT} (?:away )?from {_NUMBER_THE}{_V}", lambda v, k: v - k),
    _form(" by ", rf"\b(?:increas|rais)(?:e|ing|ed) {_NUMBER_THE}{_V} by {_K}", lambda v, k: v + k),
    _form(" by ", rf"\b(?:decreas|lower|reduc|diminish)(?:e|ing|ed)? {_NUMBER_THE}{_V} by {_K}", lambda v, k: v - k),
    _form(" by ", rf"{_V},? (?:is |when |if )?(?:increased|raised) by {_K}", lambda v, k: v + k),
    _form(" by ", rf"{_V},? (?:is |when |if )?(?:decreased|lowered|reduced|diminished) by {_K}", lambda v, k: v - k),
    _form(" by ", rf"{_V},? (?:multiplied|times) by {_K}|\bmultipl(?:y|ying) {_NUMBER_THE}(?P<v2>{_N}) by (?P<k2>{_N})", lambda v, k: v * k),
    _form(" by ", rf"{_V},? (?:divided|split) by {_K}|\bdivid(?:e|ing) {_NUMBER_THE}(?P<v2>{_N}) by (?P<k2>{_N})", _quotient),
    _form("divided", rf"{_V},? divided (?:into|in) {_K}", _quotient),
    _form("plus", rf"{_V},? plus {_K}", lambda v, k: v + k),
    _form("with", rf"{_V},? (?:with|and) (?:another )?{_K} (?:more )?(?:added|on top|together|combined)", lambda v, k: v + k),
    _form(" and ", rf"{_V} and {_K} (?:more|added|together|combined|make|give)", lambda v, k: v + k),
    _form("of", rf"\b(?:sum|total){_OF}{_V} and {_K}", lambda v, k: v + k),
    _form("product", rf"\bproduct{_OF}{_V} and {_K}", lambda v, k: v * k),
    _form("quotient", rf"\bquotient{_OF}{_V} and {_K}", _quotient),
    _form("difference", rf"\bdifference (?:of|between) {_V} and {_K}", lambda v, k: v - k),
    _form("difference", rf"\bdifference (?:of|between) {_K} and {_V}", lambda v, k: v - k),
    _form("twice", rf"\btwice (?:of |the value of )?{_NUMBER_THE}{_V}", lambda v, k: 2 * v),
    _form("doubl", rf"\b(?:the )?doubl(?:e|ing)(?: of)? {_NUMBER_THE}{_V}|(?P<v2>{_N}),? doubled", lambda v, k: 2 * v),
    _form("thrice", rf"\bthrice {_NUMBER_THE}{_V}", lambda v, k: 3 * v),
    _form("tripl", rf"\b(?:the )?tripl(?:e|ing)(?: of)? {_NUMBER_THE}{_V}|(?P<v2>{_N}),? tripled", lambda v, k: 3 * v),
    _form("times", rf"{_K} times (?:as (?:much|many|large|big|great) as )?{_NUMBER_THE}{_V}", lambda v, k: v * k),
    _form(" x ", rf"{_K} x (?:as (?:much|many|large|big|great) as )?{_NUMBER_THE}{_V}", lambda v, k: v * k),
    _form("dozen", rf"{_K} dozens?(?! of)", lambda v, k: 12 * k),
    _form("half", rf"\b(?:1 )?half (?:of |as (?:much|many|large|big) as )?{_NUMBER_THE}{_V}", lambda v, k: _quotient(v, 2)),
    _form("halv", rf"\bhalv(?:e|ing) {_NUMBER_THE}{_V}|(?P<v2>{_N}),? halved", lambda v, k: _quotient(v, 2)),
    _form("third", rf"\b(?:a|1)[ -]third (?:of )?{_NUMBER_THE}{_V}", lambda v, k: _quotient(v, 3)),
    _form("quarter", rf"\b(?:a|1)[ -]quarter (?:of )?{_NUMBER_THE}{_V}", lambda v, k: _quotient(v, 4)),
    _form("square of", rf"\bsquare of {_NUMBER_THE}{_V}", lambda v, k: v * v),
    _form("squared", rf"{_V},? squared", lambda v, k: v * v),
    _form("root", rf"\bsquare root of {_NUMBER_THE}{_V}", _root),
    _form("cube", rf"\bcube of {_NUMBER_THE}{_V}|(?P<v2>{_N}),? cubed", lambda v, k: v**3),
    _form("after", rf"{_WHAT} {_RIGHT}after {_NUMBER_THE}{_V}", lambda v, k: v + 1),
    _form("follow", rf"{_WHAT} (?:that |which )?(?:{_RIGHT})?follow(?:s|ing) (?:right |directly |immediately )?(?:on from |after |on )?{_NUMBER_THE}{_V}", lambda v, k: v + 1),
    _form("successor", rf"\bsuccessor (?:of|to) {_NUMBER_THE}{_V}", lambda v, k: v + 1),
    _form("succeed", rf"{_WHAT} (?:that |which )?(?:directly |immediately )?succeed(?:s|ing) {_NUMBER_THE}{_V}", lambda v, k: v + 1),
    _form("before", rf"{_WHAT} {_RIGHT}before {_NUMBER_THE}{_V}", lambda v, k: v - 1),
    _form("preced", rf"{_WHAT} (?:that |which )?(?:directly |immediately )?preced(?:es|ing) {_NUMBER_THE}{_V}", lambda v, k: v - 1),
    _form("predecessor", rf"\bpredecessor (?:of|to) {_NUMBER_THE}{_V}", lambda v, k: v - 1),
    _form("above", rf"\b(?:right|directly|immediately) above {_NUMBER_THE}{_V}", lambda v, k: v + 1),
    _form("below", rf"\b(?:right|directly|immediately) below {_NUMBER_THE}{_V}", lambda v, k: v - 1),
    _form("neighbo", rf"\b(?:upper|higher|right) neighbou?r of {_NUMBER_THE}{_V}", lambda v, k: v + 1),
    _form("neighbo", rf"\b(?:lower|left) neighbou?r of {_NUMBER_THE}{_V}", lambda v, k: v - 1),
    _form("way between", rf"\b(?:half|mid)[- ]?way between {_NUMBER_THE}{_V} and {_K}", lambda v, k: _quotient(v + k, 2)),
    _form("middle", rf"\b(?:middle|midpoint) (?:of|between) {_NUMBER_THE}{_V} and {_K}", lambda v, k: _quotient(v + k, 2)),
    _form("average", rf"\b(?:average|mean) of {_NUMBER_THE}{_V} and {_K}", lambda v, k: _quotient(v + k, 2)),
    _form("mean", rf"\bmean of {_NUMBER_THE}{_V} and {_K}", lambda v, k: _quotient(v + k, 2)),
]  # fmt: skip
_LOW, _HIGH = r"(?:low|small|little|short)", r"(?:high|big|large|great|much)"
_OFF = re.compile(
    rf"(?<!the answer )(?:\b(?:is|are|was|were|'re|'s|by)|^|[.,;:] ?)(?: (?:off|out|exactly|just|only|precisely|wrong|by))* ?(?P<k>{_N}|\b1){_UNIT} (?:too )(?:(?P<low>{_LOW})|(?P<high>{_HIGH}))\b"
    rf"|\btoo (?:(?P<low2>{_LOW})|(?P<high2>{_HIGH})) by (?:exactly |just |only |precisely )?(?P<k2>{_N})(?!\w)"
)


def described(text: str, last: int | None, told: int | None = None) -> Iterator[tuple[Reading, list[int]]]:
    """Numbers that the text describes, each with the numbers it is described by.

    Args:
        text: In small letters, numbers as digits.
        last: The student's last answer, where it is a number: what "your answer" and "too low by 2" refer to.
        told: The last number of the earlier hints: what "the number I told you" refers to.
    """
    text, moved = _with_numbers(text, [(YOURS, last), (MINE, told)])
    for form in _FORMS:
        if form.gate not in text:
            continue
        for match in form.pattern.finditer(text):
            groups = match.groupdict()
            v, k = _int(groups.get("v2") or groups.get("v")), _int(groups.get("k2") or groups.get("k"))
            if (groups.get("k2") or groups.get("k")) is not None and k == 0:
                continue
            value = form.worth(v, k)
            if value is not None:
                yield Reading(moved(match.start()), moved(match.end()), str(value)), [v, k] if k else [v]
    if last is not None and "too" in text:
        for match in _OFF.finditer(text):
            k = _int(match["k"] or match["k2"])
            step = k if match["low"] or match["low2"] else -k
            yield Reading(moved(match.start()), moved(match.end()), str(last + step)), [last, k]


def _int(words: str | None) -> int:
    if words is None:
        return 0
    digits = re.search(r"[+-]?\d[\d,]*", words)
    return int(digits[0].replace(",", "")) if digits else 1


def _with_numbers(text: str, meant: Sequence[tuple[re.Pattern[str], int | None]]) -> tuple[str, Callable[[int], int]]:
    """The text with "your answer" and the like put as numbers, and the way back to its own offsets."""
    found = sorted(
        (*match.span(), str(number)) for name, number in meant if number is not None for match in name.finditer(text)
    )
    out, edges, shift, position = [], [], 0, 0
    for start, end, words in found:
        if start < position:
            continue
        out += [text[position:start], words]
        edges.append((start - shift + len(words), shift + end - start - len(words)))
        shift += end - start - len(words)
        position = end
    out.append(text[position:])

    def back(at: int) -> int:
        moved = next((total for edge, total in reversed(edges) if at >= edge), 0)
        return min(len(text), at + moved)

    return ("".join(out), back) if edges else (text, lambda position: position)


# -- bounds ----------------------------------------------------------------------------------------------------------
_THAN = r"(?:than|then)"
_BOUNDS = [
    (re.compile(rf"\b(?:not|n't|no|never)(?: be| is| lie| any)? (?:more|greater|higher|larger|bigger|above|over) (?:{_THAN} )?(?P<v>{_N})"), "max", 0),
    (re.compile(rf"\b(?:not|n't|no|never)(?: be| is| lie| any)? (?:less|fewer|lower|smaller|below|under) (?:{_THAN} )?(?P<v>{_N})"), "min", 0),
    (re.compile(rf"(?<!not )(?<!no )(?<!n't )(?:\b(?:more|greater|higher|larger|bigger) {_THAN}|\babove|\bover|\bexceed(?:s|ing)?|\bbeyond|\bpast|(?<![<>=-])>(?!=)) ?(?P<v>{_N})"), "min", 1),
    (re.compile(rf"(?<!not )(?<!no )(?<!n't )(?:\b(?:less|fewer|lower|smaller) {_THAN}|\bbelow|\bunder|\bshort of|<(?![=-])) ?(?P<v>{_N})"), "max", -1),
    (re.compile(rf"(?:\bat least|\bminimum of|>=|≥|⩾) ?(?P<v>{_N})|(?P<v2>{_N}) or (?:more|above|higher|greater|larger|over)\b"), "min", 0),
    (re.compile(rf"(?:\bat most|\bmaximum of|\bup to|<=|≤|⩽) ?(?P<v>{_N})|(?P<v2>{_N}) or (?:less|below|lower|fewer|smaller|under)\b"), "max", 0),
    (re.compile(rf"(?P<v>{_N}) ?<(?![=-])"), "min", 1),
    (re.compile(rf"(?P<v>{_N}) ?>(?!=)"), "max", -1),
    (re.compile(rf"(?P<v>{_N}) is (?:too (?:low|small|little)|(?:just |slightly |a little )?below (?:it|the answer)|(?:less|lower|smaller) than (?:it|the answer))"), "min", 1),
    (re.compile(rf"(?P<v>{_N}) is (?:too (?:high|big|large|much)|(?:just |slightly |a little )?above (?:it|the answer)|(?:more|greater|higher|larger|bigger) than (?:it|the answer))"), "max", -1),
]  # fmt: skip
_BETWEEN = re.compile(
    rf"\b(?:between|in between|sandwiched by|flanked by|from between) (?P<v>{_N}),? (?:and|&|-|to) (?P<k>{_N})"
)
_NOT = re.compile(
    rf"(?:\b(?:not|n't|neither|nor|never|isn't|cannot be|excludes?|rule out|rules out|except|other than|wrong:)|≠|!=) ?(?:it is |is it |be |equal to |either |the number )?(?P<v>{_N})"
    rf"(?:,? (?:and|or|nor|neither|but|also)(?: also| even| it is)?(?: not| neither| is it)? (?P<k>{_N}))?"
)
_GATE = re.compile(
    r"\b(?:between|not|neither|nor|than|above|below|over|under|least|most|exceed|more|less|too|minimum|maximum|beyond|past|excl|rule|except)|n't|[<>≤≥≠]"
)


def may_bound(text: str) -> bool:
    """Could the text bound a number? Cheap."""
    return _GATE.search(text) is not None


def pinned(text: str, tried: Sequence[int], since: int = 0) -> Iterator[Reading]:
    """The one number that the text's bounds leave, or that stands alone between two that it rules out.

    Bounds that the student itself tried do not count together: "between your 41 and 43" says only what it was told.

    Args:
        text: In small letters, numbers as digits.
        tried: The numbers that the student answered.
        since: A bound at this offset or later must be among those that decide.
    """
    low, high = [], []
    for pattern, side, step in _BOUNDS:
        for match in pattern.finditer(text):
            value = _int(match.groupdict().get("v2") or match["v"])
            (low if side == "min" else high).append((value + step, match.start(), match.end(), value))
    for match in _BETWEEN.finditer(text):
        a, b = sorted((_int(match["v"]), _int(match["k"])))
        low.append((a + 1, *match.span(), a))
        high.append((b - 1, *match.span(), b))
    if low and high:
        below, above = max(low), min(high)
        own = below[3] in tried and above[3] in tried
        late = max(below[1], above[1]) >= since
        if below[0] == above[0] and late and not own:
            begin = min(below[1], above[1])
            yield Reading(max(begin, since), max(below[2], above[2]), str(below[0]))
    ruled: dict[int, tuple[int, int]] = {}
    for match in _NOT.finditer(text):
        for group in ("v", "k"):
            if match[group] is not None:
                ruled.setdefault(_int(match[group]), match.span())
    for value, (start, end) in ruled.items():
        if value + 2 in ruled and not (value in tried and value + 2 in tried):
            other = ruled[value + 2]
            if max(start, other[0]) >= since:
                yield Reading(max(since, min(start, other[0])), max(end, other[1]), str(value + 1))
