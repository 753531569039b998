"""What the student has before its eyes already: the problem, and what it wrote itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rl2f_core.environments.base import Environment, extract_answer
from rl2f_core.leaks._text import NUMBER, normalise, stands_in
from rl2f_core.types import Task

_WORD = re.compile(r"\w+")


def stands_shown(environment: Environment, task: Task, words: str, normal: str, texts: Sequence[str]) -> bool:
    """Do a reading's words, its normal form, or the same number in another notation stand in one of the texts?"""
    for text in texts:
        if stands_in(words, text) or stands_in(normal, text):
            return True
        for start, end, other in environment.candidates(task, text):
            if other == normal and len(numerals(text[start:end])) == 1:
                return True
    return False


def own_texts(environment: Environment, task: Task, normal: str, attempts: Sequence[str], hint: str) -> list[str]:
    """The attempts as far as they may show an answer: without the answer block of one that was read and does not hold
    it (`Environment.holds`), such as a longer way that only passes through the same steps."""
    texts = []
    for attempt in attempts:
        inner, _ = extract_answer(attempt)
        parsed = None if inner is None else environment.parse(task, inner)
        held = parsed is None or environment.holds(task, parsed, normal, hint)
        texts.append(attempt if held or inner is None else attempt.replace(inner, " "))
    return texts


def listed_in(normal: str, problem: str) -> bool:
    """Does the problem list an answer's letters in its order, as in "each K, Q or Z" for `K Q Z`?

    A list of the letters that may be used is then in the same words as the answer.
    """
    tokens = normal.split()
    if len(tokens) < 2 or any(len(token) > 1 for token in tokens):
        return False
    said = [word for word in _WORD.findall(problem) if word not in ("or", "and")]
    return any(said[i : i + len(tokens)] == tokens for i in range(len(said) - len(tokens) + 1))


def numerals(words: str) -> list[str]:
    """The numeric literals without their signs, sorted."""
    return sorted(match[0].lstrip("+-") for match in NUMBER.finditer(normalise(words).text))
