"""Units and counted nouns: what may follow a number without changing its value.

A unit is a product of powers of known units and plural nouns (`km/h`, `square meters`, `red apples per person`). Any
other text after a number (`million`, `or more`, `is wrong`) is not a unit.
"""

from __future__ import annotations

import re

from rl2f_core.common.text.tokens import cached

_PREFIXES = "kilo k|centi c|milli m|micro µ μ|mega M|giga G|tera T|nano n|pico p|deci d|hecto h"
_PREFIXED = (
    "meter metre m|gram gramme g|second sec s|liter litre l L|watt W|volt V|ampere amp A|hertz Hz|joule J|newton N|"
    "pascal Pa|ohm Ω|coulomb C|farad F|mole mol|calorie cal|electronvolt eV|bit|byte"
)
_OTHERS = (
    "minute min|hour hr h|day|week wk|month|year yr|century|degree deg °|radian rad|celsius|fahrenheit|kelvin|"
    "inch in|foot feet ft|yard yd|mile mi|ounce oz|pound lb £ gbp|ton|tonne|gallon gal|quart qt|pint pt|cup|"
    "teaspoon tsp|tablespoon tbsp|acre|hectare ha|dollar $ usd|cent ¢|euro € eur|yen ¥ jpy|rupee ₹ rs inr|yuan cny rmb|"
    "won ₩ krw|ruble rouble ₽|franc chf|peso|am|pm|unit|point|th st nd rd|"
    "kilobyte KB|megabyte MB|gigabyte GB|terabyte TB"
)
_DERIVED = {
    "mph": {"mile": 1, "hour": -1},
    **{name: {"kilometer": 1, "hour": -1} for name in ("kph", "kmh", "kmph")},
    "cc": {"centimeter": 3},
}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_TEMPERATURES = {"C": "celsius", "F": "fahrenheit", "K": "kelvin"}
_AFTER_UNITS = frozenset("old long tall high wide deep".split())
_IRREGULAR = dict(
    pair.split("=")
    for pair in "people=person men=man women=woman children=child mice=mouse geese=goose teeth=tooth dice=die oxen=ox "
    "sheep=sheep fish=fish deer=deer cattle=cattle vertices=vertex radii=radius foci=focus data=datum loci=locus "
    "criteria=criterion".split()
)
_NO_NOUNS = frozenset(
    """a an the this that these those and or nor but not no none nothing never if unless else then so than as at by
    for from into of off on onto out over to up upon with within without about above across after against along
    among around before behind below between beyond down during except like near past since through till toward
    towards under until versus vs via is are was were be been being has have had do does did can could may might
    must shall should will would it its he she they them his her hers their theirs we us our ours you your yours
    my mine who whose which what when where why how all any both each every either neither few fewer many more
    most much less least lots several some such other another same only just even ever yet still also too very
    quite rather almost nearly perhaps maybe always sometimes often again once twice times plus minus divided
    multiplied mod modulo modulus remainder root power sin cos tan cot csc exp sqrt abs max gcd lcm
    log ln lim det arcsin arccos arctan true false right wrong correct incorrect valid invalid yes okay unknown
    undefined approx approximate circa estimated rounded negative positive infinite minimum maximum half halves
    third thirds quarter quarters whole equals means gives makes seems exceeds fails percent percents percentage
    percentages permille ratio sum possible probable sure unsure guess final""".split()
)
"""Words that are neither counted nor describe what is counted: function words and names of operations."""
_NUMBER_WORD = re.compile(
    r"(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)t(?:y|ie)|hundred|thousand|[a-z]*illion|googol(?:plex)?|dozen|lakh|crore"
    r"|score|gross|mil|mill|bil|factorial)(?:e?s)?"
)
_NO_SINGLE = re.compile(
    r"(?:great|less|larg|small|bigg|high|low|long|short)er|infinity|nope|[a-z]+(?:fold|wise)|[a-z]{3,}[^e]ed"
)
"""Words that no single thing is called, though its adjective may be."""
_FRACTION_WORD = re.compile(r"(?:four|fif|six|seven|eigh|nin|ten|teen|twelf|tie|hundred|thousand|illion)ths?$")
_TOKEN = re.compile(
    r"\s*(?:\^\s*\{?\s*(?P<power>-?\d)\s*\}?|(?P<word>[A-Za-z](?:\.[A-Za-z])+\.?|[A-Za-zµμΩ]+\.?|[°$£€¥₹₩₽¢])|(?P<mark>\\cdot|[*/]|(?<=[a-z]{3})-(?=[a-z]{3})))"
)


