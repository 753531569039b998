"""Knights and knaves in words: puzzles to text and back, and answers under a strict grammar.

All functions are pure and total: text that cannot be read gives None, never an error, in time
linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rl2f_core.environments.knights_knaves.logic import Puzzle, Statement, is_leaf

Roles = tuple[str, str]
"""The word for a person who tells the truth and the word for one who lies."""

NAMES = tuple(
    "Ada Amy Ben Carl Clara Daisy Dan Ella Emma Eric Finn Fred Grace Greg Hana Hugo Ian Ida Ivy Jack Jane Jim Kate Kim "
    "Leo Lily Luke Mary Mia Nick Nina Noah Nora Olga Oscar Owen Paul Peter Rosa Ruth Sam Sara Theo Tina Tom Vera "
    "Zoey".split()
)
EXAMPLE_NAMES = ("Ann", "Bob")
"""Used where a message shows the form of an answer; never people of a puzzle."""

SAYS = (
    '{name} says: "{utterance}."',
    '{name}: "{utterance}."',
    '{name} claims: "{utterance}."',
    '{name} says, "{utterance}."',
    '{name} remarks: "{utterance}."',
    '{name} tells you: "{utterance}."',
    '"{utterance}," says {name}.',
    '"{utterance}," claims {name}.',
)
GRAMMAR_WORDS = frozenset(("a", "an", "and", "i", "if", "is", "it", "not", "or", "then"))
"""Words that can be no role; all but the articles can be no name either."""

_WORDS = re.compile(r"\w+(?:['’-]\w+)*|\n|[^\w\s]")
_MAX_STATEMENT_CHARS = 1000
_MAX_STATEMENT_WORDS = 150


def article(role: str) -> str:
    """The role with its indefinite article."""
    return f"{'an' if role[0] in 'aeiou' else 'a'} {role}"


def rules(roles: Roles, *, inclusive_or: bool) -> str:
    """The sentence that opens a puzzle."""
    first, second = (article(role) for role in roles)
    note = ' "A or B" allows both.' if inclusive_or else ""
    return f"{first.capitalize()} always tells the truth; {second} always lies.{note}"


# -- statements --------------------------------------------------------------------------------------------------


def render_statement(statement: Statement, speaker: int, people: Sequence[str], roles: Roles) -> str:
    """A statement in English, without a full stop.

    Unambiguous: a part that has a connective of its own stands in brackets.
    """
    kind = statement[0]
    if is_leaf(statement):
        return _leaf_text(statement, speaker, people, roles, "")
    if kind == "not":
        inner = statement[1]
        if is_leaf(inner):
            return _leaf_text(inner, speaker, people, roles, "not ")
        return f"it is not true that ({render_statement(inner, speaker, people, roles)})"
    left, right = (_part_text(child, speaker, people, roles) for child in statement[1:])
    if kind == "imp":
        return f"if {left} then {right}"
    return f"{left} {'if and only if' if kind == 'iff' else kind} {right}"


def _leaf_text(leaf: Statement, speaker: int, people: Sequence[str], roles: Roles, negation: str) -> str:
    subject = "I am" if leaf[1] == speaker else f"{people[leaf[1]]} is"
    return f"{subject} {negation}{article(roles[leaf[0] == 'knave'])}"


def _part_text(part: Statement, speaker: int, people: Sequence[str], roles: Roles) -> str:
    text = render_statement(part, speaker, people, roles)
    return text if is_leaf(part) or (part[0] == "not" and is_leaf(part[1])) else f"({text})"


class _Unreadable(Exception):
    """Internal: the text is not a statement."""


class _Reader:
    """Recursive descent over the words of one statement."""

    def __init__(self, text: str, speaker: int, people: Sequence[str], roles: Roles) -> None:
        if len(text) > _MAX_STATEMENT_CHARS:
            raise _Unreadable
        self.words = [word.casefold() for word in _WORDS.findall(text)]
        if len(self.words) > _MAX_STATEMENT_WORDS:
            raise _Unreadable
        self.at = 0
        self.people = {name.casefold(): i for i, name in enumerate(people)}
        self.speaker = speaker
        self.kinds = {roles[0].casefold(): "knight", roles[1].casefold(): "knave"}

    def take(self, phrase: str) -> bool:
        """Go past the words of `phrase` if they come next."""
        tokens = phrase.split()
        if self.words[self.at : self.at + len(tokens)] != tokens:
            return False
        self.at += len(tokens)
        return True

    def need(self, phrase: str) -> None:
        if not self.take(phrase):
            raise _Unreadable

    def word(self) -> str:
        if self.at >= len(self.words):
            raise _Unreadable
        self.at += 1
        return self.words[self.at - 1]

    def statement(self) -> Statement:
        if self.take("if"):
            left = self.part()
            self.need("then")
            return ("imp", left, self.part())
        if self.take("it is not true that"):
            return ("not", self.part())
        left = self.part()
        for kind, phrase in (("iff", "if and only if"), ("and", "and"), ("or", "or")):
            if self.take(phrase):
                return (kind, left, self.part())
        return left

    def part(self) -> Statement:
        if self.take("("):
            inner = self.statement()
            self.need(")")
            return inner
        return self.leaf()

    def leaf(self) -> Statement:
        subject = self.word()
        if subject == "i":
            self.need("am")
            person = self.speaker
        else:
            self.need("is")
            if subject not in self.people:
                raise _Unreadable
            person = self.people[subject]
        negated = self.take("not")
        if not self.take("a"):
            self.need("an")
        kind = self.kinds.get(self.word())
        if kind is None:
            raise _Unreadable
        return ("not", (kind, person)) if negated else (kind, person)


def parse_statement(text: str, speaker: int, people: Sequence[str], roles: Roles) -> Statement | None:
    """The statement that `render_statement` wrote, or None."""
    try:
        reader = _Reader(text.strip().rstrip(".,"), speaker, people, roles)
        statement = reader.statement()
    except _Unreadable:
        return None
    return statement if reader.at == len(reader.words) else None


# -- whole puzzles -----------------------------------------------------------------------------------------------


def render_puzzle(puzzle: Puzzle, people: Sequence[str], says: Sequence[int], roles: Roles) -> str:
    """The text of a puzzle: the rules, one line a person in order, the question; `says` picks the templates."""
    lines = [render_line(utterance, i, says[i], people, roles) for i, utterance in enumerate(puzzle)]
    head = rules(roles, inclusive_or=any(" or " in line for line in lines))
    return "\n".join((head, *lines, f"Who is {article(roles[0])} and who is {article(roles[1])}?"))


def render_line(statement: Statement, speaker: int, template: int, people: Sequence[str], roles: Roles) -> str:
    """What one person says, as a line of a puzzle's text."""
    utterance = render_statement(statement, speaker, people, roles)
    return SAYS[template].format(name=people[speaker], utterance=utterance[0].upper() + utterance[1:])


