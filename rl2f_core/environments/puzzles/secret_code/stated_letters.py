"""Statements in free text about the letter at a position of the code."""

# ruff: noqa: E501 (long patterns stay on one line)
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rl2f_core.common.text.tokens import by_word, lone_letters, split_tokens

_NUMBERS = by_word(
    "first|1st|initial|leading|opening|leftmost|one;second|2nd|two;third|3rd|three;fourth|4th|four;fifth|5th|five;"
    "sixth|6th|six;seventh|7th|seven;eighth|8th|eight"
)
_ORDINAL = "first|1st|initial|leading|opening|leftmost|second|2nd|third|3rd|fourth|4th|fifth|5th|sixth|6th|seventh|7th|eighth|8th"
_END = "last|final|rightmost|closing|end"
_CARDINAL = r"[1-8]|one|two|three|four|five|six|seven|eight"
_THING = r"(?:letters?|places?|positions?|spots?|slots?|characters?|symbols?|one)"
_SHOULD = r"(?:should|must|has to|needs to|ought to|will|can only|would have to)"
_IS = rf"(?: {_SHOULD} (?:be|read|hold)| is| holds| contains| reads| becomes| takes| gets| wants| needs|'s| ?=| ?:| ?-+>| ?→)"
_FILL = (
    r"(?: (?:a capital|capital|the letter|a letter|letter|an|a|just|exactly|actually|really|in fact|of course|simply))*"
)
_LETTER = r" ?(?P<mark>[\"'“‘*`(]{0,3})(?P<letter>[A-Za-z])(?![\w'’-])(?!\*{0,2} (?:or|nor)\b)"
_OF = (
    r"(?: (?:of|in) (?:the |your )?(?:right |correct |hidden |secret )?(?:code|answer|solution|sequence|combination))?"
)
_STATEMENTS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b(?=[1-8cefilmoprsty])(?P<yours>your )?(?:(?P<ordinal>{_ORDINAL}|{_END}|middle) {_THING}|(?:letter|place|position|spot|slot|character)(?: number| no\.?|) #?(?P<cardinal>{_CARDINAL})){_OF}{_IS}{_FILL}{_LETTER}",
        rf"(?<![\w'’]){_LETTER.removeprefix(' ?')}[\"'”’*`)]{{0,3}}(?: (?:{_SHOULD} )?(?:is|be|goes?|belongs?|comes?|stands?|sits?|fits?|appears?))?(?: (?:in|at|into|on|as))?(?: the)? (?:(?P<ordinal>{_ORDINAL}|{_END}|middle)(?: {_THING})?|(?:letter|place|position|spot|slot)(?: number| no\.?|) #?(?P<cardinal>{_CARDINAL}))\b",
        rf"\b(?=[acistw])(?:code|answer|it|solution|sequence|combination|that|and|which) (?:also |{_SHOULD} )?(?P<side>starts?|begins?|opens?|ends?|finish(?:es)?|closes?) (?:with|in|on|by){_FILL}{_LETTER}(?P<more>(?:(?:,? and|,? then|,)? ?[A-Z](?!\w)){{0,7}})",
        rf"(?:^|[.,;:!\n] ?)(?=[1-8acefilorst])(?:and )?(?P<ordinal>{_ORDINAL}|{_END}|finally|lastly)(?: comes?| is| the letter|:|,)+{_FILL}{_LETTER}",
    )
]
"""Each list of first characters makes the search several times faster."""
_NOT_ASSERTED = re.compile(
    r"(?:\b(?:if|whether|unless|suppose|is|was|isn't|when|you (?:wrote|said|have|had|put|gave|tried|chose)|your|not|n't|never|alphabet(?:'s)?)\b[^.!?;\n]{0,24}|\balphabet[^.!?;\n]{0,40})$",
    re.IGNORECASE,
)
_AFTER = re.compile(r"[\"'”’*`)]{0,3}(?: (?:is )?(?:wrong|not|isn't|too)\b|,? or\b| of the alphabet|\?)", re.IGNORECASE)
_FRAME = re.compile(
    r"[A-Z?_*.•□■█\-–—…](?<![\w?].)(?:[ ,|]{1,3}|(?=[?_*A-Z.•□■█]))(?:[A-Z?_*.•□■█\-–—…](?:[ ,|]{1,3}|(?=[?_*A-Z.•□■█]))){0,6}[A-Z?_*.•□■█\-–—…](?![\w?])"
)
_SLOT = re.compile(r"[A-Z?_*.•□■█\-–—…]")