def _table() -> dict[str, str]:
    """Return the name of each unit by its spellings."""
    spellings = [(group.split()[0], group.split()) for group in f"{_PREFIXED}|{_OTHERS}".split("|")]
    for prefix, *signs in (group.split() for group in _PREFIXES.split("|")):
        for name, *others in (group.split() for group in _PREFIXED.split("|")):
            long = [prefix + word for word in (name, *others) if len(word) > 3]
            short = [sign + word for sign in signs for word in others if len(word) <= 3]
            spellings.append((prefix + name, [*long, *short]))
    return {spelling: name for name, group in reversed(spellings) for spelling in group}


_UNITS = _table()
_NAMES = frozenset(_UNITS.values())


@cached(4096)
def read_unit(text: str) -> str:
    r"""Return the normal form of a unit or of counted things, e.g. `kilometer hour^-1`; empty if the text is none.

    A noun must be in the plural. After `per` it is in the singular.
    """
    return _read(text, False)


@cached(1024)
def read_single(text: str) -> str:
    """Return the normal form as `read_unit` does, of one thing or of a part of it: the noun may be in the singular."""
    return _read(text, True)


def _read(text: str, singular: bool) -> str:
    powers: dict[str, int] = {}
    sign, factor, last, adjectives = 1, 1, "", 0
    tokens = list(_TOKEN.finditer(text))
    if "".join(token[0] for token in tokens).strip() != text.strip():
        return ""
    for i, token in enumerate(tokens):
        word = (token["word"] or "").rstrip(".").replace(".", "")
        if token["mark"] and not last:
            return ""
        if token["power"] or (last and word in ("squared", "cubed")):
            if last not in _NAMES:
                return ""
            powers[last] += sign * ((int(token["power"]) if token["power"] else _POWERS[word]) - 1)
        elif word in _TEMPERATURES and last == "degree":
            del powers[last]
            last = _TEMPERATURES[word]
            powers[last] = sign
        elif token["mark"] == "/" or word == "per":
            sign = -1
        elif word in _POWERS:
            factor = _POWERS[word]
        elif word == "of" and powers and not any(_is_no_noun(t["word"] or "of") for t in tokens[i + 1 :]):
            break
        elif word and not (word in _AFTER_UNITS and powers and i == len(tokens) - 1):
            names = _factors(word, singular or sign < 0)
            if not names and not (len(word) > 2 and _is_plain(word) and adjectives < 2):
                return ""
            adjectives += not names
            for name, power in names.items():
                powers[name] = powers.get(name, 0) + sign * power * factor
                last, factor, adjectives = name, 1, 0
    if adjectives or factor != 1:
        return ""
    if powers.keys() & {"celsius", "fahrenheit", "kelvin"}:
        powers.pop("degree", None)
    return " ".join(name if power == 1 else f"{name}^{power}" for name, power in sorted(powers.items()) if power)


def _factors(word: str, singular: bool) -> dict[str, int]:
    """Return the units of a word with their powers; empty if it is neither a unit nor a noun."""
    folded = word.lower()
    for form in (word, folded) if len(word) > 1 else (word,):
        stems = (form, form.removesuffix("s"), form.removesuffix("es")) if len(form) > 2 else (form,)
        for stem in (*stems, form.removesuffix("ies") + "y"):
            if stem in _UNITS or stem in _DERIVED:
                return _DERIVED.get(stem) or {_UNITS[stem]: 1}
    if folded in _IRREGULAR:
        return {_IRREGULAR[folded]: 1}
    if not _is_plain(word) or len(word) < 3:
        return {}
    if folded.endswith("s") and not folded.endswith(("ss", "us", "is")):
        return {re.sub(r"(?<=[^aeiou])ies$|(?<=[cs]h|.x|ss|zz)es$|s$", lambda m: "y" * (m[0] == "ies"), folded): 1}
    return {folded: 1} if singular and not _NO_SINGLE.fullmatch(folded) else {}


def _is_plain(word: str) -> bool:
    """Return whether a word may be a noun, or an adjective before one."""
    folded = word.lower()
    return not (_is_no_noun(folded) or folded.endswith("ly") or _FRACTION_WORD.search(folded)) and folded.isalpha()


def _is_no_noun(word: str) -> bool:
    return word in _NO_NOUNS or _NUMBER_WORD.fullmatch(word) is not None
