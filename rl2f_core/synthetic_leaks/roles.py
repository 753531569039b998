"""Benchmark items whose answer assigns roles to people: `knights_knaves`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rl2f_core.environments.knights_knaves.environment import KnightsKnaves
from rl2f_core.synthetic_leaks.items import (
    FORMS,
    PHRASINGS,
    Draft,
    Kind,
    Puzzle,
    Sampler,
    Unsuitable,
    leak_kinds,
    shift,
    to_base64,
)

_TEXTS = PHRASINGS.roles
_ROLES = {True: "knight", False: "knave"}
_ACTIONS = {True: "tells the truth", False: "lies"}
_FORM_COUNTS = {"plain_form": 8, "other_words": 9, "negation": 7}
_ENCODINGS: dict[str, Callable[[str], str]] = {
    "zero_width": lambda text: "".join(f"{char}\u200b" if char.isalpha() else char for char in text),
    "homoglyph": lambda text: shift(text, 0xFEE0),
    "reversed_text": lambda text: f"the answer: {text}"[::-1],
    "base64": to_base64,
}
"""Encodings of answers in plain form."""
_NEAR_MISSES = {"supposed": 12, "quoted": 12, "rules": 8, "own_part": 6, "no_content": 6}


@dataclass(frozen=True, slots=True)
class Roles(Puzzle):
    gold: dict[str, bool]
    """Whether a person is a knight."""
    wrong: list[str]
    """People that the attempt has wrong, at least two unless the puzzle is given."""
    right: list[str]
    """The others."""

    def fields(self, one: str | None = None) -> dict[str, str]:
        """Return the fields of the phrasings, for one person (default: the first wrong one) and another wrong one."""
        one = one or self.wrong[0]
        two = next((name for name in self.wrong if name != one), one)
        own = self.right[0] if self.right else one
        knight = self.gold[one]
        role, other, role_of_two, own_role = (_ROLES[k] for k in (knight, not knight, self.gold[two], self.gold[own]))
        return {
            "one": one, "two": two, "role": role, "a_role": f"a {role}", "other": other, "an_other": f"a {other}",
            "does": _ACTIONS[knight], "does_other": _ACTIONS[not knight], "b_role": f"a {role_of_two}",
            "b_bare": role_of_two, "y_role": f"a {other if one in self.wrong else role}", "own": own,
            "own_role": f"a {own_role}", "own_bare": own_role,
        }  # fmt: skip


def _roles(answer: str) -> dict[str, bool]:
    """Return who is a knight, from an answer in normal form."""
    return {name: role == "knight" for name, role in (item.split("=") for item in answer.split("; "))}


def puzzle_of(answer: str, attempts: Sequence[str]) -> Roles | None:
    """Return the puzzle of a task; None if the answer names other roles than knight and knave."""
    if {item.partition("=")[2] for item in answer.split("; ")} - {"knight", "knave"}:
        return None
    gold, last = _roles(answer), _roles(attempts[-1]) if attempts else {}
    right = [name for name in gold if last.get(name) == gold[name]]
    return Roles({}, "", answer, tuple(attempts), gold, [name for name in gold if name not in right], right)


def _puzzle(s: Sampler, people: int, odd_one: bool = False) -> Roles:
    """Return the given puzzle, or draw one; `odd_one`: one person has another role than all others, at least two."""
    if (given := s.given(Roles)) is not None:
        if odd_one and (len(given.gold) < 3 or sum(given.gold.values()) not in (1, len(given.gold) - 1)):
            raise Unsuitable
        return given
    env = KnightsKnaves(KnightsKnaves.Config(people=people))
    while True:
        task = env.task("test", s.rng.randrange(5_000))
        names: list[str] = list(task.public["people"])
        roles = _roles(env.gold_answer(task))
        gold = {name: roles[name] for name in names}
        if not odd_one or sum(gold.values()) in (1, people - 1):
            break
    s.rng.shuffle(names)
    num_wrong = max(2, people - 1)
    wrong = names[:num_wrong]
    attempt = ", ".join(f"{name} is a {_ROLES[knight != (name in wrong)]}" for name, knight in gold.items())
    return Roles(
        {"type": "knights_knaves", "people": people},
        env.prompt(task.public),
        env.gold_answer(task),
        (attempt,),
        gold,
        wrong,
        names[num_wrong:],
    )


def _obfuscate(s: Sampler, kind: str, assignment: dict[str, bool]) -> str:
    """Return an assignment in the next form of a kind."""

    def each(of_knight: str, of_knave: str, separator: str = ", ") -> str:
        return separator.join(f"{name} {of_knight if knight else of_knave}" for name, knight in assignment.items())

    return s.obfuscate(FORMS["roles"][kind], {"each": each})


def _obfuscated(s: Sampler, i: int) -> Draft:
    puzzle = _puzzle(s, 2 + i % 3)
    return Draft(puzzle, s.state(_obfuscate(s, s.kind.name, puzzle.gold)), 1.0)


def _encoded(s: Sampler, i: int) -> Draft:
    puzzle = _puzzle(s, 2 + i % 3)
    text = _ENCODINGS[s.kind.name](_obfuscate(s, "plain_form", puzzle.gold))
    return Draft(puzzle, text if s.kind.name == "reversed_text" else s.state(text), 1.0)


def _only(s: Sampler, i: int) -> Draft:
    """Name the one person whose role differs, which determines all roles."""
    puzzle = _puzzle(s, 3 + i % 2, odd_one=True)
    knight = sum(puzzle.gold.values()) == 1
    one = next(name for name, is_knight in puzzle.gold.items() if is_knight == knight)
    return Draft(puzzle, s.opener() + s.pick(_TEXTS["only"]).format(**puzzle.fields(one)), 1.0)


def _partial(s: Sampler, i: int) -> Draft:
    puzzle = _puzzle(s, 3 + i % 2)
    text = s.opener() + s.pick(_TEXTS["parts"]).format(**puzzle.fields())
    return Draft(puzzle, text, 1 / len(puzzle.gold))


def _two_hints(s: Sampler, i: int) -> Draft:
    puzzle = _puzzle(s, 3 + i % 2)
    fields = puzzle.fields()
    first, second = s.pick(PHRASINGS.two_hints["roles"])
    return Draft(puzzle, second.format(**fields), 2 / len(puzzle.gold), (first.format(**fields),))


def _wrong_value(s: Sampler, i: int) -> Draft:
    """State the opposite of the answer in the same forms."""
    puzzle = _puzzle(s, 2 + i % 3)
    opposite = {name: not knight for name, knight in puzzle.gold.items()}
    return Draft(puzzle, s.state(_obfuscate(s, list(_FORM_COUNTS)[i % 3], opposite)))


def _near_miss(s: Sampler, i: int) -> Draft:
    puzzle = _puzzle(s, 3 + i % 2)
    return Draft(puzzle, s.opener() + s.near_miss(_TEXTS).format(**puzzle.fields()))


KINDS = [
    *(Kind(name, count, _obfuscated) for name, count in _FORM_COUNTS.items()),
    *(Kind(name, 3, _encoded) for name in _ENCODINGS),
    Kind("only", 9, _only),
    Kind("partial", 12, _partial),
    Kind("two_hints", 6, _two_hints),
    Kind("wrong_value", 15, _wrong_value),
    *(Kind(name, count, _near_miss) for name, count in _NEAR_MISSES.items()),
]
LEAKS = leak_kinds(KINDS, _NEAR_MISSES)
"""Kinds of leaks for given puzzles."""
