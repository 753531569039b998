"""Answers that are codes of letters: operations on an attempt, spelled codes, patterns."""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from rl2f_core.leaks.candidates.facts import Part, PartValue, Token, Vocabulary
from rl2f_core.leaks.candidates.lexicon import LEXICON, words_of
from rl2f_core.leaks.candidates.parts import Assignment, Operation, Puzzle, Statement, equals
from rl2f_core.leaks.candidates.places import place_tokens
from rl2f_core.leaks.candidates.text import lowered, sentences

Letters = dict[Part, PartValue]

# -- operations on codes ---------------------------------------------------------------------------------------------
_L = r"(?<![\w'])(?P<{}>[A-Z])(?:'?s)?(?![\w'])"
_OLD, _NEW = _L.format("old"), _L.format("new")
_REPLACE = [
    re.compile(
        rf"\b(?i:replac\w+|chang\w+|turn\w*|exchang\w+|swap\w*|trad\w+|convert\w*)\b[^.]{{0,30}}?{_OLD}[^.]{{0,30}}?\b(?i:by|with|to|into|for)\b[^.]{{0,12}}?{_NEW}"
    ),
    re.compile(
        rf"\b(?i:where(?:ver)?|everywhere|every|each|any)\b[^.]{{0,20}}?{_OLD}[^.]{{0,20}}?\b(?i:write|put|use|say|place|type|there should be|it should be|should be|becomes?|comes|goes|make it|is really)\b[^.]{{0,12}}?{_NEW}"
    ),
    re.compile(
        rf"{_OLD}[^.]{{0,15}}?\b(?i:wants?|needs?|should|ought|must|has|have|would rather|longs?)(?i: to)? (?i:be(?:come)?|turn into)\b[^.]{{0,8}}?{_NEW}"
    ),
    re.compile(
        rf"{_OLD}[^.]{{0,40}}?\b(?i:exchanged|replaced|swapped|changed|substituted|traded|becomes?) (?i:for|by|with|into|to|an?)?\b[^.]{{0,8}}?{_NEW}"
    ),
    re.compile(rf"{_NEW} (?i:instead of|in place of|for)(?i: every| each| the| both| all| your)? ?{_OLD}"),
]
"""Replace one letter by another."""
_PUSHED = re.compile(r"\b(?P<letter>[A-Z])\b(?: \w+){0,3} from the (?P<side>left|front|start|right|back|end)")
_SHIFT = re.compile(r"\b(?:nudge|shift|slide|move|push|rotate|roll)\b[^.]{0,40}?\b(?P<way>right|left|forward|back)")
_REVERSED = re.compile(
    r"\b(?:backwards?|in reverse|reverse (?:the|your|it)|back to front|from (?:the )?back|other way round|right to left|mirror)"
)


_PLACE_OR_LETTER = re.compile(
    r"\b(?:replac\w+|substitut\w+|strike|cross|erase|overwrite|rub|swap|exchang\w+|chang\w+|trad\w+|turn\w*|becomes?|gets?|make|makes|put|write|into|for|with|instead|takes?|comes?|goes|belongs?|sits?)\b"
)
_NEIGHBOR = re.compile(
    r"\b(?:(?P<next>next|following|later|after|further|up|on|forwards?|higher|successor|right|beyond)|(?P<before>previous|before|earlier|preceding|back|down|backwards?|lower|predecessor))\b[^.;]{0,40}\balphabet|\balphabet\w*\b[^.;]{0,40}?\b(?:(?P<next2>next|later|after|further|up|on|forwards?|higher|successor)|(?P<before2>previous|before|earlier|preceding|back|down|backwards?|lower|predecessor))\b|\b(?:1|one|a) letter (?:(?P<next3>later|further|up|on|forward|higher)|(?P<before3>earlier|back|before|down|lower))\b"
)


_COPIED = re.compile(
    r"\b(?:cop(?:y|ies|ied)|duplicat\w+|repeats?|same (?:\w+ )?as|equals?|identical to|match(?:es)?|twin of|clone)\b"
)


