"""What counts as reasoning in the think block of an attempt."""

from __future__ import annotations

import re
from collections.abc import Sequence

MIN_THINK_WORDS = 3
"""Minimum words per person in a think block, not counting lines of the problem."""
_THINK_TAG = re.compile(r"</?think>", re.IGNORECASE)
_THINK_FIRST = re.compile(r"\s*<think>(.*?)</think>\s*<answer>", re.IGNORECASE | re.DOTALL)


def think_problem(attempt: str, problem: str, people: Sequence[str]) -> str | None:
    """Return why the think block of an attempt does not count as reasoning, or None if it does.

    The attempt must be one `<think>…</think>` and the answer block, nothing else.  Without lines copied from the
    problem, the block must name everybody and have at least `MIN_THINK_WORDS` words per person.  This refuses empty
    and filler blocks; it does not judge the reasoning.
    """
    tags = [tag.casefold() for tag in _THINK_TAG.findall(attempt)]
    match = _THINK_FIRST.match(attempt)
    if tags != ["<think>", "</think>"] or match is None:
        return "no single <think> block right before the answer"
    thought = match.group(1)
    for line in problem.splitlines():
        thought = thought.replace(line, " ") if line else thought
    words = [word.casefold() for word in re.findall(r"\w+(?:['’-]\w+)*", thought)]
    mentioned = {word.removesuffix("'s").removesuffix("’s") for word in words}
    missing = [name for name in people if name.casefold() not in mentioned]
    if missing:
        return f"the <think> block does not mention {', '.join(missing)}"
    if len(words) < MIN_THINK_WORDS * len(people):
        return f"the <think> block has only {len(words)} words"
    return None
