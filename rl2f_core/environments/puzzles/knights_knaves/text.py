"""Knights and knaves as text: puzzles to English and back, and a strict grammar of answers.

All functions are pure and total: a text that cannot be parsed gives None, never an error, in time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from rl2f_core.environments.puzzles.knights_knaves.logic import Puzzle, Statement, is_leaf

Roles = tuple[str, str]
"""The word for a person who tells the truth and the word for one who lies."""

NAMES = tuple(
    "Ada Amy Ben Carl Clara Daisy Dan Ella Emma Eric Finn Fred Grace Greg Hana Hugo Ian Ida Ivy Jack Jane Jim Kate Kim "
    "Leo Lily Luke Mary Mia Nick Nina Noah Nora Olga Oscar Owen Paul Peter Rosa Ruth Sam Sara Theo Tina Tom Vera "
    "Zoey".split()
)
EXAMPLE_NAMES = ("Ann", "Bob")
"""People of the answer that a system message shows; never people of a puzzle."""

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
"""Words that cannot be a role; except for the articles, they cannot be a name either."""

_WORDS = re.compile(r"\w+(?:['’-]\w+)*|\n|[^\w\s]")
_PHRASES = {
    "imp": "if {} then {}",
    "not": "it is not true that {}",
    "iff": "{} if and only if {}",
    "and": "{} and {}",
    "or": "{} or {}",
}
"""English of the connectives; a `{}` is a leaf or a phrase in brackets."""
_SHAPES = {kind: re.compile(phrase.replace("{}", r"#\d+")) for kind, phrase in _PHRASES.items()} | {
    kind: re.compile(rf"#\d+(?: {kind} #\d+)+") for kind in ("and", "or")
}
"""Patterns of the connectives; `#k` is part k, which is already parsed."""
_PART = re.compile(r"#\d+")
_BRACKETS = re.compile(r"\( ([^()]*) \)")
_MAX_STATEMENT_CHARS = 1000
_MAX_STATEMENT_WORDS = 150


def article(role: str) -> str:
    """Return the role with its indefinite article."""
    return f"{'an' if role[0] in 'aeiou' else 'a'} {role}"


def rules(roles: Roles, *, inclusive_or: bool) -> str:
    """Return the first sentence of a puzzle."""
    first, second = (article(role) for role in roles)
    note = ' "A or B" allows both.' if inclusive_or else ""
    return f"{first.capitalize()} always tells the truth; {second} always lies.{note}"


# -- statements --------------------------------------------------------------------------------------------------


def render_statement(statement: Statement, speaker: int, people: Sequence[str], roles: Roles) -> str:
    """Write a statement in English, without a full stop.

    Unambiguous: a part with a connective is in brackets.
    """
    kind, *children = statement
    if is_leaf(statement):
        return _leaf_text(statement, speaker, people, roles, "")
    if kind == "not" and is_leaf(children[0]):
        return _leaf_text(children[0], speaker, people, roles, "not ")
    parts = []
    for child in children:
        text = render_statement(child, speaker, people, roles)
        is_plain = is_leaf(child) or (child[0] == "not" != kind and is_leaf(child[1]))
        parts.append(text if is_plain else f"({text})")
    return f" {kind} ".join(parts) if kind in ("and", "or") else _PHRASES[kind].format(*parts)


def _leaf_text(leaf: Statement, speaker: int, people: Sequence[str], roles: Roles, negation: str) -> str:
    subject = "I am" if leaf[1] == speaker else f"{people[leaf[1]]} is"
    return f"{subject} {negation}{article(roles[leaf[0] == 'knave'])}"


def parse_statement(text: str, speaker: int, people: Sequence[str], roles: Roles) -> Statement | None:
    """Return the statement that `render_statement` wrote, or None.

    Leaves and then brackets, from the innermost outward, are replaced by `#k`, the number of the parsed part.
    """
    text = text.strip().rstrip(".,")
    if len(text) > _MAX_STATEMENT_CHARS:
        return None
    words = [word.casefold() for word in _WORDS.findall(text)]
    if len(words) > _MAX_STATEMENT_WORDS:
        return None
    persons = {name.casefold(): i for i, name in enumerate(people)}
    kinds = {roles[0].casefold(): "knight", roles[1].casefold(): "knave"}
    parts: list[Statement] = []

    def add(part: Statement) -> str:
        parts.append(part)
        return f"#{len(parts) - 1}"

    def add_leaf(match: re.Match[str]) -> str:
        leaf = (kinds[match["role"]], speaker if match["name"] is None else persons[match["name"]])
        return add(("not", leaf) if match["negation"] else leaf)

    def reduce(phrase: str) -> str | None:
        for kind, shape in _SHAPES.items():
            if shape.fullmatch(phrase):
                return add((kind, *(parts[int(part[1:])] for part in _PART.findall(phrase))))
        return phrase if _PART.fullmatch(phrase) else None

    subject = rf"(?:i am|(?P<name>{'|'.join(map(re.escape, persons))}) is)"
    leaf = rf"(?<!\S){subject} (?P<negation>not )?an? (?P<role>{'|'.join(map(re.escape, kinds))})(?!\S)"
    sentence = re.sub(leaf, add_leaf, " ".join(words))
    while match := _BRACKETS.search(sentence):
        part = reduce(match[1])
        if part is None:
            return None
        sentence = f"{sentence[: match.start()]}{part}{sentence[match.end() :]}"
    whole = reduce(sentence)
    return None if whole is None else parts[int(whole[1:])]


# -- whole puzzles -----------------------------------------------------------------------------------------------


def render_puzzle(puzzle: Puzzle, people: Sequence[str], says: Sequence[int], roles: Roles) -> str:
    """Write a puzzle: the rules, one line per person in order, the question; `says` selects the templates."""
    lines = [render_line(utterance, i, says[i], people, roles) for i, utterance in enumerate(puzzle)]
    head = rules(roles, inclusive_or=any(" or " in line for line in lines))
    return "\n".join((head, *lines, f"Who is {article(roles[0])} and who is {article(roles[1])}?"))


def render_line(statement: Statement, speaker: int, template: int, people: Sequence[str], roles: Roles) -> str:
    """Write the line of a puzzle's text with one person's statement."""
    utterance = render_statement(statement, speaker, people, roles)
    return SAYS[template].format(name=people[speaker], utterance=utterance[0].upper() + utterance[1:])


def parse_puzzle(text: str, names: Sequence[str], roles: Roles) -> tuple[list[str], Puzzle] | None:
    """Return the people in order of speaking and their statements, from a text in the form of `render_puzzle`.

    None unless each of `names` speaks on exactly one line with one quotation, and each quotation can be parsed.
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
    parsed = [parse_statement(utterance, i, people, roles) for i, utterance in enumerate(spoken.values())]
    statements = tuple(statement for statement in parsed if statement is not None)
    return (people, statements) if len(statements) == len(people) else None


