"""Read numbers described by other numbers: "one more than 131", "twice 66", "greater than 41 but less than 43".

Texts are in lower case with number words as digits. Only these fixed forms are evaluated, in linear time.
"""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Set
from functools import lru_cache
from typing import NamedTuple

from rl2f_core.text.normalize import Reading
from rl2f_core.text.tokens import digit_runs, find_index, signed_starts

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


class _Form(NamedTuple):
    gate: frozenset[str]
    """The form needs one of these words."""
    pattern: re.Pattern[str]
    evaluate: Callable[[int, int], int | None]
    """Computes the value from v and k (0 if the form has no k)."""
    begins: str
    """Start of every match: the number `v`, the number or article `k`, or words (empty)."""
    needs: frozenset[str]
    """The form also needs one of these words, if any."""


def _form(gate: str, pattern: str, evaluate: Callable[[int, int], int | None], needs: str = "") -> _Form:
    begins = (
        ""
        if "|" in _without_groups(pattern)
        else "v"
        if pattern.startswith(_V)
        else "k"
        if pattern.startswith(_K)
        else ""
    )
    return _Form(frozenset(gate.split()), re.compile(pattern), evaluate, begins, frozenset(needs.split()))


def _without_groups(pattern: str) -> str:
    """Remove all groups in parentheses."""
    while (plainer := re.sub(r"\([^()]*\)", "", pattern)) != pattern:
        pattern = plainer
    return pattern


def _quotient(v: int, k: int) -> int | None:
    return v // k if k and v % k == 0 else None


def _root(v: int, k: int) -> int | None:
    root = round(v**0.5) if 0 <= v < 10**14 else -1
    return root if root * root == v else None


