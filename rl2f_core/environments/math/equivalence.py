"""Equivalence of two mathematical answers: by form if that decides, otherwise by math-verify in a worker.

Values must be equal exactly. A gold answer with two or more decimals may be rounded: a value that no decimal can state
is equal if it rounds to these digits. An answer may lack the unit of the gold answer or add one, but another unit is
wrong.

The form check refuses answers that a comparison of values would accept or hang on: a restated sum, an equation, several
answers at once, an expression copied from the problem, a huge power.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from math import gcd
from typing import NamedTuple

from rl2f_core.environments.math.answer_text import (
    LIST_SEPARATOR,
    flat,
    has_symbols,
    is_words,
    number_text,
    plain_words,
    read_quantity,
    relation,
    split_unit,
    unsafe_power,
    worked_out,
)
from rl2f_core.environments.math.intervals import read_interval
from rl2f_core.environments.math.variables import names_others, without_variables
from rl2f_core.environments.sandbox import pool

MORE_WORDS = 2
"""Plain words that an answer may have in addition to those of the gold answer, e.g. a unit."""
MIN_ROUNDED_PLACES = 2
"""A gold answer with fewer decimals is not rounded."""
_replies: dict[tuple[str, str, int], pool.Reply] = {}
"""Replies of workers, for every environment of this process."""
_UNREAD = re.compile(
    r"'|^\[[^,]*\]$|(?<!\d)\d{4}-\d\d-\d\d(?!\d)|\d+(?:\.\d+){2,}|\\(?:ldots|dots|cdots|approx|sim|simeq|cong|circ|degree|phantom|p?mod|bmod|overline|bar)(?![a-zA-Z])|\.\.+"
    r"|\^\{?(?:T|\\top)\}?|(?<=[\d)\]}])\s*_\S{0,8}|(?<![_^\d])\d+\s+\d+|~"
)
"""Marks that math-verify ignores or misreads.

