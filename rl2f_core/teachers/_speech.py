"""From what a language model wrote to what may stand as a hint; shared by all teachers that speak with one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from rl2f_core.llms.base import Completion
from rl2f_core.teachers.base import Feedback

Truncated = Literal["sentence", "keep", "error"]
OnError = Literal["contentless", "fail"]
_THOUGHT = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
_SENTENCE_END = re.compile(r"""[.!?…。！？]["'”’)\]]*(?=\s|\Z)""")
_NOT_AN_END = re.compile(r"(?:\b(?:e\.g|i\.e|vs|cf|no)|\A\d+|\n\s*\d+)\.\Z", re.IGNORECASE)


def spoken(completion: Completion, prompt: str, *, max_chars: int, truncated: Truncated, on_error: OnError) -> Feedback:
    """A hint, or why there is none.

    Args:
        completion: What the model wrote.
        prompt: See `Hint.prompt`.
        max_chars: A longer message counts as cut off there.
        truncated: What becomes of a message that was cut off: its whole `sentence`s, all of it (`keep`), or an `error`.
        on_error: What a failed hint does to the dialogue.
    """
    text, error = completion.text, completion.error
    if error is None:
        text, error = _message(_THOUGHT.sub("", text).strip(), completion.finish == "length", max_chars, truncated)
    if error is not None:
        return Feedback("", error=error, prompt=prompt, usage=completion.usage, fatal=on_error == "fail")
    return Feedback(text, prompt=prompt, usage=completion.usage)


def _message(text: str, cut: bool, max_chars: int, truncated: Truncated) -> tuple[str, str | None]:
    """The words that are left, and why there are none."""
    cut = cut or len(text) > max_chars
    text = text[:max_chars].strip()
    if not text:
        return "", "The teacher wrote an empty message."
    if not cut or truncated == "keep":
        return text, None
    if truncated == "error":
        return "", "The teacher's message was cut off."
    whole = whole_sentences(text)
    return (whole, None) if whole else ("", "The teacher's message was cut off within its first sentence.")


def whole_sentences(text: str) -> str:
    """`text` up to the end of its last whole sentence; empty where there is none."""
    ends: Sequence[int] = [m.end() for m in _SENTENCE_END.finditer(text) if not _NOT_AN_END.search(text[: m.end()])]
    return text[: ends[-1]] if ends else ""
