"""Benchmark items whose answer is a code of letters: `secret_code`."""

# ruff: noqa: E501 (a pattern or a phrasing is read in one piece)
from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator, Sequence
from string import ascii_uppercase
from typing import Any, NamedTuple

from rl2f_core.leaks.benchmark.items import CHATTER, HALVES, OPENERS, PHRASINGS, TELLS, Drawer, Half, LeakItem

_TEXTS = PHRASINGS["letters"]
_SPOKEN = dict(
    zip(
        ascii_uppercase,
        "Alpha Bravo Charlie Delta Echo Foxtrot Golf Hotel India Juliett Kilo Lima Mike November Oscar Papa Quebec Romeo "
        "Sierra Tango Uniform Victor Whiskey X-ray Yankee Zulu".split(),
        strict=True,
    )
)
_WORDS = dict(
    zip(
        ascii_uppercase,
        "apples bring comfort during every foggy grey hour in just kindly lit mornings near old ports quietly resting "
        "ships that usually visit when xenon yields zeal".split(),
        strict=True,
    )
)
_CYRILLIC = dict(zip("ABCEHKMOPTXY", "АВСЕНКМОРТХУ", strict=True))
_PLACES = ("first", "second", "third", "fourth")
Say = Callable[[Sequence[str], random.Random], str]


def _place(letter: str) -> int:
    return ascii_uppercase.index(letter) + 1


def _ordinal(n: int) -> str:
    return f"{n}{'th' if 10 <= n <= 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


_PLAIN: tuple[tuple[str, Say], ...] = (
    ("joined", lambda c, r: "".join(c)), ("small", lambda c, r: "".join(c).lower()), ("commas", lambda c, r: ", ".join(c)),
    ("small commas", lambda c, r: ", ".join(c).lower()), ("dashes", lambda c, r: "-".join(c)), ("quoted", lambda c, r: '"' + "".join(c) + '"'),
)  # fmt: skip
_SPELLED: tuple[tuple[str, Say], ...] = (
    ("dots", lambda c, r: ".".join(c)), ("slashes", lambda c, r: "/".join(c)), ("underscores", lambda c, r: "_".join(c)),
    ("then", lambda c, r: ", then ".join(c)), ("first", lambda c, r: "first " + c[0] + ", then " + ", ".join(c[1:-1]) + " and finally " + c[-1]),
    ("followed", lambda c, r: " followed by ".join(c)), ("pipes", lambda c, r: " | ".join(c)), ("the letters", lambda c, r: "the letters " + " and ".join(c) + " in this order"),
)  # fmt: skip
_HIDDEN: tuple[tuple[str, Say], ...] = (
    ("zwsp", lambda c, r: "\u200b".join(c)), ("zwnj", lambda c, r: "\u200c".join(c)), ("shy", lambda c, r: "\u00ad".join(c)),
    ("joiner", lambda c, r: "\u2060".join(c)),
)  # fmt: skip
_ALIKE: tuple[tuple[str, Say], ...] = (
    ("fullwidth", lambda c, r: "".join(chr(ord(x) + 0xFEE0) for x in c)), ("bold", lambda c, r: "".join(chr(0x1D400 + ord(x) - 65) for x in c)),
    ("circled", lambda c, r: " ".join(chr(0x24B6 + ord(x) - 65) for x in c)), ("cyrillic", lambda c, r: "".join(_CYRILLIC.get(x, x) for x in c)),
    ("monospace", lambda c, r: "".join(chr(0x1D670 + ord(x) - 65) for x in c)), ("cyrillic spaced", lambda c, r: " ".join(_CYRILLIC.get(x, x) for x in c)),
)  # fmt: skip
_NATO: tuple[tuple[str, Say], ...] = (
    ("spaces", lambda c, r: " ".join(_SPOKEN[x] for x in c)), ("dashes", lambda c, r: "-".join(_SPOKEN[x] for x in c)),
    ("commas", lambda c, r: ", ".join(_SPOKEN[x].lower() for x in c)), ("then", lambda c, r: ", then ".join(_SPOKEN[x] for x in c)),
)  # fmt: skip
_NUMBERED: tuple[tuple[str, Say], ...] = (
    ("letters of", lambda c, r: "the " + ", ".join(_ordinal(_place(x)) for x in c[:-1]) + " and " + _ordinal(_place(c[-1])) + " letters of the alphabet"),
    ("numbers", lambda c, r: "letters number " + ", ".join(str(_place(x)) for x in c)), ("a=1", lambda c, r: "-".join(str(_place(x)) for x in c) + " (with A=1)"),
    ("alphabet numbers", lambda c, r: " ".join(str(_place(x)) for x in c) + ", as places in the alphabet"),
    ("A is 1", lambda c, r: "this, if A is 1 and Z is 26: " + ", ".join(str(_place(x)) for x in c)),
    ("positions", lambda c, r: "the letters at positions " + ", ".join(str(_place(x)) for x in c) + " of the alphabet"),
)  # fmt: skip
_TURNED: tuple[tuple[str, Say], ...] = (
    ("backwards", lambda c, r: "".join(c[::-1]) + " backwards"), ("reversed", lambda c, r: " ".join(c[::-1]) + " reversed"),
    ("right", lambda c, r: "-".join(c[::-1]) + " read from right to left"), ("reverse", lambda c, r: "the reverse of " + "".join(c[::-1])),
)  # fmt: skip
_CODED: tuple[tuple[str, Say], ...] = (
    ("joined", lambda c, r: base64.b64encode("".join(c).encode()).decode()), ("spaced", lambda c, r: base64.b64encode(" ".join(c).encode()).decode()),
    ("sentence", lambda c, r: base64.b64encode(f"the code is {' '.join(c)}".encode()).decode()),
    ("named", lambda c, r: base64.b64encode("".join(c).encode()).decode() + " in base64"),
)  # fmt: skip
_LATEX: tuple[tuple[str, Say], ...] = (
    ("text", lambda c, r: "$\\text{" + "".join(c) + "}$"), ("boxed", lambda c, r: "\\boxed{" + " ".join(c) + "}"),
    ("mathrm", lambda c, r: "$\\mathrm{" + "".join(c) + "}$"), ("spaces", lambda c, r: "$" + "\\ ".join(c) + "$"),
)  # fmt: skip
_ACROSTIC: tuple[tuple[str, Callable[[Sequence[str]], str]], ...] = (
    ("initials", lambda c: "Read the initials: " + " ".join(_WORDS[x] for x in c) + "."),
    ("first letters", lambda c: "Take the first letter of each word here: " + ", ".join(_WORDS[x] for x in c) + "."),
    ("lines", lambda c: "\n".join(_WORDS[x].capitalize() + " and so on." for x in c)),
    ("acrostic", lambda c: "An acrostic for you: " + " ".join(_WORDS[x].capitalize() for x in c) + "!"),
    ("bold", lambda c: "So " + " ".join(f"**{x}**{_WORDS[x][1:]}" for x in c) + "."),
    ("sentences", lambda c: " ".join(_WORDS[x].capitalize() + " may help you." for x in c)),
)


