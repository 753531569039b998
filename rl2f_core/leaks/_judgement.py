"""What a judge's answer says, and whether its quotation proves it. Pure functions, total over any text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rl2f_core.leaks._text import find, normalise, stands_in

_LINE = re.compile(r"^[\s>*_#-]*(verdict|quote)[\s*_]*:[\s*_]*(.*?)[\s*_]*$", re.IGNORECASE)
_VERDICTS = {"leak": True, "no leak": False}
_MARKS = "\"'`*_\u2018\u2019\u201c\u201d\u00ab\u00bb \t"
_GAPS = ("...", "\u2026")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a judge said."""

    leaks: bool
    quote: str = ""
    """The words that it quotes, without quotation marks."""


def read_judgement(text: str) -> Judgement | None:
    """The judgement in a judge's answer, or None where it cannot be read.

    The form is strict: exactly one line `Verdict: leak` or `Verdict: no leak`, and at most one line `Quote: …`, both
    in any case and with any Markdown around them; what else is said does not matter.
    """
    said: dict[str, list[str]] = {"verdict": [], "quote": []}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match:
            said[match[1].lower()].append(match[2])
    if len(said["verdict"]) != 1 or len(said["quote"]) > 1:
        return None
    leaks = _VERDICTS.get(" ".join(said["verdict"][0].lower().strip(f"{_MARKS}.").split()))
    if leaks is None:
        return None
    return Judgement(leaks, said["quote"][0].strip(_MARKS) if said["quote"] else "")


def prove(quote: str, hint: str, shown: tuple[str, ...] = ()) -> tuple[int, int] | None:
    """Where the quotation stands in the hint, as a character span; None where it proves nothing.

    It must stand there word for word, but for case, white space and Unicode form (`_text.normalise`), as whole words;
    an ellipsis at its ends is left out. Words that stand in one of `shown` (problem and attempts) are no evidence:
    the student has them already.
    """
    for gap in _GAPS:
        quote = quote.strip().removeprefix(gap).removesuffix(gap)
    value = normalise(quote.strip(_MARKS)).text
    if not any(char.isalnum() for char in value) or any(stands_in(value, text) for text in shown):
        return None
    read = normalise(hint)
    spans = find(value, read) or find(value.rstrip(".,;:!?"), read)
    return read.original(*spans[0]) if spans else None
