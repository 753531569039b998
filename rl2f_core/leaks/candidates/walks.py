"""Answers that are walks on a grid: walks in words, and changes of an attempt."""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from rl2f_core.leaks.candidates.lexicon import LEXICON, words_of
from rl2f_core.leaks.candidates.places import ORDINALS, place_tokens
from rl2f_core.leaks.candidates.text import lowered, sentences

Span = tuple[int, int]

_PHRASAL = re.compile(
    r"\b(?:(?:writ\w+|wrote|put\w*|jot\w*|note)(?: (?:your|the|it|them|each|all|every|what|this|that)(?: \w+){0,2})?|slow\w*|calm\w*|break\w*|narrow\w*|settle|sit) $"
)
"""Verbs before a "down" that is no direction."""
_STEP = {"u": "U", "n": "U", "d": "D", "s": "D", "l": "L", "w": "L", "r": "R", "e": "R"}
_DIRECTION = re.compile(
    r"\b(?:(?P<up>ups?|upwards?|north|northwards?|climb\w*|above|ascend\w*)|(?P<down>downs?|downwards?|south|southwards?|drops?(?: all| right| straight)?(?= down| to| all| until| till)|sink|falls?|fall(?:ing)?|descend\w*)"
    r"|(?P<left>lefts?|leftwards?|west|westwards?)|(?P<right>rights?|rightwards?|east|eastwards?))\b"
)
_LETTER_STEP = re.compile(r"(?<![\w'])(?P<step>[UDLR])(?:'?s)?(?![\w'])")
_SYMBOLS = [
    (re.compile(r"(?<![\w'])[NESW](?:[ ,-]{0,2}[NESW])+(?![\w'])"), dict(zip("NESW", "URDL", strict=True))),
    (re.compile(r"(?<!\S)[<>^v](?:[ ,]{0,2}[<>^v])+(?!\w)"), dict(zip("<>^v", "LRUD", strict=True))),
    (re.compile(r"(?<![\w'])[WASD](?:[ ,-]{0,2}[WASD])+(?![\w'])"), dict(zip("WASD", "ULDR", strict=True))),
]
"""Compass points, arrows in ASCII and keys, with the step that each symbol means."""
_COUNT_BEFORE = re.compile(
    r"\b(?P<n>\d{1,2}|an?|once|twice|another)(?: (?:more|last|times|steps?|cells?|moves?|squares?|paces?|rows?|columns?|fields?|tiles?|hops?|straight|to|the|towards?|further|in|direction|go|and|letters?))* ?$"
)
_COUNT_AFTER = re.compile(
    r"^,? ?(?:by |for |exactly |just )?(?:(?P<n>\d{1,2})(?: (?:times|steps?|cells?|moves?|squares?|paces?|rows?|columns?|fields?|tiles?|hops?)|(?=[,.;]|$| (?:and|then)))|(?P<twice>twice)|(?P<again>again))"
)
_UNTIL = re.compile(
    r"^[^,.;]{0,30}?\b(?:until|till|all the way|to (?:its|the) (?:very )?(?:end|wall|edge|corner|floor|goal|bottom|top|ceiling)|no more|as far as|along|home|to g\b|to the .{0,12}corner|hit|reach)"
)
_NO = re.compile(r"\b(?:no|not|never|nor|without|neither|don't|isn't|avoid|nothing)\b[^.;:!?]{0,24}$")
_OR = re.compile(r"\bor\b")
_NUMERAL = re.compile(r"(?<!\w)(?<!step )(?<!move )(?<!this )(?<!that )\d{1,2}(?!\w)")
"""A number that may count steps."""
_ONLY = re.compile(r"\b(?:only|nothing but|just|all|always|every|each|straight|keep going|nothing else)\b")
_DROP = re.compile(
    r"\b(?:drop|remov\w+|delet\w+|cross out|strike|scratch|erase|skip|cut|leave (?:\w+ ){0,3}?(?:out|off|away)|throw (?:it |that |them )?(?:out|away)|superfluous|unnecessary|too many|extra|redundant|needless|without|lose|omit|take out|not needed|surplus|wasted?|pull|shredd\w*|bin|ditch|toss|trim|strip|chop|go(?:es)? in the)\b"
)
_BACKTRACK = re.compile(
    r"\b(?:turn\w* back|retreat\w*|back and forth|there and back|undo\w*|detours?|side ?trips?|step(?:ping)? back|go(?:es|ing)? back on|cancel\w*|dance|pointless loop)\b"
)
_STUTTER = re.compile(
    r"\b(?:stutter\w*|twice in a row|double[sd]?|repeat\w*|say [UDLR] once)\b|(?P<a>[UDLR]) (?P=a),? (?:say|write) (?P=a) once",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"\b(?P<n>\d{1,2}|an?|another|1) (?:more )?(?:cells?|steps?|moves?|squares?|letters?|times?)?[^.;]{0,20}\b(?:missing|more|further|short|to go|lacking|too (?:soon|early))|\bshort by (?P<m>\d{1,2})|\btoo (?:soon|early)\b"
)
_AT_ONCE = re.compile(r" (?:after|before|away|there|now|at the (?:start|beginning|end)|here|behind)\b")
_VAGUE = re.compile(r"\b(?:how many|at least|somewhere|roughly|loosely|in general|generally|mostly|sooner or later)\b")
_ADDED = re.compile(
    r"\b(?:(?:1|an?|one|\d) (?:more|further|extra|additional|last|final|missing)|another|add|append|tack on|stick on|lacks?|lacking|finish with|end with|too (?:soon|early)|short)\b"
)
_RESIZED = re.compile(
    r"\b(?:should|ought|must|only|just|make|cut|instead|not|reduce|shorten|into|enough|needs?|wants?|too)\b"
)
_EXCESS = re.compile(r"\b(?:too many|extra|superfluous|surplus|spare|redundant|needless|unnecessary|excess)\b")
_SAME_WAY = re.compile(
    r"\b(?:same (?:direction|way|letter)|keep going|go on|more of the same|carry on|continue|your last (?:steps?|moves?|direction|letter))\b"
)
_CHANGE = re.compile(
    r"\b(?:make|chang\w+|turn (?:it|that|them)|replac\w+|becomes?|instead|swap|write(?! (?:your|down|it|them|out))|should (?:be|have been)|needs? to be|wants? to be|ought to be|put)\b"
)
_UNREACHABLE = re.compile(
    r"\b(?:no|not|never|nothing|none|neither|nobody|nowhere|cannot|can't|impossible|without|isn't|won't|doesn't)\b(?!:|,| no\b)[^.!?:]{0,60}?\b(?:way|path|route|string|reach\w*|bring|gets?|arriv\w*|connect\w*|walk|moves?|solution|lead|exists?|come|there from|through to)\b"
    r"|\b(?:way|path|route|g|goal)\b[^.!?]{0,30}?\b(?:does not|doesn't|cannot|can't|isn't|is not|never|no)\b[^.!?]{0,20}?\b(?:exist|be (?:reached|done|found)|reach\w*|connect\w*)"
    r"|\b(?:cut off|walled (?:in|off)|sealed|locked in|boxed in|enclosed|surrounded|unreachable|imprisoned|trapped)\b|\b(?:any|all|every|each|whatever|no)\b[^.]{0,12}\b(?:string|walk|route|path|letters?|way|moves?)\b[^.]{0,60}\b(?:wrong|fail\w*|zero|nothing|useless|in vain|never)\b|\b(?:1 other|other|certain|another) (?:kind|sort|single word|word)|\b(?:certain )?single word\b|\bcan't be done\b|\bcannot be done\b|\bgive up\b"
)
_CONDITION = re.compile(
    r"\b(?:if|whether|unless|before|until|do not|don't|never say|maybe|perhaps|check|make sure|sometimes|possible)\b"
)
_ENCORE = re.compile(r"\b(?:again|encore|repeat\w*|twice|once more|2 times)\b")
_KEEP = re.compile(
    r"\b(?:whole|all you need|that's it|winners?|only (?:ones|letters|moves|steps)|keep|suffices?|enough|exactly right|perfect|gold|is the (?:way|path|answer))\b"
)
_SHORTER = re.compile(
    r"\b(?:short\w*|fewer|quick\w*|better|so|like that|this way|yet|from there|through (?:the )?(?:wall|#)|straight)\b"
)


