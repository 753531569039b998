"""Answers that are matrices of digits: rows, cells, and differences from an attempt."""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from rl2f_core.leaks.candidates.facts import Memory, Part, Token, Vocabulary, read_sentence
from rl2f_core.leaks.candidates.places import place_tokens
from rl2f_core.leaks.candidates.text import sentences

Span = tuple[int, int]
_ROW_WORDS = re.compile(r"\b(?:rows?|lines?|columns?|top|bottom|upper|lower|uppermost|lowest)\b", re.IGNORECASE)
_COLUMN = re.compile(r"\bcolumns?\b", re.IGNORECASE)
_CORNERS = re.compile(r"\b(?P<v>top|upper|bottom|lower)[- ](?P<h>left|right)\b(?:-hand)?", re.IGNORECASE)
_CELL = re.compile(
    r"\brow (?P<r>\d),? ?(?:and )?(?:col(?:umn)?|cell|place|position|entry|number) (?P<c>\d)|\((?P<r2>\d), ?(?P<c2>\d)\)",
    re.IGNORECASE,
)
_ONE_MORE = re.compile(
    r"\b(?:1|an?)(?: single)? ?(?:step )?(?:more|higher|too (?:low|small|little|few)|up|bigger|larger|further|short)|\bup (?:by )?1|\bdeserved? 1 more|\badd 1",
    re.IGNORECASE,
)
_ONE_LESS = re.compile(
    r"\b(?:1|an?)(?: single)? ?(?:step )?(?:less|lower|too (?:high|big|large|much|many|far)|down|smaller|fewer|nearer|closer)|\bdown (?:by )?1|\bsubtract 1|\btake 1 off",
    re.IGNORECASE,
)
_PLURALS = dict(zip("zeros zeroes noughts ones twos threes fours fives".split(), "00012345", strict=True))
_SUPPOSED = re.compile(r"\b(?:if|suppose|could|were)\b|\?\W*$", re.IGNORECASE)
_DOUBLE = re.compile(r"\b(?:double|twice)\b", re.IGNORECASE)
_RUNS = re.compile(rf"\b(?P<n>\d|an?) (?P<v>\d(?:'?s)?|{'|'.join(_PLURALS)})\b", re.IGNORECASE)
_ABOVE_LAST = re.compile(
    r"\b(?:row|line) (?:above|before) the (?:last|bottom)|(?:last|bottom) (?:row|line) but 1|second to last|penultimate|next to last",
    re.IGNORECASE,
)
_CORNERS_ALL = re.compile(r"\b(?:each|every|all|the|4) (?:4 |of the )?corners?\b", re.IGNORECASE)
_SIDES = re.compile(
    r"\b(?:middles?|cent(?:er|re)s?) of (?:the|each|every|all) (?:sides?|edges?)|\b(?:edge|side) middles?",
    re.IGNORECASE,
)
_CENTER = re.compile(
    r"\b(?:(?:the|in the|dead) (?:very )?(?:cent(?:er|re)|middle)(?! (?:of|row|line|column)))\b", re.IGNORECASE
)


def read_matrix_hint(
    text: str,
    gold: Sequence[str],
    free: frozenset[tuple[int, int]],
    attempts: Sequence[Sequence[str] | None],
    known: dict[tuple[int, int], str],
    memory: Memory,
) -> Span | None:
    """Add the cells that a hint tells to `known`; return a span of its words if all cells are known.

    Args:
        text: The hint in plain form.
        gold: Rows of the answer.
        free: Cells that the problem gives.
        attempts: Rows of the attempts, oldest first.
        known: Values of the cells told so far, by row and column from 0.
        memory: What the earlier sentences mentioned.
    """
    before = len(known)
    n = len(gold)
    last = attempts[-1] if attempts else None
    spans: list[Span] = []
    for start, end in sentences(text):
        sentence = text[start:end]
        if _SUPPOSED.search(sentence):
            continue
        for cells, value, span in _told_cells(sentence, n):
            if all(gold[r][c] == value for r, c in cells):
                known.update(dict.fromkeys(cells, value))
                spans.append((start + span[0], start + span[1]))
        columns = _COLUMN.search(sentence) is not None and re.search(r"\brows?\b|\blines?\b", sentence) is None
        lines = _transposed(gold) if columns else list(gold)
        for fact in read_sentence(sentence, start, _row_vocabulary(n), memory):
            told = [int(str(part)) - 1 for part in fact.parts]
            tried = [_transposed(a) if columns else list(a) for a in reversed(attempts) if a and _is_square(a, n)]
            is_told = fact.relation == "is" and fact.positive and all(lines[k] == fact.value for k in told)
            is_right = fact.relation == "right" and fact.positive
            if is_told or (is_right and any(all(a[k] == lines[k] for k in told) for a in tried)):
                cells = [(c, k) if columns else (k, c) for k in told for c in range(n)]
                known.update({(r, c): gold[r][c] for r, c in cells})
                spans.append((fact.start, fact.end))
    if re.search(r"[ ,;/]+".join(gold), text) and not any(a is not None and list(a) == list(gold) for a in attempts):
        return (0, len(text))
    complete = {(r, c) for r in range(n) for c in range(n)} - free <= set(known)
    if complete and len(known) > before and spans:
        return min(s for s, _ in spans), max(e for _, e in spans)
    if last is not None and len(last) == n:
        return _explained(text, gold, last)
    return None


def _transposed(rows: Sequence[str]) -> list[str]:
    return ["".join(column) for column in zip(*rows, strict=True)]


def _is_square(rows: Sequence[str], n: int) -> bool:
    return len(rows) == n and all(len(row) == n for row in rows)