# -- answers -----------------------------------------------------------------------------------------------------
def normal_form(assigned: Mapping[str, str]) -> str:
    """Return `Owen=knave; Zoey=knight`, sorted by name."""
    return "; ".join(f"{name}={assigned[name]}" for name in sorted(assigned))


def answer_text(people: Sequence[str], assigned: Mapping[str, str]) -> str:
    """Return `Zoey is a knight, Owen is a knave`, as a student writes it."""
    return ", ".join(f"{name} is {article(assigned[name])}" for name in people)


@lru_cache(maxsize=16)
def _item_pattern(roles: Roles) -> re.Pattern[str]:
    """An item of an answer and the separator after it, in small letters with a space after each word."""
    number = r"(?P<number>\( \d{1,2} \) |\d{1,2} [.)] |[-*] )"
    role = "|".join(re.escape(role.casefold()) for role in roles)
    no_name = "|".join((*GRAMMAR_WORDS - {"a", "an"}, role))
    separator = r"(?P<separator>(?:\n )*+(?:[,;.] )?+(?:\n )*+(?:and )?+(?:\n )*+)"
    return re.compile(rf"{number}?+(?!(?:{no_name}) )(?P<name>\S+) (?:is (?:an? )?|[=:] )(?P<role>{role}) {separator}")


def parse_answer(text: str, names: Sequence[str] | None, roles: Roles) -> dict[str, str] | None:
    """Return the role of every person, or None unless the text is an answer and nothing else.

    An item is `Zoey is a knight`, `Zoey = knight` or `Zoey: knight`, in any case, with or without a number (`(1)`,
    `1.`, `1)`) or a dash before it.  Items are separated by a line end, `,`, `;`, `.`, `and`, or a number.  Each
    person occurs exactly once.

    Args:
        text: The text inside the answer tags.
        names: The people; None takes the names from the text.
        roles: The two role words.
    """
    tokens = _WORDS.findall(text)
    words = "".join(f"{token.casefold()} " for token in tokens)
    known = None if names is None else {name.casefold(): name for name in names}
    meaning = {role.casefold(): role for role in roles}
    assigned: dict[str, str] = {}
    at, separator = len(words) - len(words.lstrip()), "\n "
    while at < len(words):
        item = _item_pattern(roles).match(words, at)
        if item is None or not (separator or item["number"]) or not item["name"][0].isalpha():
            return None
        written = tokens[words.count(" ", 0, item.start("name"))]
        name = written if known is None else known.get(item["name"])
        if name is None or name in assigned:
            return None
        assigned[name] = meaning[item["role"]]
        at, separator = item.end(), item["separator"]
    distinct = len({name.casefold() for name in assigned}) == len(assigned)
    complete = known is None or len(assigned) == len(known)
    return assigned if assigned and distinct and complete and not separator.endswith("and ") else None