_FORMS = [
    _form("than", rf"{_K}{_UNIT} (?:more|greater|higher|larger|bigger|further|up) than {_NUMBER_THE}{_V}", lambda v, k: v + k),
    _form("than", rf"{_K}{_UNIT} (?:less|fewer|smaller|lower|shorter) than {_NUMBER_THE}{_V}", lambda v, k: v - k),
    _form("than", rf"\b(?:more|greater|higher|larger|bigger) than {_NUMBER_THE}{_V} by (?:exactly |just |only )?{_K}", lambda v, k: v + k, "more greater higher larger bigger"),
    _form("than", rf"\b(?:less|fewer|smaller|lower) than {_NUMBER_THE}{_V} by (?:exactly |just |only )?{_K}", lambda v, k: v - k, "less fewer smaller lower"),
    _form("above over past beyond after up top added from", rf"{_K}{_UNIT} (?:above|over|past|beyond|after|up from|on top of|added to|on from) {_NUMBER_THE}{_V}", lambda v, k: v + k),
    _form("below under before short shy down subtracted taken off", rf"{_K}{_UNIT} (?:below|under|before|short of|shy of|down from|subtracted from|taken (?:away )?from|off) {_NUMBER_THE}{_V}", lambda v, k: v - k),
    _form("add adding", rf"\badd(?:ing)? (?:another |exactly |just )?{_K}{_UNIT} (?:more )?(?:to|onto) {_NUMBER_THE}{_V}", lambda v, k: v + k),
    _form("add adding", rf"\badd(?:ing)? {_V} (?:and|with) {_K}", lambda v, k: v + k),
    _form("subtract subtracting take taking remove removing deduct deducting", rf"\b(?:subtract(?:ing)?|tak(?:e|ing)(?: away)?|remov(?:e|ing)|deduct(?:ing)?) (?:exactly |just )?{_K}{_UNIT} (?:away )?from {_NUMBER_THE}{_V}", lambda v, k: v - k),
    _form("by", rf"\b(?:increas|rais)(?:e|ing|ed) {_NUMBER_THE}{_V} by {_K}", lambda v, k: v + k, "increase increasing increased raise raising raised"),
    _form("by", rf"\b(?:decreas|lower|reduc|diminish)(?:e|ing|ed)? {_NUMBER_THE}{_V} by {_K}", lambda v, k: v - k, "decrease decreasing decreased lower lowere lowering lowered reduce reducing reduced diminish diminishe diminishing diminished reduc decreas"),
    _form("by", rf"{_V},? (?:is |when |if )?(?:increased|raised) by {_K}", lambda v, k: v + k),
    _form("by", rf"{_V},? (?:is |when |if )?(?:decreased|lowered|reduced|diminished) by {_K}", lambda v, k: v - k),
    _form("by", rf"{_V},? (?:multiplied|times) by {_K}|\bmultipl(?:y|ying) {_NUMBER_THE}(?P<v2>{_N}) by (?P<k2>{_N})", lambda v, k: v * k, "multiplied times multiply multiplying"),
    _form("by", rf"{_V},? (?:divided|split) by {_K}|\bdivid(?:e|ing) {_NUMBER_THE}(?P<v2>{_N}) by (?P<k2>{_N})", _quotient, "divided split divide dividing"),
    _form("divided", rf"{_V},? divided (?:into|in) {_K}", _quotient),
    _form("plus", rf"{_V},? plus {_K}", lambda v, k: v + k),
    _form("added top together combined", rf"{_V},? (?:with|and) (?:another )?{_K} (?:more )?(?:added|on top|together|combined)", lambda v, k: v + k),
    _form("more added together combined make give", rf"{_V} and {_K} (?:more|added|together|combined|make|give)", lambda v, k: v + k),
    _form("sum total", rf"\b(?:sum|total){_OF}{_V} and {_K}", lambda v, k: v + k),
    _form("product", rf"\bproduct{_OF}{_V} and {_K}", lambda v, k: v * k),
    _form("quotient", rf"\bquotient{_OF}{_V} and {_K}", _quotient),
    _form("difference", rf"\bdifference (?:of|between) {_V} and {_K}", lambda v, k: v - k),
    _form("difference", rf"\bdifference (?:of|between) {_K} and {_V}", lambda v, k: v - k),
    _form("twice", rf"\btwice (?:of |the value of )?{_NUMBER_THE}{_V}", lambda v, k: 2 * v),
    _form("double doubling doubled", rf"\b(?:the )?doubl(?:e|ing)(?: of)? {_NUMBER_THE}{_V}|(?P<v2>{_N}),? doubled", lambda v, k: 2 * v),
    _form("thrice", rf"\bthrice {_NUMBER_THE}{_V}", lambda v, k: 3 * v),
    _form("triple tripling tripled", rf"\b(?:the )?tripl(?:e|ing)(?: of)? {_NUMBER_THE}{_V}|(?P<v2>{_N}),? tripled", lambda v, k: 3 * v),
    _form("times", rf"{_K} times (?:as (?:much|many|large|big|great) as )?{_NUMBER_THE}{_V}", lambda v, k: v * k),
    _form("x times", rf"{_K} x (?:as (?:much|many|large|big|great) as )?{_NUMBER_THE}{_V}", lambda v, k: v * k),
    _form("dozen dozens", rf"{_K} dozens?(?! of)", lambda v, k: 12 * k),
    _form("half", rf"\b(?:1 )?half (?:of |as (?:much|many|large|big) as )?{_NUMBER_THE}{_V}", lambda v, k: _quotient(v, 2)),
    _form("halve halving halved", rf"\bhalv(?:e|ing) {_NUMBER_THE}{_V}|(?P<v2>{_N}),? halved", lambda v, k: _quotient(v, 2)),
    _form("third", rf"\b(?:a|1)[ -]third (?:of )?{_NUMBER_THE}{_V}", lambda v, k: _quotient(v, 3)),
    _form("quarter", rf"\b(?:a|1)[ -]quarter (?:of )?{_NUMBER_THE}{_V}", lambda v, k: _quotient(v, 4)),
    _form("square", rf"\bsquare of {_NUMBER_THE}{_V}", lambda v, k: v * v),
    _form("squared", rf"{_V},? squared", lambda v, k: v * v),
    _form("root", rf"\bsquare root of {_NUMBER_THE}{_V}", _root),
    _form("cube cubed", rf"\bcube of {_NUMBER_THE}{_V}|(?P<v2>{_N}),? cubed", lambda v, k: v**3),
    _form("after", rf"{_WHAT} {_RIGHT}after {_NUMBER_THE}{_V}", lambda v, k: v + 1, "number integer one value whole digit what whatever it that which"),
    _form("follows following", rf"{_WHAT} (?:that |which )?(?:{_RIGHT})?follow(?:s|ing) (?:right |directly |immediately )?(?:on from |after |on )?{_NUMBER_THE}{_V}", lambda v, k: v + 1, "number integer one value whole digit what whatever it that which"),
    _form("successor", rf"\bsuccessor (?:of|to) {_NUMBER_THE}{_V}", lambda v, k: v + 1),
    _form("succeeds succeeding", rf"{_WHAT} (?:that |which )?(?:directly |immediately )?succeed(?:s|ing) {_NUMBER_THE}{_V}", lambda v, k: v + 1),
    _form("before", rf"{_WHAT} {_RIGHT}before {_NUMBER_THE}{_V}", lambda v, k: v - 1, "number integer one value whole digit what whatever it that which"),
    _form("precedes preceding", rf"{_WHAT} (?:that |which )?(?:directly |immediately )?preced(?:es|ing) {_NUMBER_THE}{_V}", lambda v, k: v - 1),
    _form("predecessor", rf"\bpredecessor (?:of|to) {_NUMBER_THE}{_V}", lambda v, k: v - 1),
    _form("above", rf"\b(?:right|directly|immediately) above {_NUMBER_THE}{_V}", lambda v, k: v + 1, "right directly immediately"),
    _form("below", rf"\b(?:right|directly|immediately) below {_NUMBER_THE}{_V}", lambda v, k: v - 1, "right directly immediately"),
    _form("neighbor neighbour", rf"\b(?:upper|higher|right) neighbou?r of {_NUMBER_THE}{_V}", lambda v, k: v + 1),
    _form("neighbor neighbour", rf"\b(?:lower|left) neighbou?r of {_NUMBER_THE}{_V}", lambda v, k: v - 1),
    _form("between", rf"\b(?:half|mid)[- ]?way between {_NUMBER_THE}{_V} and {_K}", lambda v, k: _quotient(v + k, 2), "half mid halfway midway way"),
    _form("middle midpoint", rf"\b(?:middle|midpoint) (?:of|between) {_NUMBER_THE}{_V} and {_K}", lambda v, k: _quotient(v + k, 2)),
    _form("average", rf"\b(?:average|mean) of {_NUMBER_THE}{_V} and {_K}", lambda v, k: _quotient(v + k, 2)),
    _form("mean", rf"\bmean of {_NUMBER_THE}{_V} and {_K}", lambda v, k: _quotient(v + k, 2)),
]  # fmt: skip
_LOW, _HIGH = r"(?:low|small|little|short)", r"(?:high|big|large|great|much)"
_OFF = re.compile(
    rf"(?<!the answer )(?:\b(?:is|are|was|were|'re|'s|by)|^|[.,;:] ?)(?: (?:off|out|exactly|just|only|precisely|wrong|by))* ?(?P<k>{_N}|\b1){_UNIT} (?:too )(?:(?P<low>{_LOW})|(?P<high>{_HIGH}))\b"
    rf"|\btoo (?:(?P<low2>{_LOW})|(?P<high2>{_HIGH})) by (?:exactly |just |only |precisely )?(?P<k2>{_N})(?!\w)"
)