Primes, dots, transposition, a number base, digits side by side, a value in brackets, a date, an address.
"""
_INNERMOST = re.compile(r"[(\[{][^()\[\]{}]*[)\]}]")
_CLOCK = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)")
_ARTICLE = re.compile(r"^(?:an?|the) (?!(?:and|or)\b)(?=[^\W\d_]{3}|[a-z]-)", re.IGNORECASE)
_UNSPELLED = re.compile(r"[\s.,;]|(?<=[^\W\d_]{4})-(?=[^\W\d_])|(?<=[^\W\d_])-(?=[^\W\d_]{4})")
_EQUALITY = re.compile(r"=|\\approx(?![a-zA-Z])")
_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])")
_SEPARATOR = re.compile(rf"{LIST_SEPARATOR}|{_PLUS_MINUS.pattern}")
r"""What divides two values; a part with `\pm` has two."""
_LAST = re.compile(r"(?:,\s*|\s+)(?:and|or)\s+(?=[^,;]*$)")
_INTERVAL = re.compile("interval|inequalit", re.IGNORECASE)
_LOOSE_SPACE = re.compile(r"(?<!\d) | (?!\d)")
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])")
_ANGLE = re.compile(r"(\d+) ?\^\{? ?\\circ(?![a-zA-Z]) ?\}?")
_STYLE = re.compile(r"\\(?:mathrm|operatorname|textrm|textnormal|mbox)(?=\s*\{)")


class Equivalence(NamedTuple):
    """Whether an answer is correct, and the reason if it is not."""

    correct: bool
    reason: str = ""


class Pair(NamedTuple):
    """A gold answer and an answer in normal form, and the problem."""

    gold: str
    answer: str
    problem: str


def compare_normalized(pair: Pair) -> Equivalence | None:
    """Compare by form; return None if the values must be compared."""
    if pair.answer == pair.gold:
        return Equivalence(True)
    if names_others(pair.gold, pair.answer):
        return Equivalence(False, "values of other variables")
    right, number = read_quantity(pair.gold), read_quantity(pair.answer)
    is_number = right is not None and not right.loose
    if right is not None and number is not None and (is_number or right.unit == number.unit):
        same = _same_number(right.value, number.value, pair.gold)
        return check_units(right.unit, number.unit) or Equivalence(same, "" if same else "another number")
    if _LOOSE_SPACE.sub("", flat(pair.answer)) == _LOOSE_SPACE.sub("", flat(pair.gold)):
        return Equivalence(True)
    plain = right or number or not (has_symbols(pair.gold) or has_symbols(pair.answer))
    if plain and (is_words(pair.gold) or is_words(pair.answer)):
        same = _spelled(pair.gold) == _spelled(pair.answer) or _listed(pair.gold, pair.answer)
        return Equivalence(same, "" if same else "other words")
    (gold, gold_unit), (answer, unit) = split_unit(pair.gold), split_unit(pair.answer)
    if right is not None and is_number:
        gold, gold_unit = number_text(right.value), right.unit
    elif number is not None and not number.loose:
        answer, unit = number_text(number.value), number.unit
    wrong = check_units(gold_unit, unit)
    if wrong or gold == answer:
        return wrong or Equivalence(True)
    if is_number and plain_words(answer):
        return Equivalence(False, "words, where the answer is a number")
    if relation(answer) and not relation(gold):
        return Equivalence(False, "an equation or inequality, where the answer is none")
    if _separators(answer) > _separators(gold):
        return Equivalence(False, "more values than the answer has")
    if is_number and not worked_out(answer):
        return Equivalence(False, "not worked out")
    if _is_copied(gold, answer, pair.problem):
        return Equivalence(False, "copied out of the problem")
    if unsafe_power(answer) or unsafe_power(gold):
        return Equivalence(False, "no verdict: a power or factorial too large to work out")
    colons = gold.count(":"), answer.count(":")
    if max(colons) > 1 and colons[0] != colons[1]:
        return Equivalence(False, "another number of parts")
    clock = _CLOCK.fullmatch(gold)
    if clock and gcd(int(clock[1]), int(clock[2])) > 1:
        return Equivalence(False, "another time of day")
    right_side = gold if relation(answer) else _EQUALITY.split(gold)[-1]
    if _UNREAD.findall(_expression(pair.answer)) != _UNREAD.findall(_expression(right_side)):
        return Equivalence(False, "another notation, whose value is not known")
    return None


def _same_number(gold: Fraction, value: Fraction, text: str) -> bool:
    """Return whether two numbers are equal, or whether a value that no decimal can state rounds to the gold answer."""
    if value == gold or "/" not in number_text(value):
        return value == gold
    places = _rounded_places(text)
    return places > 0 and 2 * abs(value - gold) * 10**places < 1


def _rounded_places(gold: str) -> int:
    """Return the number of decimals of a gold answer that may be rounded; otherwise 0."""
    match, quantity = re.match(r"-?\d+\.(\d+)", gold), read_quantity(gold)
    is_number = match and quantity is not None and not quantity.loose
    return len(match[1]) if match and is_number and len(match[1]) >= MIN_ROUNDED_PLACES else 0


def check_units(gold: str, unit: str) -> Equivalence | None:
    """Return why an answer is wrong if both have units, and different ones."""
    return Equivalence(False, "another unit") if gold and unit and gold != unit else None


def _separators(text: str) -> int:
    """Count what divides the values of a list; a comma and the word after it count once."""
    return len(_SEPARATOR.findall(flat(text)))


def too_wordy(gold: str, answer: str) -> bool:
    """Return whether an answer is prose, judged by the gold answer."""
    most = len(plain_words(gold)) + MORE_WORDS
    if len(plain_words(answer)) <= most or read_quantity(answer) is not None:
        return False
    return len(plain_words(split_unit(answer)[0])) > most


def _spelled(text: str) -> str:
    """Return words without case, a first article, white space, punctuation, and hyphens next to a word."""
    return _UNSPELLED.sub("", _ARTICLE.sub("", flat(text).replace("$", "").strip("()"))).casefold()


def _listed(gold: str, answer: str) -> bool:
    """Return whether two lists of words are equal up to "and" or "or" before the last one."""
    lists = [_LAST.sub(",", flat(text)) for text in (gold, answer)]
    if sum(text == flat(raw) for text, raw in zip(lists, (gold, answer), strict=True)) != 1:
        return False
    first, second = ([_spelled(item) for item in text.split(",")] for text in lists)
    return first == second


def _with_intervals(pair: Pair) -> Pair:
    """Return a pair with both answers in brackets if both are intervals, and the gold answer is no point."""
    gold, answer = read_interval(pair.gold), read_interval(pair.answer)
    if gold is None or answer is None or _is_copied(pair.gold, pair.answer, pair.problem):
        return pair
    other_variable = gold.variable and answer.variable and gold.variable != answer.variable
    if other_variable or (gold.may_be_point and not _INTERVAL.search(pair.problem)):
        return pair
    return Pair(gold.text, answer.text, pair.problem)


def _is_copied(gold: str, answer: str, problem: str) -> bool:
    """Return whether the problem contains an answer that has other characters than the gold answer."""
    return len(answer) > 2 and _tight(answer) in _tight(problem) and _characters(answer) != _characters(gold)


def _tight(text: str) -> str:
    return "".join(text.split())


def _characters(text: str) -> list[str]:
    """Return what an expression consists of, in any order and with any braces."""
    return sorted(re.sub(r"[\s{}]", "", text))


def compare_answers(pairs: Sequence[Pair], time_limit: float) -> list[Equivalence]:
    """Compare all pairs; workers compare those undecided by form in one batch, `time_limit` seconds each."""
    pairs = [_with_intervals(Pair(*without_variables(*pair), pair.problem)) for pair in pairs]
    by_form = [compare_normalized(pair) for pair in pairs]
    keys = {
        pair: (*_alike(_expression(pair.gold), _expression(pair.answer)), _rounded_places(pair.gold))
        for pair, r in zip(pairs, by_form, strict=True)
        if not r
    }
    jobs = {key: _job(*key) for key in keys.values()}
    replies = pool.pool().run_cached(jobs, time_limit, _replies) if jobs else {}
    by_value = {key: _from_reply(reply) for key, reply in replies.items()}
    return [result or by_value[keys[pair]] for pair, result in zip(pairs, by_form, strict=True)]


def _expression(text: str) -> str:
    """Return an answer for math-verify, without its unit."""
    quantity = read_quantity(text)
    if quantity is not None and not quantity.loose:
        return number_text(quantity.value)
    core = _STYLE.sub(r"\\text", split_unit(text)[0])
    core = _ANGLE.sub(r"(\1\\cdot\\frac{\\pi}{180})", core)
    return re.sub(r"(.+?) ?\\?%", r"\\frac{\1}{100}", core) if core.endswith("%") and worked_out(core) else core


def _alike(gold: str, answer: str) -> tuple[str, str]:
    """Return two expressions with a list in parentheses if the other is a tuple, and ratios as tuples of quotients."""
    if gold.count(":") > 1 and answer.count(":") > 1:
        gold, answer = _quotients(gold), _quotients(answer)
    if "," in gold and "," in answer and not relation(gold + answer):
        tops = _top_level(gold), _top_level(answer)
        if "" in tops:
            gold, answer = (f"({t})" if "," in top else t for t, top in zip((gold, answer), tops, strict=True))
    return gold, answer


def _quotients(ratio: str) -> str:
    """Return the quotients of a ratio's parts and its first part."""
    first, *others = ratio.split(":")
    return "(" + ",".join(rf"\frac{{{part}}}{{{first}}}" for part in others) + ")"


