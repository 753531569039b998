"""Answers on grids: walks, and matrices of digits."""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from rl2f_core.leaks.candidates.facts import Memory, Part, Token, Vocabulary, read_sentence
from rl2f_core.leaks.candidates.parts import ORDINALS, place_tokens
from rl2f_core.leaks.candidates.text import sentences

Span = tuple[int, int]

# -- walks ---------------------------------------------------------------------------------------------------------------
_STEP = {"u": "U", "n": "U", "d": "D", "s": "D", "l": "L", "w": "L", "r": "R", "e": "R"}
_DIRECTION = re.compile(
    r"\b(?:(?P<up>up|upwards?|north|northwards?|climb\w*|above|ascend\w*)|(?P<down>down|downwards?|south|southwards?|drops?(?: all| right| straight)?(?= down| to| all| until| till)|sink|falls?|fall(?:ing)?|descend\w*)"
    r"|(?P<left>left|leftwards?|west|westwards?)|(?P<right>right|rightwards?|east|eastwards?))\b",
    re.IGNORECASE,
)
_LETTER_STEP = re.compile(r"(?<![\w'])(?P<step>[UDLR])(?:'?s)?(?![\w'])")
_COUNT_BEFORE = re.compile(
    r"\b(?P<n>\d{1,2}|an?|once|twice|another)(?: (?:more|last|times|steps?|cells?|moves?|squares?|paces?|rows?|columns?|fields?|tiles?|hops?|straight|to|the|towards?|further|in|direction|go|and|letters?))* ?$",
    re.IGNORECASE,
)
_COUNT_AFTER = re.compile(
    r"^,? ?(?:by |for |exactly |just )?(?:(?P<n>\d{1,2})(?: (?:times|steps?|cells?|moves?|squares?|paces?|rows?|columns?|fields?|tiles?|hops?)|(?=[,.;]|$| (?:and|then)))|(?P<twice>twice)|(?P<again>again))",
    re.IGNORECASE,
)
_UNTIL = re.compile(
    r"^[^,.;]{0,30}?\b(?:until|till|all the way|to (?:its|the) (?:very )?(?:end|wall|edge|corner|floor|goal|bottom|top|ceiling)|no more|as far as|along|home|to g\b|to the .{0,12}corner|hit|reach)",
    re.IGNORECASE,
)
_NO = re.compile(r"\b(?:no|not|never|nor|without|neither|don't|isn't|avoid|nothing)\b[^.;!?]{0,24}$", re.IGNORECASE)
_ONLY = re.compile(
    r"\b(?:only|nothing but|just|all|always|every|each|straight|keep going|nothing else)\b", re.IGNORECASE
)
_DROP = re.compile(
    r"\b(?:drop|remov\w+|delet\w+|cross out|strike|scratch|erase|skip|cut|leave out|leave off|throw (?:it |that |them )?(?:out|away)|superfluous|unnecessary|too many|extra|redundant|needless|without|lose|omit|take out|not needed|surplus|wasted?|pull|shredd\w*|bin|ditch|toss|trim|strip|chop|go(?:es)? in the)\b",
    re.IGNORECASE,
)
_BACKTRACK = re.compile(
    r"\b(?:turn\w* back|retreat\w*|back and forth|there and back|undo\w*|detours?|side ?trips?|step(?:ping)? back|go(?:es|ing)? back on|cancel\w*|dance|pointless loop)\b",
    re.IGNORECASE,
)
_STUTTER = re.compile(
    r"\b(?:stutter\w*|twice in a row|double[sd]?|repeat\w*|say [UDLR] once)\b|(?P<a>[UDLR]) (?P=a),? (?:say|write) (?P=a) once",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"\b(?P<n>\d{1,2}|an?|another|1) (?:more )?(?:cells?|steps?|moves?|squares?|letters?|times?)?[^.;]{0,20}\b(?:missing|more|further|short|to go|lacking|too (?:soon|early))|\bshort by (?P<m>\d{1,2})|\btoo (?:soon|early)\b",
    re.IGNORECASE,
)
_SAME_WAY = re.compile(
    r"\b(?:same (?:direction|way|letter)|keep going|go on|more of the same|carry on|continue|your last (?:steps?|moves?|direction|letter))\b",
    re.IGNORECASE,
)
_CHANGE = re.compile(
    r"\b(?:make|chang\w+|turn (?:it|that|them)|replac\w+|becomes?|instead|swap|write|should (?:be|have been)|needs? to be|wants? to be|ought to be|put)\b",
    re.IGNORECASE,
)
_UNREACHABLE = re.compile(
    r"\b(?:no|not|never|nothing|none|neither|nobody|nowhere|cannot|can't|impossible|without|isn't|won't|doesn't)\b[^.!?]{0,60}?\b(?:way|path|route|string|reach\w*|bring|gets?|arriv\w*|connect\w*|walk|moves?|solution|lead|exists?|come|there from|through to)\b"
    r"|\b(?:way|path|route|g|goal)\b[^.!?]{0,30}?\b(?:does not|doesn't|cannot|can't|isn't|is not|never|no)\b[^.!?]{0,20}?\b(?:exist|be (?:reached|done|found)|reach\w*|connect\w*)"
    r"|\b(?:cut off|walled (?:in|off)|sealed|locked in|boxed in|enclosed|surrounded|unreachable|imprisoned|trapped)\b|\b(?:any|all|every|each|whatever|no)\b[^.]{0,12}\b(?:string|walk|route|path|letters?|way|moves?)\b[^.]{0,60}\b(?:wrong|fail\w*|zero|nothing|useless|in vain|never)\b|\b(?:1 other|other|certain|another) (?:kind|sort|single word|word)|\b(?:certain )?single word\b|\bcan't be done\b|\bcannot be done\b|\bgive up\b",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    r"\b(?:if|whether|unless|before|until|do not|don't|never say|maybe|perhaps|check|make sure|sometimes|possible)\b",
    re.IGNORECASE,
)
_ENCORE = re.compile(r"\b(?:again|encore|repeat\w*|twice|once more|2 times)\b", re.IGNORECASE)
_KEEP = re.compile(
    r"\b(?:whole|all you need|that's it|winners?|only (?:ones|letters|moves|steps)|keep|suffices?|enough|exactly right|perfect|gold|is the (?:way|path|answer))\b",
    re.IGNORECASE,
)
_SHORTER = re.compile(
    r"\b(?:short\w*|fewer|quick\w*|better|so|like that|this way|yet|from there|through (?:the )?(?:wall|#)|straight)\b",
    re.IGNORECASE,
)