def read_walk_hint(
    text: str,
    attempts: Sequence[str | None],
    told: Sequence[str],
    is_accepted: Callable[[str], bool],
    infeasible: bool,
) -> Span | None:
    """Return the span of words that name a whole walk; None if there are none.

    Args:
        text: The hint in plain form.
        attempts: Letters of the attempts, oldest first; None or an empty text if there is no walk.
        told: The earlier hints in plain form.
        is_accepted: Returns whether letters solve the task.
        infeasible: The answer is that there is no way.
    """
    if infeasible:
        text = lowered(text)
        match = _UNREACHABLE.search(text)
        if match is None or text.rstrip().endswith("?") or _SHORTER.search(match[0]):
            return None
        about_step = re.search(
            r"\b(?:steps?|moves?|letters?|turn) \d|\b(?:first|last|second|third|next|that|this) (?:step|move|turn)",
            text[max(0, match.start() - 30) : match.end()],
        )
        if about_step:
            return None
        return None if _CONDITION.search(text, max(0, match.start() - 60), match.end()) else match.span()
    for walk, span in _walks(text, [a for a in attempts if a], told):
        if 0 < len(walk) <= 400 and is_accepted(walk):
            return span
    return None


def _walks(text: str, attempts: Sequence[str], told: Sequence[str]) -> Iterator[tuple[str, Span]]:
    """Yield the walks that a hint may describe, each with the span of its words."""
    whole = (0, len(text))
    for match in re.finditer(r"(?<![\w'])[UDLR](?:[ ,]{0,2}[UDLR])+(?![\w'])", text):
        walk = re.sub(r"[ ,]", "", match[0])
        if walk and not any(attempt.startswith(walk) for attempt in attempts):
            yield walk, match.span()
    for pattern, keys in _SYMBOLS:
        for match in pattern.finditer(text):
            symbols = "".join(c for c in match[0] if c in keys)
            if not any(symbols in attempt for attempt in attempts):
                yield "".join(keys[c] for c in symbols), match.span()
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


