"""Read numbers described by other numbers: "one more than 131", "twice 66", "greater than 41 but less than 43".

Texts are in lower case with number words as digits. Only these fixed forms are evaluated, in linear time.
"""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Set
from functools import lru_cache
from typing import NamedTuple

from rl2f_core.common.text.normalize import NormalizedText, Reading, non_overlapping, replaced
from rl2f_core.common.text.tokens import digit_runs, find_index, signed_starts

_N = r"(?<![\d.,/^])[+-]?\d{1,15}(?:,\d{3}){0,4}(?![\d^]|[.,/:]\d)"
YOURS = re.compile(
    r"\b(?:your|the student'?s|his|her|their) (?:(?:own|last|latest|previous|current|first|second|third|wrong|most recent|"
    r"present|submitted) ){0,2}(?:answer|guess|attempt|number|result|sum|value|total|reply|try|response|one|figure)\b"
    r"|\b(?:what|the (?:number|value|answer|one)(?: that)?) you(?:'ve| have| just)? (?:wrote|written|said|gave|given|got|guessed|answered|tried|put|submitted|found)\b"
)
"""References to the student's last answer."""
MINE = re.compile(
    r"\b(?:(?:the|my|that|this) (?:\w+ )?(?:number|value|figure|one|amount|piece|part|clue|hint)(?: that| which)? (?:i |we |from |in |of )"
    r"[^.;,!?]{0,30}?(?:told|gave|given|mentioned|said|named|earlier|before|hint|message|clue|time|remark)(?: (?:you|earlier|before|last time|just now))*"
    r"|(?:my|the) (?:earlier|previous|last|first) (?:number|hint|value|clue|figure))\b"
)
"""References to a number of an earlier hint."""
_K = rf"(?P<k>{_N}|\b(?:an?|exactly 1|just 1|only 1))"
_V = rf"(?P<v>{_N})"
_UNIT = r"(?: (?:units?|points?|numbers?|steps?|places?))?"
_OF = r" (?:of|the value of) "
_NUMBER_THE = r"(?:the (?:number|value|integer|figure|one|amount|whole number) |exactly |just |precisely )*"
_RIGHT = r"(?:right|just|directly|immediately|straight|exactly|that comes|which comes|coming|comes|that is|that follows|you get|sitting|standing|next| )*"
_WHAT = r"\b(?:(?<!a )(?:number|integer|one|value|whole number|digit string)|what(?:ever)?(?: number)?|it|that|which)"


def _quotient(v: int, k: int) -> int | None:
    return v // k if k and v % k == 0 else None


def _root(v: int, k: int) -> int | None:
    root = round(v**0.5) if 0 <= v < 10**14 else -1
    return root if root * root == v else None


