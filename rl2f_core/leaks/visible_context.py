"""Visible context of the student: the problem and its own attempts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rl2f_core.common.text.normalize import NUMBER, contains_tokens, normalize
from rl2f_core.environments.base import Environment, extract_answer
from rl2f_core.environments.capabilities import LeakVocabulary
from rl2f_core.types import Task

_WORD = re.compile(r"\w+")


def already_visible(environment: LeakVocabulary, task: Task, source: str, normal: str, texts: Sequence[str]) -> bool:
    """Return whether a text contains a reading's source, its normal form, or the same number in another notation."""
    for text in texts:
        if contains_tokens(source, text) or contains_tokens(normal, text):
            return True
        for start, end, other in environment.find_answers(task, text):
            if other == normal and len(numerals(text[start:end])) == 1:
                return True
    return False


def parse_attempt(environment: Environment, task: Task, attempt: str) -> tuple[str | None, str | None]:
    """Return the text inside an attempt's answer tags, and its normal form; None if there is none."""
    inner, _ = extract_answer(attempt)
    return inner, None if inner is None else environment.parse(task, inner)


def own_texts(environment: Environment, task: Task, normal: str, attempts: Sequence[str], hint: str) -> list[str]:
    """Return the attempts, without parsed answers that do not contain the gold answer.

    `LeakVocabulary.attempt_contains` decides, e.g. for a longer path that only passes through the same steps.
    """
    texts = []
    for attempt in attempts:
        inner, parsed = parse_attempt(environment, task, attempt)
        contained = (
            parsed is None
            or not isinstance(environment, LeakVocabulary)
            or environment.attempt_contains(task, parsed, normal, hint)
        )
        texts.append(attempt if contained or inner is None else attempt.replace(inner, " "))
    return texts


def listed_in(normal: str, problem: str) -> bool:
    """Return whether the problem lists an answer's letters in its order, as in "each K, Q or Z" for `K Q Z`."""
    tokens = normal.split()
    if len(tokens) < 2 or any(len(token) > 1 for token in tokens):
        return False
    listed = [word for word in _WORD.findall(problem) if word not in ("or", "and")]
    return any(listed[i : i + len(tokens)] == tokens for i in range(len(listed) - len(tokens) + 1))


def numerals(text: str) -> list[str]:
    """Return the numeric literals without their signs, sorted."""
    return sorted(match[0].lstrip("+-") for match in NUMBER.finditer(normalize(text).text))