def _top_level(text: str) -> str:
    """Return a text without what is in brackets; empty for a tuple or an interval."""
    while (shorter := _INNERMOST.sub("", text)) != text:
        text = shorter
    return text


def _job(gold: str, answer: str, places: int) -> pool.Job:
    """Return the comparison by value: decimals as fractions, so that no digit is rounded, and both values of `\\pm`."""
    exact = [_DECIMAL.sub(_as_fraction, _both_signs(text)) for text in (gold, answer)]
    return pool.Job("math", {"gold": exact[0], "answer": exact[1], "places": places})


def _both_signs(text: str) -> str:
    r"""Return a list in which a part with one `\pm` is two values; a set, a tuple or an equation stays as it is."""
    parts = text.split(",")
    if r"\{" in text or relation(text) or any(re.search(r"[()\[\]]", _top_level(part)) for part in parts):
        return text
    signs = ("+", "-")
    return ",".join(
        ",".join(_PLUS_MINUS.sub(sign, part) for sign in signs) if len(_PLUS_MINUS.findall(part)) == 1 else part
        for part in parts
    )


def _as_fraction(match: re.Match[str]) -> str:
    return rf"\frac{{{int(match[1] + match[2])}}}{{{10 ** len(match[2])}}}"


def _from_reply(reply: pool.Reply) -> Equivalence:
    if reply.error:
        return Equivalence(False, f"no verdict: {reply.error}")
    return Equivalence(reply.value is True, "" if reply.value is True else "another value")
