"""One imported rollout, independent of its format, and the parts of formats that are shared."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeVar

from rl2f_core.types import JsonObject, Message, Split

MAX_NUMBER = 1e30
"""Largest reward or weight; sums and squares of larger ones overflow."""
_SURROGATE = re.compile("[\ud800-\udfff]")
Phase = Literal["train", "evaluation", "chat"]
_TRUTH = {"true": 1.0, "yes": 1.0, "correct": 1.0, "false": 0.0, "no": 0.0, "incorrect": 0.0}
_CHATML = re.compile(r"<\|im_start\|>(system|user|assistant)\n(.*?)(?:<\|im_end\|>\n?|\Z)", re.DOTALL)
_ROLE_LINE = re.compile(r"^(system|user|assistant)\n", re.MULTILINE)


T = TypeVar("T")


class RowError(ValueError):
    """A row does not follow its format; the text is the reason."""


@dataclass(frozen=True, kw_only=True)
class ImportedRollout:
    """One conversation with its scores."""

    prompt: Sequence[Message]
    """Messages before the first sampled attempt."""
    completion: Sequence[Message]
    """Sampled attempts (role assistant), and what the student read after them (user, tool)."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """Value of each reward term of the whole rollout; None if it is unknown, e.g. NaN in the file."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of a reward term; 1 if it is missing, 0 if the term is stored but does not count."""
    correct: bool | None = None
    """Verdict of the file; None compares the sum of the rewards, if one is known, with the threshold of the import."""
    parsed: str | None = None
    """The final answer; None takes the last attempt."""
    answer: str | None = None
    """Gold answer."""
    other_answers: int = 0
    """Number of further gold answers of the file."""
    advantage: float | None = None
    phase: Phase | None = None
    """None if the row does not state it: the path may, see `RolloutFormat.default_phase`."""
    step: int | None = None
    """None if the row does not state it."""
    split: Split | None = None
    """Split of the task if the row states it; otherwise tasks of evaluations are of the test split, others of train."""
    model: str = ""
    level: str = ""
    """Name of the task set."""
    task_key: str = ""
    """Distinguishes problems with equal prompt and answer."""
    truncated: bool = False
    """The last attempt is cut off."""
    error: str | None = None
    """Why the rollout failed."""


class RolloutFormat(ABC):
    """A file format of rollouts."""

    name: ClassVar[str]
    """Value of `rl2f import --format`."""
    title: ClassVar[str]
    """Description in error messages: the program and its recognized columns."""
    default_phase: ClassVar[Phase] = "train"
    """Phase of rows that do not state it, in files whose path does not either."""
    is_training: ClassVar[bool] = False
    """A training program writes a file per step, so the path can state phase and step."""
    sums_known_rewards: ClassVar[bool] = False
    """The total leaves out unknown rewards; otherwise it is unknown if one of them is."""

    @abstractmethod
    def recognizes(self, keys: frozenset[str]) -> bool:
        """Return whether a file whose first row has these keys has this format."""

    @abstractmethod
    def rollouts(self, row: JsonObject) -> list[ImportedRollout]:
        """Return the rollouts of a row, usually one. Raises `RowError` naming the wrong column."""

    def reward_names(self, rows: Iterable[object]) -> Sequence[str]:
        """Return the rewards that count in a file, of which `rows` are the rows; by default all that a rollout has.

        Raises `DataError` if the file does not tell.
        """
        return ()


