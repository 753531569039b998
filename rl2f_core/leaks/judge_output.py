"""Parse a judge's answer and verify its quotation; pure functions that accept any text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rl2f_core.text.normalize import contains_tokens, find, normalize

_LINE = re.compile(r"^[\s>*_#-]*(verdict|quote)[\s*_]*:[\s*_]*(.*?)[\s*_]*$", re.IGNORECASE)
_VERDICTS = {"leak": True, "no leak": False}
_MARKS = "\"'`*_\u2018\u2019\u201c\u201d\u00ab\u00bb \t"
_GAPS = ("...", "\u2026")


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judge's verdict."""

    leaks: bool
    quote: str = ""
    """The quotation without quotation marks."""


def read_judgement(text: str) -> Judgement | None:
    """Parse a judge's answer; None if it has another form.

    The answer needs exactly one line `Verdict: leak` or `Verdict: no leak` and at most one line `Quote: …`, in any
    case and with any Markdown. Other lines are ignored.
    """
    fields: dict[str, list[str]] = {"verdict": [], "quote": []}
    for line in text.splitlines():
        if match := _LINE.match(line):
            fields[match[1].lower()].append(match[2])
    verdicts, quotes = fields["verdict"], fields["quote"]
    if len(verdicts) != 1 or len(quotes) > 1:
        return None
    leaks = _VERDICTS.get(" ".join(verdicts[0].lower().strip(f"{_MARKS}.").split()))
    return None if leaks is None else Judgement(leaks, quotes[0].strip(_MARKS) if quotes else "")


def locate_quote(quote: str, hint: str, visible: tuple[str, ...] = ()) -> tuple[int, int] | None:
    """Return the character span of the quotation in the hint; None if it is no evidence.

    The quotation must occur as whole words; case, white space, Unicode form and an ellipsis at the ends are ignored. A
    quotation that also occurs in one of `visible` (problem and attempts) is no evidence.
    """
    for gap in _GAPS:
        quote = quote.strip().removeprefix(gap).removesuffix(gap)
    value = normalize(quote.strip(_MARKS)).text
    if not any(char.isalnum() for char in value) or any(contains_tokens(value, text) for text in visible):
        return None
    normalized = normalize(hint)
    spans = find(value, normalized) or find(value.rstrip(".,;:!?"), normalized)
    return normalized.original(*spans[0]) if spans else None
