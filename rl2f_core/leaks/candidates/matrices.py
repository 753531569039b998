"""Answers that are matrices of digits: rows, columns, cells, and differences from an attempt."""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

from rl2f_core.leaks.candidates.facts import Memory, Part, Token, Vocabulary
from rl2f_core.leaks.candidates.lexicon import LEXICON, words_of
from rl2f_core.leaks.candidates.places import place_tokens
from rl2f_core.leaks.candidates.scan import read_sentence
from rl2f_core.leaks.candidates.text import lowered, sentences

Span = tuple[int, int]
Cell = tuple[int, int]
_COLUMN = re.compile(r"\b(?:columns?|cols?|vertical\w*|upright|downwards?|going down|top to bottom)\b")
_ROW = re.compile(r"\b(?:rows?|lines?|horizontal\w*)\b")
_CORNERS = re.compile(r"\b(?P<v>top|upper|bottom|lower)(?:most)?[- ](?P<h>left|right)\b(?:-hand)?")
_CELL = re.compile(
    r"\b(?:row|line) (?P<r>\d),? ?(?:and |the )?(?:col(?:umn)?|cell|place|position|entry|number|item|slot) (?P<c>\d)"
    r"|\((?P<r2>\d), ?(?P<c2>\d)\)|\br(?P<r3>\d)[ ,]?c(?P<c3>\d)\b"
)
_UNIT = r"(?:just |only |exactly )?(?:1|an?|one)(?: \w+)?(?: (?:notch|step|tad|unit|bit|hair|shade|point|size|rung|whisker))?"
_ONE_MORE = re.compile(
    rf"\b{_UNIT} (?:more|higher|too (?:low|small|little|few|short|close|near)|up|bigger|larger|further|farther|short|shy)\b"
    r"|\b(?:up|raise\w*|rais\w+|increas\w+|bump\w*|lift\w*) (?:\w+ ){0,2}?(?:by )?(?:1|an?|one)\b|\bdeserved? 1 more|\badd 1"
    r"|\b(?:off|short|low|under) by (?:1|one)\b|\b1 (?:below|under)|\bplus 1|\+ ?1"
)
_ONE_LESS = re.compile(
    rf"\b{_UNIT} (?:less|lower|too (?:high|big|large|much|many|far|long|great|generous)|down|smaller|fewer|nearer|closer|over)\b"
    r"|\b(?:down|lower\w*|reduc\w+|drop\w*|decreas\w+|cut) (?:\w+ ){0,2}?(?:by )?(?:1|an?|one)\b|\bsubtract 1|\btake 1 off"
    r"|\b(?:off|over|high) by (?:1|one)\b|\b1 (?:above|over)|\bminus 1|(?<!\w)- ?1\b"
)
_MORE = re.compile(r"\b(?P<n>\d) (?:more|higher|too (?:low|small|little|few|short)|bigger|larger|further|short)\b")
_LESS = re.compile(r"\b(?P<n>\d) (?:less|lower|too (?:high|big|large|much|many|far)|smaller|fewer|nearer)\b")
_PLURALS = dict(zip("zeros zeroes noughts ones twos threes fours fives".split(), "00012345", strict=True))
_SUPPOSED = re.compile(r"\b(?:if|suppose|could|were)\b|\?\W*$")
_DOUBLE = re.compile(r"\b(?:double|twice)\b")
_RUNS = re.compile(rf"\b(?P<n>\d|an?) (?P<v>\d(?:'?s)?|{'|'.join(_PLURALS)})\b")
_CORNERS_ALL = re.compile(r"\b(?:each|every|all|the|4) (?:4 |of the )?corners?\b")
_SIDES = re.compile(
    r"\b(?:middles?|cent(?:er|re)s?) of (?:the|each|every|all) (?:sides?|edges?)|\b(?:edge|side) middles?"
)
_CENTER = re.compile(r"\b(?:(?:the|in the|dead) (?:very )?(?:cent(?:er|re)|middle)(?! (?:of|row|line|column)))\b")
_DIGIT = re.compile(r"(?<!row )(?<!column )(?<!line )(?<!cell )(?<!\d)\d(?!\d)")
_JOINED = re.compile(r",? ?(?:and|&)?(?: the| your)? ?")


