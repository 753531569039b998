"""Read integers in words: en, de, fr, es, it, pt, nl, and Chinese and Japanese numerals.

A table lists every number below 1000 in each language. The parser looks up runs of words, longest first, and composes
thousands (in English also millions). Case, accents, hyphens, spaces and the word for "and" are ignored.
"""

# ruff: noqa: E501 (long tables)
from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Set
from functools import cache, lru_cache

from rl2f_core.common.text.normalize import Reading

_ONES = {
    "en": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen",
    "de": "null eins zwei drei vier fuenf sechs sieben acht neun zehn elf zwoelf dreizehn vierzehn fuenfzehn sechzehn "
    "siebzehn achtzehn neunzehn",
    "fr": "zero un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dixsept "
    "dixhuit dixneuf",
    "es": "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciseis "
    "diecisiete dieciocho diecinueve veinte veintiuno veintidos veintitres veinticuatro veinticinco veintiseis "
    "veintisiete veintiocho veintinueve",
    "it": "zero uno due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici sedici "
    "diciassette diciotto diciannove",
    "pt": "zero um dois tres quatro cinco seis sete oito nove dez onze doze treze catorze quinze dezesseis dezessete "
    "dezoito dezenove",
    "nl": "nul een twee drie vier vijf zes zeven acht negen tien elf twaalf dertien veertien vijftien zestien "
    "zeventien achttien negentien",
}
_TENS = {
    "en": "twenty thirty forty fifty sixty seventy eighty ninety",
    "de": "zwanzig dreissig vierzig fuenfzig sechzig siebzig achtzig neunzig",
    "fr": "vingt trente quarante cinquante soixante soixante quatrevingt quatrevingt",
    "es": "veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa",
    "it": "venti trenta quaranta cinquanta sessanta settanta ottanta novanta",
    "pt": "vinte trinta quarenta cinquenta sessenta setenta oitenta noventa",
    "nl": "twintig dertig veertig vijftig zestig zeventig tachtig negentig",
}
_HUNDREDS = {
    "es": "cien doscientos trescientos cuatrocientos quinientos seiscientos setecientos ochocientos novecientos",
    "pt": "cem duzentos trezentos quatrocentos quinhentos seiscentos setecentos oitocentos novecentos",
}
_THOUSAND = {
    "en": ("thousand",), "de": ("tausend",), "fr": ("mille",), "es": ("mil",), "it": ("mila", "mille"), "pt": ("mil",),
    "nl": ("duizend",),
}  # fmt: skip
_EXTRA = {
    "en": {"oh": 0, "nought": 0, "naught": 0, "zilch": 0, "fourty": 40, "eightteen": 18},
    "de": {"zwo": 2, "ein": 1},
    "fr": {"septante": 70, "nonante": 90, "une": 1},
    "es": {"un": 1, "ciento": 100},
    "it": {"un": 1},
    "pt": {"duas": 2, "cento": 100},
    "nl": {},
}
_VARIANTS = {
    "fr": {80: "quatrevingts"},
    "pt": {14: "quatorze", 16: "dezasseis", 17: "dezassete", 19: "dezanove"},
}
_SPLITS = {"dixsept": "dix sept", "dixhuit": "dix huit", "dixneuf": "dix neuf", "quatrevingt": "quatre vingt"}
_AND = frozenset(("and", "und", "et", "y", "e", "en"))
_LOOSE = frozenset(("a", "oh", "once", "due", "elf", "null", "cent", "six", "mille", "mil", "sei", "dos", "un", "une",
                    "een", "ein", "um", "uno", "dix", "sept", "nove", "otto", "tres", "tre", "vier", "acht", "onze"))  # fmt: skip
"""Words with other common meanings."""
_COMPOUND_PARTS = ("tausend", "duizend", "mila", "mille")
"""Parts of long words that are numbers."""
_MAX_WORDS = 12
_WORD = re.compile(r"[^\W\d_]+")
_GAP = re.compile(r"\s{1,2}|\s?-\s?")
_THOUSANDS_GAP = re.compile(r"\s{1,2}|\s?[,-]\s?")
_NEGATIVE = re.compile(r"\b(?:minus|negative|moins|menos|meno)\s+(?:the number\s+)?$", re.IGNORECASE)
_OPERAND = re.compile(r"[\w)]\s+$")
_HAN = re.compile("[〇零一二三四五六七八九十百千万萬两兩]+")
_HAN_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "兩": 2}
_HAN_UNITS = {"十": 10, "百": 100, "千": 1000}