_GATED = {
    word: tuple(number for number, form in enumerate(_FORMS) if word in form.gate)
    for word in sorted({word for form in _FORMS for word in form.gate})
}
"""Indices of the forms by gate word."""
_GATES = frozenset(_GATED)
_ARTICLE = re.compile(r"(?:a|exactly 1|just 1|only 1)(?:n? |(?<=1))")
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
    text, moved = _with_numbers(text, [(YOURS, last), (MINE, earlier)])
    numbers = signed_starts(text, digit_runs(text))
    articles: list[int] | None = None
    for number in _forms_of(_GATES & words):
        form = _FORMS[number]
        if form.needs and form.needs.isdisjoint(words):
            continue
        if form.begins == "k" and articles is None:
            articles = sorted({*numbers, *(match.start() for match in _ARTICLE.finditer(text))})
        starts = articles if form.begins == "k" else numbers
        for match in find_index(form.pattern, text, starts or ()) if form.begins else form.pattern.finditer(text):
            groups = match.groupdict()
            v, k = _int(groups.get("v2") or groups.get("v")), _int(groups.get("k2") or groups.get("k"))
            if (groups.get("k2") or groups.get("k")) is not None and k == 0:
                continue
            value = form.evaluate(v, k)
            if value is not None:
                yield Reading(moved(match.start()), moved(match.end()), str(value)), [v, k] if k else [v]
    if last is not None and "too" in text:
        for match in _OFF.finditer(text):
            k = _int(match["k"] or match["k2"])
            step = k if match["low"] or match["low2"] else -k
            yield Reading(moved(match.start()), moved(match.end()), str(last + step)), [last, k]