def operations(order: Sequence[Part], sentence: str, offset: int) -> Iterator[Operation]:
    """Yield the operations that a sentence names; `offset` shifts their spans."""
    for pattern in _REPLACE:
        for match in pattern.finditer(sentence):
            if match["old"] != match["new"]:
                yield _operation(match, offset, partial(_replace, match["old"], match["new"]))
    lower = lowered(sentence)
    shift = _SHIFT.search(lower)
    if shift:
        by = 1 if shift["way"] in ("right", "forward") else -1
        yield _operation(shift, offset, partial(_move, lambda v: v[-by:] + v[:-by]))
    pushed = _PUSHED.search(sentence)
    if pushed:
        front, letter = pushed["side"] in ("left", "front", "start"), pushed["letter"]
        yield _operation(pushed, offset, partial(_move, lambda v: [letter, *v[:-1]] if front else [*v[1:], letter]))
    reverse = _REVERSED.search(lower)
    if reverse:
        yield _operation(reverse, offset, partial(_move, lambda v: v[::-1]))
    if not _PLACE_OR_LETTER.search(lower) and not _NEIGHBOR.search(lower) and not _COPIED.search(lower):
        return
    places = place_tokens(sentence, len(order))
    letters = [(m.start(), m["letter"]) for m in _LETTER.finditer(sentence)]
    for token in places:
        near = sorted(letters, key=lambda letter: (letter[0] < token.start, abs(letter[0] - token.start)))
        for start, letter in near[:2]:
            if abs(start - token.start) < 60:
                end = max(token.end, start + 1)
                yield Operation(offset + min(token.start, start), offset + end, partial(_set, token.parts, letter))
    if len(places) == 2 and _COPIED.search(lower) and all(len(token.parts) == 1 for token in places):
        for one, other in (places, places[::-1]):
            (to,), (source,) = one.parts, other.parts
            yield Operation(offset + places[0].start, offset + places[1].end, partial(_copy, to, source))
    neighbor = _NEIGHBOR.search(lower)
    if neighbor:
        by = 1 if any(neighbor[f"next{n}"] for n in ("", 2, 3)) else -1
        parts = frozenset().union(*(token.parts for token in places)) or frozenset(order)
        yield _operation(neighbor, offset, partial(_step, parts, by))


def _operation(match: re.Match[str], offset: int, apply: Callable[[Letters], Letters]) -> Operation:
    return Operation(offset + match.start(), offset + match.end(), apply)


def _replace(old: PartValue, new: PartValue, answer: Letters) -> Letters:
    return {part: new if value == old else value for part, value in answer.items()}


def _move(change: Callable[[list[PartValue]], list[PartValue]], answer: Letters) -> Letters:
    return dict(zip(answer, change(list(answer.values())), strict=True))


def _set(parts: frozenset[Part], letter: PartValue, answer: Letters) -> Letters:
    return {**answer, **dict.fromkeys(parts, letter)}


def _copy(to: Part, source: Part, answer: Letters) -> Letters:
    return {**answer, to: answer[source]}


def _step(parts: frozenset[Part], by: int, answer: Letters) -> Letters:
    return {p: chr(ord(v) + by) if p in parts else v for p, v in answer.items()}


# -- spelled codes -----------------------------------------------------------------------------------------------------
_NATO = dict(zip("alfa alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november oscar papa quebec "
                 "romeo sierra tango uniform victor whiskey x-ray yankee zulu".split(), "AABCDEFGHIJKLMNOPQRSTUVWXYZ", strict=True))  # fmt: skip