def read_walk_hint(
    text: str,
    attempts: Sequence[str | None],
    told: Sequence[str],
    accepts: Callable[[str], bool],
    infeasible: bool,
) -> Span | None:
    """Return the span of words that name a whole walk; None if there are none.

    Args:
        text: The hint in plain form.
        attempts: Letters of the attempts, oldest first; None or an empty text if there is no walk.
        told: The earlier hints in plain form.
        accepts: Returns whether letters solve the task.
        infeasible: The answer is that there is no way.
    """
    if infeasible:
        match = _UNREACHABLE.search(text)
        if match is None or text.rstrip().endswith("?") or _SHORTER.search(match[0]):
            return None
        return None if _CONDITION.search(text, max(0, match.start() - 60), match.end()) else match.span()
    for walk, span in _walks(text, [a for a in attempts if a], told):
        if 0 < len(walk) <= 400 and accepts(walk):
            return span
    return None


def _walks(text: str, attempts: Sequence[str], told: Sequence[str]) -> Iterator[tuple[str, Span]]:
    """Yield the walks that a hint may describe, each with the span of its words."""
    whole = (0, len(text))
    for match in re.finditer(r"(?<![\w'])[UDLR](?:[ ,]{0,2}[UDLR])+(?![\w'])", text):
        walk = re.sub(r"[ ,]", "", match[0])
        if not any(attempt.startswith(walk) for attempt in attempts):
            yield walk, match.span()
    prefixes = ["", *_prefixes(text, attempts), *(p for hint in told for p in _prefixes(hint, attempts))]
    for start, end in [*sentences(text), whole]:
        for walk in _described(text[start:end], prefixes, attempts):
            yield walk, (start, end)
    yield from ((walk, whole) for walk in _straight(text))
    edits = [walk for attempt in reversed(attempts) for walk in _edited(text, attempt)]
    yield from ((walk, whole) for walk in edits)
    for start, end in sentences(text):
        for walk in _described(text[start:end], ["", *edits[:8]], ()):
            yield walk, (start, end)