@lru_cache(1024)
def _forms_of(words: frozenset[str]) -> list[int]:
    """Return the forms whose gate contains one of the words, in order."""
    return sorted({number for word in words for number in _GATED[word]})


def _int(words: str | None) -> int:
    if words is None:
        return 0
    digits = re.search(r"[+-]?\d[\d,]*", words)
    return int(digits[0].replace(",", "")) if digits else 1


def _with_numbers(text: str, meant: Sequence[tuple[re.Pattern[str], int | None]]) -> tuple[str, Callable[[int], int]]:
    """Replace references such as "your answer" by numbers; also returns the map to the original offsets."""
    references = sorted(
        (*match.span(), str(number)) for name, number in meant if number is not None for match in name.finditer(text)
    )
    out, edges, shift, position = [], [], 0, 0
    for start, end, number in references:
        if start < position:
            continue
        out += [text[position:start], number]
        edges.append((start - shift + len(number), shift + end - start - len(number)))
        shift += end - start - len(number)
        position = end
    out.append(text[position:])

    def back(at: int) -> int:
        moved = next((total for edge, total in reversed(edges) if at >= edge), 0)
        return min(len(text), at + moved)

    return ("".join(out), back) if edges else (text, lambda position: position)


_THAN = r"(?:than|then)"
_MORE, _LESS = r"(?:more|greater|higher|larger|bigger)", r"(?:less|fewer|lower|smaller)"
_NO = r"(?:\b(?:not|no|never|cannot)|n't)(?: be| is| lie| any)?"
_YES = r"(?<!not )(?<!no )(?<!n't )(?<!not be )(?<!n't be )"


class _Bound(NamedTuple):
    words: frozenset[str]
    """The bound needs one of these words, if any."""
    pattern: re.Pattern[str]
    lower: bool
    """Whether this is a lower bound."""
    step: int
    """Difference between the first allowed number and the named one."""
    begins: str
    """Start of every match: the number `v`, a negation (`no`), or words (empty)."""


def _bound(words: str, pattern: str, lower: bool, step: int) -> _Bound:
    begins = "v" if pattern.startswith(rf"(?P<v>{_N})") else "no" if pattern.startswith(_NO) else ""
    return _Bound(frozenset(words.split()), re.compile(pattern), lower, step, begins)


