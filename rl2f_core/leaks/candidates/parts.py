"""Answers made of parts: letters of a code, roles of people."""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import prod

from rl2f_core.leaks.candidates.facts import Fact, Memory, Part, PartValue, Token, Vocabulary, read_sentence
from rl2f_core.leaks.candidates.text import sentences

Assignment = Mapping[Part, PartValue]
MAX_CANDIDATES = 20_000
"""Larger sets of candidates are not listed."""
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth".split()


@dataclass(frozen=True)
class Statement:
    """A true statement of a hint, as a test of candidates."""

    holds: Callable[[Assignment], bool]
    start: int
    end: int
    whole: bool = False
    """It is an operation that yields the whole answer."""


@dataclass(frozen=True)
class Puzzle:
    """A task whose answer has parts, with the vocabulary of its hints."""

    order: tuple[Part, ...]
    values: Mapping[Part, tuple[PartValue, ...]]
    gold: Assignment
    vocabulary: Callable[[Assignment | None], Vocabulary]
    """Returns the words of the task, given the last attempt."""

    @property
    def size(self) -> int:
        """Number of candidates."""
        return prod(len(values) for values in self.values.values())

    def candidates(self) -> Iterator[Assignment]:
        """Yield all answers."""
        for values in product(*(self.values[part] for part in self.order)):
            yield dict(zip(self.order, values, strict=True))


def read_hint(text: str, puzzle: Puzzle, attempts: Sequence[Assignment | None], memory: Memory) -> list[Statement]:
    """Return the true statements of a hint on the last of `attempts`.

    A sentence may have several readings, e.g. about another attempt; the first that is true counts. What is false for
    the gold answer is a wrong reading or a false claim, and contributes nothing.
    """
    last = attempts[-1] if attempts else None
    vocabulary = puzzle.vocabulary(last)
    statements: list[Statement] = []
    changed = dict(last) if last else None
    commands: list[tuple[int, int]] = []
    memory.mentioned = set()
    for start, end in sentences(text):
        sentence = text[start:end]
        for fact in read_sentence(sentence, start, vocabulary, memory):
            statement = _true(fact, puzzle, attempts)
            if statement is not None:
                statements.append(statement)
            if changed is not None and fact.command and last is not None:
                changed = _apply(fact, changed, puzzle)
                commands.append((fact.start, fact.end))
        if changed is not None:
            for span in _operations(sentence, changed, puzzle):
                commands.append((start + span[0], start + span[1]))
    if all(len(value) == 1 for value in puzzle.gold.values()):
        statements += _spelled(text, puzzle)
    if changed is not None and commands and changed == dict(puzzle.gold) and last != changed:
        statements.append(
            Statement(_equals(changed), min(s for s, _ in commands), max(e for _, e in commands), whole=True)
        )
    return statements


def _equals(answer: Assignment) -> Callable[[Assignment], bool]:
    return lambda c: dict(c) == dict(answer)


def _true(fact: Fact, puzzle: Puzzle, attempts: Sequence[Assignment | None]) -> Statement | None:
    for attempt in reversed(attempts) if attempts else [None]:
        test = _test(fact, attempt, puzzle)
        if test is not None and test(puzzle.gold):
            return Statement(test, fact.start, fact.end)
    return None


def _test(fact: Fact, attempt: Assignment | None, puzzle: Puzzle) -> Callable[[Assignment], bool] | None:
    """Return the meaning of a fact; None if it needs an attempt that there is not."""
    parts, value = fact.parts, fact.value
    match fact.relation:
        case "is":
            return lambda c: all((c.get(p) == value) == fact.positive for p in parts)
        case "count":
            return lambda c: sum(v == value for v in c.values()) == fact.count
        case "same":
            return lambda c: len({c.get(p) for p in parts}) == 1
        case "different":
            return lambda c: len({c.get(p) for p in parts}) > 1
    if attempt is None:
        return None
    a = attempt
    match fact.relation:
        case "right":
            return lambda c: all((c.get(p) == a.get(p)) == fact.positive for p in parts)
        case "count_right":
            return lambda c: sum((c.get(p) == v) == fact.positive for p, v in a.items()) == fact.count
        case "exchange":
            exchanged = _apply(fact, dict(a), puzzle)
            return lambda c: dict(c) == exchanged and exchanged != dict(a)
    return None


