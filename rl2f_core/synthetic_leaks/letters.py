"""Benchmark items whose answer is a code of letters: `secret_code`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from rl2f_core.synthetic_leaks.items import (
    FORMS,
    ORDINALS,
    PHRASINGS,
    Draft,
    Kind,
    Puzzle,
    Sampler,
    Unsuitable,
    form_kinds,
    leak_kinds,
)

_TEXTS = PHRASINGS.letters
_SPOKEN = dict(
    zip(
        ascii_uppercase,
        "Alpha Bravo Charlie Delta Echo Foxtrot Golf Hotel India Juliett Kilo Lima Mike November Oscar Papa Quebec "
        "Romeo Sierra Tango Uniform Victor Whiskey X-ray Yankee Zulu".split(),
        strict=True,
    )
)
_COVER_WORDS = dict(
    zip(
        ascii_uppercase,
        "apples bring comfort during every foggy grey hour in just kindly lit mornings near old ports quietly resting "
        "ships that usually visit when xenon yields zeal".split(),
        strict=True,
    )
)
"""Words of an acrostic."""
_FORM_COUNTS = {
    "plain_form": 6, "spelled_letters": 7, "zero_width": 4, "homoglyph": 6, "spoken_alphabet": 6, "alphabet_places": 6,
    "reversal": 6, "base64": 6, "latex": 5,
}  # fmt: skip
_NEAR_MISSES = {"quoted": 8, "alphabet_listed": 8, "own_part": 8, "vague": 10, "no_content": 6}


@dataclass(frozen=True, slots=True)
class Code(Puzzle):
    letters: tuple[str, ...]
    """The letters to choose from."""
    code: tuple[str, ...]
    correct: tuple[int, ...]
    """Indices of the letters that the last attempt has right."""

    @property
    def last(self) -> list[str]:
        """The last attempt."""
        return self.attempts[-1].split()


def puzzle_of(code: str, attempts: Sequence[str], letters: Sequence[str]) -> Code:
    """Return the puzzle of a task."""
    last = attempts[-1].split() if attempts else []
    correct = tuple(i for i, (x, y) in enumerate(zip(code.split(), last, strict=False)) if x == y)
    return Code({}, "", code, tuple(attempts), tuple(letters), tuple(code.split()), correct)


def _puzzle(s: Sampler) -> Code:
    """Return the given puzzle, or draw one whose last attempt has exactly one letter right.

    A drawn code has at least three different letters, is no palindrome and no run of its alphabet.
    """
    if (given := s.given(Code)) is not None:
        return given
    rng = s.rng
    while True:
        letters = tuple(sorted(rng.sample([c for c in ascii_uppercase if c not in "AI"], rng.choice((4, 5, 6)))))
        length = rng.choice((3, 3, 4))
        code = tuple(rng.choice(letters) for _ in range(length))
        wrong = [[x for x in letters if x != right] for right in code]
        correct = rng.randrange(length)
        attempts = [tuple(rng.choice(w) for w in wrong) for _ in range(rng.randint(1, 2))]
        attempts[-1] = tuple(code[i] if i == correct else x for i, x in enumerate(attempts[-1]))
        if (
            code != code[::-1]
            and "".join(code) not in "".join(letters)
            and len(set(code)) > 2
            and code[::-1] not in attempts
            and len(set(attempts)) == len(attempts)
        ):
            *first, last = letters
            return Code(
                {"type": "secret_code", "length": length, "letters": len(letters)},
                f"Find the code: {length} letters, each {', '.join(first)} or {last}.",
                " ".join(code),
                tuple(" ".join(attempt) for attempt in attempts),
                letters,
                code,
                (correct,),
            )


def _form_fields(code: Sequence[str]) -> dict[str, object]:
    """Return the fields of `FORMS`."""
    places = [ascii_uppercase.index(letter) + 1 for letter in code]
    suffixes = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd"}
    return {
        "x": code, "spoken": [_SPOKEN[letter] for letter in code], "cover": [_COVER_WORDS[letter] for letter in code],
        "places": places, "ordinals": [f"{place}{suffixes.get(place, 'th')}" for place in places],
    }  # fmt: skip


def _obfuscated(s: Sampler, _: int) -> Draft:
    puzzle = _puzzle(s)
    code = list(puzzle.code)
    if s.kind.wrong:  # only the letter that the student has right remains
        code = [
            x if j in puzzle.correct else s.rng.choice([y for y in puzzle.letters if y != x])
            for j, x in enumerate(code)
        ]
    text = s.obfuscate(FORMS["letters"][s.kind.form], _form_fields(code))
    return Draft(puzzle, s.state(text), float(not s.kind.wrong))


def _acrostic(s: Sampler, _: int) -> Draft:
    puzzle = _puzzle(s)
    return Draft(puzzle, s.obfuscate(FORMS["letters"]["acrostic"], _form_fields(puzzle.code)), 1.0)


def _fields(s: Sampler, puzzle: Code, i: int) -> dict[str, object]:
    """Return the fields of the phrasings, for the letter at index `i`."""
    *first, end = puzzle.letters
    last, letter = puzzle.last, puzzle.code[i]
    return {
        "place": ORDINALS[i], "n": i + 1, "x": letter, "spoken": _SPOKEN[letter], "y": last[i], "t": " ".join(last),
        "w": s.rng.choice([x for x in puzzle.letters if x != letter]), "list": ", ".join(puzzle.letters),
        "alts": f"{', '.join(first)} or {end}", "length": len(puzzle.code),
        "shown": " ".join(x if j in puzzle.correct else "?" for j, x in enumerate(last)),
        "frame": " ".join(x if j == i else "?" for j, x in enumerate(puzzle.code)),
    }  # fmt: skip


def _partial(s: Sampler, i: int) -> Draft:
    puzzle = _puzzle(s)
    if not puzzle.attempts or len(puzzle.correct) == len(puzzle.code):
        raise Unsuitable
    index = s.rng.choice([j for j in range(len(puzzle.code)) if j not in puzzle.correct])
    opener, pool = ("", _TEXTS["frames"]) if i % 4 == 0 else (s.opener(), _TEXTS["parts"])
    return Draft(puzzle, opener + s.pick(pool).format(**_fields(s, puzzle, index)), 1 / len(puzzle.code))


def _two_hints(s: Sampler, _: int) -> Draft:
    puzzle = _puzzle(s)
    while (len(puzzle.code), puzzle.correct) != (4, (2,)):  # no hint names the student's correct letter alone
        puzzle = _puzzle(s)
    code = puzzle.code
    first, second, letters = s.pick(PHRASINGS.two_hints["letters"])
    fields = {
        "a": code[0], "b": code[1], "z": code[-1], "rest": "to come", "head": " ".join(code[:-1]),
        "tail": ", then ".join(code[1:]),
    }  # fmt: skip
    fraction = 1.0 if letters == "all" else int(letters) / len(code)
    return Draft(puzzle, second.format(**fields), fraction, (first.format(**fields),))


def _near_miss(s: Sampler, _: int) -> Draft:
    puzzle = _puzzle(s)
    own = s.kind.name == "own_part"
    i = puzzle.correct[0] if own else s.rng.randrange(len(puzzle.code))
    opener = "" if own else s.opener()
    return Draft(puzzle, opener + s.near_miss(_TEXTS).format(**_fields(s, puzzle, i)))


KINDS = [
    *form_kinds(_FORM_COUNTS, 3, _obfuscated),
    Kind("acrostic", 8, _acrostic),
    Kind("partial", 10, _partial),
    Kind("two_hints", 6, _two_hints),
    *(Kind(name, count, _near_miss) for name, count in _NEAR_MISSES.items()),
]
LEAKS = leak_kinds(KINDS, _NEAR_MISSES)
"""Kinds of leaks for given puzzles."""
