"""Statements in free text about a path: the whole path, single steps, or that there is none."""

# ruff: noqa: E501 (long patterns stay on one line)
from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from rl2f_core.common.text.tokens import by_word, cached, cached_with_args
from rl2f_core.environments.puzzles.grids.grid import START, STEPS, Cell, Grid, length_of
from rl2f_core.environments.puzzles.grids.move_extraction import Run, cell_rows, may_hold_moves, runs_of

_ORDINALS = by_word(
    "first|1st|opening|initial|one;second|2nd|two;third|3rd|three;fourth|4th|four;fifth|5th|five;sixth|6th|six;"
    "seventh|7th|seven;eighth|8th|eight;ninth|9th|nine;tenth|10th|ten"
)
_NTH = "|".join(sorted(_ORDINALS, key=len, reverse=True))
_STEP = r"(?:steps?|moves?|directions?|letters?|turns?|one)"
_OF = r"(?: (?:of|in|on) (?:the |your |a )?(?:right |correct |shortest |true |best )?(?:answer|way|path|solution|route|walk))?"
_SHOULD = r"(?:should|must|has to|have to|needs? to|ought to|will)"
_IS = rf"(?: ?(?:{_SHOULD} (?:be|go|read|lead|point)|is|are|goes|leads|points|reads?|becomes|=|:|→|->)(?: to)?)"
_GO = r"(?:go|move|head|walk|step|turn|take|try|travel|write|put|use|say|going|moving|heading|walking|stepping|do|come)"
_FILL = r"(?: ?(?:to the|to|the|a|an|just|simply|by|with|then|of course|actually|,|:|\"|'|`|“|\*|step|go|move))*"
_FROM_K = [
    re.compile(pattern)
    for pattern in (
        rf"\b(?:step|move|direction|letter)(?: number| no\.?|) ?#?(?P<k>\d{{1,2}}|{_NTH}){_OF},?{_IS}{_FILL} ?$",
        rf"\b(?P<k>{_NTH}|last|final) {_STEP}{_OF},?{_IS}{_FILL} ?$",
        rf"\b(?:at|in|on|as|for) (?:step|move|turn)(?: number|) ?#?(?P<k>\d{{1,2}}|{_NTH}),?(?: (?:you )?(?:{_SHOULD} )?{_GO})?{_FILL} ?$",
        rf"\b(?:at|in|on|as|for|with|make|take) (?:your |the )(?P<k>{_NTH}|last|final) {_STEP},?(?: (?:you )?(?:{_SHOULD} )?{_GO})?{_FILL} ?$",
        rf"\b(?:change|correct|set|replace|switch|make|turn) (?:step|move) ?#?(?P<k>\d{{1,2}}|{_NTH}) (?:to|into|with|by){_FILL} ?$",
        rf"\b(?:change|correct|set|replace|switch|make|turn) (?:your |the )?(?P<k>{_NTH}|last|final) {_STEP} (?:to|into|with|by){_FILL} ?$",
    )
]
_FIRST = re.compile(
    rf"(?:\b(?:first|opening|initial) (?:\d|two|three|four|few|couple of|pair of) {_STEP}{_OF},?{_IS}|\b(?:starts?|begins?|opens?|set|sets)(?: off| out)?(?: (?:with|by|in))?(?: {_GO})?|\bfrom s,?(?: (?:you )?(?:{_SHOULD} )?{_GO})|\bfirst,? (?:you )?(?:{_SHOULD} )?{_GO}"
    rf"|\b(?:your |the )?(?:way|path|route|answer|solution|walk|it) (?:starts?|begins?|opens?)(?: off| out)?(?: (?:with|by))?(?: {_GO})?)(?: ?(?:to the|the|a|step|just|:|,|\"|'|`|“|\*))* ?$"
)
_LAST = re.compile(
    rf"(?:\b(?:last|final) (?:\d|two|three|four|few|couple of|pair of) {_STEP}{_OF},?{_IS}|\b(?:ends?|finish(?:es)?|closes?)(?: off)?(?: (?:with|by|in))(?: {_GO})?)(?: ?(?:to the|the|a|step|just|:|,|\"|'|`|“|\*))* ?$"
)
_COMMAND = re.compile(
    rf"(?:^|[.!?:;\n] ?)(?:so |then |now |next time |please |instead |you {_SHOULD} |you need to )?{_GO}(?: to the)? ?$"
)
_AFTER_K = re.compile(
    rf"[\"'”`*]* ?,? ?(?:(?:{_SHOULD} )?(?:be|is|comes?|goes|as|in|at|on|for|stands) )?(?:(?:the |your |its )?(?P<nth>{_NTH}|last|final)(?: {_STEP})\b|(?:step|move)(?: number|) ?#?(?P<k>\d{{1,2}})\b|(?P<first>first|to start|to begin|at the start|at first|from s)\b(?! (?:row|column|cell)))"
)
_OPEN_END = re.compile(
    r"[\"'”`*]* ?(?:\? ?\?|[_•□]|\.\.\.|…|,? ?and so on|,? ?and then (?:think|look|see|go on|find|continue))"
)
"""Continuation of a path that is only begun."""
_NOT_ASSERTED = re.compile(
    r"(?:\b(?:if|whether|unless|suppose|supposing|instead of|rather than|not|n't|never|why|how|did|does|do you|is|was|you (?:went|wrote|said|have|had|gave|tried|chose|took|go|walked|moved|answered|put)|avoid|without|after|when|once|before|which|what|because|since|except|from)\b[^.!?;\n]{0,28})$"
)
_YOURS = re.compile(r"\byour\b[^.!?;\n]{0,24}$")
_GOES_WRONG = re.compile(
    r"[\"'”)`*,]* ?(?:(?:is|was|are|were) (?:wrong|wasted|not|too|blocked|a wall|illegal|impossible|right|fine|correct|good|ok)|(?:hits?|leads?|runs?|leaves?|takes? you|brings?|bumps?|into|against|goes|crosses|there (?:is|you)|you hit|does|doesn't|won't|isn't|wastes?)\b|or\b|\?)"
)
_NO_WAY = re.compile(
    r"\bno (?:possible |valid |open |free |such )?(?:way|path|route|walk|solution|connection|passage)(?: (?:at all|here|exists?|leads?|from|to|through|between|connects|out|can|there|is|across|around))?|\b(?:g|goal|it|target|s) (?:simply |just )?(?:cannot|can't|can not|can never|is impossible to) be reached|\b(?:is|are|'s|lies|sits|being|stays?) (?:completely |fully |entirely |totally |simply |just )?(?:unreachable|not reachable|cut off|walled (?:off|in)|sealed (?:off|in)|blocked off|isolated|infeasible|impossible|unsolvable|enclosed|out of reach|disconnected|not connected|unconnected)"
    r"|\b(?:you|one|nobody|we) (?:cannot|can't|can not|can never|will never|won't|can) (?:ever )?(?:reach|get to|arrive at|come to) (?:the )?(?:g|goal|target)\b|\bimpossible to (?:reach|get to|solve)|\bwalls? (?:completely |fully |entirely )?(?:separates?|surrounds?|encloses?|cuts?|seals?|closes?)\b|\bdead end everywhere|\bthere is none\b|\bthere isn't (?:a|any) (?:way|path|route)|\b(?:does not|doesn't|do not|don't) exist"
)
_NO_WAY_GATE = re.compile(
    r"\bno\b|reach|cut|wall|seal|block|isolat|infeas|imposs|unsolv|enclos|disconn|connect|\bget\b|none|isn't|exist|arrive|come",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(
    r"\b(?:if|whether|unless|suppose|supposing|in case|when|where|might|may|could|maybe|perhaps|sure|check|claim(?:ed|s)?|said|say|saying|wrote|answered|think|thought|believe|is there|are you|not|never|doubt|prove|only)\b|n't|\byou(?:r| (?:said|wrote))\b"
)
_AGREES = re.compile(r"right[.,!?]", re.IGNORECASE)
_SENTENCE = re.compile(r"[^.!?\n;]{0,200}")


def walks_in(text: str, grid: Grid, infeasible: bool) -> list[tuple[int, int, str]]:
    """Return everything that could be a path in the normal form of answers, `(start, end, "R R D")`, ordered by start.

    Args:
        text: The text.
        grid: The task's grid; its start decides whether cells count from 0 or 1 and name rows or columns first.
        infeasible: Whether to return "there is no way" as well, as `no path`.
    """
    spans: list[tuple[int, int, str]] = []
    runs = runs_of(text)
    least = 1 if any(len(run.letters) == 1 for run in runs) and length_of(grid) == 1 else 2
    for run in runs:
        if len(run.letters) >= least:
            spans.append((run.start, run.end, " ".join(run.letters)))
            if (
                run.worded
                and len(run.letters) > least
                and _AGREES.match(text, run.start)
                and text[max(0, run.start - 9) : run.start].rstrip()[-1:] in ("", ".", "!", "?")
            ):
                spans.append((run.start, run.end, " ".join(run.letters[1:])))
    for start, end, cells in cell_rows(text):
        spans += [(start, end, " ".join(letters)) for letters in _between(cells, grid.find(START))]
    if infeasible:
        spans += [(start, end, "no path") for start, end in no_way_in(text)]
    return sorted(spans)


def _between(cells: Sequence[Cell], start: Cell) -> list[str]:
    """Return the steps along cells, for each numbering of rows and columns that fits the start."""
    letters = {change: letter for letter, change in STEPS.items()}
    paths = []
    for swap in (False, True):
        for first in (0, 1):
            walk = [(b - first, a - first) if swap else (a - first, b - first) for a, b in cells]
            walk = walk if walk[0] == start else [start, *walk]
            steps = [letters.get((b[0] - a[0], b[1] - a[1]), "") for a, b in pairwise(walk)]
            if all(steps):
                paths.append("".join(steps))
    return list(dict.fromkeys(paths))


@cached(1024)
def no_way_in(text: str) -> list[tuple[int, int]]:
    """Return spans that state that there is no path; questions, suppositions, denials and reports do not count."""
    if not _NO_WAY_GATE.search(text):
        return []
    low = text.lower().replace("’", "'")
    if len(low) != len(text):
        return []
    spans = []
    for match in _NO_WAY.finditer(low):
        since = max(0, match.start() - 160)
        begin = max(since, *(low.rfind(mark, since, match.start()) + 1 for mark in ".!?\n;:"))
        ending = _SENTENCE.match(low, match.end())
        closing = low[ending.end() : ending.end() + 1] if ending else ""
        if closing != "?" and not _SUPPOSED.search(low[begin : match.start()]):
            spans.append(match.span())
    return spans


@cached_with_args(1024)
def stated_steps(text: str, length: int) -> list[tuple[int, int, int, str]]:
    """Return the steps that a text states: `(start, end, number, letter)`.

    Examples: `step 3 should be down`, `at step 3 go down`, `start with right, right`, `the last step is up`,
    `R R ? ?`, and a command that is only the beginning of a path. `step 3 is right` means that the step is correct.

    Args:
        text: The text.
        length: Number of steps of the path, from which the last ones are counted.
    """
    if not may_hold_moves(text):
        return []
    low = text.lower().replace("’", "'")
    if len(low) != len(text):
        return []
    spans: list[tuple[int, int, int, str]] = []
    for run in runs_of(text):
        first = _number(low, run, length)
        if first:
            spans += [(run.start, run.end, k, letter) for k, letter in enumerate(run.letters, first)]
    return spans


def _number(low: str, run: Run, length: int) -> int:
    """Return the number of the run's first step, or 0 if the run is not stated as part of the path."""
    before, after = low[max(0, run.start - 90) : run.start], low[run.end : run.end + 40]
    sentence = low[run.end : run.end + 200]
    ending = _SENTENCE.match(sentence)
    is_question = ending is not None and sentence[ending.end() : ending.end() + 1] == "?"
    if _OPEN_END.match(after) and not _is_not_asserted(before, False) and (not run.worded or len(run.letters) > 1):
        return 1 if len(run.letters) < length else 0
    if _GOES_WRONG.match(after) or is_question:
        return 0
    for pattern, at in ((_FIRST, 1), (_LAST, length - len(run.letters) + 1)):
        match = pattern.search(before)
        if match and not _is_not_asserted(before[: match.start()], True):
            return max(0, at)
    for pattern in _FROM_K:
        match = pattern.search(before)
        if match:
            modal = re.search(rf"{_SHOULD}|\b(?:change|correct|set|replace|switch|make|at|in|on|take)\b", match[0])
            if _is_not_asserted(before[: match.start()], bool(modal)) or (
                run.worded and run.letters == "R" and re.search(r" (?:is|are) ?$", match[0])
            ):
                return 0
            return _step_number(match["k"], length, len(run.letters))
    match = _AFTER_K.match(after)
    if match and not _is_not_asserted(before, True):
        word = match["nth"] or match["k"] or "first"
        return _step_number("first" if match["first"] else word, length, len(run.letters))
    if len(run.letters) < length:
        return 1 if len(run.letters) > 1 and _COMMAND.search(before) else 0
    return 0


def _is_not_asserted(before: str, modal: bool) -> bool:
    """Return whether the following text is only supposed, asked, denied or reported of the student."""
    return _NOT_ASSERTED.search(before) is not None or (not modal and _YOURS.search(before) is not None)


def _step_number(word: str, length: int, count: int) -> int:
    if word in ("last", "final"):
        return max(0, length - count + 1)
    return int(word) if word.isdecimal() else _ORDINALS.get(word, 0)