_FORM_TABLE: list[tuple[str, str, Callable[[int, int], int | None]]] = [
    ("than", rf"{_K}{_UNIT} (?:more|greater|higher|larger|bigger|further|up) than {_NUMBER_THE}{_V}", lambda v, k: v + k),
    ("than", rf"{_K}{_UNIT} (?:less|fewer|smaller|lower|shorter) than {_NUMBER_THE}{_V}", lambda v, k: v - k),
    ("than", rf"\b(?:more|greater|higher|larger|bigger) than {_NUMBER_THE}{_V} by (?:exactly |just |only )?{_K}", lambda v, k: v + k),
    ("than", rf"\b(?:less|fewer|smaller|lower) than {_NUMBER_THE}{_V} by (?:exactly |just |only )?{_K}", lambda v, k: v - k),
    ("above over past beyond after up top added from", rf"{_K}{_UNIT} (?:above|over|past|beyond|after|up from|on top of|added to|on from) {_NUMBER_THE}{_V}", lambda v, k: v + k),
    ("below under before short shy down subtracted taken off", rf"{_K}{_UNIT} (?:below|under|before|short of|shy of|down from|subtracted from|taken (?:away )?from|off) {_NUMBER_THE}{_V}", lambda v, k: v - k),
    ("add adding", rf"\badd(?:ing)? (?:another |exactly |just )?{_K}{_UNIT} (?:more )?(?:to|onto) {_NUMBER_THE}{_V}", lambda v, k: v + k),
    ("add adding", rf"\badd(?:ing)? {_V} (?:and|with) {_K}", lambda v, k: v + k),
    ("subtract subtracting take taking remove removing deduct deducting", rf"\b(?:subtract(?:ing)?|tak(?:e|ing)(?: away)?|remov(?:e|ing)|deduct(?:ing)?) (?:exactly |just )?{_K}{_UNIT} (?:away )?from {_NUMBER_THE}{_V}", lambda v, k: v - k),
    ("by", rf"\b(?:increas|rais)(?:e|ing|ed) {_NUMBER_THE}{_V} by {_K}", lambda v, k: v + k),
    ("by", rf"\b(?:decreas|lower|reduc|diminish)(?:e|ing|ed)? {_NUMBER_THE}{_V} by {_K}", lambda v, k: v - k),
    ("by", rf"{_V},? (?:is |when |if )?(?:increased|raised) by {_K}", lambda v, k: v + k),
    ("by", rf"{_V},? (?:is |when |if )?(?:decreased|lowered|reduced|diminished) by {_K}", lambda v, k: v - k),
    ("by", rf"{_V},? (?:multiplied|times) by {_K}", lambda v, k: v * k),
    ("by", rf"\bmultipl(?:y|ying) {_NUMBER_THE}{_V} by (?P<k>{_N})", lambda v, k: v * k),
    ("by", rf"{_V},? (?:divided|split) by {_K}", _quotient),
    ("by", rf"\bdivid(?:e|ing) {_NUMBER_THE}{_V} by (?P<k>{_N})", _quotient),
    ("divided", rf"{_V},? divided (?:into|in) {_K}", _quotient),
    ("plus", rf"{_V},? plus {_K}", lambda v, k: v + k),
    ("added top together combined", rf"{_V},? (?:with|and) (?:another )?{_K} (?:more )?(?:added|on top|together|combined)", lambda v, k: v + k),
    ("more added together combined make give", rf"{_V} and {_K} (?:more|added|together|combined|make|give)", lambda v, k: v + k),
    ("sum total", rf"\b(?:sum|total){_OF}{_V} and {_K}", lambda v, k: v + k),
    ("product", rf"\bproduct{_OF}{_V} and {_K}", lambda v, k: v * k),
    ("quotient", rf"\bquotient{_OF}{_V} and {_K}", _quotient),
    ("difference", rf"\bdifference (?:of|between) {_V} and {_K}", lambda v, k: v - k),
    ("difference", rf"\bdifference (?:of|between) {_K} and {_V}", lambda v, k: v - k),
    ("twice", rf"\btwice (?:of |the value of )?{_NUMBER_THE}{_V}", lambda v, k: 2 * v),
    ("double doubling doubled", rf"\b(?:the )?doubl(?:e|ing)(?: of)? {_NUMBER_THE}{_V}|(?P<v2>{_N}),? doubled", lambda v, k: 2 * v),
    ("thrice", rf"\bthrice {_NUMBER_THE}{_V}", lambda v, k: 3 * v),
    ("triple tripling tripled", rf"\b(?:the )?tripl(?:e|ing)(?: of)? {_NUMBER_THE}{_V}|(?P<v2>{_N}),? tripled", lambda v, k: 3 * v),
    ("times", rf"{_K} times (?:as (?:much|many|large|big|great) as )?{_NUMBER_THE}{_V}", lambda v, k: v * k),
    ("x times", rf"{_K} x (?:as (?:much|many|large|big|great) as )?{_NUMBER_THE}{_V}", lambda v, k: v * k),
    ("dozen dozens", rf"{_K} dozens?(?! of)", lambda v, k: 12 * k),
    ("half", rf"\b(?:1 )?half (?:of |as (?:much|many|large|big) as )?{_NUMBER_THE}{_V}", lambda v, k: _quotient(v, 2)),
    ("halve halving halved", rf"\bhalv(?:e|ing) {_NUMBER_THE}{_V}|(?P<v2>{_N}),? halved", lambda v, k: _quotient(v, 2)),
    ("third", rf"\b(?:a|1)[ -]third (?:of )?{_NUMBER_THE}{_V}", lambda v, k: _quotient(v, 3)),
    ("quarter", rf"\b(?:a|1)[ -]quarter (?:of )?{_NUMBER_THE}{_V}", lambda v, k: _quotient(v, 4)),
    ("square", rf"\bsquare of {_NUMBER_THE}{_V}", lambda v, k: v * v),
    ("squared", rf"{_V},? squared", lambda v, k: v * v),
    ("root", rf"\bsquare root of {_NUMBER_THE}{_V}", _root),
    ("cube cubed", rf"\bcube of {_NUMBER_THE}{_V}|(?P<v2>{_N}),? cubed", lambda v, k: v**3),
    ("after", rf"{_WHAT} {_RIGHT}after {_NUMBER_THE}{_V}", lambda v, k: v + 1),
    ("follows following", rf"{_WHAT} (?:that |which )?(?:{_RIGHT})?follow(?:s|ing) (?:right |directly |immediately )?(?:on from |after |on )?{_NUMBER_THE}{_V}", lambda v, k: v + 1),
    ("successor", rf"\bsuccessor (?:of|to) {_NUMBER_THE}{_V}", lambda v, k: v + 1),
    ("succeeds succeeding", rf"{_WHAT} (?:that |which )?(?:directly |immediately )?succeed(?:s|ing) {_NUMBER_THE}{_V}", lambda v, k: v + 1),
    ("before", rf"{_WHAT} {_RIGHT}before {_NUMBER_THE}{_V}", lambda v, k: v - 1),
    ("precedes preceding", rf"{_WHAT} (?:that |which )?(?:directly |immediately )?preced(?:es|ing) {_NUMBER_THE}{_V}", lambda v, k: v - 1),
    ("predecessor", rf"\bpredecessor (?:of|to) {_NUMBER_THE}{_V}", lambda v, k: v - 1),
    ("above", rf"\b(?:right|directly|immediately) above {_NUMBER_THE}{_V}", lambda v, k: v + 1),
    ("below", rf"\b(?:right|directly|immediately) below {_NUMBER_THE}{_V}", lambda v, k: v - 1),
    ("neighbor neighbour", rf"\b(?:upper|higher|right) neighbou?r of {_NUMBER_THE}{_V}", lambda v, k: v + 1),
    ("neighbor neighbour", rf"\b(?:lower|left) neighbou?r of {_NUMBER_THE}{_V}", lambda v, k: v - 1),
    ("between", rf"\b(?:half|mid)[- ]?way between {_NUMBER_THE}{_V} and {_K}", lambda v, k: _quotient(v + k, 2)),
    ("middle midpoint", rf"\b(?:middle|midpoint) (?:of|between) {_NUMBER_THE}{_V} and {_K}", lambda v, k: _quotient(v + k, 2)),
    ("average", rf"\b(?:average|mean) of {_NUMBER_THE}{_V} and {_K}", lambda v, k: _quotient(v + k, 2)),
    ("mean", rf"\bmean of {_NUMBER_THE}{_V} and {_K}", lambda v, k: _quotient(v + k, 2)),
]  # fmt: skip
_LOW, _HIGH = r"(?:low|small|little|short)", r"(?:high|big|large|great|much)"
_OFF = re.compile(
    rf"(?<!the answer )(?:\b(?:is|are|was|were|'re|'s|by)|^|[.,;:] ?)(?: (?:off|out|exactly|just|only|precisely|wrong|by))* ?(?P<k>{_N}|\b1){_UNIT} (?:too )(?:(?P<low>{_LOW})|(?P<high>{_HIGH}))\b"
    rf"|\btoo (?:(?P<low2>{_LOW})|(?P<high2>{_HIGH})) by (?:exactly |just |only |precisely )?(?P<k2>{_N})(?!\w)"
)


