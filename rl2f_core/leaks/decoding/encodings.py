"""Decode whole texts: base64, hexadecimal bytes, and reversed text."""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Set

from rl2f_core.common.text.normalize import NormalizedText

_BASE64 = re.compile(r"(?<![\w+/=.-])[A-Za-z0-9+/_-]{2,400}={0,2}(?![\w+/=])")
_WORDLIKE = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+|[a-z]+(?:-[a-z]+)+|[A-Z]?[a-z]+(?:[-/_][A-Za-z]?[a-z]*)+")
_BYTES = re.compile(r"(?<![\w.])(?:(?:0x|\\x)?[2-7][0-9a-fA-F][ ,]{1,2}){1,40}(?:0x|\\x)?[2-7][0-9a-fA-F](?![\w.])")
_PRINTABLE = re.compile(r"[ -~\n]+")
_REVERSED_CUE = re.compile(
    r"\b(?:backwards?|revers\w*|right[- ]to[- ]left|from the right|mirror\w*|flip(?:ped|ping)?|back to front|turned? around|other way (?:a)?round|end to start|upside|from (?:the )?(?:end|back)|tail first|last to first|inverted|opposite order)",
    re.IGNORECASE,
)
_REVERSED_WORDS = frozenset(
    "eht rewsna rebmun edoc tcerroc noitulos tluser derdnuh dnasuoht ytnewt ytriht ytrof ytfif ytxis ytneves ythgie ytenin "
    "eerht ruof evif neves thgie enin evlewt neetriht neetruof neetfif neetxis neetneves neethgie neetenin thgink evank "
    "rail si yrt sesrever sdrawkcab".split()
)
_BACKWARDS = frozenset(
    "backward backwards back right left reverse reversed reversing reversal mirror mirrored flip flipped flipping turned around round end "
    "upside tail last inverted opposite".split()
)


def decoded(source: NormalizedText, base64_named: bool = False) -> Iterator[NormalizedText]:
    """Decode base64 words and hexadecimal bytes; each character maps back to the whole word.

    Words that look like English are skipped.
    """
    text = source.text
    for match in _BASE64.finditer(text):
        word = match[0]
        if ((word.isalpha() and word.islower()) or _WORDLIKE.fullmatch(word)) and not (
            base64_named and len(word) % 4 == 0
        ):
            continue
        plain = _from_base64(word)
        if plain is not None:
            yield _mapped_to(source, *match.span(), plain)
    for match in _BYTES.finditer(text):
        plain = bytes(int(b, 16) for b in re.findall(r"[2-7][0-9a-fA-F]\b", match[0])).decode("ascii", "replace")
        if _PRINTABLE.fullmatch(plain):
            yield _mapped_to(source, *match.span(), plain)


def _from_base64(word: str) -> str | None:
    bare = word.rstrip("=").translate(str.maketrans("-_", "+/"))
    if len(bare) % 4 == 1:
        return None
    try:
        plain = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return plain.strip() if _PRINTABLE.fullmatch(plain) and plain.strip() else None


def _mapped_to(source: NormalizedText, start: int, end: int, plain: str) -> NormalizedText:
    first, last = source.original(start, end)
    return NormalizedText(plain, [first] * len(plain), [last] * len(plain))


def mentions_reversal(words: Set[str], text: str) -> bool:
    """Return whether the text mentions reading backwards."""
    return not _BACKWARDS.isdisjoint(words) and _REVERSED_CUE.search(text) is not None


def reversed_text(source: NormalizedText, words: Set[str]) -> NormalizedText | None:
    """Reverse the whole text if that turns its words into English ones."""
    if _REVERSED_WORDS.isdisjoint(words):
        return None
    return NormalizedText(source.text[::-1], source.starts[::-1], source.ends[::-1])
