"""Statements in free text about a matrix of digits, its rows, columns or cells."""

# ruff: noqa: E501 (long patterns stay on one line)
from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from rl2f_core.common.text.tokens import by_word, cached_with_args, digit_runs

_WORDS = {word: str(n) for n, word in enumerate("zero one two three four five six seven eight nine".split())}
_NUMBERS = re.compile(rf"\b(?:{'|'.join(_WORDS)})\b", re.IGNORECASE)
_NTH = by_word("first|1st|top|upper|leftmost;second|2nd;third|3rd;fourth|4th;fifth|5th")
_POSITION_WORDS = "row col line ( [ corner left right middle cent r1 r2 r3 r4 r5".split()
_FROM_END = ("last", "bottom", "lower", "final", "rightmost")
_MIDDLE = ("middle", "centre", "center", "central")
_ORDINAL = "|".join((*_NTH, *_FROM_END, *_MIDDLE))
_LABEL = re.compile(
    rf"\b(?:(?:row|line|column)s? ?(?:number |no\.? |#)?[1-9]\b|(?:the )?(?:{_ORDINAL}) (?:row|line)|r[1-9]\b|row|rows|line|next|then|and|finally|followed by|begin|end|p?b?matrix|left|right|array|text|is|reads|ccc*|on top|below|under(?:neath)?|after that|of)(?![a-z])",
    re.IGNORECASE,
)
_MARKS = re.compile(r"[\s,;:.|/\\&\[\](){}<>\-–—_*`'\"“”‘’=→+~^!$]*")
_SHOULD = r"(?:should|must|has to|have to|needs? to|ought to|will|would have to)"
_STRONG_IS = rf"(?:{_SHOULD} (?:be|read|hold|say|contain|have|become)|becomes|needs (?:a|an|the)|wants (?:a|an)|(?:has|have) (?:a |the )?distance(?: of)?|is at distance|ought be|correctly (?:is|reads))"
_WEAK_IS = r"(?:is|are|reads?|holds?|contains?|says|has|=|:|→|->|equals)"
_ADVERB = r"(?:(?:actually|really|in fact|of course|simply|just|exactly|then|now|a|an|the (?:number|value|digit|distance)|equal to|distance|value|not \d but|:|instead) )*"
_IS = rf" ?(?:(?P<strong>{_STRONG_IS})|{_WEAK_IS}),? ?{_ADVERB}"
_QUOTE = r"[\"'“‘*`$(\[]{0,3}"
_END = r"[\"'”’*`$)\]]{0,3}(?! ?(?:steps?|cells?) (?:from|away|off)|\d|[.,]\d| ?[+x×*^/] ?\d| (?:or|too|off|wrong|higher|lower|more|less|larger|smaller|mistakes?|errors?|wrong|times|zeros?|ones?|0s|1s|different|cells?|values?)\b)"
_VALUE = rf"{_QUOTE}(?P<value>[0-9]){_END}"
_COLUMN = r"(?:column|col\.?|c)"
_ROW = r"(?:row|line|r)"
_AT = (
    rf"(?:{_ROW} ?#?(?P<r1>[0-9]),? ?(?:and |/ ?|in |of )?(?:the )?{_COLUMN} ?#?(?P<c1>[0-9])"
    rf"|{_COLUMN} ?#?(?P<c2>[0-9]),? ?(?:and |/ ?|in |of )?(?:the )?{_ROW} ?#?(?P<r2>[0-9])"
    r"|[(\[](?P<r3>[0-9]) ?[,;] ?(?P<c3>[0-9])[)\]]"
    rf"|(?P<r4>{_ORDINAL}) (?:row|line),? ?(?:and |of |in )?(?:the |its )?(?P<c4>{_ORDINAL}) (?:column|cell|value|digit|number|entry|place|position)"
    rf"|(?P<c5>{_ORDINAL}) (?:column|cell|value|digit|number|entry|place|position) (?:of|in) (?:the |your )?(?:(?P<r5>{_ORDINAL}) (?:row|line)|{_ROW} ?#?(?P<r6>[0-9]))"
    rf"|(?P<r7>top|upper|bottom|lower)[- ](?P<c7>left|right)(?: corner)?(?: cell| value| entry)?"
    r"|(?P<mid>middle|centre|center|central) (?:cell|value|entry|one)|(?:the )?(?P<mid2>centre|center|middle)(?= (?:is|should|must|has)))"
)
_CELL_IS = re.compile(
    rf"(?P<yours>\byour )?(?<![a-z0-9]){_AT}(?: of the (?:answer|solution|result|matrix))?(?: (?:the )?(?:value|distance|answer|entry|number|digit))?,?{_IS}{_VALUE}"
)
_PUT = re.compile(
    rf"(?<![\d.,]){_QUOTE}(?P<value>[0-9])[\"'”’*`$)\]]{{0,3}} (?:(?:goes|belongs|stands|sits|comes|should (?:go|be|stand)|must (?:go|be|stand)) )?(?:in|at|into|for|on) (?:the )?(?:cell |place |position |entry )?(?:at |in )?(?:the )?{_AT}"
)
_NOT_PUT = re.compile(r"\b(?:the|your|that|this|each|every|wrong|a wrong|no) ?$")
_LINE = (
    rf"(?:(?P<kind>row|line|column) ?(?:number |no\.? |#)?(?P<n>[1-9])|(?P<nth>{_ORDINAL}) (?P<kind2>row|line|column))"
)
_LINE_IS = re.compile(
    rf"(?P<yours>\byour )?\b{_LINE}(?: of the (?:answer|solution|result|matrix))?{_IS}(?P<values>[\"'“‘*`$(\[]{{0,3}}[0-9](?:[ ,\-&|]{{0,3}}[0-9]){{1,4}}){_END}"
)
_NOT_ASSERTED = re.compile(
    r"(?:\b(?:if|whether|unless|suppose|is|was|are|isn't|when|why|how|you (?:wrote|said|have|had|put|gave|tried|chose)|not|n't|never|problem|given|matrix|original|input|in the question|wrote)\b[^.!?;\n]{0,28})$"
)
_DENIED = re.compile(
    r"[\"'”’*`$)\]]{0,3}(?: (?:is )?(?:wrong|not|isn't|too)\b|,? or\b|,? (?:in|by) the (?:problem|question|input|matrix)| as (?:given|you)| ?\?)"
)