_NUMBER = rf"(?:{_ORDINAL}|{_END}|middle|{_CARDINAL})"
_JUDGED = re.compile(
    rf"\b(?:{_THING} (?:number )?|the )?(?P<list>{_NUMBER}(?:(?:,? and (?:the )?|, (?:the )?| & ){_NUMBER})*)(?: {_THING})?{_OF} (?:is|are)(?: (?:all|both|also|already|now|still))* (?P<no>not )?(?P<word>in)?(?:correct|right|wrong|false)\b(?! or\b)",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(
    r"\b(?:if|whether|unless|suppose|when|not sure|check that|never)\b[^.!?;\n]{0,24}$", re.IGNORECASE
)

_INTERJECTIONS = frozenset(
    "hm hmm hmmm mm mmm mhm ah ahh aha aah oh ohh ooh oho uh uhh huh um umm er erm eh ha hah ho hey hi heh aw aww wow "
    "oops ouch phew psst shh ugh tut yay ok no nah nope yes yep yeah".split()
)
_AFTER_INTERJECTION = re.compile(
    r"(?:[,.!…;~—–-]|\Z| (?!(?:is|was|as|for|it|works?|fits?|would|should|could|must|might|may|looks?|seems?|sounds?)\b))"
)


def is_interjection(text: str, start: int, end: int) -> bool:
    """Return whether a word is only an interjection, as in "Hmm, look again.".

    It begins a sentence, without quotation marks, emphasis or capitals after its first letter ("OK" excepted), is not
    the whole text, and is not a subject of a statement.
    """
    fragment = text[start:end]
    if fragment.lower() not in _INTERJECTIONS or (fragment[1:].isupper() and fragment != "OK"):
        return False
    before = text[:start].rstrip(" \t")[-1:]
    begins = before in ("", ".", "!", "?", "…", "\n", "—")
    alone = not any(map(str.isalnum, text[:start] + text[end:]))
    return begins and not alone and _AFTER_INTERJECTION.match(text, end) is not None


def stated_letters(text: str, letters: Sequence[str], length: int) -> list[tuple[int, int, str, str]]:
    """Return the letters that a text states for a place of the code: `(start, end, place, letter)`.

    Examples: `the first letter is K`, `position 2: Q`, `K goes first`, `it ends in Z`, frames such as `K ? Z`.
    """
    known = set(letters)
    alone = split_tokens(text) if text.isascii() else [text[at].lower() for at in lone_letters(text)]
    if not any(letter.lower() in alone for letter in known):
        return []
    results = [
        item
        for item in (*_phrases(text, length), *_frames(text, length))
        if item[3] in known and 1 <= int(item[2]) <= length
    ]
    return sorted(set(results))


def _phrases(text: str, length: int) -> Iterator[tuple[int, int, str, str]]:
    for pattern in _STATEMENTS:
        for match in pattern.finditer(text):
            groups = match.groupdict()
            letter, after = groups["letter"], text[match.end() : match.end() + 30]
            small = (
                letter.islower()
                and not groups["mark"]
                and (letter in "ai" or not re.match(r"[\W_]*$|\W*[.!,;]", after))
            )
            reported = groups.get("yours") and not re.search(_SHOULD, match[0], re.IGNORECASE)
            if (
                small
                or reported
                or _AFTER.match(after)
                or _NOT_ASSERTED.search(text[max(0, match.start() - 60) : match.start()])
            ):
                continue
            if groups.get("side"):
                run = [letter.upper(), *re.findall(r"(?<![A-Za-z])[A-Z](?![A-Za-z])", groups["more"] or "")]
                first = 1 if groups["side"].lower().startswith(("start", "begin", "open")) else length - len(run) + 1
                for place, fragment in enumerate(run, first):
                    yield *match.span(), str(place), fragment
                continue
            place = _place((groups.get("ordinal") or groups.get("cardinal") or "").lower(), length)
            if place:
                yield *match.span(), str(place), letter.upper()


def judged_places(text: str, length: int) -> list[tuple[int, bool]]:
    """Return the places of the last attempt that a text calls right or wrong: `(place, is_right)`.

    Examples: `the first and third letters are correct`, `positions 2 and 4 are wrong`. Questions and suppositions do
    not count.
    """
    results = []
    for match in _JUDGED.finditer(text):
        start = match.start()
        if text[match.end() : match.end() + 1] == "?" or _SUPPOSED.search(text[max(0, start - 60) : start]):
            continue
        wrong = match[0].lower().endswith(("wrong", "false")) or bool(match["word"])
        for word in re.findall(_NUMBER, match["list"], re.IGNORECASE):
            place = _place(word.lower(), length)
            if 1 <= place <= length:
                results.append((place, wrong == bool(match["no"])))
    return results


def _place(word: str, length: int) -> int:
    if word == "middle":
        return (length + 1) // 2 if length % 2 else 0
    if word in ("finally", "lastly") or word in _END.split("|"):
        return length
    return int(word) if word.isdecimal() else _NUMBERS.get(word, 0)


def _frames(text: str, length: int) -> Iterator[tuple[int, int, str, str]]:
    """Find rows of `length` slots, some of them letters and some blank."""
    for match in _FRAME.finditer(text):
        slots = _SLOT.findall(match[0])
        known = [k for k, slot in enumerate(slots) if slot.isalpha()]
        if len(slots) == length and 0 < len(known) < length:
            for k in known:
                yield *match.span(), str(k + 1), slots[k]