def _row_vocabulary(n: int) -> Vocabulary:
    rows: frozenset[Part] = frozenset(range(1, n + 1))

    def read(sentence: str) -> list[Token]:
        found = (
            list(place_tokens(sentence, n))
            if _ROW_WORDS.search(sentence)
            or re.search(r"\b(?:second|third|first|fourth|fifth)\b", sentence, re.IGNORECASE)
            else []
        )
        above = _ABOVE_LAST.search(sentence)
        if above and n > 1:
            found = [t for t in found if not (above.start() < t.end and t.start < above.end())]
            found.append(Token("part", *above.span(), above[0], frozenset([n - 1])))
        for start, end, digits in _digit_rows(sentence, n):
            found = [t._replace(end=min(t.end, start)) for t in found if not start <= t.start < end]
            found.append(Token("value", start, end, sentence[start:end], value=digits))
        return found

    return Vocabulary(rows, read)


def _digit_rows(sentence: str, n: int) -> Iterator[tuple[int, int, str]]:
    """Yield n digits in a row: `1211`, `1, 2, 1, 1`, or `4 1s and then a 2`."""
    for match in re.finditer(rf"(?<!\d)\d(?:(?:,? ?(?:and )?|-)\d){{{n - 1}}}(?!\d)", sentence):
        yield match.start(), match.end(), "".join(re.findall(r"\d", match[0]))
    runs = list(_RUNS.finditer(sentence))
    for i in range(len(runs)):
        row = ""
        for j in range(i, len(runs)):
            word = runs[j]["n"]
            value = runs[j]["v"].lower()
            row += _PLURALS.get(value, value[0]) * (int(word) if word.isdigit() else 1)
            if len(row) == n and j > i:
                yield runs[i].start(), runs[j].end(), row


def _told_cells(sentence: str, n: int) -> Iterator[tuple[list[tuple[int, int]], str, Span]]:
    """Yield groups of cells with a digit: corners, middles of sides, center, single cells."""
    groups: list[tuple[re.Match[str], list[tuple[int, int]]]] = []
    m = n // 2
    for match in _CORNERS_ALL.finditer(sentence):
        groups.append((match, [(0, 0), (0, n - 1), (n - 1, 0), (n - 1, n - 1)]))
    if n % 2:
        groups += [(match, [(0, m), (m, 0), (m, n - 1), (n - 1, m)]) for match in _SIDES.finditer(sentence)]
        groups += [(match, [(m, m)]) for match in _CENTER.finditer(sentence)]
    groups += [(match, [_cell_of(match, n)]) for pattern in (_CORNERS, _CELL) for match in pattern.finditer(sentence)]
    for match, cells in groups:
        if not all(0 <= r < n and 0 <= c < n for r, c in cells):
            continue
        before = re.search(
            r"\b(\d)(?:'?s)?(?: (?:in|at|on|for|goes|belongs|sits|into|to))+ ?(?:the |each |every |all )*$",
            sentence[: match.start()],
        )
        after = re.match(
            r"[^.\d]{0,25}?\b(?:is|are|be|stays?|should|gets?|holds?|shows?|with|an?|:|=)\b[^.\d]{0,14}(\d)\b",
            sentence[match.end() :],
        )
        found = before or after
        if found:
            yield cells, found[1], (min(match.start(), found.start()) if before else match.start(), match.end())


def _cell_of(match: re.Match[str], n: int) -> tuple[int, int]:
    groups: Mapping[str, str | None] = match.groupdict()
    if groups.get("v"):
        return (0 if match["v"].lower() in ("top", "upper") else n - 1), (0 if match["h"].lower() == "left" else n - 1)
    return int(groups.get("r") or groups.get("r2") or 0) - 1, int(groups.get("c") or groups.get("c2") or 0) - 1


def _explained(text: str, gold: Sequence[str], last: Sequence[str]) -> Span | None:
    """Return the span of words that name every difference between the last attempt and the answer."""
    n = len(gold)
    wrong = [(r, c) for r in range(n) for c in range(n) if len(last[r]) != n or last[r][c] != gold[r][c]]
    if not 0 < len(wrong) <= 3:
        return None
    spans: list[Span] = []
    for r, c in wrong:
        span = None
        for start, end in sentences(text):
            sentence = text[start:end]
            if _SUPPOSED.search(sentence):
                continue
            located = any(_cell_of(m, n) == (r, c) for pattern in (_CORNERS, _CELL) for m in pattern.finditer(sentence))
            located = located or _row_and_column(sentence, r, c, n)
            delta = int(gold[r][c]) - int(last[r][c])
            double = int(last[r][c]) == 2 * int(gold[r][c]) and _DOUBLE.search(sentence)
            said = double or (delta == 1 and _ONE_MORE.search(sentence)) or (delta == -1 and _ONE_LESS.search(sentence))
            value = re.search(rf"(?<!row )(?<!column )(?<!line )(?<!cell )(?<!\d){gold[r][c]}(?!\d)", sentence)
            if located and (said or value):
                span = start, end
        if span is None:
            return None
        spans.append(span)
    return min(s for s, _ in spans), max(e for _, e in spans)


def _row_and_column(sentence: str, r: int, c: int, n: int) -> bool:
    """Return whether a sentence names a cell by its row and its place in the row."""
    row = re.search(r"\b(?:rows?|lines?)\b", sentence, re.IGNORECASE)
    tokens = [token for token in place_tokens(sentence, n) if len(token.parts) == 1]
    parts = [next(iter(token.parts)) for token in tokens]
    pairs = set(pairwise(parts))
    return row is not None and bool({(r + 1, c + 1), (c + 1, r + 1)} & pairs)