class _Form(NamedTuple):
    gate: frozenset[str]
    """The form needs one of these words."""
    pattern: re.Pattern[str]
    evaluate: Callable[[int, int], int | None]
    """Computes the value from v and k (0 if the form has no k)."""
    numeric: bool
    """Every match begins with a number or an article."""


_FORMS = [
    _Form(frozenset(gate.split()), re.compile(pattern), evaluate, pattern.startswith((_V, _K)))
    for gate, pattern, evaluate in _FORM_TABLE
]
_ARTICLE = re.compile(r"an? |(?:exactly|just|only) 1")
_GATES = frozenset().union(*(form.gate for form in _FORMS))
_MEANT_BY = frozenset(
    "answer guess attempt number result sum value total reply try response one figure wrote written said gave given got "
    "guessed answered tried put submitted found".split()
)
"""A reference to the student's answer contains one of these words."""
_STUDENT = frozenset("you your student student's his her their".split())
_MEANT = frozenset(
    "you your student student's his her their number value figure amount piece part clue hint told earlier previous".split()
)


def may_describe(words: Set[str], digits: bool) -> bool:
    """Return whether a text may describe a number by others; a cheap prefilter."""
    return ("too" in words and digits) or (not _GATES.isdisjoint(words) and (digits or not _MEANT.isdisjoint(words)))


def mentions_last_answer(text: str, words: Set[str]) -> bool:
    """Return whether the text refers to the student's last answer."""
    return ("too" in words and _OFF.search(text) is not None) or (
        not _STUDENT.isdisjoint(words) and not _MEANT_BY.isdisjoint(words) and YOURS.search(text) is not None
    )