def _apply(fact: Fact, answer: dict[Part, PartValue], puzzle: Puzzle) -> dict[Part, PartValue]:
    """Return an attempt after the change that a fact commands."""
    if fact.relation == "exchange":
        one, two = fact.parts
        return {**answer, one: answer[two], two: answer[one]}
    if fact.relation == "right" and not fact.positive and all(len(puzzle.values[p]) == 2 for p in fact.parts):
        other = {p: next(v for v in puzzle.values[p] if v != answer[p]) for p in fact.parts}
        return {**answer, **other}
    return answer


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
_SET = [
    re.compile(
        rf"\b(?i:make|change|turn|put|write|set|replace|give)\b[^.]{{0,12}}?(?P<place>\b(?i:first|second|third|fourth|fifth|sixth|last|final|opening)\b)[^.]{{0,20}}?{_NEW}"
    ),
    re.compile(
        rf"{_NEW} [^.]{{0,10}}?\b(?i:takes the place of|replaces|goes|sneaks|comes|moves|instead of|in place of|at|in)\b[^.]{{0,14}}?(?P<place>\b(?i:first|second|third|fourth|fifth|sixth|last|final|opening|front|end|start)\b)"
    ),
]
"""Put a letter into a place."""
_PUSHED = re.compile(r"\b(?P<letter>[A-Z])\b(?: \w+){0,3} from the (?P<side>left|front|start|right|back|end)")
_SHIFT = re.compile(
    r"\b(?:nudge|shift|slide|move|push|rotate|roll)\b[^.]{0,40}?\b(?P<way>right|left|forward|back)", re.IGNORECASE
)
_REVERSED = re.compile(
    r"\b(?:backwards?|in reverse|reverse (?:the|your|it)|back to front|from (?:the )?back|other way round|right to left|mirror)",
    re.IGNORECASE,
)


def _operations(sentence: str, answer: dict[Part, PartValue], puzzle: Puzzle) -> Iterator[tuple[int, int]]:
    """Apply the operations of a sentence to an attempt in place; yields their spans."""
    if not all(len(value) == 1 for value in answer.values()):
        return
    places = list(puzzle.order)
    before = dict(answer)
    for pattern in _REPLACE:
        for match in pattern.finditer(sentence):
            if match["old"] != match["new"] and match["old"] in before.values():
                answer.update({p: match["new"] for p in places if before[p] == match["old"]})
                yield match.span()
    shift = _SHIFT.search(sentence)
    if shift:
        values = [answer[p] for p in places]
        by = 1 if shift["way"].lower() in ("right", "forward") else -1
        answer.update(dict(zip(places, values[-by:] + values[:-by], strict=True)))
        yield shift.span()
    pushed = _PUSHED.search(sentence)
    if pushed:
        values = [answer[p] for p in places]
        front = pushed["side"] in ("left", "front", "start")
        values = [pushed["letter"], *values[:-1]] if front else [*values[1:], pushed["letter"]]
        answer.update(dict(zip(places, values, strict=True)))
        yield pushed.span()
    reverse = _REVERSED.search(sentence)
    if reverse:
        answer.update(dict(zip(places, [answer[p] for p in places][::-1], strict=True)))
        yield reverse.span()
    for pattern in _SET:
        for match in pattern.finditer(sentence):
            word = match["place"].lower()
            index = ORDINALS.index(word) if word in ORDINALS else 0 if word in ("opening", "front", "start") else -1
            if index < len(places):
                answer[places[index]] = match["new"]
                yield match.span()