def read_matrix_hint(
    text: str,
    gold: Sequence[str],
    free: frozenset[Cell],
    attempts: Sequence[Sequence[str] | None],
    known: set[Cell],
    memory: Memory,
) -> Span | None:
    """Add the cells that a hint tells to `known`; return a span of its words if all cells are known.

    Args:
        text: The hint in plain form.
        gold: Rows of the answer.
        free: Cells that the problem gives.
        attempts: Rows of the attempts, oldest first.
        known: The cells told so far, by row and column from 0.
        memory: What the earlier sentences mentioned.
    """
    n = len(gold)
    before = set(known)
    tried = [list(a) for a in reversed(attempts) if a and len(a) == n and all(len(row) == n for row in a)]
    memory.mentioned, memory.recent = set(), ()
    spans: list[Span] = []
    told: set[Cell] = set()
    lower = lowered(text)
    columns = _COLUMN.search(lower) is not None and _ROW.search(lower) is None
    parts = sentences(text)
    listed: list[str] = []
    for k, (start, end) in enumerate(parts):
        sentence = text[start:end]
        words = lower[start:end]
        if _SUPPOSED.search(words):
            continue
        across = columns or (_COLUMN.search(words) is not None and _ROW.search(words) is None)
        cells, rows = _lines(sentence, start, gold, tried, memory, across)
        listed += rows
        following = parts[k + 1] if k + 1 < len(parts) else None
        joined = following is not None and not place_tokens(text[slice(*following)], n)
        window = lower[start : following[1]] if joined and following else words
        values = {cell for cell, segment in _located(window, n) if _is_told(segment, cell, gold, tried)}
        if cells or values:
            spans.append((start, end))
        known |= cells | values
        told |= values
    rest = [
        row
        for c, row in enumerate(_transposed(gold) if columns else gold)
        if not _line(c, n, columns) <= before | known
    ]
    if listed and listed in (rest, _transposed(gold) if columns else list(gold)):
        return 0, len(text)
    if re.search(r"[ ,;/]+".join(gold), text) and list(gold) not in tried:
        return 0, len(text)
    complete = {(r, c) for r in range(n) for c in range(n)} - free <= known
    wrong = [{(r, c) for r in range(n) for c in range(n) if a[r][c] != gold[r][c]} for a in tried]
    if spans and ((complete and known != before) or any(cells and cells <= told for cells in wrong)):
        return min(s for s, _ in spans), max(e for _, e in spans)
    return None


def _transposed(rows: Sequence[str]) -> list[str]:
    return ["".join(column) for column in zip(*rows, strict=True)]


def _line(k: int, n: int, across: bool) -> set[Cell]:
    """Return the cells of row `k`, or of column `k` if `across`."""
    return {(c, k) if across else (k, c) for c in range(n)}


def _lines(
    sentence: str, start: int, gold: Sequence[str], tried: Sequence[Sequence[str]], memory: Memory, across: bool
) -> tuple[set[Cell], list[str]]:
    """Return the cells of the rows or columns that a sentence tells or confirms, and the lines that it lists."""
    n = len(gold)
    lines = _transposed(gold) if across else list(gold)
    cells: set[Cell] = set()
    for fact in read_sentence(sentence, start, _line_vocabulary(n), memory):
        places = [int(str(part)) - 1 for part in fact.parts]
        is_right = fact.relation == "right" and fact.positive
        bases = [_transposed(a) if across else a for a in tried] if is_right else []
        if any(all(base[k] == lines[k] for k in places) for base in bases):
            cells.update(*(_line(k, n, across) for k in places))
    listed = [digits for _, _, digits in _digit_rows(sentence, n)]
    if any(found.symbol in ("not", "report", "wrong") for found in LEXICON.find(words_of(sentence))):
        listed = [
            digits for digits in listed if any(line == digits for line in lines) and not any(digits in a for a in tried)
        ]
    for digits in listed:
        cells.update(*(_line(k, n, across) for k, line in enumerate(lines) if line == digits))
    return cells, listed


@cache
def _line_vocabulary(n: int) -> Vocabulary:
    lines: frozenset[Part] = frozenset(range(1, n + 1))

    def read(sentence: str) -> list[Token]:
        found = [*place_tokens(sentence, n)]
        for start, end, digits in _digit_rows(sentence, n):
            found = [t._replace(end=min(t.end, start)) for t in found if not start <= t.start < end]
            found.append(Token("value", start, end, sentence[start:end], value=digits))
        return found

    return Vocabulary(lines, read, is_shared=True)