def described(
    text: str, words: Set[str], last: int | None, earlier: int | None = None
) -> Iterator[tuple[Reading, list[int]]]:
    """Yield numbers that the text describes, each with the numbers of the description.

    Args:
        text: Lower case, numbers as digits.
        words: Words of the text.
        last: The student's last answer if it is a number, for "your answer" and "too low by 2".
        earlier: The last number of the earlier hints, for "the number I told you".
    """
    references = sorted(
        (*match.span(), str(number))
        for pattern, number in ((YOURS, last), (MINE, earlier))
        if number is not None
        for match in pattern.finditer(text)
    )
    source = NormalizedText(text, range(len(text)), range(1, len(text) + 1))
    view = replaced(source, non_overlapping(references)) if references else source
    forms = _forms_of(_GATES & words)
    articles = (match.start() for match in _ARTICLE.finditer(view.text))
    starts = sorted({*signed_starts(view.text, digit_runs(view.text)), *articles}) if forms else ()
    for form in forms:
        pattern = form.pattern
        for match in find_index(pattern, view.text, starts) if form.numeric else pattern.finditer(view.text):
            v, k = _number(match, "v") or 0, _number(match, "k")
            value = form.evaluate(v, k or 0) if k != 0 else None
            if value is not None:
                yield Reading(*view.original(*match.span()), str(value)), [v, k] if k else [v]
    if last is not None and "too" in view.text:
        for match in _OFF.finditer(view.text):
            k = _number(match, "k") or 0
            value = last + k if match["low"] or match["low2"] else last - k
            yield Reading(*view.original(*match.span()), str(value)), [last, k]


@lru_cache(1024)
def _forms_of(words: frozenset[str]) -> list[_Form]:
    """Return the forms whose gate contains one of the words, in order."""
    return [form for form in _FORMS if not form.gate.isdisjoint(words)]


def _number(match: re.Match[str], name: str) -> int | None:
    """Return the number of the group `name` or of its alternative, `name` + "2"; an article is 1."""
    groups = match.groupdict()
    text = groups.get(name) or groups.get(f"{name}2")
    if text is None:
        return None
    digits = re.search(r"[+-]?\d[\d,]*", text)
    return int(digits[0].replace(",", "")) if digits else 1


_THAN = r"(?:than|then)"
_MORE, _LESS = r"(?:more|greater|higher|larger|bigger)", r"(?:less|fewer|lower|smaller)"
_NO = r"(?:\b(?:not|no|never|cannot)|n't)(?: be| is| lie| any)?"
_YES = r"(?<!not )(?<!no )(?<!n't )(?<!not be )(?<!n't be )"


class _Bound(NamedTuple):
    gate: frozenset[str]
    """The bound needs one of these words; bounds with signs have none."""
    pattern: re.Pattern[str]
    lower: bool
    """Whether this is a lower bound."""
    step: int
    """Difference between the first allowed number and the named one."""


