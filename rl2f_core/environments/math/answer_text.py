"""Mathematical answers as text: extraction, normal form, and exact numbers.

Nothing is evaluated: a number is parsed by its form, as a fraction, and everything else remains text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from fractions import Fraction
from typing import NamedTuple

from rl2f_core.common.text.tokens import cached
from rl2f_core.environments.math.units import read_single, read_unit

MAX_ANSWER = 400
"""Maximum number of characters; longer answers are unparsable."""
LIST_SEPARATOR = r"(?:[,;] ?)?(?<![A-Za-z])(?:and|or)(?![A-Za-z])|[,;]"
"""Pattern of what divides two values of a list: a comma or semicolon, "and" or "or", or both."""
VARIABLE = r"[A-Za-z](?:_(?:\w|\{\w{1,6}\}))?"
"""Pattern of a variable: one letter, perhaps with a subscript."""
MAX_DIGITS = 60
_MAX_DEPTH = 12
_MAX_EXPONENT_DIGITS = 3
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_AFTER_BOX = re.compile(r"[\s$.)\]}*]*(?:\\[)\]])?[\s$.*]*")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SIGNS = str.maketrans(
    {sign: rf"\{name} " for sign, name in zip(
        "×·⋅∙≤≥π∞≈≠±…∪∩∈∅", "times cdot cdot cdot le ge pi infty approx ne pm ldots cup cap in emptyset".split(),
        strict=True,
    )} | dict.fromkeys("−–—‒―‐‑", "-") | dict.fromkeys("÷⁄∕", "/")
    | {"＋": "+", "∗": "*", "′": "'", "’": "'", "°": r"^\circ ", "º": r"^\circ ", "℃": r"^\circ C", "℉": r"^\circ F"}
)  # fmt: skip
_SPACING = re.compile(
    r"(?<!\\)\\ |\\(?:[,;:>]|(?:quad|qquad|thinspace|medspace|thickspace|enspace|left|right|displaystyle|textstyle|big"
    r"|Big|rm|bf|it)(?![a-zA-Z]))|(?<=.)~"
)
_STYLES = "text|mathrm|mbox|operatorname|textbf|textit|textrm|textsf|textnormal|mathbf|mathit|mathsf|boldsymbol|bm"
_TEXT = re.compile(rf"\\(?:{_STYLES})\s*\{{([^{{}}]*)\}}")
_WRAPPER = re.compile(rf"\\(?:boxed|fbox|{_STYLES})\s*\{{|\{{")
_PAIRS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("*", "*"), ("`", "`"))
_STACKED = re.compile("([⁰¹²³⁴-⁹]+)[⁄/]([₀-₉]+)")
_RAISED = re.compile("[⁰¹²³⁴-⁹⁺⁻]+")
_LOWERED = re.compile("[₀-₉]+")
_OVERLINED = re.compile("(?:\\d\u0305)+")
_DOTTED = re.compile("(\\d)\u0307")
_ROOT = re.compile(r"(?:√|\\?(?<![A-Za-z])sqrt) ?\(([^()]*)\)|√ ?(\d+|[A-Za-z])")
_OVER = re.compile(r"\{([^{}]*)\\over(?![a-zA-Z])([^{}]*)\}")
_BARE = re.compile(r"(\\sqrt ?|\\frac ?(?:\{[^{}]*\} ?|\d ?)?)(\\[A-Za-z]+)(?![A-Za-z{[])")
_WHOLE = r"(?:\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+|(?:\{,\}\d{3})+|(?:'\d{3})+)(?!\d)|\d+)"
_EXPONENT_OF_TEN = r"10 ?\^ ?(?:[{(] ?(?P<e1>[+-]? ?\d{1,3}) ?[})]|(?P<e2>[+-]?\d{1,3}))(?!\d)"
_SIMPLE = re.compile(r"-?[0-9]{1,30}(?:\.[0-9]{1,30}|/[0-9]{0,29}[1-9])?")
"""The form of most numbers, which is read without the steps for other forms."""
_POWER_OF_TEN = re.compile(_EXPONENT_OF_TEN)
_DECIMAL = re.compile(
    rf"(?P<whole>{_WHOLE})?(?:(?:\.|\{{,\}}(?=\d))(?P<part>(?:\d{{3}} )+\d{{1,3}}(?!\d)|\d*)"
    r"(?:\\(?:overline|bar) ?(?:\{(?P<r1>\d+)\}|(?P<r2>\d))|\((?P<r3>\d+)\)"
    r"|\\dot ?\{?(?P<r4>\d)\}?(?:(?P<r5>\d*)\\dot ?\{?(?P<r6>\d)\}?)?)?)?"
    rf"(?:[eE](?P<e3>[+-]?\d{{1,3}})(?![\w.])| ?(?:\\times|\\cdot|\*|x) ?{_EXPONENT_OF_TEN})?"
)
_FRACTION = re.compile(
    rf"(?:(?P<mixed>{_WHOLE}) ?)?\\frac ?(?:\{{ ?(?P<a1>[+-]? ?{_WHOLE}) ?\}}|(?P<a2>\d)) ?"
    rf"(?:\{{ ?(?P<b1>[+-]? ?{_WHOLE}) ?\}}|(?P<b2>\d))"
)
_SLASHED = re.compile(rf"(?:(?P<mixed>{_WHOLE}) )??(?P<a1>{_WHOLE}) ?/ ?(?P<b1>{_WHOLE})")
_MONEY = dict.fromkeys(("$", r"\$", "US$", "USD"), "dollars") | {
    "£": "pounds", "GBP": "pounds", "€": "euros", "EUR": "euros", "¥": "yen",
    "₹": "rupees", "Rs": "rupees", "Rs.": "rupees",
}  # fmt: skip
_SIGN = re.compile(
    r"(?P<sign>[+-]?) ?(?P<money>US\$|\\?\$|[£€¥₹]|(?:USD|GBP|EUR|Rs\.?)(?= ?[\d.]))? ?(?P<inner>[+-]?) ?"
)
_PERCENT = re.compile(r" ?(?:\\?%|(?:percent|per cent|pct)(?![A-Za-z]))", re.IGNORECASE)
_SCALES = {"hundred": 10**2, "thousand": 10**3} | {
    f"{start}illion": 10 ** (3 * n) for n, start in enumerate("m b tr quadr quint sext sept oct non dec".split(), 2)
}
_SCALE = re.compile(rf" ?({'|'.join(_SCALES)})(?![A-Za-z])", re.IGNORECASE)
_DEGREE = re.compile(r"\^ ?\{? ?\\(?:circ|degree)(?![a-zA-Z]) ?\}?|\\degree(?![a-zA-Z])")
_BEFORE_UNIT = re.compile(rf"\\(?:{_STYLES})\s*\{{| (?=[A-Za-z]{{3}}|[ck]m|mm|kg)|{_DEGREE.pattern}")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_ORDINAL = re.compile(r"\^ ?\{ ?(st|nd|rd|th) ?\}")
_BRACED = re.compile(r"\{\s*([A-Za-z]+)\s*\}")
_QUOTIENT = re.compile(r"\\frac ?\{([^{}]*[A-Za-z][^{}]*)\} ?\{([^{}]*[A-Za-z][^{}]*)\}")
_ASSIGNED = re.compile(rf"{VARIABLE}\s*=\s*(?=[^=])")
_RELATION = re.compile(r"=|<|>|\\(?:le|leq|ge|geq|lt|gt|ne|neq|approx|in|equiv|sim)(?![a-zA-Z])")
_WORD = re.compile(r"[^\W\d_]{3,}|\b[Nn]o\b")
_ALONE = re.compile(r"(?<![^\s,])[^\W\d_]{2,}(?![^\s,.;:!?])")
_OPERATOR = re.compile(r"\s*(?:\\[A-Za-z]+|[+\-*/=<>^])\s*")
_ANY_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_SUM = re.compile(r"(?<=[\w)}\]])\s*(?:[+\-*/]|\\(?:times|cdot|div|pm)(?![a-zA-Z]))")
_DANGER = re.compile(r"__|[`;@#\"]|\\(?:input|include|write|def|let|csname|catcode|begin\{document)")
_TOWER = re.compile(r"(?:\^|\*\*)[\s{(]*\d+[\s{})]*(?:\^|\*\*)")
_EXPONENT = re.compile(r"(?:\^|\*\*)\s*(?:\{\s*[+-]?\s*(\d+)|\(?\s*[+-]?(\d+))")
_FACTORIAL = re.compile(r"(\d+)\s*\)*!|!!")


def last_boxed(text: str) -> tuple[str | None, str]:
    r"""Return the content of the last `\boxed{…}`, by matching braces, or None and the reason.

    Only closing signs may follow, so that an answer cannot be retracted.
    """
    boxes = deque(_BOX.finditer(text), maxlen=1)
    if not boxes:
        return None, r"unparsable: no \boxed{…}"
    start = boxes[0].end()
    end = _closing_brace(text, start)
    if end is None:
        return None, r"unparsable: the braces of the last \boxed{…} do not close"
    if not _AFTER_BOX.fullmatch(text, end + 1):
        return None, r"unparsable: text after the last \boxed{…}"
    return text[start:end], ""


def _closing_brace(text: str, start: int) -> int | None:
    """Return the position of the brace that closes the one before `start`."""
    depth, at = 1, start
    while at < len(text):
        char = text[at]
        depth += (char == "{") - (char == "}")
        if not depth:
            return at
        at += 2 if char == "\\" else 1
    return None


def normal(text: str) -> str | None:
    r"""Return an answer in normal form, or None if it is empty, too long, prose, or has unbalanced braces.

    Dollar signs, boxes, styles, spacing commands, `\left`, `\dfrac` and a final full stop are removed; numbers have one
    form (`1,024` and `1024.0` become `1024`, `2/4` becomes `1/2`) and keep their unit; `x = 5` becomes its right side.
    """
    if _SIMPLE.fullmatch(text):
        return number_text(Fraction(text))
    answer = clean(text)
    if not answer or len(answer) > MAX_ANSWER or not any(char.isalnum() for char in answer):
        return None
    if "," not in answer:  # with decimal commas, the values of a list are not known
        answer = answer.replace(";", ",")
    if _DANGER.search(answer) or _BOX.search(answer) or ("<" in answer and ">" in answer):
        return None
    assigned = _ASSIGNED.match(answer)
    if assigned and not _RELATION.search(answer, assigned.end()):
        right = answer[assigned.end() :].strip()
        answer = right if not re.search(LIST_SEPARATOR, right) or read_quantity(right) else answer
    quantity = _quantity(answer)
    if quantity is None or quantity.loose:
        return answer
    form = number_text(quantity.value)
    if not quantity.text:
        return form if read_number(form) == quantity.value else answer
    form += quantity.text if quantity.text.startswith("^") else f" {quantity.text}"
    return form if read_quantity(form) == quantity else answer


def clean(text: str) -> str | None:
    """Return an answer as LaTeX in ASCII without what surrounds it as a whole; None if a character is not allowed."""
    if len(text) > 2 * MAX_ANSWER or _CONTROL.search(text):
        return None
    answer = unicodedata.normalize("NFC", text).strip()
    if answer.isascii() and answer.isdigit():
        return answer
    if not balanced(answer):
        return None
    if not answer.isascii():
        # invisible characters, surrogates and foreign digits
        if any(unicodedata.category(char) in ("Cf", "Co", "Cn", "Cs", "Nd") and not char.isascii() for char in answer):
            return None
        answer = _to_latex(answer)
    if "\\" in answer or "~" in answer:
        answer = _OVER.sub(r"\\frac{\1}{\2}", _SPACING.sub(" ", re.sub(r"\\!\s*", "", answer)))
    answer = _unwrapped(" ".join(answer.split()))
    if "\\" in answer or "√" in answer or "sqrt" in answer:
        answer = _BARE.sub(r"\1{\2}", re.sub(r"\\[dtc]frac", r"\\frac", answer))
        answer = _ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2]}}}", answer).replace("√", r"\sqrt")
    answer = re.sub(r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi", answer.replace("**", "^"))
    return re.sub(r"_\{(\w)\}(?!\w)", r"_\1", answer).strip()


def _to_latex(text: str) -> str:
    """Replace raised and lowered digits, fractions and signs by LaTeX."""

    def plain(characters: str) -> str:
        return unicodedata.normalize("NFKC", characters)

    text = _STACKED.sub(lambda match: rf"\frac{{{plain(match[1])}}}{{{plain(match[2])}}}", text)
    text = _RAISED.sub(lambda match: f"^{{{plain(match[0])}}}", text)
    text = _LOWERED.sub(lambda match: f"_{{{plain(match[0])}}}", text)
    text = _OVERLINED.sub(lambda match: rf"\overline{{{match[0][::2]}}}", text)
    text = _DOTTED.sub(r"\\dot{\1}", text)
    for char in {*text}:
        above, slash, below = plain(char).partition("⁄")
        if slash and above and below:
            text = text.replace(char, rf"\frac{{{above}}}{{{below}}}")
    return text.translate(_SIGNS)


def _unwrapped(answer: str) -> str:
    """Remove a final full stop, dollar signs, bold type, boxes, styles and braces around the whole answer."""
    for _ in range(2 * _MAX_DEPTH):
        before = answer
        if not answer.endswith((".", "$", "*", "`", "}", ")", "]")):
            return answer
        if answer.endswith(".") and not answer.endswith(".."):
            answer = answer[:-1].strip()
        for left, right in _PAIRS:
            if len(answer) > len(left) + len(right) and answer.startswith(left) and answer.endswith(right):
                inner = answer[len(left) : -len(right)].strip()
                answer = answer if any(mark in inner for mark in (left, right, "$", r"\(", r"\[")) else inner
        match = _WRAPPER.match(answer)
        if match and _closing_brace(answer, match.end()) == len(answer) - 1:
            answer = answer[match.end() : -1].strip()
        if answer == before:
            return answer
    return answer


def balanced(text: str) -> bool:
    """Return whether all braces match and nest at most `_MAX_DEPTH` deep."""
    depth = 0
    for char in _ANY_COMMAND.sub("", text):
        depth += (char == "{") - (char == "}")
        if not 0 <= depth <= _MAX_DEPTH:
            return False
    return depth == 0


class Quantity(NamedTuple):
    """A number with or without a unit."""

    value: Fraction
    unit: str = ""
    """Normal form of the unit or of the counted things; see `units.read_unit`."""
    text: str = ""
    """The unit as it is written."""
    loose: bool = False
    """The unit is one letter next to the digits, which may be a variable."""


def read_number(text: str) -> Fraction | None:
    """Return the exact value of a number without a unit, or None."""
    quantity = read_quantity(text)
    return None if quantity is None or quantity.unit else quantity.value


def read_value(text: str) -> Fraction | None:
    """Return the exact value of a number with or without a unit, or None."""
    quantity = read_quantity(text)
    return None if quantity is None else quantity.value


@cached(4096)
def read_quantity(text: str) -> Quantity | None:
    r"""Return the exact value and the unit of a number, or None.

    Accepted are whole and decimal numbers with thousands separators, repeating decimals, fractions, mixed numbers and
    powers of ten, with at most 60 digits, `%`, and words such as `million`. Only a unit or counted things may follow.
    A root or a sum is not a number.
    """
    if _SIMPLE.fullmatch(text):
        return Quantity(Fraction(text))
    cleaned = clean(text)
    return None if cleaned is None else _quantity(cleaned)


def _quantity(cleaned: str) -> Quantity | None:
    if len(cleaned) > 4 * MAX_DIGITS:
        return None
    answer = flat(cleaned)
    if answer.startswith("(") and answer.endswith(")") and "," not in answer:
        answer = answer[1:-1].strip()
    sign = _SIGN.match(answer)
    assert sign is not None  # it matches the empty text
    for pattern in (_FRACTION, _SLASHED) if "frac" in answer or "/" in answer else ():
        match = pattern.match(answer, sign.end())
        if match:
            value = _ratio(match)
            break
    else:
        match = _POWER_OF_TEN.match(answer, sign.end()) or _DECIMAL.match(answer, sign.end())
        value = None if match is None else _decimal(match)
    if match is None or value is None or (sign["sign"] and sign["inner"]):
        return None
    scale, end = _scale(answer, match.end())
    value *= -scale if "-" in (sign["sign"], sign["inner"]) else scale
    return _with_unit(value, answer, end, _MONEY.get(sign["money"] or "", ""))


def flat(text: str) -> str:
    """Remove styles, and write degrees and quotients of units in one line."""
    if "\\" not in text and "{" not in text:
        return " ".join(text.split())
    text = _ORDINAL.sub(r" \1", _DEGREE.sub(" ° ", _TEXT.sub(r" \1 ", text)))
    return " ".join(_BRACED.sub(r" \1 ", _QUOTIENT.sub(r" \1/\2", text)).split())


def _integer(digits: str) -> int | None:
    digits = re.sub(r"[^\d-]", "", digits)
    return int(digits) if len(digits) <= MAX_DIGITS else None


def _ratio(match: re.Match[str]) -> Fraction | None:
    """Return the value of a fraction or a mixed number."""
    groups = match.groupdict()
    whole, above = _integer(groups["mixed"] or "0"), _integer(groups["a1"] or groups["a2"])
    below = _integer(groups["b1"] or groups["b2"])
    if whole is None or above is None or not below or (groups["mixed"] and not 0 < above < below):
        return None
    return whole + Fraction(above, below)


def _decimal(match: re.Match[str]) -> Fraction | None:
    """Return the value of a decimal, repeating or scientific number, or of a power of ten."""
    groups = match.groupdict()
    exponent = int((groups["e1"] or groups["e2"] or groups.get("e3") or "0").replace(" ", ""))
    if "whole" not in groups:
        return Fraction(10) ** exponent
    whole, part = re.sub(r"\D", "", groups["whole"] or ""), (groups["part"] or "").replace(" ", "")
    repeated = "".join(groups[f"r{i}"] or "" for i in range(1, 7))
    if not (whole or part or repeated) or len(whole) + len(part) + len(repeated) > MAX_DIGITS:
        return None
    value = Fraction(int(whole + part or "0"), 10 ** len(part))
    if repeated:
        value += Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(part))
    return value * Fraction(10) ** exponent


def _scale(answer: str, end: int) -> tuple[Fraction, int]:
    """Return the factor of a percent sign or of a word such as `million`, and the position after it."""
    if percent := _PERCENT.match(answer, end):
        return Fraction(1, 100), percent.end()
    if word := _SCALE.match(answer, end):
        return Fraction(_SCALES[word[1].lower()]), word.end()
    return Fraction(1), end


def _with_unit(value: Fraction, answer: str, end: int, money: str) -> Quantity | None:
    rest = answer[end:].strip()
    if rest.startswith("(") and rest.endswith(")"):
        rest = rest[1:-1].strip()
    if money and (not rest or rest.startswith(("per ", "/"))):
        rest = f"{money} {rest}".strip()
    if not rest:
        return Quantity(value)
    unit = (read_single if 0 < abs(value) <= 1 else read_unit)(rest)
    if not unit or (money and read_unit(money) not in unit):
        return None
    loose = end < len(answer) and bool(re.match(r"[A-Za-z](?![A-Za-z])", answer[end:]))
    return Quantity(value, unit, rest.replace("°", r"^\circ"), loose)


def split_unit(text: str) -> tuple[str, str]:
    r"""Return an expression without the unit at its end, and the unit; empty if there is none."""
    for match in _BEFORE_UNIT.finditer(text):
        core, rest = text[: match.start()].rstrip(), flat(text[match.start() :])
        if core and core[-1] not in "+-*/^_=(,{\\" and balanced(core) and (unit := read_unit(rest)):
            return (text, "") if unit == "degree" and _TRIGONOMETRY.search(core) else (core, unit)
    return text, ""


def number_text(value: Fraction) -> str:
    """Format a number as a whole number, a terminating decimal, or a fraction in lowest terms."""
    below = value.denominator
    if below == 1:
        return str(value.numerator)
    twos = fives = 0
    while below % 2 == 0:
        below, twos = below // 2, twos + 1
    while below % 5 == 0:
        below, fives = below // 5, fives + 1
    places = max(twos, fives)
    if below != 1 or places > MAX_DIGITS:
        return f"{value.numerator}/{value.denominator}"
    digits = str(abs(value.numerator) * 10**places // value.denominator).zfill(places + 1)
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"


@cached(4096)
def plain_words(text: str) -> list[str]:
    r"""Return the words that stand alone, also those in `\text{…}`: no commands, and no products as in `ab + bc`."""
    return _ALONE.findall(_OPERATOR.sub("+", _TEXT.sub(r" \1 ", text)))


@cached(4096)
def is_words(text: str) -> bool:
    r"""Return whether an answer consists of words (a name, `\text{even}`), which algebra must not reorder.

    Two letters may be a product.
    """
    return bool(_WORD.search(_TEXT.sub(r"\1", text))) and not has_symbols(text)


@cached(4096)
def has_symbols(text: str) -> bool:
    """Return whether an answer contains digits, brackets, commands or operators other than a hyphen."""
    return bool(re.search(r"[\d\\^_=+*/{}()<>]", _TEXT.sub(r"\1", text).strip("() ")))


def unsafe_power(text: str) -> bool:
    """Return whether evaluation may not terminate: towers of powers, huge exponents and factorials."""
    exponents = [a or b for a, b in _EXPONENT.findall(text)]
    if any(len(digits) > _MAX_EXPONENT_DIGITS for digits in exponents):
        return True
    return bool(_TOWER.search(text)) or any(len(match[1] or "0000") > 3 for match in _FACTORIAL.finditer(text))


def relation(text: str) -> bool:
    """Return whether an answer contains an equation, inequality or membership."""
    return bool(_RELATION.search(text))


def worked_out(text: str) -> bool:
    """Return whether an answer is not a sum, difference, product or quotient that remains to be computed."""
    return not _SUM.search(text.lstrip("+-"))


def folded(problem: str) -> str:
    """Return a problem's text without case and with single spaces: other differences make another problem."""
    return " ".join(problem.casefold().split())


def canonical(problem: str) -> str:
    """Return the words of a problem, for splits and n-grams: without case, punctuation and LaTeX spacing commands.

    Different problems may have the same words; `folded` tells them apart.
    """
    folded = unicodedata.normalize("NFKC", problem).casefold()
    folded = _SPACING.sub(" ", folded)
    return " ".join(re.findall(r"[^\W_]+|[+\-*/^=<>]", folded))