def _digit_rows(sentence: str, n: int) -> Iterator[tuple[int, int, str]]:
    """Yield n digits in a row: `1211`, `1, 2, 1, 1`, or `4 1s and then a 2`."""
    for match in re.finditer(rf"(?<!\d)\d(?:(?:,? ?(?:and |then )?|-)\d){{{n - 1}}}(?!\d)", sentence):
        yield match.start(), match.end(), "".join(re.findall(r"\d", match[0]))
    runs = list(_RUNS.finditer(lowered(sentence)))
    for i in range(len(runs)):
        row = ""
        for j in range(i, len(runs)):
            word = runs[j]["n"]
            value = runs[j]["v"]
            row += _PLURALS.get(value, value[0]) * (int(word) if word.isdigit() else 1)
            if len(row) == n and j > i:
                yield runs[i].start(), runs[j].end(), row


def _located(window: str, n: int) -> Iterator[tuple[Cell, str]]:
    """Yield the cells that a text locates, each with the words around it that may tell its value."""
    m = n // 2
    groups: list[tuple[int, int, list[Cell]]] = []
    for match in _CORNERS_ALL.finditer(window):
        groups.append((*match.span(), [(0, 0), (0, n - 1), (n - 1, 0), (n - 1, n - 1)]))
    if n % 2:
        groups += [(*match.span(), [(0, m), (m, 0), (m, n - 1), (n - 1, m)]) for match in _SIDES.finditer(window)]
        groups += [(*match.span(), [(m, m)]) for match in _CENTER.finditer(window)]
    groups += [
        (*match.span(), [_cell_of(match, n)]) for pattern in (_CORNERS, _CELL) for match in pattern.finditer(window)
    ]
    taken = [(start, end) for start, end, _ in groups]
    for one, other in pairwise(_joined(window, n)):
        if other[1] - one[0] < 60 and not any(start < other[1] and one[0] < end for start, end in taken):
            pairs = [(r - 1, c - 1) for a, b in ((one, other), (other, one)) for r in a[2] for c in b[2]]
            groups.append((one[0], other[1], pairs))
    groups.sort()
    for i, (start, end, cells) in enumerate(groups):
        earlier = max((end for _, end, _ in groups[:i]), default=max(0, start - 60))
        later = min((begin for begin, _, _ in groups[i + 1 :] if begin >= end), default=len(window))
        for cell in cells:
            if 0 <= cell[0] < n and 0 <= cell[1] < n:
                yield cell, window[end:later]
                yield cell, window[max(earlier, start - 40) : start]


def _joined(window: str, n: int) -> list[tuple[int, int, list[int]]]:
    """Return the places of a text, with lists such as "the second and the fourth" as one."""
    groups: list[tuple[int, int, list[int]]] = []
    for token in place_tokens(window, n):
        places = [int(str(part)) for part in token.parts]
        if groups and _JOINED.fullmatch(window, groups[-1][1], token.start):
            start, _, earlier = groups.pop()
            places = [*earlier, *places]
            groups.append((start, token.end, places))
        else:
            groups.append((token.start, token.end, places))
    return groups


def _cell_of(match: re.Match[str], n: int) -> Cell:
    groups = match.groupdict()
    if groups.get("v"):
        return (0 if match["v"] in ("top", "upper") else n - 1), (0 if match["h"] == "left" else n - 1)
    row, column = (next(groups[name + k] for k in ("", "2", "3") if groups[name + k]) for name in "rc")
    return int(row) - 1, int(column) - 1


def _is_told(segment: str, cell: Cell, gold: Sequence[str], tried: Sequence[Sequence[str]]) -> bool:
    """Return whether words tell the value of a cell: as a digit, or as a difference from an attempt."""
    r, c = cell
    value = int(gold[r][c])
    digits = {int(match[0]) for match in _DIGIT.finditer(segment)}
    if value in digits and len(digits) < 3:
        return True
    more, less = _MORE.search(segment), _LESS.search(segment)
    for attempt in tried:
        delta, old = value - int(attempt[r][c]), int(attempt[r][c])
        if (delta == 1 and _ONE_MORE.search(segment)) or (delta == -1 and _ONE_LESS.search(segment)):
            return True
        if (more and delta == int(more["n"])) or (less and delta == -int(less["n"])):
            return True
        if old == 2 * value and delta and _DOUBLE.search(segment):
            return True
    return False