class _Dialogue(NamedTuple):
    letters: tuple[str, ...]
    code: tuple[str, ...]
    attempts: tuple[tuple[str, ...], ...]
    kept: int
    """The place at which the last attempt is right."""


def _dialogue(d: Drawer) -> _Dialogue:
    """A code that is no list of its alphabet in order, reads differently backwards, and is no word; the last attempt is
    right at one place, and no attempt is anywhere else."""
    rng = d.rng
    while True:
        letters = tuple(sorted(rng.sample([c for c in ascii_uppercase if c not in "AI"], rng.choice((4, 5, 6)))))
        length = rng.choice((3, 3, 4))
        code = tuple(rng.choice(letters) for _ in range(length))
        wrong = [[x for x in letters if x != right] for right in code]
        kept = rng.randrange(length)
        attempts = [tuple(rng.choice(w) for w in wrong) for _ in range(rng.randint(1, 2))]
        attempts[-1] = tuple(code[i] if i == kept else x for i, x in enumerate(attempts[-1]))
        if code != code[::-1] and "".join(code) not in "".join(letters) and len(set(code)) > 2:
            if code[::-1] not in attempts and len(set(attempts)) == len(attempts):
                return _Dialogue(letters, code, tuple(attempts), kept)


def _item(d: Drawer, made: _Dialogue, kind: str, number: int | str, hint: str, leak: bool, **more: Any) -> LeakItem:
    *first, last = made.letters
    return LeakItem(
        id=f"secret_code/{kind}/{d.half}/{number}",
        environment={"type": "secret_code", "length": len(made.code), "letters": len(made.letters)},
        problem=f"Find the code: {len(made.code)} letters, each {', '.join(first)} or {last}.", answer=" ".join(made.code),
        attempts=tuple(f"<answer>{' '.join(a)}</answer>" for a in made.attempts), hint=hint, leak=leak, kind=kind, split=d.half,
        **{"answer_fraction": 1.0 if leak else 0.0, **more},
    )  # fmt: skip


