"""Choices of a question: listed in the problem or in a column, and the letter that an answer gives."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import NamedTuple

from rl2f_core.common.text.tokens import cached
from rl2f_core.environments.dataset.row_text import RowError, as_text, same_text
from rl2f_core.environments.math.answer_text import clean, flat
from rl2f_core.errors import shorten

_LETTER = re.compile(
    r"(?:(?:the )?(?:correct |right |final )?(?:answer|option|choice|letter)(?: is)?:? )?"
    r"[(\[]?([A-Za-z])(?:[)\].:]*|(?:[)\].:]+| [-–:]) ?(?P<text>.+))",
    re.IGNORECASE | re.DOTALL,
)
_CHOICE_LINE = re.compile(r"^[ \t]*[(\[]?([A-Za-z])[)\].:][ \t]*(?P<text>.*)$", re.MULTILINE)
_CHOICE = re.compile(r"(?<![\w'’.])[(\[]?([A-Za-z])[)\].]\s*(?P<text>.*?)(?=\s[(\[]?[A-Za-z][)\].]|\s*$)", re.DOTALL)
_SECOND_CHOICE = re.compile(
    r"(?<![\w'’])(?:[A-Z]|(?i:or|nor|not|is|isn['’]t|wrong|incorrect|but|maybe|perhaps))(?!\w)"
    r"|(?<![\w'’])[a-j][)\].:]|^\W*[a-j](?:\W+[a-j])*\W*$"
)
"""Another choice, or doubt; a small letter is a choice if it is marked, or if there are only such letters."""


LAST_LETTER = "J"
"""Last letter that a text may follow if the problem lists no choices."""


class Choices(NamedTuple):
    """The choices of a row."""

    values: list[object]
    """The choices as in the file."""
    labels: list[str]
    """Labels of the file, if it has any."""
    texts: dict[str, str]
    """Text of each choice by its letter."""

    def letter(self, answer: object) -> str:
        """Return the letter of a gold answer: a letter, label, text, or position from 0. Raises `RowError`."""
        text, letters = as_text(answer).strip(), list(self.texts)
        found = {letters[i] for i, label in enumerate(self.labels) if label == text}
        if not found:
            found = {letters[i] for i, value in enumerate(self.values) if value == answer}
            found |= {letter for letter in [chosen_letter(text, self.texts)] if isinstance(answer, str) and letter}
            is_position = text.isascii() and text.isdecimal() and int(text[:9]) < len(letters)
            found |= {letters[int(text)]} if is_position else set()
        if len(found) != 1:
            known = "; ".join(f"{letter}. {shorten(choice, 40)}" for letter, choice in self.texts.items())
            why = f"names several choices ({', '.join(sorted(found))})" if found else "names none of the choices"
            raise RowError(f"{why}; write one of the letters: {known}")
        return found.pop()


def read_choices(value: object) -> Choices:
    """Read a list of choices, an object of texts by letter, or one with `text` and `label`. Raises `RowError`."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise RowError("is not a list of choices", "choices") from None
    labels: list[object] = []
    if isinstance(value, dict):
        labels = list(value["label"]) if isinstance(value.get("label"), list) else list(value)
        value = value.get("text", list(value.values()))
    if not isinstance(value, list) or not 2 <= len(value) <= 26 or len(labels) not in (0, len(value)):
        raise RowError("is not a list of 2 to 26 choices", "choices")
    texts = {chr(65 + i): " ".join(as_text(choice).split()) for i, choice in enumerate(value)}
    return Choices(value, [as_text(label) for label in labels], texts)


@cached(4096)
def listed_choices(problem: str) -> dict[str, str]:
    """Return the choices that a problem lists as A, B, …, in lines of their own or one after the other; or none."""
    for pattern in (_CHOICE_LINE, _CHOICE):
        found: dict[str, str] = {}
        for match in pattern.finditer(problem):
            if match[1].upper() == chr(65 + len(found)):
                found[match[1].upper()] = match["text"].strip()
            elif match[1].upper() == "A":
                found = {"A": match["text"].strip()}
        if len(found) > 1:
            return found
    return {}


def chosen_letter(text: str, listed: Mapping[str, str]) -> str | None:
    """Return the letter that an answer gives, alone or with its text; None if it is another text or not listed."""
    match = _LETTER.fullmatch(text.strip()) or _LETTER.fullmatch(_unstyled(text))
    if match is None or (listed and match[1].upper() not in listed):
        return None
    more, letter = match["text"] or "", match[1].upper()
    if more and listed:
        return letter if _same_choice(more, listed[letter]) else None
    is_name = more and letter > LAST_LETTER  # e.g. J. Smith
    return None if is_name or _SECOND_CHOICE.search(more) else letter


def _unstyled(text: str) -> str:
    return re.sub(r"[*$]", "", flat(clean(text.replace("**", "")) or "")).strip()


def _same_choice(one: str, other: str) -> bool:
    first, second = (_unstyled(text).strip(" .,;") for text in (one, other))
    return same_text(first, second)