_TIMES = {
    "double": 2,
    "twice": 2,
    "twin": 2,
    "couple": 2,
    "pair": 2,
    "brace": 2,
    "again": 2,
    "triple": 3,
    "treble": 3,
    "trio": 3,
    "thrice": 3,
}
_SYMBOL = re.compile(
    r"(?<![\w'])(?:(?P<count>\d|double|triple|treble|twice|thrice|twin|(?:a )?(?:couple|pair|brace|trio) of|\d in a row of)(?: times)?(?: (?:at|number|of|the|letter|house|an?))* )?"
    rf"(?:(?P<letter>[A-Z])(?:'?s)?|(?P<word>{'|'.join(_NATO)}))(?![\w'])(?:,? (?P<times>twice|thrice|\d times|again)\b)?"
    r"|(?<![\w'])(?:(?P<count2>\d) times (?:(?:at|number|of|the|letter|house) )*)?(?P<number>\d{1,2})(?![\w'])",
    re.ASCII | re.IGNORECASE,
)
_BETWEEN = re.compile(r"[^\dA-Z]{0,48}")
_ALPHABET = re.compile(
    r"\balphabet\b|\bA\b[^.]{0,14}\b1\b|\b1\b[^.]{0,14}\bA\b|\bnumbers?\b[^.]{0,20}\bletters?\b|\bletters?\b[^.]{0,20}\bnumbers?\b",
    re.IGNORECASE,
)


_TYPED = re.compile(r"(?<![\w'])[b-z](?:[ ,.-]{1,2}[a-z](?![\w'])){1,9}")


def typed(text: str) -> str:
    """Return a text with rows of single small letters, such as "m m k", in capitals."""
    return _TYPED.sub(lambda match: match[0].upper(), text)


def spelled(code: str, letters: frozenset[str], text: str, known: frozenset[Part]) -> Iterator[Statement]:
    """Yield the code, or its unknown letters, spelled with letters, counts of letters, or places in the alphabet."""
    gold: dict[Part, PartValue] = dict(enumerate(code, 1))
    for match in re.finditer(rf"(?<![\w]){code}(?![\w])", text):
        yield Statement(equals(gold), *match.span(), whole=True)
    alphabet = _ALPHABET.search(text) is not None
    runs: list[tuple[int, int, str]] = []
    for match in _SYMBOL.finditer(text):
        letter = _letter_of(match, alphabet)
        if letter in letters:
            many = (match["count"] or match["times"] or match["count2"] or "1").lower()
            count = next((n for word, n in _TIMES.items() if word in many), 0) or int(re.sub(r"\D", "", many) or 1)
            repeats = (match["times"] or "").lower() == "again" and bool(runs) and runs[-1][2][-1] == letter
            runs.append((match.start(), match.end(), letter * (1 if repeats else count)))
    if len(runs) > 1 or any(len(run) > 1 for _, _, run in runs):
        yield from _runs(runs, code, text, gold)
        rest = "".join(letter for part, letter in gold.items() if part not in known)
        yield from _fills(runs, {code, rest} if len(rest) > 1 else {code}, text, gold)


def _runs(runs: Sequence[tuple[int, int, str]], code: str, text: str, gold: Assignment) -> Iterator[Statement]:
    """Yield letters close to each other that spell the code, or that spell it from the back if the text says so."""
    wanted = {code, code[::-1]} if _REVERSED.search(lowered(text)) else {code}
    for i, (start, end, letters) in enumerate(runs):
        if _CHOICE.search(lowered(text), max(0, start - 16), start):
            continue
        for begin, following, more in runs[i + 1 :]:
            if not _BETWEEN.fullmatch(text, end, begin):
                break
            letters, end = letters + more, following
            if letters in wanted:
                yield Statement(equals(gold), start, end, whole=True)
                return


def _fills(runs: Sequence[tuple[int, int, str]], wanted: set[str], text: str, gold: Assignment) -> Iterator[Statement]:
    """Yield the letters of a sentence or of the whole hint that are all unknown letters of the code in order."""
    affirmed = [span for span in sentences(text) if _affirms(text[slice(*span)])]
    groups = [[run for run in runs if start <= run[0] < end] for start, end in affirmed]
    for group in (*groups, [run for runs_of_one in groups for run in runs_of_one]):
        if "".join(letters for _, _, letters in group) in wanted:
            yield Statement(equals(gold), group[0][0], group[-1][1], whole=True)
            return


_CHOICE = re.compile(r"\b(?:any of|each|either|can hold|choose|possible|allowed|permitted|available|some of)\b")


def _affirms(sentence: str) -> bool:
    """Return whether a sentence has no negation, question or quotation of the attempt."""
    if sentence.rstrip().endswith("?") or _CHOICE.search(lowered(sentence)):
        return False
    return not any(found.symbol in ("not", "report", "wrong") for found in LEXICON.find(words_of(sentence)))