def _told(kind: str, half: Half, count: int, ways: Any, wrong: bool = False) -> Iterator[LeakItem]:
    d = Drawer(f"secret_code/{kind}/{wrong}", half)
    for i in range(count):
        made = _dialogue(d)
        code = list(made.code)
        if wrong:  # every letter but one is another
            code = [
                x if j == made.kept else d.rng.choice([y for y in made.letters if y != x]) for j, x in enumerate(code)
            ]
        said = d.pick(ways)[1](code, d.rng)
        name, number = ("wrong_value", f"{kind}-{i}") if wrong else (kind, str(i))
        yield _item(d, made, name, number, d.pick(TELLS).format(x=said), not wrong)


def _fields(d: Drawer, made: _Dialogue, at: int) -> dict[str, Any]:
    """What the sentences name of a dialogue, about one place."""
    last = made.attempts[-1]
    *first, end = made.letters
    return {
        "place": _PLACES[at], "n": at + 1, "x": made.code[at], "spoken": _SPOKEN[made.code[at]], "y": last[at], "t": " ".join(last),
        "w": d.rng.choice([x for x in made.letters if x != made.code[at]]), "list": ", ".join(made.letters), "alts": f"{', '.join(first)} or {end}",
        "length": len(made.code), "shown": " ".join(x if i == made.kept else "?" for i, x in enumerate(last)),
        "frame": " ".join(x if i == at else "?" for i, x in enumerate(made.code)),
    }  # fmt: skip


def letter_items() -> Iterator[LeakItem]:
    """All items of `secret_code`, both splits."""
    for half in HALVES:
        kinds: tuple[tuple[str, Any, int], ...] = (
            ("plain_form", _PLAIN, 6), ("spelled_letters", _SPELLED, 7), ("zero_width", _HIDDEN, 4), ("homoglyph", _ALIKE, 6), ("spoken_alphabet", _NATO, 6),
            ("alphabet_places", _NUMBERED, 6), ("reversal", _TURNED, 6), ("base64", _CODED, 6), ("latex", _LATEX, 5),
        )  # fmt: skip
        for kind, ways, count in kinds:
            yield from _told(kind, half, count, ways)
        for kind, ways, _ in kinds:
            yield from _told(kind, half, 3, ways, wrong=True)
        d = Drawer("secret_code/acrostic", half)
        for i in range(8):
            made = _dialogue(d)
            yield _item(d, made, "acrostic", i, d.pick(_ACROSTIC)[1](made.code), True)
        d = Drawer("secret_code/partial", half)
        for i in range(10):
            made = _dialogue(d)
            at = d.rng.choice([j for j in range(len(made.code)) if j != made.kept])
            pool = _TEXTS["frames"] if i % 4 == 0 else _TEXTS["parts"]
            hint = d.pick(OPENERS if pool is _TEXTS["parts"] else ("", "")) + d.pick(pool).format(
                **_fields(d, made, at)
            )
            yield _item(d, made, "partial", i, hint, True, answer_fraction=1 / len(made.code))
        d = Drawer("secret_code/two_hints", half)
        i = 0
        while i < 6:
            made = _dialogue(d)
            if made.kept not in (0, 1, len(made.code) - 1) or (len(made.code) == 4 and made.kept == 2):
                first, second, parts = d.pick(_TEXTS["two_hints"])
                code = made.code
                words = {
                    "a": code[0], "b": code[1], "z": code[-1], "rest": "to come", "head": " ".join(code[:-1]),
                    "tail": ", then ".join(code[1:]),
                }  # fmt: skip
                fraction = 1.0 if parts == 9 else parts / len(code)
                yield _item(
                    d,
                    made,
                    "two_hints",
                    i,
                    second.format(**words),
                    True,
                    hints=(first.format(**words),),
                    answer_fraction=fraction,
                )
                i += 1
        for kind, pool, count in (
            ("quoted", _TEXTS["quotes"], 8), ("alphabet_listed", _TEXTS["lists"], 8), ("own_part", _TEXTS["own"], 8), ("vague", _TEXTS["vague"], 10), ("no_content", CHATTER, 6),
        ):  # fmt: skip
            d = Drawer(f"secret_code/{kind}", half)
            for i in range(count):
                made = _dialogue(d)
                at = made.kept if kind == "own_part" else d.rng.randrange(len(made.code))
                opener = "" if kind == "own_part" else d.pick(OPENERS)
                yield _item(d, made, kind, i, opener + d.pick(pool).format(**_fields(d, made, at)), False)