def _prefixes(text: str, attempts: Sequence[str]) -> Iterator[str]:
    for match in re.finditer(r"\bfirst (\d{1,2})\b", text, re.IGNORECASE):
        yield from (attempt[: int(match[1])] for attempt in attempts)


def _described(sentence: str, prefixes: Sequence[str], attempts: Sequence[str]) -> Iterator[str]:
    """Yield walks such as "two to the left, then down until the wall"."""
    steps: list[tuple[str, int, bool]] = []
    last_end = 0
    for match in _DIRECTION.finditer(sentence):
        before, after = sentence[last_end : match.start()], sentence[match.end() :]
        if match[0].lower() == "left" and re.search(r"\b(?:more|is|are|what's|nothing|what you're) $", before):
            continue
        if match[0].lower() == "right" and re.search(r"\b(?:you're|all|that's|is|are|was) $", before):
            continue
        count_before, count_after = _COUNT_BEFORE.search(before), _COUNT_AFTER.match(after)
        n = 1
        if count_after and (count_after["n"] or count_after["twice"]):
            n = int(count_after["n"] or 2)
        elif count_before:
            word = count_before["n"].lower()
            n = int(word) if word.isdigit() else 2 if word == "twice" else 1
        following = _DIRECTION.search(after)
        reach = _UNTIL.search(after[: following.start()] if following else after)
        early = re.search(r"\b(?:all the way|straight|as far as)\b[^,.;]{0,14}$", before, re.IGNORECASE)
        steps.append((_STEP[str(match.lastgroup)[0]], n, bool(reach or early) and not count_before))
        last_end = match.end()
    if steps and _ENCORE.search(sentence):
        yield "".join(step * n for step, n, _ in steps) * 2
    if not steps or (len(steps) == 1 and not prefixes[1:] and not steps[0][2] and steps[0][1] == 1):
        return
    open_ended = [i for i, (_, _, until) in enumerate(steps) if until][:3]
    lengths: list[list[int]] = [[]]
    for _ in open_ended:
        lengths = [[*chosen, n] for chosen in lengths for n in range(1, 9)]
    for chosen in lengths:
        counts = dict(zip(open_ended, chosen, strict=True))
        walk = "".join(step * counts.get(i, n) for i, (step, n, _) in enumerate(steps))
        yield from (prefix + walk for prefix in dict.fromkeys(prefixes))
    for attempt in attempts:
        missing = _MISSING.search(sentence)
        if missing and len(steps) == 1:
            yield attempt + steps[0][0] * steps[0][1]


def _straight(text: str) -> Iterator[str]:
    """Yield straight walks if all other directions are denied, or one is the only one."""
    denied: set[str] = set()
    named: set[str] = set()
    for match in [*_DIRECTION.finditer(text), *_LETTER_STEP.finditer(text)]:
        step = match.groupdict().get("step") or _STEP[str(match.lastgroup)[0]]
        sentence_start = max(text.rfind(mark, 0, match.start()) for mark in ".!?;") + 1
        before = text[sentence_start : match.start()]
        (denied if _NO.search(before) else named).add(step)
    left = set("UDLR") - denied
    if len(left) == 1 and len(denied) == 3:
        yield from (next(iter(left)) * n for n in range(1, 40))
    elif len(named) == 1 and not denied and _ONLY.search(text):
        yield from (next(iter(named)) * n for n in range(2, 40))


