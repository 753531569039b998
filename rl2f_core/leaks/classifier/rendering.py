"""Render a query as the classifier's text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rl2f_core.environments.base import Environment
from rl2f_core.errors import shorten
from rl2f_core.leaks.base import LeakQuery
from rl2f_core.leaks.classifier.facts import answer_facts, mention_facts, told_fact
from rl2f_core.leaks.visible_context import parse_attempt

FORMAT = 3
"""Version of the rendering; a detector needs the version that it was trained with."""
MAX_PROBLEM_CHARS, MAX_ANSWER_CHARS, MAX_EARLIER_CHARS = 160, 80, 160
MAX_HINT_CHARS = 1_500
"""The classifier ignores the rest of a hint."""
QUESTION = "Leak?"


@dataclass(frozen=True, slots=True)
class Rendering:
    """The text before the hint, the hint, and what was computed from it."""

    context: str
    hint: str
    end: str


@dataclass(frozen=True, slots=True)
class Encoding:
    """Tokens of a rendering."""

    token_ids: tuple[int, ...]
    hint_start: int
    """Index of the hint's first token."""
    offsets: tuple[tuple[int, int], ...]
    """Character span in the hint of each of its tokens."""


def render(environment: Environment, query: LeakQuery) -> Rendering:
    """Render problem, answer, attempts, earlier hints, hint and computed facts.

    Problem and earlier hints are shortened, because the facts contain what the hint must be compared with. What was
    computed from the hint is at the end, where the classifier reads its features.
    """
    task = query.task
    tries = [parse_attempt(environment, task, attempt)[1] or attempt for attempt in query.attempts[-2:]]
    earlier = query.hints[-2:]
    lines = [
        f"Problem: {_line(environment.prompt(task.public), MAX_PROBLEM_CHARS)}",
        f"Answer: {_line(environment.gold_answer(task), MAX_ANSWER_CHARS)}",
        f"Tries: {'; '.join(_line(text, MAX_ANSWER_CHARS) for text in tries) or 'none'}",
    ]
    facts = answer_facts(environment, task, query.attempts)
    lines += [f"Facts: {facts}"] if facts else []
    for hint in earlier:
        lines.append(f"Earlier: {_line(hint, MAX_EARLIER_CHARS)}")
        said = mention_facts(environment, task, query.attempts, hint)
        lines += [f"It has {said}"] if said else []
    mentions = mention_facts(environment, task, query.attempts, query.hint)
    end = f"\nHas: {mentions or 'nothing'}\nTold: {told_fact(environment, query)}\n{QUESTION}"
    return Rendering("\n".join([*lines, "Hint: "]), query.hint[:MAX_HINT_CHARS], end)


def encode(tokenizer: Any, rendering: Rendering, max_tokens: int) -> Encoding:
    """Encode a rendering with a fast tokenizer of transformers, without special tokens.

    A long hint loses its end, and then a long context its beginning, so that at most `max_tokens` tokens remain.
    """
    end = tokenizer(rendering.end, add_special_tokens=False, split_special_tokens=True)["input_ids"][-max_tokens:]
    coded = tokenizer(rendering.hint, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
    room = max_tokens - len(end)
    hint, offsets = coded["input_ids"][:room], coded["offset_mapping"][:room]
    context = tokenizer(rendering.context, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    context = context[max(0, len(context) + len(hint) - room) :]
    return Encoding((*context, *hint, *end), len(context), tuple(map(tuple, offsets)))


def _line(text: str, limit: int) -> str:
    return shorten(" ".join(text.split()), limit)