# -- vocabularies ----------------------------------------------------------------------------------------------------
_NOUN = r"(?:places?|spots?|positions?|slots?|seats?|letters?|numbers?|numero|no\.|digits?|rows?|lines?|guess(?:es)?)"
_PLACES = re.compile(
    rf"(?P<range>first|last|final|opening|closing|top|bottom|upper|lower|front|initial) (?P<n>[2-9]|pair|couple|trio)(?!\w)"
    rf"|(?P<noun>{_NOUN}) (?P<list>\d(?:(?:,| and|, and|&)? ?\d)*)(?!\w)"
    r"|(?<!\w)(?P<start>\d(?:(?:, | and |, and )\d)*)(?=:| (?:is|are|stays?)\b)"
    rf"|\b(?:(?P<ordinal>{'|'.join(ORDINALS)})|(?P<nth>\d)(?:st|nd|rd|th))\b(?: 1(?!\w))?"
    r"|\b(?P<first>front|leading|leads?|start(?:s|ing)?|begin(?:s|ning)?|opening|opens?|head|uppermost|topmost|leftmost|top)\b"
    r"|\b(?P<ends>both ends|outer|outside|outermost|outside(?:s)?|the ends|either end)\b"
    r"|\b(?P<last>last|final|closing|ends?|ending|closes?|tail|rear|back|bottom(?:most)?|lowest|rightmost)\b(?: 1(?!\w))?"
    r"|\b(?P<center>middle|cent(?:er|re|ral))\b|\b(?P<middle>inside|inner|in between|between)\b",
    re.IGNORECASE,
)