_BOUNDS = [
    _bound("than above over", rf"{_NO} (?:{_MORE} {_THAN}|above|over) (?P<v>{_N})", False, 0),
    _bound("than below under", rf"{_NO} (?:{_LESS} {_THAN}|below|under) (?P<v>{_N})", True, 0),
    _bound("than above over exceed exceeds exceeding beyond past", rf"\b{_YES}(?:{_MORE} {_THAN}|above|over|exceed(?:s|ing)?|beyond|past) (?P<v>{_N})", True, 1),
    _bound("than below under short", rf"\b{_YES}(?:{_LESS} {_THAN}|below|under|short of) (?P<v>{_N})", False, -1),
    _bound("least minimum", rf"\b(?:at least|minimum of) (?P<v>{_N})", True, 0),
    _bound("most maximum up", rf"\b(?:at most|maximum of|up to) (?P<v>{_N})", False, 0),
    _bound("or", rf"(?P<v>{_N}) or (?:more|above|higher|greater|larger|over)\b", True, 0),
    _bound("or", rf"(?P<v>{_N}) or (?:less|below|lower|fewer|smaller|under)\b", False, 0),
    _bound("too below less lower smaller", rf"(?P<v>{_N}) is (?:too (?:low|small|little)|(?:just |slightly |a little )?below (?:it|the answer)|(?:less|lower|smaller) than (?:it|the answer))", True, 1),
    _bound("too above more greater higher larger bigger", rf"(?P<v>{_N}) is (?:too (?:high|big|large|much)|(?:just |slightly |a little )?above (?:it|the answer)|(?:more|greater|higher|larger|bigger) than (?:it|the answer))", False, -1),
]  # fmt: skip
_SIGNED = [
    _bound("", rf"(?:>=|≥|⩾) ?(?P<v>{_N})|(?P<v2>{_N}) ?(?:<=|≤|⩽)", True, 0),
    _bound("", rf"(?:<=|≤|⩽) ?(?P<v>{_N})|(?P<v2>{_N}) ?(?:>=|≥|⩾)", False, 0),
    _bound("", rf"(?<![<>=-])>(?!=) ?(?P<v>{_N})|(?P<v2>{_N}) ?<(?![=-])", True, 1),
    _bound("", rf"(?<![<>=-])<(?![=-]) ?(?P<v>{_N})|(?P<v2>{_N}) ?(?<!-)>(?!=)", False, -1),
]  # fmt: skip
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
_NEGATIONS = frozenset("not no never cannot t".split())
_BOUND_SIGNS = re.compile("[<>≤≥≠]")


def may_bound(words: Set[str], text: str) -> bool:
    """Return whether the text may bound a number; a cheap prefilter."""
    return not _BOUND_WORDS.isdisjoint(words) or _BOUND_SIGNS.search(text) is not None


def implied_by_bounds(
    text: str, words: Set[str], tried: Callable[[], Sequence[int]], since: int = 0
) -> Iterator[Reading]:
    """Yield the only number within the text's bounds, or between two excluded numbers.

    Bounds that are both the student's own answers do not count ("between your 41 and 43").

    Args:
        text: Lower case, numbers as digits.
        words: Words of the text.
        tried: Returns the student's answers; called if needed.
        since: At least one of the deciding bounds must be at this offset or later.
    """
    low: list[tuple[int, int, int, int]] = []
    high: list[tuple[int, int, int, int]] = []
    starts = signed_starts(text, digit_runs(text))
    denied = not _NEGATIONS.isdisjoint(words)
    bounds = [bound for bound in _BOUNDS if not bound.words.isdisjoint(words) and (denied or bound.begins != "no")]
    for bound in (*bounds, *(_SIGNED if _BOUND_SIGNS.search(text) else ())):
        for match in find_index(bound.pattern, text, starts) if bound.begins == "v" else bound.pattern.finditer(text):
            value = _int(match.groupdict().get("v2") or match["v"])
            (low if bound.lower else high).append((value + bound.step, match.start(), match.end(), value))
    for match in _BETWEEN.finditer(text) if not _BETWEEN_WORDS.isdisjoint(words) else ():
        a, b = sorted((_int(match["v"]), _int(match["k"])))
        low.append((a + 1, *match.span(), a))
        high.append((b - 1, *match.span(), b))
    if low and high:
        below, above = max(low), min(high)
        own = below[0] == above[0] and {below[3], above[3]} <= set(tried())
        late = max(below[1], above[1]) >= since
        if below[0] == above[0] and late and not own:
            begin = min(below[1], above[1])
            yield Reading(max(begin, since), max(below[2], above[2]), str(below[0]))
    ruled: dict[int, tuple[int, int]] = {}
    for match in _NOT.finditer(text) if not _NOT_WORDS.isdisjoint(words) or "≠" in text or "!=" in text else ():
        for group in ("v", "k"):
            if match[group] is not None:
                ruled.setdefault(_int(match[group]), match.span())
    for value, (start, end) in ruled.items():
        if value + 2 in ruled and not {value, value + 2} <= set(tried()):
            other = ruled[value + 2]
            if max(start, other[0]) >= since:
                yield Reading(max(since, min(start, other[0])), max(end, other[1]), str(value + 1))