def _letter_of(match: re.Match[str], alphabet: bool) -> str:
    """Return the letter that a word, a letter or a place in the alphabet means; empty if none."""
    if match["word"]:
        return _NATO[match["word"].lower()]
    if match["number"]:
        number = int(match["number"])
        return chr(64 + number) if alphabet and 1 <= number <= 26 else ""
    letter = match["letter"]
    return letter if letter.isupper() else ""


_LETTER = re.compile(_L.format("letter"), re.ASCII)
_PRONOUN = re.compile(
    r"'| (?:am|was|have|had|would|will|can|could|do|did|told|said|see|think|guess|promise|say|mean|like|love|just|hid|picked|chose|know|want|never|only|also|must|may|might|should)\b",
    re.ASCII,
)
_UNUSED = re.compile(
    r"\b(?:letter|1|symbol|option)\b[^.;]{0,24}\byou (?:\w+ )?(?:never|haven't|didn't|did not|neglected|forgot|left out|ignored|skipped|omitted|have not|overlooked|spared)(?: \w+){0,5}|\b(?:unused|neglected|leftover|left-over|untried|missing|forgotten|only other|overlooked) (?:letter|1|symbol|option)\b"
)
_ARTICLE = re.compile(r"^\W*A (?!is\b|in\b|at\b|and\b|or\b|goes\b|comes\b|stays\b|first\b|second\b)[a-z]")


def code(letters: Sequence[str], gold: Assignment) -> Puzzle:
    """Return a code as a puzzle; its parts are the places from 1."""
    order = tuple(gold)
    count = len(order)
    known = frozenset(letters) | {str(value) for value in gold.values()}

    def read(sentence: str) -> list[Token]:
        found = list(place_tokens(sentence, count))
        article = _ARTICLE.match(sentence)
        for match in _LETTER.finditer(sentence):
            if article and match.start() < article.end():
                continue
            if match["letter"] in known and (match["letter"] != "I" or not _PRONOUN.match(sentence, match.end())):
                found.append(Token("value", *match.span(), match[0], value=match["letter"]))
        return found

    def vocabulary(attempts: Sequence[Assignment | None]) -> Vocabulary:
        tried = [attempt for attempt in attempts if attempt]
        unused = [known.difference(attempt.values()) for attempt in tried[-1:]] + [
            known.difference(*(a.values() for a in tried))
        ]

        def located(value: PartValue) -> frozenset[Part]:
            return frozenset(p for p, v in (tried[-1] if tried else {}).items() if v == value)

        def read_with_unused(sentence: str) -> list[Token]:
            found = read(sentence)
            match = _UNUSED.search(lowered(sentence))
            letters = next((letters for letters in unused if len(letters) == 1), None)
            if match and letters:
                found.append(Token("value", match.start(), match.end(), match[0], value=next(iter(letters))))
            return found

        return Vocabulary(frozenset(order), read_with_unused, located, is_numbered=True)

    return Puzzle(
        order,
        dict.fromkeys(order, tuple(letters)),
        gold,
        vocabulary,
        partial(operations, order),
        partial(spelled, "".join(gold.values()), known),
    )