def place_tokens(sentence: str, count: int) -> list[Token]:
    """Return the places that a sentence names, as parts 1 to `count`."""
    tokens = []
    for match in _PLACES.finditer(sentence):
        kind = str(match.lastgroup)
        groups = match.groupdict()
        places: set[int] = set()
        if groups["range"]:
            n = {"pair": 2, "couple": 2, "trio": 3}.get(match["n"].lower()) or int(match["n"])
            front = match["range"].lower() in ("first", "opening", "top", "upper", "front", "initial")
            places = set(range(1, n + 1)) if front else set(range(count - n + 1, count + 1))
        elif groups["list"] or groups["start"]:
            places = {int(d) for d in re.findall(r"\d", groups["list"] or groups["start"])}
        elif groups["ordinal"]:
            places = {ORDINALS.index(match["ordinal"].lower()) + 1}
        elif groups["nth"]:
            places = {int(match["nth"])}
        else:
            places = {
                "first": {1}, "last": {count}, "ends": {1, count}, "middle": set(range(2, count)),
                "center": {count // 2 + 1} if count % 2 else set(range(2, count)),
            }[kind]  # fmt: skip
        if places and max(places) <= count and min(places) > 0:
            tokens.append(Token("part", *match.span(), match[0], frozenset(places)))
    return tokens


_NATO = dict(zip("alfa alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november oscar papa quebec "
                 "romeo sierra tango uniform victor whiskey x-ray yankee zulu".split(), "AABCDEFGHIJKLMNOPQRSTUVWXYZ", strict=True))  # fmt: skip
_SYMBOL = re.compile(
    rf"(?<![\w'])(?:(?P<count>\d|double|triple|twice)(?: times)?(?: (?:at|number|of|the|letter|house))* )?(?:(?P<letter>[A-Z])(?:'?s)?|(?P<word>{'|'.join(_NATO)})|(?P<number>\d{{1,2}}))(?![\w'])(?: (?P<times>twice|\d times|(?P<more>again)))?",
    re.ASCII | re.IGNORECASE,
)
_BETWEEN = re.compile(r"[^\dA-Z]{0,28}")
_ALPHABET = re.compile(
    r"\balphabet\b|\bA\b[^.]{0,14}\b1\b|\b1\b[^.]{0,14}\bA\b|\bnumbers?\b[^.]{0,20}\bletters?\b|\bletters?\b[^.]{0,20}\bnumbers?\b",
    re.IGNORECASE,
)


def _spelled(text: str, puzzle: Puzzle) -> Iterator[Statement]:
    """Yield the code spelled with letters, counts of letters, spoken letters or places in the alphabet."""
    gold = "".join(puzzle.gold[part] for part in puzzle.order)
    alphabet = _ALPHABET.search(text) is not None
    runs: list[tuple[int, int, str]] = []
    for match in _SYMBOL.finditer(text):
        letter = _letter_of(match, alphabet)
        if not letter:
            continue
        many = (match["count"] or match["times"] or "1").lower()
        count = {"double": 2, "twice": 2, "triple": 3}.get(many) or int(re.sub(r"\D", "", many) or 2)
        runs.append((match.start(), match.end(), letter * count))
    for match in re.finditer(rf"(?<![\w]){gold}(?![\w])", text):
        yield Statement(_equals(puzzle.gold), *match.span(), whole=True)
    for i, (start, end, letters) in enumerate(runs):
        for begin, following, more in runs[i + 1 :]:
            if not _BETWEEN.fullmatch(text, end, begin):
                break
            letters, end = letters + more, following
            if letters == gold:
                yield Statement(_equals(puzzle.gold), start, end, whole=True)
                return


def _letter_of(match: re.Match[str], alphabet: bool) -> str:
    """Return the letter that a word, a letter or a place in the alphabet means; empty if none."""
    if match["word"]:
        return _NATO[match["word"].lower()]
    if match["number"]:
        return chr(64 + int(match["number"])) if alphabet and 1 <= int(match["number"]) <= 26 else ""
    letter = match["letter"]
    return letter if letter.isupper() else ""


_LETTER = re.compile(_L.format("letter"), re.ASCII)
_ARTICLE = re.compile(r"^\W*A (?!is\b|in\b|at\b|and\b|or\b|goes\b|comes\b|stays\b|first\b|second\b)[a-z]")


def code(letters: Sequence[str], gold: Assignment) -> Puzzle:
    """Return a code as a puzzle; its parts are the places from 1."""
    order = tuple(gold)
    count = len(order)

    def read(sentence: str) -> list[Token]:
        found = place_tokens(sentence, count)
        article = _ARTICLE.match(sentence)
        for match in _LETTER.finditer(sentence):
            if article and match.start() < article.end():
                continue
            found.append(Token("value", *match.span(), match[0], value=match["letter"]))
        return found

    def words_of(attempt: Assignment | None) -> Vocabulary:
        def located(value: PartValue) -> frozenset[Part]:
            return frozenset(p for p, v in (attempt or {}).items() if v == value)

        return Vocabulary(frozenset(order), read, located)

    return Puzzle(order, dict.fromkeys(order, tuple(letters)), gold, words_of)


_KNIGHT = r"(?:straight|truth)[- ]?(?:shooters?|talkers?)|upright|candid|credible|dependable|on the side of (?:the )?truth|(?:his|her|their) word is (?:good|gold)|trust(?:ed)?|believe|rely on|count on|spotless|clean(?: as a whistle)?|squeaky clean|saints?|honest(?:ly)?|truthful|truth-?tellers?|(?:tell|speak)s?(?:ing)? (?:only )?(?:the )?truth|sincere|trustworthy|reliable|(?:can|may) be trusted|to trust|on the level|straight"
_KNAVE = r"distrust|beware of|bluff(?:ers?|ing)|phon(?:y|ies)|frauds?|con ?(?:man|artist)s?|two-faced|snakes?|tricksters?|shady|crooked|make(?:s|ing)? things up|mak(?:es|ing) it up|pinocchio|pants on fire|deceiv(?:es|ing)|untrue|bend(?:s|ing) the truth|spin(?:s|ning) (?:a )?(?:yarn|tale)s?|false tongue|scoundrels?|villains?|rascals?|fibbing|telling (?:lies|fibs|tall tales|porkies)|liars?|lies|lie|lying|lied|dishonest|untruthful|fib(?:s|bers?|bing)?|deceivers?|deceitful|crooks?|not to be trusted|untrustworthy|cheats?|rogues?|fraud"


_SAYING = r"statements?|claims?|remarks?|sentence|line|words?|testimony|says?|said|utters?|utterance"
"""A person's statement, whose truth is the person's role."""
_NAME = re.compile(r"\b([^\W\d_]+)(?:'s?)?(?!\w)")
_CLAIM = re.compile(
    rf"\b(?P<name>[^\W\d_]+)(?:'s)? (?P<saying>{_SAYING})[^.,;?]{{0,24}}?\b(?P<verdict>(?P<true>true|correct|right|the truth|accurate)|false|a lie|untrue|wrong|incorrect)\b",
    re.IGNORECASE,
)


@lru_cache(16)
def _role_words(truthful: str, lying: str) -> re.Pattern[str]:
    return re.compile(
        rf"\b(?:(?P<truthful>{re.escape(truthful)}s?|{_KNIGHT})|(?P<lying>{re.escape(lying)}s?|{_KNAVE}))\b",
        re.IGNORECASE,
    )


def roles(words: tuple[str, str], gold: Assignment) -> Puzzle:
    """Return a puzzle of roles; its parts are the people in the order of `gold`.

    Args:
        words: Names of the truthful and of the lying role.
        gold: Role by person.
    """
    order = tuple(gold)
    truthful, lying = words
    by_name = {str(name).lower(): name for name in order}
    role = _role_words(truthful, lying)

    def words_of(attempt: Assignment | None) -> Vocabulary:
        written = list(attempt) if attempt else list(order)

        def read(sentence: str) -> list[Token]:
            found = []
            for m in _NAME.finditer(sentence):
                name = by_name.get(m[1].lower()) or by_name.get(m[0].lower().removesuffix("s"))
                if name is not None:
                    found.append(Token("part", *m.span(), m[0], frozenset([name])))
            for m in _PERSON.finditer(sentence):
                found += _described(m, sentence, written)
            for m in _CALLED.finditer(sentence):
                value = role.search(sentence, m.start())
                if attempt and value:
                    wanted = truthful if value["truthful"] else lying
                    parts = frozenset(p for p, v in attempt.items() if v == wanted)
                    if len(parts) == 1:
                        found.append(Token("part", m.start(), value.end(), sentence[m.start() : value.end()], parts))
            for m in _CLAIM.finditer(sentence):
                if m["name"].lower() not in by_name:
                    continue
                told = truthful if m["true"] else lying
                found.append(Token("value", m.start("saying"), m.end("verdict"), m["verdict"], value=told))
            spans = [(t.start, t.end) for t in found]
            for m in role.finditer(sentence):
                if not any(start < m.end() and m.start() < end for start, end in spans):
                    found.append(Token("value", *m.span(), m[0], value=truthful if m["truthful"] else lying))
            return found

        return Vocabulary(frozenset(order), read, skips_suppositions=True)

    return Puzzle(order, dict.fromkeys(order, words), gold, words_of)


_PERSON = re.compile(
    rf"\b(?P<which>{'|'.join(ORDINALS)}|last|final) (?:person|name|1|of them|speaker|islander|(?=you (?:wrote|named|listed)))"
    r"|\b(?P<initial>initial|(?:begins?|starts?) w(?:ith)?|first letter)\b\W*(?:is |the |an? )*(?P<letter>[A-Z]\b(?: or [A-Z]\b)?|(?P<nth>\w+) letter)"
    r"|\bnames?\b[^.]{0,20}\b(?P<length>\d) letters"
    r"|\bdouble (?P<double>[A-Z])\b"
    r"|\bnames?\b[^.]{0,30}\b(?P<palindrome>same (?:for|back)wards|palindrome|mirror)",
    re.IGNORECASE,
)  # fmt: skip
_NTH = {word: n for n, word in enumerate(ORDINALS, 1)} | dict(zip("eleventh twelfth thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth".split(), range(11, 21), strict=True))  # fmt: skip
_CALLED = re.compile(
    r"\b(?:only |single |sole |one |1 )?(?:person|one|1|man|woman|soul|islander)?(?: that| who| whom)? ?you (?:called|labell?ed|made|marked|took for|put down as|accused of being|declared|suspect(?:ed)?)(?: as)?(?: an?| the)?\b(?= )"
    r"|\byour (?:only |one |single |1 )(?=\w)",
    re.IGNORECASE,
)


def _described(match: re.Match[str], sentence: str, written: Sequence[Part]) -> Iterator[Token]:
    """Yield the person of a description by place in the answer, initial or length of the name."""
    names = [str(name) for name in written]
    chosen: list[str] = []
    if match["which"]:
        word = match["which"].lower()
        index = ORDINALS.index(word) if word in ORDINALS else -1
        chosen = names[index:][:1] if index < len(names) else []
    elif match["length"]:
        chosen = [name for name in names if len(name) == int(match["length"])]
    elif match["double"]:
        chosen = [name for name in names if match["double"].lower() * 2 in name.lower()]
    elif match["palindrome"]:
        chosen = [name for name in names if name.lower() == name.lower()[::-1]]
    elif match["letter"]:
        initials = re.findall(r"\b[A-Z]\b", match["letter"].upper())
        if match["nth"]:
            initials = [chr(64 + _NTH.get(match["nth"].lower(), 0))]
        chosen = [name for name in names if name[:1].upper() in initials]
    if chosen and (len(chosen) == 1 or match["letter"]):
        parts = frozenset(p for p in written if str(p) in chosen)
        yield Token("part", *match.span(), match[0], parts)


# -- statements on patterns ------------------------------------------------------------------------------------------
_PATTERNS: list[tuple[re.Pattern[str], Callable[[Sequence[PartValue]], bool]]] = [
    (re.compile(r"palindrom|which end you start|from either end|same (?:\w+ ){0,3}from (?:both|either)|same (?:\w+ )?backwards?|reads the same|symmetric|mirror image of itself", re.IGNORECASE), lambda v: list(v) == list(v)[::-1]),
    (re.compile(r"take turns|taking turns|alternat|every other|back and forth|zigzag", re.IGNORECASE), lambda v: all(a != b for a, b in pairwise(v)) and all(a == b for a, b in zip(v, v[2:], strict=False))),
    (re.compile(r"(?:no|never|not) [^.]{0,20}(?:next to|beside|neighbou?rs?)[^.]{0,14}(?:twin|itself|same|equal|another of)|no (?:2|double|repeated) (?:equal |same )?(?:neighbou?rs|letters in a row)|no doubles", re.IGNORECASE), lambda v: all(a != b for a, b in pairwise(v))),
    (re.compile(r"all (?:the )?(?:same|equal|identical)|\b1 (?:letter|kind) only|only 1 (?:kind of )?letter|same letter (?:throughout|everywhere|in (?:every|all))", re.IGNORECASE), lambda v: len(set(v)) == 1),
    (re.compile(r"equally (?:often|many)|as (?:often|many)|(?:same|equal) number of|half and half", re.IGNORECASE), lambda v: len({list(v).count(x) for x in set(v)}) == 1 and len(set(v)) > 1),
    (re.compile(r"all (?:of the )?letters? (?:is|are|get|gets) used|every letter (?:is|gets|occurs)|each letter (?:occurs|appears)|no letter (?:is )?(?:used )?twice|all different|no letter repeats", re.IGNORECASE), lambda v: len(set(v)) == len(v)),
]  # fmt: skip
_DENIED = re.compile(r"\b(?:not|no|isn't|doesn't|never|n't)\b[^.]{0,25}$", re.IGNORECASE)


def patterns(text: str, puzzle: Puzzle) -> list[Statement]:
    """Return the true statements about the pattern of a code, such as a palindrome."""
    found = []
    for pattern, test in _PATTERNS:
        for match in pattern.finditer(text):
            denied = _DENIED.search(text[: match.start()].rsplit(".", 1)[-1]) is not None and not match[
                0
            ].lower().startswith("no")
            holds = _pattern_test(test, denied, puzzle.order)
            if holds(puzzle.gold):
                found.append(Statement(holds, *match.span()))
    return found


def _pattern_test(
    test: Callable[[Sequence[PartValue]], bool], denied: bool, order: Sequence[Part]
) -> Callable[[Assignment], bool]:
    return lambda c: test([c[p] for p in order]) != denied


__all__ = ["MAX_CANDIDATES", "Assignment", "Puzzle", "Statement", "code", "patterns", "read_hint", "roles"]
