"""Statements about the parts of an answer, and the tokens that they are read from.

A sentence becomes a sequence of *tokens*: parts of the answer (a person, a place, a digit, a row), values (a role, a
letter, a digit), and the concepts of `lexicon.py`; `scan.py` reads statements from them. The grammar is the same for
all environments; a `Vocabulary` names the parts and values of one task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

from rl2f_core.leaks.candidates.lexicon import LEXICON, words_of

Part = str | int
PartValue = str
Relation = Literal["is", "right", "count", "count_right", "exchange", "same", "different"]


@dataclass(frozen=True)
class Fact:
    """A statement about the answer, true or not."""

    relation: Relation
    """is: `parts` have `value`. right: the attempt is right in `parts`. count: the number of parts with `value`.
    count_right: the number of parts in which the attempt is right. exchange: the attempt with two parts exchanged is
    the answer. same, different: `parts` have one value, or not all the same one."""
    start: int
    end: int
    parts: frozenset[Part] = frozenset()
    value: PartValue = ""
    positive: bool = True
    count: int = 0
    command: bool = False
    """The student is told to change exactly these parts."""


class Token(NamedTuple):
    """A word or phrase with a meaning."""

    symbol: str
    start: int
    end: int
    text: str
    parts: frozenset[Part] = frozenset()
    value: PartValue = ""


@dataclass(frozen=True)
class Vocabulary:
    """Words for the parts and values of one task."""

    parts: frozenset[Part]
    """All parts."""
    read: Callable[[str], list[Token]]
    """Returns the tokens `part` and `value` of a sentence."""
    located: Callable[[PartValue], frozenset[Part]] = lambda value: frozenset()
    """Returns the parts of the last attempt with a value."""
    is_shared: bool = False
    """The vocabulary serves all tasks, so that the tokens of a sentence are kept."""
    is_numbered: bool = False
    """The parts are places, which bare numbers may mean."""
    skips_suppositions: bool = False
    """Suppositions about the parts are common, so that they are no statements."""


@dataclass
class Memory:
    """What earlier sentences mentioned, for "the others", "it" and "nor Jack"."""

    mentioned: set[Part] = field(default_factory=set)
    subject: frozenset[Part] = frozenset()
    """The last part with a value or verdict."""
    value: PartValue | None = None
    single: tuple[Relation, PartValue] | None = None
    """The concept of which there is exactly one: a value, or a wrong part."""
    last: tuple[str, PartValue] | None = None
    recent: tuple[frozenset[Part], ...] = ()
    """The parts of the last tokens, for "they", "the latter" and "swap them"."""
    known: set[Part] = field(default_factory=set)
    """Parts that the hints of the dialogue tell."""
    fact: Fact | None = None
    """The last statement, for "so does Jack" and "E too"."""

    def copy(self) -> Memory:
        """Return a copy that does not change with this memory."""
        copied = copy(self)
        copied.mentioned, copied.known = set(self.mentioned), set(self.known)
        return copied


_JOIN = re.compile(r",|&|\+|/|\b(?:and|nor|or)\b", re.IGNORECASE)
_ENDS_CLAUSE = re.compile(r"[:;—–]|, (?:but|so|only|though|while|whereas|and then)\b|\bbut\b")
_TIMES = {"once": 1, "twice": 2, "thrice": 3}
_OUT_OF = re.compile(r" (?:out )?of (?:the |your |these )?\d{1,2}(?!\w)")


def tokens_of(sentence: str, vocabulary: Vocabulary) -> list[Token]:
    """Return the tokens of a sentence in order; parts and values take precedence over concepts."""
    named = vocabulary.read(sentence)
    found = [token for token in _concepts(sentence) if _is_free(token, named)]
    found = [_neither_nor(token, [*named, *found]) for token in found]
    taken = [*named, *(token for token in found if token.symbol != "join")]
    found += [
        Token("clause", *match.span(), match[0])
        for match in _ENDS_CLAUSE.finditer(sentence)
        if _is_free(Token("clause", *match.span(), ""), taken)
    ]
    return sorted([*named, *found], key=lambda token: (token.start, token.symbol != "clause"))


@lru_cache(4096)
def _shared_tokens(sentence: str, vocabulary: Vocabulary) -> list[Token]:
    return tokens_of(sentence, vocabulary)


def known_tokens(sentence: str, vocabulary: Vocabulary) -> list[Token]:
    """Return the tokens of a sentence; those of a shared vocabulary are kept."""
    return _shared_tokens(sentence, vocabulary) if vocabulary.is_shared else tokens_of(sentence, vocabulary)


def _is_free(token: Token, taken: Sequence[Token]) -> bool:
    return not any(other.start < token.end and token.start < other.end for other in taken)


@lru_cache(4096)
def _concepts(sentence: str) -> tuple[Token, ...]:
    """Return the tokens of the lexicon, numbers and conjunctions of a sentence."""
    words = words_of(sentence)
    found: list[Token] = []
    used: set[int] = set()
    for symbol, first, last in LEXICON.find(words):
        start, end = words[first].start, words[last - 1].end
        used.update(range(first, last))
        if symbol != "noise":
            found.append(Token(symbol, start, end, sentence[start:end]))
    end = 0
    for i, word in enumerate(words):
        if (
            i not in used
            and word.start >= end
            and (word.text in _TIMES or (word.text.isdigit() and len(word.text) < 3))
        ):
            match = _OUT_OF.match(sentence, word.end)
            end = match.end() if match else word.end
            found.append(Token("number", word.start, end, sentence[word.start : end]))
    found += [Token("join", *match.span(), match[0]) for match in _JOIN.finditer(sentence)]
    return tuple(found)


def _neither_nor(token: Token, tokens: Sequence[Token]) -> Token:
    """Return `nor` after a part as a conjunction, since `neither` before it negates already."""
    before = max((t for t in tokens if t.end <= token.start), key=lambda t: t.end, default=None)
    joins = token.text.lower() == "nor" and before is not None and before.symbol in ("part", "value")
    return token._replace(symbol="join") if joins else token


def integer(token: Token) -> int:
    """Return the number of a token such as `2` or `2 out of 3`."""
    first = token.text.lower().split()[0]
    return _TIMES.get(first) or int(first)


def with_numbered_parts(tokens: Sequence[Token], vocabulary: Vocabulary) -> list[Token] | None:
    """Return tokens whose bare numbers mean parts, as in "2 and 4 are off"; None if there are no two of them."""
    bare = [t for t in tokens if t.symbol == "number" and t.text.isdigit() and int(t.text) in vocabulary.parts]
    commanded = any(one.symbol in ("right", "wrong", "swap") and other in bare for one, other in pairwise(tokens))
    if len(bare) < 2 and not commanded:
        return None
    return [t._replace(symbol="part", parts=frozenset([int(t.text)])) if t in bare else t for t in tokens]


def meant(pronoun: str, recent: Sequence[frozenset[Part]]) -> frozenset[Part]:
    """Return the parts that a pronoun means, given the parts mentioned before it, oldest first."""
    if not recent:
        return frozenset()
    if "former" in pronoun:
        return recent[-2] if len(recent) > 1 else frozenset()
    is_plural = pronoun.startswith(("the", "both")) and "latter" not in pronoun
    if is_plural and len(recent[-1]) == 1 and len(recent) > 1:
        return recent[-1] | recent[-2]
    return recent[-1]