def encodable(value: T) -> T:
    """Return a JSON value in which lone surrogates, which cannot be encoded, are question marks."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-8", "replace")) if _SURROGATE.search(text) else value


def as_messages(value: object, column: str, role: Literal["user", "assistant"]) -> list[Message]:
    """Return a column as messages; a text is one message of the given role, or a prompt with the roles of ChatML.

    Tool calls become JSON after the text, reasoning becomes a `<think>` block before it, other parts than text
    become their type in brackets. Raises `RowError` if the value is neither a text nor a list of messages.
    """
    if isinstance(value, str):
        text = _valid(value)
        return (split_roles(text) if role == "user" else None) or [Message(role=role, content=text)]
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise RowError(f"{column}: neither a text nor a list of messages")
    messages = []
    for number, item in enumerate(value):
        if item.get("role") not in ("system", "developer", "user", "assistant", "tool"):
            raise RowError(f"{column}.{number}.role: {item.get('role')!r} is not a role of a message")
        messages.append(Message(role=str(item["role"]), content=_content(item, f"{column}.{number}")))
    return messages


def split_roles(prompt: str) -> list[Message] | None:
    """Split a prompt that was rendered with ChatML, with or without its special tokens.

    Returns None unless the roles alternate from an optional system message to the assistant's, so that a line of a
    message that names a role is not taken for the beginning of another message.
    """
    pattern = _CHATML if prompt.startswith("<|im_start|>") else _ROLE_LINE
    matches = list(pattern.finditer(prompt))
    roles = [match[1] for match in matches]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if not turns or turns != ["user", "assistant"] * (len(turns) // 2) or matches[0].start():
        return None
    if pattern is _CHATML:
        texts = [match[2] for match in matches]
    else:
        ends = [match.start() for match in matches[1:]]
        texts = [prompt[m.end() : end].removesuffix("\n") for m, end in zip(matches, [*ends, None], strict=True)]
    messages = [Message(role=role, content=text) for role, text in zip(roles, texts, strict=True)]
    return messages if messages[-1]["content"] else messages[:-1]


def _content(item: JsonObject, where: str) -> str:
    text = _text_of(item.get("content"), where)
    reasoning = item.get("reasoning_content")
    if isinstance(reasoning, str) and reasoning:
        text = f"<think>\n{reasoning}\n</think>\n{text}"
    calls = item.get("tool_calls")
    return _valid("\n".join(filter(None, [text, *(map(_as_text, calls) if isinstance(calls, list) else ())])))


def _text_of(value: object, where: str) -> str:
    """Return the text of a message's content: a text, None, or a list of typed parts."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise RowError(f"{where}.content: neither a text nor a list of parts")
    texts = []
    for part in value:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, dict) and isinstance(part.get("reasoning"), str):
            texts.append(f"<think>\n{part['reasoning']}\n</think>")
        else:
            texts.append(f"[{part.get('type', 'part') if isinstance(part, dict) else 'part'}]")
    return "\n".join(texts)


def _as_text(value: object) -> str:
    """Return a text unchanged, and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _valid(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")


def as_number(value: object, column: str) -> float | None:
    """Return a number; None for a missing or non-finite one. Raises `RowError` for anything else, and a huge one."""
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise RowError(f"{column}: {value!r:.60} is not a number")
    try:
        number = float(value)
    except OverflowError:
        return None
    if math.isfinite(number) and abs(number) > MAX_NUMBER:
        raise RowError(f"{column}: {value!r:.60} is too large")
    return number if math.isfinite(number) else None


def as_score(value: object) -> float | None:
    """Return a verdict as a number: 1 for true, yes and correct, 0 for their opposites; None if it is missing.

    Raises `ValueError` if it is neither one of these words nor a number.
    """
    if isinstance(value, str):
        word = value.strip().casefold()
        if word in ("", "none", "null"):
            return None
        value = _TRUTH[word] if word in _TRUTH else float(word)
    return as_number(value, "value")


def as_correct(value: object, column: str) -> bool | None:
    """Return a verdict; partial credit below 1 is incorrect, and a missing one None. Raises `RowError` for others."""
    try:
        score = as_score(value)
    except ValueError:
        score = -1.0
    if score is not None and not 0 <= score <= 1:
        raise RowError(f"{column}: {value!r:.60} is not a verdict; true, false, or a number from 0 to 1 is")
    return None if score is None else score == 1


def as_step(value: object, column: str) -> int | None:
    """Return a step; None if it is missing. Raises `RowError` if it is not a whole number from 0."""
    number = as_number(value, column)
    if number is None:
        return None
    if number < 0 or number != int(number) or number >= 2**31:
        raise RowError(f"{column}: {value!r:.60} is not a step")
    return int(number)


def as_split(value: object) -> Split | None:
    """Return a split; None if it is missing. A name that is neither train nor validation is held out: `test`."""
    if value in (None, ""):
        return None
    name = str(value).lower()
    return "train" if name.startswith("train") else "validation" if name in ("validation", "valid", "val") else "test"


def as_answer(value: object) -> str | None:
    """Return a gold answer as text; the first of a list, JSON for an object, None if it is missing or empty."""
    if isinstance(value, list):
        value = value[0] if value else None
    if value is None or value == "":
        return None
    return _valid(_as_text(value))


def answers(*values: object) -> JsonObject:
    """Return the fields `answer` and `other_answers` of a rollout from the first value with an answer."""
    value = next((value for value in values if as_answer(value) is not None), None)
    other = len({as_answer(item) for item in value} - {None}) - 1 if isinstance(value, list) else 0
    return {"answer": as_answer(value), "other_answers": max(0, other)}


def split_prompt(messages: Sequence[Message], first: int | None = None) -> tuple[list[Message], list[Message]]:
    """Split a conversation before position `first`, by default its first assistant message."""
    if first is None:
        first = next((k for k, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return list(messages[:first]), list(messages[first:])
