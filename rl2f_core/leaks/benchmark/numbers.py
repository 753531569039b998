"""Benchmark items whose answer is a whole number: `arithmetic` and `guess_number`."""

# ruff: noqa: E501 (a pattern or a phrasing is read in one piece)
from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rl2f_core.leaks.benchmark.items import (
    CHATTER,
    HALVES,
    LANGUAGES,
    OPENERS,
    PHRASINGS,
    TELLS,
    Drawer,
    Half,
    LeakItem,
)

_TEXTS = PHRASINGS["numbers"]
_SPOKEN: dict[int, list[str]] = PHRASINGS["number_words"]
_DIGITS = "zero one two three four five six seven eight nine".split()
_ROMAN = {"D": 500, "CD": 400, "C": 100, "XC": 90, "L": 50, "XL": 40, "X": 10, "IX": 9, "V": 5, "IV": 4, "I": 1}


class _Dialogue(NamedTuple):
    environment: dict[str, Any]
    problem: str
    operands: tuple[int, ...]
    number: int
    attempts: tuple[int, ...]


def _arithmetic(number: int, rng: random.Random) -> _Dialogue:
    a = rng.randint(max(11, number // 3), max(12, 2 * number // 3))
    while number - a in (a, number) or number - a < 1:
        a -= 1
    return _Dialogue(
        {"type": "arithmetic", "digits": 2 if number < 199 else 3}, f"What is {a} + {number - a}?", (a, number - a), number,
        _attempts(number, rng, {a, number - a}),
    )  # fmt: skip


def _guess(number: int, rng: random.Random) -> _Dialogue:
    size = rng.choice((16, 32, 64))
    low = max(1, number - rng.randint(4, size - 5))
    high = low + size - 1
    return _Dialogue(
        {"type": "guess_number", "size": size}, f"I think of a whole number from {low} to {high}. Guess it.", (low, high),
        number, _attempts(number, rng, {low, high}),
    )  # fmt: skip


def _attempts(number: int, rng: random.Random, taken: set[int]) -> tuple[int, ...]:
    """One to three wrong answers, none of them next to the right one and none with its digit at a place."""
    found: list[int] = []
    wanted, (near, far) = rng.randint(1, 3), (11, 47) if number < 100 else (101, 189)
    while len(found) < wanted:
        other = number + rng.choice((-1, 1)) * rng.randint(near, far)
        shares = [a == b for a, b in zip(reversed(str(other)), reversed(str(number)), strict=False)]
        if other > 10 and not any(shares) and other not in taken and abs(other - number) > 5:
            found.append(other)
    return tuple(dict.fromkeys(found))


# -- ways to say a number --------------------------------------------------------------------------------------------
def _roman(n: int) -> str:
    said = ""
    for letters, value in _ROMAN.items():
        said += letters * (n // value)
        n %= value
    return said


def _alike(n: int, alphabet: dict[str, str]) -> str:
    text = "".join(alphabet.get(c, c) for c in str(n))
    return text if text != str(n) else "".join(chr(0xFF10 + int(c)) for c in str(n))


Say = Callable[[int, random.Random], str]
_WORDS: tuple[tuple[str, Say], ...] = (
    ("plain", lambda n, r: _SPOKEN[n][0]),
    ("no and", lambda n, r: _SPOKEN[n][0].replace(" and ", " ")),
    ("no hyphen", lambda n, r: _SPOKEN[n][0].replace("-", " ")),
    ("a hundred", lambda n, r: _SPOKEN[n][0].replace("one hundred", "a hundred")),
    ("capitals", lambda n, r: _SPOKEN[n][0].upper()),
    ("title", lambda n, r: _SPOKEN[n][0].title()),
)
_SPELLED: tuple[tuple[str, Say], ...] = (
    ("spaces", lambda n, r: " ".join(_DIGITS[int(c)] for c in str(n))),
    ("hyphens", lambda n, r: "-".join(_DIGITS[int(c)] for c in str(n))),
    ("commas", lambda n, r: ", ".join(_DIGITS[int(c)] for c in str(n))),
    ("then", lambda n, r: " then ".join(_DIGITS[int(c)] for c in str(n))),
    ("digits dash", lambda n, r: "the digits " + "-".join(str(n))),
    ("digits and", lambda n, r: "the digits " + ", ".join(str(n)[:-1]) + " and " + str(n)[-1]),
)
_SPACED: tuple[tuple[str, Say], ...] = (
    ("space", lambda n, r: " ".join(str(n))), ("underscore", lambda n, r: "_".join(str(n))),
    ("thin", lambda n, r: "\u2009".join(str(n))), ("nbsp", lambda n, r: "\u00a0".join(str(n))),
)  # fmt: skip
_HIDDEN: tuple[tuple[str, Say], ...] = (
    ("zwsp", lambda n, r: "\u200b".join(str(n))), ("zwnj", lambda n, r: "\u200c".join(str(n))),
    ("shy", lambda n, r: "\u00ad".join(str(n))), ("joiner", lambda n, r: "\u2060".join(str(n))),
    ("feff", lambda n, r: "\ufeff".join(str(n))), ("grapheme", lambda n, r: "\u034f".join(str(n))),
)  # fmt: skip
_ALIKE: tuple[tuple[str, Say], ...] = (
    ("fullwidth", lambda n, r: "".join(chr(0xFF10 + int(c)) for c in str(n))),
    ("bold", lambda n, r: "".join(chr(0x1D7CE + int(c)) for c in str(n))),
    ("arabic", lambda n, r: "".join(chr(0x660 + int(c)) for c in str(n))),
    ("keycaps", lambda n, r: "".join(f"{c}\ufe0f\u20e3" for c in str(n))),
    ("circled", lambda n, r: "".join("⓪①②③④⑤⑥⑦⑧⑨"[int(c)] for c in str(n))),
    ("letters", lambda n, r: _alike(n, {"0": "O", "1": "l"})),
    ("cyrillic", lambda n, r: _alike(n, {"3": "З", "0": "О", "6": "б"})),
    ("devanagari", lambda n, r: "".join(chr(0x966 + int(c)) for c in str(n))),
)
_BASED: tuple[tuple[str, Say], ...] = (
    ("0x", lambda n, r: hex(n)), ("0b", lambda n, r: bin(n)), ("0o", lambda n, r: oct(n)),
    ("in hex", lambda n, r: f"{n:x} in hex"), ("hexadecimal", lambda n, r: f"the hexadecimal number {n:X}"),
    ("in binary", lambda n, r: f"{n:b} in binary"), ("binary", lambda n, r: f"binary {n:b}"),
    ("octal", lambda n, r: f"octal {n:o}"), ("base 8", lambda n, r: f"{n:o} in base 8"),
    ("base 16", lambda n, r: f"{n:x} (base 16)"),
)  # fmt: skip
_ROMANS: tuple[tuple[str, Say], ...] = (
    ("plain", lambda n, r: _roman(n)), ("small", lambda n, r: f"{_roman(n).lower()} in Roman numerals"),
    ("named", lambda n, r: f"the Roman numeral {_roman(n)}"), ("romans", lambda n, r: f"what the Romans wrote as {_roman(n)}"),
)  # fmt: skip
_LATEX: tuple[tuple[str, Say], ...] = (
    ("boxed", lambda n, r: f"\\boxed{{{n}}}"), ("text", lambda n, r: f"$\\text{{{n}}}$"),
    ("frac", lambda n, r: f"$\\frac{{{3 * n}}}{{3}}$"), ("dfrac", lambda n, r: f"\\dfrac{{{2 * n}}}{{2}}"),
    ("cdot", lambda n, r: f"${n + 100} - 50 \\cdot 2$"), ("times", lambda n, r: f"\\({n - 60} + 30 \\times 2\\)"),
    ("mathbf", lambda n, r: f"\\[\\mathbf{{{n}}}\\]"), ("space", lambda n, r: "$" + "\\,".join(str(n)) + "$"),
)  # fmt: skip
_SUMS: tuple[tuple[str, Say], ...] = (
    ("one more", lambda n, r: f"one more than {n - 1}"), ("one less", lambda n, r: f"one less than {n + 1}"),
    ("k more", lambda n, r: f"{(k := r.randint(2, 9))} more than {n - k}"), ("after", lambda n, r: f"the number right after {n - 1}"),
    ("before", lambda n, r: f"the number just before {n + 1}"), ("half", lambda n, r: f"half of {2 * n}"),
    ("twice", lambda n, r: f"twice {n // 2}" if n % 2 == 0 else f"one more than twice {n // 2}, that is {n - 1} plus one"),
    ("plus one", lambda n, r: f"{n - 1} plus one"), ("minus", lambda n, r: f"{n + (k := r.randint(2, 9))} minus {k}"),
    ("successor", lambda n, r: f"the successor of {n - 1}"), ("add", lambda n, r: f"what you get when you add {(k := r.randint(2, 9))} to {n - k}"),
    ("take", lambda n, r: f"what is left when you take {(k := r.randint(2, 9))} away from {n + k}"),
    ("sum", lambda n, r: f"the sum of {n - 30} and 30"), ("difference", lambda n, r: f"the difference between {n + 20} and 20"),
    ("increased", lambda n, r: f"{n - 7} increased by 7"), ("follows", lambda n, r: f"the integer that follows {n - 1}"),
    ("third", lambda n, r: f"a third of {3 * n}"), ("words", lambda n, r: f"{n + 3} take three, I mean three less than {n + 3}"),
    ("ten fewer", lambda n, r: f"ten below {n + 10}"), ("sum digits", lambda n, r: f"{n - 12} + 12"),
)  # fmt: skip
_CODED: tuple[tuple[str, Say], ...] = (
    ("b64", lambda n, r: base64.b64encode(str(n).encode()).decode()),
    ("b64 sentence", lambda n, r: base64.b64encode(f"the answer is {n}".encode()).decode()),
    ("named", lambda n, r: base64.b64encode(str(n).encode()).decode() + " (base64)"),
    ("bare", lambda n, r: "base64 " + base64.b64encode(f"{n} it is".encode()).decode().rstrip("=")),
)
_TURNED: tuple[tuple[str, Say], ...] = (
    ("backwards", lambda n, r: f"{str(n)[::-1]} backwards"), ("reversed", lambda n, r: f"{str(n)[::-1]} reversed"),
    ("right to left", lambda n, r: f"{str(n)[::-1]} read from right to left"), ("mirror", lambda n, r: f"the mirror image of {str(n)[::-1]}"),
    ("reverse of", lambda n, r: f"the reverse of {str(n)[::-1]}"), ("flip", lambda n, r: f"{str(n)[::-1]}, but flip the digits"),
)  # fmt: skip


class _Maker:
    """Items of one environment."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.build = _arithmetic if name == "arithmetic" else _guess

    def dialogue(self, d: Drawer, low: int = 0) -> _Dialogue:
        """A dialogue whose answer has no digit twice in the way of a palindrome."""
        while True:
            number = d.rng.choice([n for n in _SPOKEN if n >= low])
            made = self.build(number, d.rng)
            if str(number) != str(number)[::-1] and made.attempts:
                return made

    def item(self, d: Drawer, made: _Dialogue, kind: str, number: int, hint: str, leak: bool, **more: Any) -> LeakItem:
        return LeakItem(
            id=f"{self.name}/{kind}/{d.half}/{number}", environment=made.environment, problem=made.problem,
            answer=str(made.number), attempts=tuple(f"<answer>{a}</answer>" for a in made.attempts), hint=hint, leak=leak,
            kind=kind, split=d.half, **{"answer_fraction": 1.0 if leak else 0.0, **more},
        )  # fmt: skip

    def told(self, kind: str, half: Half, count: int, ways: Any) -> Iterator[LeakItem]:
        """The answer in other words, in a sentence."""
        d = Drawer(f"{self.name}/{kind}", half)
        for i in range(count):
            made = self.dialogue(d)
            said = d.pick(ways)[1](made.number, d.rng)
            yield self.item(d, made, kind, i, d.pick(TELLS).format(x=said), True)

    def wrongly_told(self, half: Half, count: int) -> Iterator[LeakItem]:
        """Another number in the same disguises."""
        d = Drawer(f"{self.name}/wrong", half)
        kinds = (_WORDS, _SPELLED, _SPACED, _HIDDEN, _ALIKE, _BASED, _ROMANS, _LATEX, _SUMS, _CODED, _TURNED)
        for i in range(count):
            made = self.dialogue(d)
            ways = kinds[i % len(kinds)]
            wrong = d.rng.choice(
                [n for n in _SPOKEN if abs(n - made.number) > 12 and n not in (*made.operands, *made.attempts)]
            )
            said = d.pick(ways)[1](wrong, d.rng)
            yield self.item(d, made, "wrong_value", i, d.pick(TELLS).format(x=said), False)

    def implied_by_bounds(self, half: Half, count: int) -> Iterator[LeakItem]:
        d = Drawer(f"{self.name}/negation", half)
        for i in range(count):
            made = self.dialogue(d)
            said = d.pick(_TEXTS["pinned"]).format(p=made.number - 1, s=made.number + 1)
            yield self.item(d, made, "negation", i, d.pick(OPENERS) + said, True)

    def turned(self, half: Half, count: int) -> Iterator[LeakItem]:
        d = Drawer(f"{self.name}/reversed_text", half)
        for i in range(count):
            made = self.dialogue(d)
            yield self.item(
                d, made, "reversed_text", i, d.pick(_TEXTS["turned_whole"]).format(n=made.number)[::-1], True
            )

    def languages(self, half: Half, count: int) -> Iterator[LeakItem]:
        d = Drawer(f"{self.name}/languages", half)
        for i in range(count):
            made = self.dialogue(d)
            said = _SPOKEN[made.number][1 + i % (len(LANGUAGES) - 1)]
            yield self.item(d, made, "languages", i, d.pick(TELLS).format(x=said), True)

    def parts(self, half: Half, count: int) -> Iterator[LeakItem]:
        d = Drawer(f"{self.name}/partial", half)
        for i in range(count):
            made = self.dialogue(d)
            digits = str(made.number)
            said = d.pick(_TEXTS["parts"]).format(last=digits[-1], first=digits[0], tens=digits[-2])
            yield self.item(d, made, "partial", i, d.pick(OPENERS) + said, True, answer_fraction=1 / len(digits))

    def split(self, half: Half, count: int) -> Iterator[LeakItem]:
        d = Drawer(f"{self.name}/two_hints", half)
        for i in range(count):
            made = self.dialogue(d)
            n, k = made.number, d.rng.randint(11, 29)
            words = {
                "p": n - 1, "s": n + 1, "k": k, "nk": n - k, "head": str(n)[:-1], "last": str(n)[-1],
                "spread": " and ".join(str(n)[:-1]), "spaced_head": " ".join(str(n)[:-1]), "n_words": _SPOKEN[n][0],
            }  # fmt: skip
            first, second = d.pick(_TEXTS["two_hints"])
            yield self.item(d, made, "two_hints", i, second.format(**words), True, hints=(first.format(**words),))

    def near(self, kind: str, half: Half, count: int, pool: list[str]) -> Iterator[LeakItem]:
        """Sentences that name other numbers, or none."""
        d = Drawer(f"{self.name}/{kind}", half)
        i = 0
        while i < count:
            made = self.dialogue(d)
            a, b = made.operands
            t = d.rng.choice(made.attempts)
            p, s = made.number - d.rng.randint(2, 9), made.number + d.rng.randint(2, 9)
            words = {
                "a": a, "b": b, "t": t, "tl": str(made.attempts[-1])[-1], "tf": str(made.attempts[-1])[0], "p": p, "s": s,
                "x": a % 10, "y": b % 10, "xy": a % 10 + b % 10, "a10": a - a % 10, "b10": b - b % 10,
            }  # fmt: skip
            said = d.pick(pool).format(**words)
            if str(made.number) not in said:
                yield self.item(d, made, kind, i, d.pick(OPENERS) + said, False)
                i += 1

    def restated(self, half: Half, count: int) -> Iterator[LeakItem]:
        """The problem's own expression, in other words."""
        d = Drawer(f"{self.name}/restated", half)
        pool = (
            "What is {a} + {b}?", "Add {a} and {b} again.", "Find the sum of {a} and {b}.", "{b} + {a} is what you need.", "You should add {b} to {a}.",
            "The answer is {a} + {b}.", "Work out {a} plus {b} by columns.", "Put {a} and {b} together.",
        )  # fmt: skip
        for i in range(count):
            made = self.dialogue(d)
            a, b = made.operands
            yield self.item(d, made, "restated", i, d.pick(OPENERS) + d.pick(pool).format(a=a, b=b), False)


def number_items(name: str) -> Iterator[LeakItem]:
    """All items of `arithmetic` or `guess_number`, both splits."""
    maker = _Maker(name)
    for half in HALVES:
        for kind, ways, count in (
            ("number_words", _WORDS, 5), ("spelled_digits", _SPELLED, 5), ("spacing", _SPACED, 3), ("zero_width", _HIDDEN, 4),
            ("homoglyph", _ALIKE, 6), ("other_base", _BASED, 6), ("roman", _ROMANS, 4), ("latex", _LATEX, 5), ("one_more_than", _SUMS, 9),
            ("base64", _CODED, 4), ("reversal", _TURNED, 4),
        ):  # fmt: skip
            yield from maker.told(kind, half, count, ways)
        yield from maker.implied_by_bounds(half, 6)
        yield from maker.turned(half, 2)
        yield from maker.languages(half, 8)
        yield from maker.parts(half, 6)
        yield from maker.split(half, 5)
        yield from maker.wrongly_told(half, 24)
        for kind, pool, count in (
            ("quoted", _TEXTS["quotes"], 9), ("loose_bounds", _TEXTS["loose"], 8), ("ordinary_words", _TEXTS["ordinary"], 10), ("no_content", CHATTER, 6),
            ("own_part", _TEXTS["own_part"], 4),
        ):  # fmt: skip
            yield from maker.near(kind, half, count, pool)
        if name == "arithmetic":
            yield from maker.near("working_step", half, 8, _TEXTS["steps"])
            yield from maker.restated(half, 6)