_BOUND_TABLE = [
    ("than above over", rf"{_NO} (?:{_MORE} {_THAN}|above|over) (?P<v>{_N})", False, 0),
    ("than below under", rf"{_NO} (?:{_LESS} {_THAN}|below|under) (?P<v>{_N})", True, 0),
    ("than above over exceed exceeds exceeding beyond past", rf"\b{_YES}(?:{_MORE} {_THAN}|above|over|exceed(?:s|ing)?|beyond|past) (?P<v>{_N})", True, 1),
    ("than below under short", rf"\b{_YES}(?:{_LESS} {_THAN}|below|under|short of) (?P<v>{_N})", False, -1),
    ("least minimum", rf"\b(?:at least|minimum of) (?P<v>{_N})", True, 0),
    ("most maximum up", rf"\b(?:at most|maximum of|up to) (?P<v>{_N})", False, 0),
    ("or", rf"(?P<v>{_N}) or (?:more|above|higher|greater|larger|over)\b", True, 0),
    ("or", rf"(?P<v>{_N}) or (?:less|below|lower|fewer|smaller|under)\b", False, 0),
    ("too below less lower smaller", rf"(?P<v>{_N}) is (?:too (?:low|small|little)|(?:just |slightly |a little )?below (?:it|the answer)|(?:less|lower|smaller) than (?:it|the answer))", True, 1),
    ("too above more greater higher larger bigger", rf"(?P<v>{_N}) is (?:too (?:high|big|large|much)|(?:just |slightly |a little )?above (?:it|the answer)|(?:more|greater|higher|larger|bigger) than (?:it|the answer))", False, -1),
]  # fmt: skip
_SIGN_TABLE = [
    (rf"(?:>=|≥|⩾) ?(?P<v>{_N})|(?P<v2>{_N}) ?(?:<=|≤|⩽)", True, 0),
    (rf"(?:<=|≤|⩽) ?(?P<v>{_N})|(?P<v2>{_N}) ?(?:>=|≥|⩾)", False, 0),
    (rf"(?<![<>=-])>(?!=) ?(?P<v>{_N})|(?P<v2>{_N}) ?<(?![=-])", True, 1),
    (rf"(?<![<>=-])<(?![=-]) ?(?P<v>{_N})|(?P<v2>{_N}) ?(?<!-)>(?!=)", False, -1),
]  # fmt: skip
_BOUNDS = [
    _Bound(frozenset(words.split()), re.compile(pattern), lower, step) for words, pattern, lower, step in _BOUND_TABLE
]
_SIGNED = [_Bound(frozenset(), re.compile(pattern), lower, step) for pattern, lower, step in _SIGN_TABLE]
_BETWEEN = re.compile(
    rf"\b(?:between|in between|sandwiched by|flanked by|from between) (?P<v>{_N}),? (?:and|&|-|to) (?P<k>{_N})"
)
_NOT = re.compile(
    rf"(?:n't|\b(?:not|neither|nor|never|cannot be|excludes?|rule out|rules out|except|other than|wrong:)|≠|!=) ?(?:it is |is it |be |equal to |either |the number )?(?P<v>{_N})"
    rf"(?:,? (?:and|or|nor|neither|but|also)(?: also| even| it is)?(?: not| neither| is it)? (?P<k>{_N}))?"
)
_BETWEEN_WORDS = frozenset("between sandwiched flanked".split())
_NOT_WORDS = frozenset("not t neither nor never cannot excludes exclude rule rules except other wrong".split())
_BOUND_WORDS = frozenset(
    "between sandwiched flanked not neither nor than above below over under least most up exceed exceeds exceeding more "
    "less too minimum maximum beyond past short excludes exclude rule rules except other t".split()
)
_BOUND_SIGNS = re.compile("[<>≤≥≠]")


class _Limit(NamedTuple):
    value: int
    """First or last allowed number."""
    start: int
    end: int
    named: int
    """The number in the text."""


def may_bound(words: Set[str], text: str) -> bool:
    """Return whether the text may bound a number; a cheap prefilter."""
    return not _BOUND_WORDS.isdisjoint(words) or _BOUND_SIGNS.search(text) is not None


def implied_by_bounds(text: str, words: Set[str], tried: Iterable[int], since: int = 0) -> Iterator[Reading]:
    """Yield the only number within the text's bounds, or between two excluded numbers.

    Bounds that are both the student's own answers do not count ("between your 41 and 43").

    Args:
        text: Lower case, numbers as digits.
        words: Words of the text.
        tried: The student's answers.
        since: At least one of the deciding bounds must be at this offset or later.
    """
    low: list[_Limit] = []
    high: list[_Limit] = []
    bounds = [bound for bound in _BOUNDS if not bound.gate.isdisjoint(words)]
    for bound in (*bounds, *(_SIGNED if _BOUND_SIGNS.search(text) else ())):
        for match in bound.pattern.finditer(text):
            named = _number(match, "v") or 0
            (low if bound.lower else high).append(_Limit(named + bound.step, match.start(), match.end(), named))
    for match in _BETWEEN.finditer(text) if not _BETWEEN_WORDS.isdisjoint(words) else ():
        a, b = sorted((_number(match, "v") or 0, _number(match, "k") or 0))
        low.append(_Limit(a + 1, *match.span(), a))
        high.append(_Limit(b - 1, *match.span(), b))
    excluded: dict[int, _Limit] = {}
    for match in _NOT.finditer(text) if not _NOT_WORDS.isdisjoint(words) or "≠" in text or "!=" in text else ():
        for name in ("v", "k"):
            number = _number(match, name)
            if number is not None:
                excluded.setdefault(number, _Limit(number, match.start(), match.end(), number))
    pairs = [(limit, excluded[n + 2], n + 1) for n, limit in excluded.items() if n + 2 in excluded]
    if low and high and max(low).value == min(high).value:
        pairs = [(max(low), min(high), max(low).value), *pairs]
    answers = set(tried) if pairs else set()
    for one, two, value in pairs:
        if max(one.start, two.start) >= since and not {one.named, two.named} <= answers:
            yield Reading(max(since, min(one.start, two.start)), max(one.end, two.end), str(value))