@lru_cache(4096)
def _directions(text: str) -> tuple[re.Match[str], ...]:
    """Return the words for directions."""
    text = lowered(text)
    return tuple(
        match
        for match in _DIRECTION.finditer(text)
        if match[0] != "down" or not _PHRASAL.search(text, max(0, match.start() - 40), match.start())
    )


def _prefixes(text: str, attempts: Sequence[str]) -> Iterator[str]:
    for match in re.finditer(r"\bfirst (\d{1,2})\b", text, re.IGNORECASE):
        yield from (attempt[: int(match[1])] for attempt in attempts)


def _described(sentence: str, prefixes: Sequence[str], attempts: Sequence[str]) -> Iterator[str]:
    """Yield walks such as "two to the left, then down until the wall"."""
    steps: list[tuple[str, int, bool]] = []
    last_end = 0
    sentence = lowered(sentence)
    if _VAGUE.search(sentence):
        return
    for match in _directions(sentence):
        before, after = sentence[last_end : match.start()], sentence[match.end() :]
        if match[0] == "left" and re.search(r"\b(?:more|is|are|what's|nothing|what you're) $", before):
            continue
        if match[0] == "right" and (
            re.search(r"\b(?:you're|all|that's|is|are|was) $", before) or _AT_ONCE.match(after)
        ):
            continue
        if steps and _OR.search(before):
            return
        count_before, count_after = _COUNT_BEFORE.search(before), _COUNT_AFTER.match(after)
        n = 1
        if count_after and (count_after["n"] or count_after["twice"]):
            n = int(count_after["n"] or 2)
        elif count_before:
            word = count_before["n"]
            n = int(word) if word.isdigit() else 2 if word == "twice" else 1
        following = _DIRECTION.search(after)
        reach = _UNTIL.search(after[: following.start()] if following else after)
        early = re.search(r"\b(?:all the way|straight|as far as)\b[^,.;]{0,14}$", before)
        steps.append((_STEP[str(match.lastgroup)[0]], n, bool(reach or early) and not count_before))
        last_end = match.end()
    if len(steps) > 1 and _ENCORE.search(sentence):
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
    for attempt in attempts if len(steps) == 1 and (_MISSING.search(sentence) or _ADDED.search(sentence)) else ():
        yield attempt + steps[0][0] * steps[0][1]
        runs = [run for run in re.finditer(r"(.)\1*", attempt) if run[1] == steps[0][0]]
        if len(runs) == 1:
            yield attempt[: runs[0].end()] + runs[0][1] * steps[0][1] + attempt[runs[0].end() :]