def _edited(text: str, attempt: str) -> Iterator[str]:
    """Yield an attempt after the changes that a hint names."""
    places = [token for start, end in sentences(text) for token in place_tokens(text[start:end], len(attempt))]
    if _DROP.search(text):
        for token in places:
            yield "".join(step for k, step in enumerate(attempt, 1) if k not in token.parts)
        for match in _LETTER_STEP.finditer(text):
            indices = [i for i, step in enumerate(attempt) if step == match["step"]]
            before = text[max(0, match.start() - 20) : match.start()].lower()
            which = next(
                (word for word in [*ORDINALS, "last", "all", "every", "both"] if re.search(rf"\b{word}\b", before)), ""
            )
            if which in ORDINALS and ORDINALS.index(which) < len(indices):
                gone = {indices[ORDINALS.index(which)]}
            elif which in ("all", "every", "both"):
                gone = set(indices)
            else:
                gone = set(indices[-1:]) if which == "last" or len(indices) == 1 else set()
            if gone:
                yield "".join(step for i, step in enumerate(attempt) if i not in gone)
        joined = frozenset().union(*(token.parts for token in places)) if places else frozenset()
        yield "".join(step for k, step in enumerate(attempt, 1) if k not in joined)
    if _KEEP.search(text):
        for token in places:
            yield "".join(step for k, step in enumerate(attempt, 1) if k in token.parts)
    if _BACKTRACK.search(text):
        yield _without_returns(attempt)
        yield from (attempt.replace(step, "") for step in set(attempt))
    if _STUTTER.search(text):
        yield re.sub(r"(.)\1", r"\1", attempt)
        yield re.sub(r"(.)\1+", r"\1", attempt)
        for step in "UDLR":
            yield attempt.replace(step * 2, step)
    missing = _MISSING.search(text)
    if missing and _SAME_WAY.search(text):
        word = (missing["n"] or missing["m"] or "1").lower()
        yield attempt + attempt[-1] * (int(word) if word.isdigit() else 1)
    if _CHANGE.search(text):
        steps = [_STEP[str(m.lastgroup)[0]] for m in _DIRECTION.finditer(text)] + [
            m["step"] for m in _LETTER_STEP.finditer(text)
        ]
        for token in places:
            for step in steps:
                yield "".join(step if k in token.parts else old for k, old in enumerate(attempt, 1))
        for old in set(steps):
            yield from (attempt.replace(old, new) for new in set(steps) - {old})


def _without_returns(walk: str) -> str:
    """Return a walk without steps that the next one undoes."""
    undone = {"U": "D", "D": "U", "L": "R", "R": "L"}
    steps: list[str] = []
    for step in walk:
        if steps and steps[-1] == undone[step]:
            steps.pop()
        else:
            steps.append(step)
    return "".join(steps)


# -- matrices ------------------------------------------------------------------------------------------------------------
_ROW_WORDS = re.compile(r"\b(?:rows?|lines?|top|bottom|upper|lower|uppermost|lowest)\b", re.IGNORECASE)
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
        vocabulary = _row_vocabulary(n)
        for fact in read_sentence(sentence, start, vocabulary, memory):
            rows = [int(str(part)) - 1 for part in fact.parts]
            if fact.relation == "is" and fact.positive and all(gold[r] == fact.value for r in rows):
                known.update({(r, c): gold[r][c] for r in rows for c in range(n)})
                spans.append((fact.start, fact.end))
            elif fact.relation == "right" and fact.positive:
                for attempt in reversed(attempts):
                    if attempt is not None and len(attempt) == n and all(attempt[r] == gold[r] for r in rows):
                        known.update({(r, c): gold[r][c] for r in rows for c in range(n)})
                        spans.append((fact.start, fact.end))
                        break
    if re.search(r"[ ,;/]+".join(gold), text) and not any(a is not None and list(a) == list(gold) for a in attempts):
        return (0, len(text))
    complete = {(r, c) for r in range(n) for c in range(n)} - free <= set(known)
    if complete and len(known) > before and spans:
        return min(s for s, _ in spans), max(e for _, e in spans)
    if last is not None and len(last) == n:
        return _explained(text, gold, last)
    return None


def _row_vocabulary(n: int) -> Vocabulary:
    rows: frozenset[Part] = frozenset(range(1, n + 1))

    def read(sentence: str) -> list[Token]:
        found = (
            place_tokens(sentence, n)
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
    return row is not None and len(parts) >= 2 and (r + 1, c + 1) in itertools.pairwise(parts)