def parse_puzzle(text: str, names: Sequence[str], roles: Roles) -> tuple[list[str], Puzzle] | None:
    """The people in order of speaking and their statements, from a text in the form of `render_puzzle`.

    None unless each of `names` speaks on exactly one line that holds one quotation, and each quotation can be read.
    """
    known = {name.casefold(): name for name in names}
    spoken: dict[str, str] = {}
    for line in text.splitlines():
        pieces = line.split('"')
        outside = {word.casefold() for word in _WORDS.findall(f"{pieces[0]} {pieces[-1]}")}
        speakers = {name for key, name in known.items() if key in outside}
        if len(pieces) != 3 or not speakers:
            continue
        if len(speakers) > 1 or speakers & spoken.keys():
            return None
        spoken[speakers.pop()] = pieces[1]
    if len(spoken) != len(known):
        return None
    people = list(spoken)
    read = [parse_statement(utterance, i, people, roles) for i, utterance in enumerate(spoken.values())]
    statements = tuple(statement for statement in read if statement is not None)
    return (people, statements) if len(statements) == len(people) else None


# -- answers -----------------------------------------------------------------------------------------------------


def normal_form(assigned: Mapping[str, str]) -> str:
    """`Owen=knave; Zoey=knight`: sorted by name."""
    return "; ".join(f"{name}={assigned[name]}" for name in sorted(assigned))