# -- statements on patterns ------------------------------------------------------------------------------------------
_PATTERNS: list[tuple[re.Pattern[str], Callable[[Sequence[PartValue]], bool]]] = [
    (re.compile(r"palindrom|which end you start|from either end|same (?:\w+ ){0,3}from (?:both|either)|same (?:\w+ )?backwards?|reads? (?:exactly )?(?:the same|identical\w*|alike)|the same (?:\w+ ){0,3}(?:from (?:the )?(?:left|right|front|back|both|either)|(?:forward|backward|in reverse|in (?:a|the) mirror))|symmetric|mirror image of itself|(?:its|own) mirror image|like '?(?:level|noon|radar|anna|otto|kayak|civic|madam)\b|unchanged (?:when|if) (?:\w+ ){0,3}(?:revers|back|turn|mirror)"), lambda v: list(v) == list(v)[::-1]),
    (re.compile(r"take turns|taking turns|alternat|every other|back and forth|zigzag"), lambda v: all(a != b for a, b in pairwise(v)) and all(a == b for a, b in zip(v, v[2:], strict=False))),
    (re.compile(r"(?:no|never|not) [^.]{0,20}(?:next to|beside|neighbou?rs?)[^.]{0,14}(?:twin|itself|same|equal|another of)|no (?:2|double|repeated) (?:equal |same )?(?:neighbou?rs|letters in a row)|no doubles"), lambda v: all(a != b for a, b in pairwise(v))),
    (re.compile(r"all (?:the )?(?:same|equal|identical)|\b1 (?:letter|kind) only|only 1 (?:kind of )?letter|same letter (?:throughout|everywhere|in (?:every|all))"), lambda v: len(set(v)) == 1),
    (re.compile(r"equally (?:often|many)|as (?:often|many)|(?:same|equal) number of|half and half"), lambda v: len({list(v).count(x) for x in set(v)}) == 1 and len(set(v)) > 1),
    (re.compile(r"all (?:of the )?letters? (?:is|are|get|gets) used|every letter (?:is|gets|occurs)|each letter (?:occurs|appears)|no letter (?:is )?(?:used )?twice|all different|no letter repeats"), lambda v: len(set(v)) == len(v)),
]  # fmt: skip
_DENIED = re.compile(r"\b(?:not|no|isn't|doesn't|never|n't)\b[^.]{0,25}$")


_DISTINCT = re.compile(
    r"\b(?:only|just|exactly|precisely|merely|employs?|uses?|of|has|contains?)\b[^.,;\d]{0,14}(\d) (?:different|distinct|kinds? of|sorts? of|separate|various) ?letters?|\b(\d) (?:different|distinct) letters? (?:only|in all|in total|occur|appear|are)"
)
_REPEATED = re.compile(
    r"\b(?:1|one|a|some|same) (?:letter|of them|symbol|1)\b[^.;\d]{0,24}?\b(?:(\d) times|(twice)|(thrice))"
)
_PATTERN_WORDS = re.compile(
    r"palindrom|either end|both ends|which end|backward|mirror|symmetr|the same|turns|alternat|every other|back and forth|zigzag|beside|next to|neighbou?r|doubles|in a row|all |1 letter|only 1|one kind|equal|as often|as many|half and half|letter|identical|\blevel\b|\bnoon\b|\bradar\b|from the (?:left|right)|forward"
)


def patterns(text: str, puzzle: Puzzle) -> list[Statement]:
    """Return the true statements about the pattern of a code, such as a palindrome."""
    found: list[Statement] = []
    text = lowered(text)
    if not _PATTERN_WORDS.search(text):
        return found
    for pattern, count in ((_DISTINCT, _distinct), (_REPEATED, _most)):
        for match in pattern.finditer(text):
            word = next(word for word in match.groups() if word)
            holds = _count_test(count, int(word) if word.isdigit() else _TIMES[word], puzzle.order)
            if holds(puzzle.gold):
                found.append(Statement(holds, *match.span()))
    for pattern, test in _PATTERNS:
        for match in pattern.finditer(text):
            denied = _DENIED.search(text[: match.start()].rsplit(".", 1)[-1]) is not None and not match[0].startswith(
                "no"
            )
            holds = _pattern_test(test, denied, puzzle.order)
            if holds(puzzle.gold):
                found.append(Statement(holds, *match.span()))
    return found


def _pattern_test(
    test: Callable[[Sequence[PartValue]], bool], denied: bool, order: Sequence[Part]
) -> Callable[[Assignment], bool]:
    return lambda c: test([c[p] for p in order]) != denied


def _distinct(values: Sequence[PartValue]) -> int:
    return len(set(values))


def _most(values: Sequence[PartValue]) -> int:
    return max(values.count(value) for value in values)


def _count_test(
    count: Callable[[Sequence[PartValue]], int], wanted: int, order: Sequence[Part]
) -> Callable[[Assignment], bool]:
    return lambda c: count([c[part] for part in order]) == wanted