def _straight(text: str) -> Iterator[str]:
    """Yield straight walks if all other directions are denied, or one is the only one."""
    denied: set[str] = set()
    named: set[str] = set()
    lower = lowered(text)
    for match in [*_directions(text), *_LETTER_STEP.finditer(text)]:
        step = match.groupdict().get("step") or _STEP[str(match.lastgroup)[0]]
        sentence_start = max(text.rfind(mark, 0, match.start()) for mark in ".!?;") + 1
        before = lower[sentence_start : match.start()]
        (denied if _NO.search(before) else named).add(step)
    left = set("UDLR") - denied
    if len(left) == 1 and len(denied) == 3:
        yield from (next(iter(left)) * n for n in range(1, 40))
    elif len(named) == 1 and not denied and _ONLY.search(lower):
        yield from (next(iter(named)) * n for n in range(2, 40))


def _edited(text: str, attempt: str) -> Iterator[str]:
    """Yield an attempt after the changes that a hint names."""
    places = [token for start, end in sentences(text) for token in place_tokens(text[start:end], len(attempt))]
    lower = lowered(text)
    if _DROP.search(lower):
        for token in places:
            yield "".join(step for k, step in enumerate(attempt, 1) if k not in token.parts)
        for match in _LETTER_STEP.finditer(text):
            indices = [i for i, step in enumerate(attempt) if step == match["step"]]
            before = lower[max(0, match.start() - 20) : match.start()]
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
    yield from _resized(text, attempt)
    if _praises(text):
        for token in places:  # "from the third letter on it is fine"
            if max(map(int, token.parts)) == len(attempt) and len(token.parts) > 1:
                yield "".join(step for k, step in enumerate(attempt, 1) if k in token.parts)
    if _KEEP.search(lower):
        for token in places:
            yield "".join(step for k, step in enumerate(attempt, 1) if k in token.parts)
    if _BACKTRACK.search(lower):
        yield _without_returns(attempt)
        yield from (attempt.replace(step, "") for step in set(attempt))
    if _STUTTER.search(text):
        yield re.sub(r"(.)\1", r"\1", attempt)
        yield re.sub(r"(.)\1+", r"\1", attempt)
        for step in "UDLR":
            yield attempt.replace(step * 2, step)
    missing = _MISSING.search(lower)
    if missing and _SAME_WAY.search(lower):
        word = missing["n"] or missing["m"] or "1"
        yield attempt + attempt[-1] * (int(word) if word.isdigit() else 1)
    if _CHANGE.search(lower):
        steps = [_STEP[str(m.lastgroup)[0]] for m in _directions(text)] + [
            m["step"] for m in _LETTER_STEP.finditer(text)
        ]
        for token in places:
            for step in steps:
                yield "".join(step if k in token.parts else old for k, old in enumerate(attempt, 1))
        for old in set(steps):
            yield from (attempt.replace(old, new) for new in set(steps) - {old})


@lru_cache(4096)
def _praises(text: str) -> bool:
    return any(found.symbol == "right" for found in LEXICON.find(words_of(text)))


def _resized(text: str, attempt: str) -> Iterator[str]:
    """Yield an attempt with one run of equal steps made longer or shorter, as in "the four Ls should be three"."""
    lower = lowered(text)
    if not (_RESIZED.search(lower) or _EXCESS.search(lower)):
        return
    numbers = {int(n) for n in _NUMERAL.findall(lower)}
    named = {_STEP[str(m.lastgroup)[0]] for m in _directions(text)} | {m["step"] for m in _LETTER_STEP.finditer(text)}
    runs = list(re.finditer(r"(.)\1*", attempt))
    for run in runs:
        sizes = (
            {n for n in numbers if len(run[0]) in numbers and n != len(run[0])}
            if run[1] in named or len(run[0]) > 2
            else set()
        )
        if _EXCESS.search(lower) and run[1] in named and sum(other[1] == run[1] for other in runs) == 1:
            sizes |= {len(run[0]) - n for n in (numbers or {1}) if n < len(run[0])}
        for size in sizes:
            yield attempt[: run.start()] + run[1] * size + attempt[run.end() :]


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


def as_letters(text: str) -> str:
    """Return a text with words for directions as letters of the same length, padded with spaces."""
    for match in _DIRECTION.finditer(lowered(text)):
        step = _STEP[str(match.lastgroup)[0]].ljust(len(match[0]))
        text = text[: match.start()] + step + text[match.end() :]
    return re.sub(r"(?<=[a-z])(?= )|\bs\b", "", text)
