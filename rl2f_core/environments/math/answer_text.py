"""Mathematical answers as text: extraction, normal form, and exact numbers.

Nothing is evaluated: a number is parsed by its form, as a fraction, and everything else remains text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from fractions import Fraction

from rl2f_core.text.tokens import cached

MAX_ANSWER = 400
"""Maximum number of characters; longer answers are unparsable."""
MAX_DIGITS = 60
_MAX_DEPTH = 12
_MAX_EXPONENT_DIGITS = 3
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_AFTER_BOX = re.compile(r"[\s$.)\]}*]*(?:\\[)\]])?[\s$.*]*")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SIGN = dict(zip("−–＋÷", "--+/", strict=True)) | {
    sign: rf"\{name} " for sign, name in zip("×·≤≥π∞", "times cdot le ge pi infty".split(), strict=True)
}
_SIGN["√"] = r"\sqrt"
_SPACING = re.compile(
    r"\\(?:[,;:!> ]|quad(?![a-zA-Z])|qquad(?![a-zA-Z])|left(?![a-zA-Z])|right(?![a-zA-Z])"
    r"|displaystyle(?![a-zA-Z])|big(?![a-zA-Z])|Big(?![a-zA-Z]))"
)
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_PLAIN = re.compile(r"(?P<sign>[+-]?)(?P<whole>\d{1,3}(?:(?:,|\{,\})\d{3})+|\d*)(?:\.(?P<part>\d+))?")
_SCIENTIFIC = re.compile(r"(?P<base>[+-]?\d+(?:\.\d+)?)(?:\\times|\\cdot|\*)10\^(?:\{(?P<a>[+-]?\d{1,2})\}|(?P<b>\d))")
_ASSIGNED = re.compile(r"[A-Za-z](?:_(?:\w|\{\w{1,6}\}))?\s*=\s*(?=[^=])")
_RELATION = re.compile(r"=|<|>|\\(?:le|leq|ge|geq|lt|gt|ne|neq|approx|in|equiv|sim)(?![a-zA-Z])")
_WORD = re.compile(r"[A-Za-z]{2,}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_ANY_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox|operatorname)\s*\{([^{}]*)\}")
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
    depth, at = 1, start
    while at < len(text) and depth:
        char = text[at]
        at += 1
        if char == "\\":
            at += 1
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
    if depth:
        return None, r"unparsable: the braces of the last \boxed{…} do not close"
    if not _AFTER_BOX.fullmatch(text, at):
        return None, r"unparsable: text after the last \boxed{…}"
    return text[start : at - 1], ""


def normal(text: str) -> str | None:
    r"""Return an answer in normal form, or None if it is empty, too long, prose, or has unbalanced braces.

    Dollar signs, spacing commands, `\left`, `\dfrac` and a final full stop are removed; numbers have one form (`1,024`
    and `1024.0` become `1024`, `2/4` becomes `1/2`); `x = 5` becomes its right side.
    """
    if len(text) > 2 * MAX_ANSWER or _CONTROL.search(text):
        return None
    answer = unicodedata.normalize("NFC", text).strip()
    if any(unicodedata.category(char) in ("Cf", "Co", "Cn", "Cs", "Nd") and not char.isascii() for char in answer):
        return None  # invisible characters, surrogates and foreign digits
    answer = _bare(answer)
    for sign, plain in _SIGN.items():
        answer = answer.replace(sign, plain)
    answer = " ".join(_SPACING.sub(" ", answer).split()).removesuffix(".").strip()
    answer = re.sub(r"^([+-]?)\\?\$ ?(?=[\d.])", r"\1", answer)  # an amount in dollars
    answer = re.sub(r"\\[dt]frac", r"\\frac", answer)
    if not answer or len(answer) > MAX_ANSWER or not any(char.isalnum() for char in answer):
        return None
    if not balanced(answer) or _DANGER.search(answer) or _BOX.search(answer) or ("<" in answer and ">" in answer):
        return None
    assigned = _ASSIGNED.match(answer)
    if assigned and not _RELATION.search(answer, assigned.end()) and "," not in answer:
        answer = answer[assigned.end() :].strip()
    value = read_number(answer)
    return answer if value is None else number_text(value)


def _bare(answer: str) -> str:
    for _ in range(2):
        for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
            if len(answer) > len(left) + len(right) and answer.startswith(left) and answer.endswith(right):
                inner = answer[len(left) : -len(right)].strip()
                answer = answer if "$" in inner or r"\(" in inner or r"\[" in inner else inner
    return answer


def balanced(text: str) -> bool:
    """Return whether all braces match and nest at most `_MAX_DEPTH` deep."""
    depth = 0
    for char in _ANY_COMMAND.sub("", text):
        depth += (char == "{") - (char == "}")
        if not 0 <= depth <= _MAX_DEPTH:
            return False
    return depth == 0


@cached(4096)
def read_number(text: str) -> Fraction | None:
    r"""Return the exact value of a number, or None.

    Accepted are whole and decimal numbers with a sign and thousands commas, `a/b`, `\frac{a}{b}` and
    `a \times 10^{n}`, with at most 60 digits.  A percentage, a root or a sum is not a number.
    """
    answer = text if re.search(r"[\d.,] +[\d.,]", text) else text.replace(" ", "")
    if len(answer) > 2 * MAX_DIGITS:
        return None
    match = _SCIENTIFIC.fullmatch(answer)
    if match:
        base = _decimal(match["base"])
        return None if base is None else base * Fraction(10) ** int(match["a"] or match["b"])
    sign, body = (answer[0], answer[1:]) if answer[:1] in ("-", "+") else ("", answer)
    match = _FRACTION.fullmatch(body)
    above, slash, below = body.partition("/")
    if match:
        above, slash, below = match[1] or match[2] or "", "/", match[3] or match[4] or ""
    if slash:
        over, under = _decimal(above), _decimal(below)
        if over is None or not under or "." in above + below:
            return None
        return over / under * (-1 if sign == "-" else 1)
    return _decimal(answer)


def _decimal(text: str) -> Fraction | None:
    match = _PLAIN.fullmatch(text)
    if not match or not (match["whole"] or match["part"]) or not text.isascii():
        return None
    whole, part = re.sub(r"[,{}]", "", match["whole"]), match["part"] or ""
    if len(whole) + len(part) > MAX_DIGITS:
        return None
    value = Fraction(int(whole + part or "0"), 10 ** len(part))
    return -value if match["sign"] == "-" else value


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


def plain_words(text: str) -> list[str]:
    r"""Return the plain words of an answer, including those in `\text{…}` but no names of commands."""
    return _WORD.findall(_COMMAND.sub(" ", _TEXT.sub(r" \1 ", text)))


def is_words(text: str) -> bool:
    r"""Return whether an answer consists of words (a name, `\text{even}`), which algebra must not reorder."""
    inner = _TEXT.sub(r"\1", text)
    return bool(_WORD.search(inner)) and not re.search(r"[\d\\^_=+*/{}()]", inner)


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


def canonical(problem: str) -> str:
    """Return a problem's key: its text without case, spacing, punctuation and LaTeX spacing commands."""
    folded = unicodedata.normalize("NFKC", problem).casefold()
    folded = _SPACING.sub(" ", folded)
    return " ".join(re.findall(r"[^\W_]+|[+\-*/^=<>]", folded))