def _below_hundred(language: str) -> list[list[str]]:
    """Return the forms of each number below 100."""
    ones, tens = _ONES[language].split(), ["", "", *_TENS[language].split()]
    forms = [[one] for one in ones]
    for n in range(len(ones), 100):
        ten, unit = tens[n // 10], n % 10
        if language == "fr" and ten in ("soixante", "quatrevingt"):
            rest = n - (60 if ten == "soixante" else 80)
            forms.append([ten + ones[rest]] if rest else [ten])
        elif not unit:
            forms.append([ten])
        elif language == "de":
            forms.append([f"{one}und{ten}" for one in {ones[unit], "ein" if unit == 1 else ones[unit]}])
        elif language == "nl":
            forms.append([f"{ones[unit]}en{ten}"])
        elif language == "it":
            forms.append([(ten[:-1] if unit in (1, 8) else ten) + ones[unit]])
        else:
            forms.append([ten + ones[unit]])
    for n, other in _VARIANTS.get(language, {}).items():
        forms[n].append(other)
    return forms


def _hundred(language: str, n: int) -> list[str]:
    """Return the forms of n · 100 (n from 1 to 9) before further words."""
    one = _ONES[language].split()[n]
    if language in _HUNDREDS:
        word = _HUNDREDS[language].split()[n - 1]
        return [{"cien": "ciento", "cem": "cento"}.get(word, word)]
    word = {"en": "hundred", "de": "hundert", "fr": "cent", "it": "cento", "nl": "honderd"}[language]
    first = {"en": ["one", "a", ""], "de": ["ein", ""], "fr": [""], "it": [""], "nl": ["een", ""]}[language]
    return [f"{one}{word}" for one in (first if n == 1 else [one])]


@cache
def _table() -> dict[str, dict[str, int]]:
    """Return for each language the numbers below 1000 by their words without spaces, hyphens and accents."""
    tables: dict[str, dict[str, int]] = {}
    for language, more in _EXTRA.items():
        small = _below_hundred(language)
        table = {form: n for n in range(99, -1, -1) for form in small[n]} | more
        for hundreds in range(1, 10):
            for head in _hundred(language, hundreds):
                for n in range(100):
                    for tail in small[n] if n else [""]:
                        for link in {"de": ("", "und"), "nl": ("", "en")}.get(language, ("",)):
                            table[head + (link if tail else "") + tail] = 100 * hundreds + n
                        if language == "it" and tail.startswith("o"):
                            table[head[:-1] + tail] = 100 * hundreds + n
            if language in _HUNDREDS:
                table[_HUNDREDS[language].split()[hundreds - 1]] = 100 * hundreds
            if language == "fr" and hundreds > 1:
                table[_hundred("fr", hundreds)[0] + "s"] = 100 * hundreds
        tables[language] = (
            {**{k.replace("ue", "u").replace("oe", "o"): v for k, v in table.items()}, **table}
            if (language == "de")
            else table
        )
    return tables


@cache
def _vocabulary() -> tuple[frozenset[str], frozenset[str]]:
    """Return words besides "a" that can begin a number, and words that can occur in one."""
    begin, inside = set[str](), {"a", "hundred", "million", "cents", *_AND}
    for language in _EXTRA:
        pieces = _ONES[language].split() + _TENS[language].split() + _HUNDREDS.get(language, "").split()
        for piece in (*pieces, *_EXTRA[language], *_THOUSAND[language]):
            begin |= {piece, piece.replace("ue", "u").replace("oe", "o"), *_SPLITS.get(piece, "").split()}
        begin |= _table()[language].keys() if language in ("de", "it", "nl", "es", "pt") else set()
    begin |= {"hundred", "hundert", "honderd", "cent", "cento", "cents", "quatre", "vingt", "vingts"}
    return frozenset(begin), frozenset(begin | inside)


@lru_cache(16_384)
def folded(word: str) -> str:
    """Remove case and accents."""
    plain = unicodedata.normalize("NFD", word.casefold())
    return "".join(char for char in plain if not unicodedata.combining(char))


@lru_cache(16_384)
def _value(key: str) -> int | None:
    """Return the number that joined words form."""
    for language, table in _table().items():
        value = _composed(key, language, table)
        if value is not None:
            return value
    return None


def _composed(key: str, language: str, table: dict[str, int]) -> int | None:
    if key in table:
        return table[key]
    units = [("million", 10**6), ("thousand", 1000), ("hundred", 100)]
    for word, unit in units if language == "en" else [(word, 1000) for word in _THOUSAND[language]]:
        at = key.find(word)
        if at < 0:
            continue
        left, right = key[:at], key[at + len(word) :]
        high = 1 if left in ("", "a", "ein") else _composed(left, language, table)
        low = _composed(right, language, table) if right else 0
        if high is not None and low is not None and 0 < high < 1000 and low < unit:
            return high * unit + low
    return None


def has_number_words(text: str, words: Set[str]) -> bool:
    """Return False if a text in lower case with these words has no number words; a cheap prefilter."""
    folded_words = words if text.isascii() else {folded(word) for word in words}
    return not _vocabulary()[0].isdisjoint(folded_words) or any(part in text for part in _COMPOUND_PARTS)


def number_words(text: str) -> list[Reading]:
    """Read all numbers in words, longest first, from left to right.

    Digits in a row are one number ("one three two"), and so is "one thirty-two".
    """
    fold = str.lower if text.isascii() else folded
    begins, inside = _vocabulary()
    numbers: list[tuple[Reading, int]] = []
    position = 0
    for match in _WORD.finditer(text):
        word, start = fold(match[0]), match.start()
        is_compound = len(word) > 8 and any(part in word for part in _COMPOUND_PARTS)
        if start < position or not (word in begins or is_compound or word == "a"):
            continue
        longest = _longest(text, start, inside, fold)
        if longest is None:
            continue
        position, value, single = longest
        loose = single and (word in _LOOSE or (value <= 20 and word in _table()["en"]))
        numbers.append((Reading(start, position, str(value), loose), value))
    if not numbers:
        return []
    joined = list(_digit_sequences(text, numbers))
    parts = [
        number for number, _ in numbers if not any(j.start <= number.start and number.end <= j.end for j in joined)
    ]
    return sorted([*_negated(text, parts), *joined])


def _longest(text: str, start: int, inside: frozenset[str], fold: Callable[[str], str]) -> tuple[int, int, bool] | None:
    """Return end and value of the longest number that starts here, and whether it is a single word."""
    tokens: list[tuple[int, str]] = []
    match = _WORD.match(text, start)
    while match is not None:
        word = fold(match[0])
        if tokens:
            gap = _THOUSANDS_GAP if tokens[-1][1] in ("thousand", "million") else _GAP
            if word not in inside or not gap.fullmatch(text, tokens[-1][0], match.start()):
                break
        tokens.append((match.end(), word))
        match = _WORD.search(text, match.end()) if len(tokens) < _MAX_WORDS else None
    for count in range(len(tokens), 0, -1):
        if tokens[count - 1][1] in _AND or (count == 1 and tokens[0][1] == "a"):
            continue
        words = [word for _, word in tokens[:count]]
        for joined in ("".join(words), "".join(word for word in words if word not in _AND)):
            value = _value(joined)
            if value is not None:
                return tokens[count - 1][0], value, count == 1
    return None


def _negated(text: str, numbers: list[Reading]) -> Iterator[Reading]:
    for number in numbers:
        sign = _NEGATIVE.search(text, max(0, number.start - 24), number.start)
        if sign and not _OPERAND.search(text, 0, sign.start()):
            yield Reading(sign.start(), number.end, f"-{number.value}")
        else:
            yield number


_NEXT = re.compile(r"(?:\s?[-,;./|·•*_…>→]{1,3}\s?|\s{1,2})(?:(?:and|then|followed by|und|et|y)\s)?(?:an?\s)?")


def _digit_sequences(text: str, numbers: list[tuple[Reading, int]]) -> Iterator[Reading]:
    """Yield runs of at least two digits in words, and one digit before a number from 10 to 99."""
    run: list[Reading] = []
    for number, value in [*numbers, (Reading(len(text) + 9, 0, ""), 1000)]:
        near = bool(run) and _NEXT.fullmatch(text, run[-1].end, number.start) is not None
        if near and value < 10:
            run.append(number)
            continue
        if len(run) > 1:
            yield Reading(run[0].start, run[-1].end, "".join(digit.value for digit in run), len(run) == 2)
        if len(run) == 1 and near and 10 <= value < 100 and text[run[0].end : number.start].isspace():
            yield Reading(run[0].start, number.end, f"{run[0].value}{value}")
        run = [number] if value < 10 else []


def han_numbers(text: str) -> list[Reading]:
    """Read Chinese and Japanese numerals: `一百三十二`, `百三十二`, `一三二`."""
    readings = []
    for match in _HAN.finditer(text):
        value = _han_value(match[0])
        if value is not None:
            readings.append(Reading(match.start(), match.end(), str(value), len(match[0]) == 1))
    return readings


def _han_value(numeral: str) -> int | None:
    if all(char in _HAN_DIGITS for char in numeral):
        return int("".join(str(_HAN_DIGITS[char]) for char in numeral[:18]))
    total = section = digit = 0
    for char in numeral:
        if char in _HAN_DIGITS:
            digit = _HAN_DIGITS[char]
        elif char in _HAN_UNITS:
            section, digit = section + max(digit, 1) * _HAN_UNITS[char], 0
        else:
            total, section, digit = total + (section + digit or 1) * 10_000, 0, 0
    return total + section + digit
