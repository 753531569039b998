"""Parse a judge's reply and verify its quotation; pure functions that accept any text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from rl2f_core.common.text.normalize import contains_tokens, find, normalize
from rl2f_core.types import LeakType

_LINE = re.compile(r"^[\s>*_#-]*(verdict|type|quote)[\s*_]*:[\s*_]*(.*?)[\s*_]*$", re.IGNORECASE)
_VERDICTS = {"leak": True, "no leak": False}
_MARKS = "\"'`*_\u2018\u2019\u201c\u201d\u00ab\u00bb \t"
_GAPS = ("...", "\u2026")
_TYPES = (
    "exact (it contains the answer verbatim), equivalent (in another form, or by one operation on what the dialogue "
    "shows), derivation (several statements, or one solving step, leave only the answer) or partial (a part of the "
    "answer)"
)
VERDICT_LINES = f"""Reply with these lines and nothing else.
If it does:
Verdict: leak
Type: {_TYPES}
Quote: the words of the hint that give it away, copied exactly
If it does not:
Verdict: no leak
Quote: none"""
"""Instruction for a verdict in lines."""
VERDICT_JSON = f"""Reply with one JSON object and nothing else.
"verdict": "leak" if it does, else "no leak"
"type": {_TYPES}, or none if it is no leak
"quote": the words of the hint that give it away, copied exactly, or an empty text"""
"""Instruction for a verdict in JSON."""
ANSWER_JSON = 'Reply with one JSON object with the field "answer", without tags, and nothing else.'
"""Instruction for a stranger's answer in JSON."""


class VerdictReply(BaseModel):
    """A judge's reply in JSON."""

    model_config = ConfigDict(extra="forbid")

    verdict: Literal["leak", "no leak"]
    type: Literal["exact", "equivalent", "derivation", "partial", "none"]
    quote: str


class AnswerReply(BaseModel):
    """A stranger's reply in JSON."""

    model_config = ConfigDict(extra="forbid")

    answer: str


ReplyT = TypeVar("ReplyT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judge's verdict."""

    leaks: bool
    quote: str = ""
    """The quotation without quotation marks."""
    leak_type: LeakType | None = None
    """How the hint leaks; None if it does not, or if the judge does not say."""


def read_json(text: str, model: type[ReplyT]) -> ReplyT | None:
    """Parse the one JSON object of a reply, also in a code block or between words; None if it has another form."""
    try:
        return model.model_validate_json(text[text.find("{") : text.rfind("}") + 1])
    except ValidationError:
        return None


def read_judgement(text: str, *, is_json: bool = False) -> Judgement | None:
    """Parse a judge's reply; None if it has another form.

    Args:
        text: With `is_json`, a `VerdictReply`. Else exactly one line `Verdict: leak` or `Verdict: no leak`, at most
            one line `Type: …` and at most one line `Quote: …`, in any case and with any Markdown; other lines are
            ignored.
        is_json: The judge was asked for JSON.
    """
    if is_json:
        reply = read_json(text, VerdictReply)
        return None if reply is None else _judgement(reply.verdict == "leak", reply.type, reply.quote)
    fields: dict[str, list[str]] = {"verdict": [], "type": [], "quote": []}
    for line in text.splitlines():
        if match := _LINE.match(line):
            fields[match[1].lower()].append(match[2])
    verdicts, types, quotes = fields["verdict"], fields["type"], fields["quote"]
    if len(verdicts) != 1 or len(types) > 1 or len(quotes) > 1:
        return None
    leaks = _VERDICTS.get(" ".join(verdicts[0].lower().strip(f"{_MARKS}.").split()))
    return None if leaks is None else _judgement(leaks, "".join(types), "".join(quotes))


def _judgement(leaks: bool, leak_type: str, quote: str) -> Judgement:
    word = re.match(r"\w*", leak_type.lower().strip(_MARKS))
    known = leaks and word is not None and word[0] in set(LeakType)
    return Judgement(leaks, quote.strip(_MARKS), LeakType(word[0]) if known and word else None)


def locate_quote(quote: str, hint: str, visible: tuple[str, ...] = ()) -> tuple[int, int] | None:
    """Return the character span of the quotation in the hint; None if it is not evidence.

    The quotation must occur as whole words; case, white space, Unicode form and an ellipsis at the ends are ignored. A
    quotation that also occurs in one of `visible` (problem and attempts) is not evidence.
    """
    for gap in _GAPS:
        quote = quote.strip().removeprefix(gap).removesuffix(gap)
    value = normalize(quote.strip(_MARKS)).text
    if not any(char.isalnum() for char in value) or any(contains_tokens(value, text) for text in visible):
        return None
    normalized = normalize(hint)
    spans = find(value, normalized) or find(value.rstrip(".,;:!?"), normalized)
    return normalized.original(*spans[0]) if spans else None
