"""Values of a row as text: plain text, comparison of texts, and the error of a value that cannot be used."""

from __future__ import annotations

import json
import re
import unicodedata

from rl2f_core.environments.math.answer_text import last_boxed

MAX_ANSWER = 4_000
"""Maximum number of characters of an answer that is not a program."""


class RowError(ValueError):
    """A value of a row that a checker cannot use.

    Args:
        reason: What is wrong, in words that follow the name of the column.
        meaning: Meaning of the column.
    """

    def __init__(self, reason: str, meaning: str = "answer") -> None:
        super().__init__(reason)
        self.meaning = meaning


def as_text(value: object) -> str:
    """Return a value of a row as text, lists and objects as JSON."""
    if isinstance(value, dict | list | bool):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def plain_text(text: str) -> str | None:
    """Join the words by single spaces; None if the text is empty, too long, or has unprintable characters."""
    words = " ".join(text.split())
    if not words or len(words) > MAX_ANSWER or any(unicodedata.category(char) in ("Cc", "Cs", "Cn") for char in words):
        return None
    return words


def same_text(one: str, other: str) -> bool:
    """Compare two texts without case, Unicode form and white space."""
    return _folded(one) == _folded(other)


def _folded(text: str) -> str:
    """Fold case, Unicode form and white space; raised and lowered characters and fractions keep their meaning."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", "".join(map(_plain, unicodedata.normalize("NFC", text))))
    return " ".join(text.casefold().split())


def _plain(char: str) -> str:
    is_shaped = unicodedata.decomposition(char).startswith(("<super>", "<sub>", "<fraction>"))
    return char if is_shaped else unicodedata.normalize("NFKC", char)


def unboxed(text: str) -> str:
    r"""Return what is in the `\\boxed{…}` that is the whole text; otherwise the text."""
    is_box = re.match(r"[\s$]*\\boxed\s*\{", text) and text.count(r"\boxed") == 1
    inside = last_boxed(text)[0] if is_box else None
    return text if inside is None else inside