def answer_text(people: Sequence[str], assigned: Mapping[str, str]) -> str:
    """`Zoey is a knight, Owen is a knave`: as a student writes it."""
    return ", ".join(f"{name} is {article(assigned[name])}" for name in people)


def parse_answer(text: str, names: Sequence[str] | None, roles: Roles) -> dict[str, str] | None:
    """The role of every person, or None unless the text is an answer and nothing else.

    An item is `Zoey is a knight`, `Zoey = knight` or `Zoey: knight`, in any case, with or without a number (`(1)`,
    `1.`, `1)`) or a dash before it.  Items are parted by a line end, `,`, `;`, `.`, `and`, or a number.  Each person
    stands exactly once.

    Args:
        text: What stands inside the answer tags.
        names: The people; None takes the names from the text.
        roles: The two role words.
    """
    tokens = _WORDS.findall(text)
    known = None if names is None else {name.casefold(): name for name in names}
    meaning = {role.casefold(): role for role in roles}
    parsed_roles: dict[str, str] = {}
    at = _skip(tokens, 0, ("\n",))
    parted = True
    while at < len(tokens):
        start, at = at, _after_number(tokens, at)
        if at == start and not parted:
            return None
        read = _item(tokens, at, meaning)
        if read is None:
            return None
        word, role, end = read
        name = word if known is None else known.get(word.casefold())
        if name is None or name in parsed_roles:
            return None
        parsed_roles[name] = role
        at = _after_separator(tokens, end)
        parted = at > end
        if at == len(tokens) and tokens[-1].casefold() == "and":
            return None
    distinct = len({name.casefold() for name in parsed_roles}) == len(parsed_roles)
    return parsed_roles if parsed_roles and distinct and (known is None or len(parsed_roles) == len(known)) else None


def _item(tokens: Sequence[str], at: int, roles: Mapping[str, str]) -> tuple[str, str, int] | None:
    """Name, role and the position after an item such as `Zoey is a knight`, or None."""
    if at + 2 >= len(tokens) or not _may_be_name(tokens[at], roles):
        return None
    name, link, at = tokens[at], tokens[at + 1].casefold(), at + 2
    if link == "is":
        at = _skip(tokens, at, ("a", "an"), most=1)
    elif link not in ("=", ":"):
        return None
    role = roles.get(tokens[at].casefold()) if at < len(tokens) else None
    return None if role is None else (name, role, at + 1)


def _after_separator(tokens: Sequence[str], at: int) -> int:
    at = _skip(tokens, at, ("\n",))
    at = _skip(tokens, at, (",", ";", "."), most=1)
    at = _skip(tokens, at, ("\n",))
    at = _skip(tokens, at, ("and",), most=1)
    return _skip(tokens, at, ("\n",))


def _skip(tokens: Sequence[str], at: int, required: Sequence[str], most: int | None = None) -> int:
    end = len(tokens) if most is None else min(len(tokens), at + most)
    while at < end and tokens[at].casefold() in required:
        at += 1
    return at


def _after_number(tokens: Sequence[str], at: int) -> int:
    """The position after `(1)`, `1.`, `1)`, `-` or `*`, or `at` if there is none."""
    for shape in (("(", "", ")"), ("", "."), ("", ")"), ("-",), ("*",)):
        seen = tokens[at : at + len(shape)]
        if len(seen) == len(shape) and all(
            want == word or (want == "" and len(word) <= 2 and word.isdecimal())
            for want, word in zip(shape, seen, strict=True)
        ):
            return at + len(shape)
    return at


def _may_be_name(word: str, roles: Mapping[str, str]) -> bool:
    lower = word.casefold()
    return word[0].isalpha() and lower not in roles and (lower not in GRAMMAR_WORDS or lower in ("a", "an"))
