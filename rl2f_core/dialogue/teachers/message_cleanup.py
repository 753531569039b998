"""Convert a model's completion to a teacher's message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from rl2f_core.dialogue.teachers.base import Feedback
from rl2f_core.models.llms.base import Completion

Truncated = Literal["sentence", "keep", "error"]
OnError = Literal["contentless", "fail"]
_THOUGHT = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
_SENTENCE_END = re.compile(r"""[.!?…。！？]["'”’)\]]*(?=\s|\Z)""")
_NOT_AN_END = re.compile(r"(?:\b(?:e\.g|i\.e|vs|cf|no)|\A\d+|\n\s*\d+)\.\Z", re.IGNORECASE)


def after_marker(completion: Completion, marker: str) -> Completion:
    """Return the completion with only the text after the last `marker`; an error if there is none.

    The text before it is the judge's reasoning, which may contain the answer.
    """
    if completion.error is not None:
        return completion
    _, found, text = completion.text.rpartition(marker)
    if not found:
        return replace(completion, text="", error=f"The teacher's message has no part {marker!r}.")
    return replace(completion, text=text)


def to_feedback(
    completion: Completion, prompt_version: str, max_chars: int, truncated: Truncated, on_error: OnError
) -> Feedback:
    """Return the cleaned message, or an error.

    A message longer than `max_chars` counts as truncated.
    """
    text, error = completion.text, completion.error
    if error is None:
        text = _THOUGHT.sub("", text).strip()
        is_truncated = completion.finish_reason == "length" or len(text) > max_chars
        text, error = _shorten(text[:max_chars].strip(), is_truncated, truncated)
    if error is not None:
        ends_dialogue = on_error == "fail"
        return Feedback("", error=error, prompt=prompt_version, usage=completion.usage, ends_dialogue=ends_dialogue)
    return Feedback(text, prompt=prompt_version, usage=completion.usage)


def _shorten(text: str, truncated: bool, policy: Truncated) -> tuple[str, str | None]:
    """Return the remaining text, or the error if none remains."""
    if not text:
        return "", "The teacher's message is empty."
    if not truncated or policy == "keep":
        return text, None
    if policy == "error":
        return "", "The teacher's message was truncated."
    sentences = whole_sentences(text)
    return (sentences, None) if sentences else ("", "The teacher's message was truncated within its first sentence.")


def whole_sentences(text: str) -> str:
    """Return `text` up to the end of its last whole sentence."""
    ends: Sequence[int] = [m.end() for m in _SENTENCE_END.finditer(text) if not _NOT_AN_END.search(text[: m.end()])]
    return text[: ends[-1]] if ends else ""