class StatedCell(NamedTuple):
    """A statement about a cell."""

    start: int
    end: int
    row: int
    column: int
    value: str
    strong: bool
    """Whether it states what the cell should be, not only what it is."""


def matrices_in(text: str, size: int) -> list[tuple[int, int, str]]:
    """Return runs of size² digits with only marks, brackets, LaTeX or labels such as `row 2:` between them.

    The result is `(start, end, "010 121 212")`, ordered by start. Numbers of `size` or size² digits are split.
    """
    if sum(map(text.count, "0123456789")) < size**2 and not _NUMBERS.search(text):
        return []
    return _matrices(text, size)


@cached_with_args(512)
def _matrices(text: str, size: int) -> list[tuple[int, int, str]]:
    plain = _NUMBERS.sub(lambda match: _WORDS[match[0].lower()].ljust(len(match[0])), text)
    bare = _LABEL.sub(lambda match: " " * len(match[0]), plain)
    matrices: list[tuple[int, int, str]] = []
    row: list[tuple[int, int, str]] = []
    for start, end in digit_runs(bare):
        joined = end - start
        if row and not _MARKS.fullmatch(bare, row[-1][1], start):
            row = []
        if joined not in (1, size, size**2):
            row = []
            continue
        row.append((start, end, bare[start:end]))
        while row and sum(len(digits) for *_, digits in row) > size**2:
            row.pop(0)
        digits = "".join(digits for *_, digits in row)
        if len(digits) == size**2:
            rows = " ".join(digits[k : k + size] for k in range(0, size**2, size))
            matrices.append((row[0][0], row[-1][1], rows))
    return matrices


@cached_with_args(1024)
def stated_cells(text: str, size: int) -> list[StatedCell]:
    """Return the cells that a text states by row and column, as a corner or the middle, or as part of a line.

    Examples: `row 2, column 3 should be 1`, `(2, 3) is 1`, `the top left cell is 2`, `put a 2 in row 1, column 3`,
    `row 2: 1 2 1`. Rows and columns count from 1, or from 0 if one of the two is 0.
    """
    low = text.lower().replace("’", "'")
    if len(low) != len(text) or not digit_runs(text):
        return []
    return sorted(set(_cells(low, size))) if any(map(low.__contains__, _POSITION_WORDS)) else []


def _cells(low: str, size: int) -> Iterator[StatedCell]:
    for match in _CELL_IS.finditer(low):
        strong = bool(match["strong"])
        if (match["yours"] and not strong) or _is_not_asserted(low, match):
            continue
        position = _cell_position(match, size)
        if position:
            yield StatedCell(*match.span(), *position, match["value"], strong)
    for match in _PUT.finditer(low):
        position = _cell_position(match, size)
        reported = _is_not_asserted(low, match) or _NOT_PUT.search(low[: match.start()][-12:])
        if position and not reported:
            yield StatedCell(*match.span(), *position, match["value"], True)
    for match in _LINE_IS.finditer(low):
        strong = bool(match["strong"])
        values = re.findall("[0-9]", match["values"])
        if len(values) != size or (match["yours"] and not strong) or _is_not_asserted(low, match):
            continue
        number = int(match["n"]) - 1 if match["n"] else _index(match["nth"], size)
        if 0 <= number < size:
            for k, value in enumerate(values):
                cell = (k, number) if (match["kind"] or match["kind2"]) == "column" else (number, k)
                yield StatedCell(*match.span(), *cell, value, strong)


def _is_not_asserted(low: str, match: re.Match[str]) -> bool:
    """Return whether the statement is only supposed, asked, denied or reported."""
    before, after = low[max(0, match.start() - 60) : match.start()], low[match.end() : match.end() + 40]
    return _NOT_ASSERTED.search(before) is not None or _DENIED.match(after) is not None


def _cell_position(match: re.Match[str], size: int) -> tuple[int, int] | None:
    """Return row and column from 0, or None if they are outside the matrix."""
    groups = match.groupdict()
    if groups["mid"] or groups["mid2"]:
        return (size // 2, size // 2) if size % 2 else None
    if groups["r7"]:
        return 0 if groups["r7"] in ("top", "upper") else size - 1, 0 if groups["c7"] == "left" else size - 1
    row = groups["r1"] or groups["r2"] or groups["r3"] or groups["r6"]
    column = groups["c1"] or groups["c2"] or groups["c3"]
    if groups["c4"] or groups["c5"]:
        r = int(row) - 1 if row else _index(groups["r4"] or groups["r5"], size)
        c = _index(groups["c4"] or groups["c5"], size)
    else:
        r, c = int(row), int(column)
        from_one = r > 0 and c > 0
        r, c = r - from_one, c - from_one
    return (r, c) if 0 <= r < size and 0 <= c < size else None


def _index(word: str, size: int) -> int:
    if word in _FROM_END:
        return size - 1
    if word in _MIDDLE:
        return size // 2 if size % 2 else -1
    return _NTH[word] - 1
