"""Answers that are roles of people: paraphrases of roles, descriptions of people."""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from rl2f_core.leaks.candidates.facts import Part, Token, Vocabulary
from rl2f_core.leaks.candidates.lexicon import Phrases, words_of
from rl2f_core.leaks.candidates.parts import Assignment, Puzzle
from rl2f_core.leaks.candidates.places import ORDINALS

_ROLES = Phrases(
    {
        "truthful": """
            honest*, truthful*, truth-teller*, truthteller*, truth teller*|talker*|sayer*, tell|tells|telling|speak|speaks|
            speaking|says|talks|utters (you|us|only|always|nothing) (but) (the) truth, straight shooter*|arrow*|talker*|
            talking|up|with, straight-shoot*, straight, upright, candid*, credible, dependable, side of (the) truth, word is
            good|gold|law, trust, trusts, trusted, trustworthy, trusty, believe, believed, believable, rely on, relied on, count on, bank on,
            depend on, take _ at _ word, saint*, angel*, sincere*, reliable, on the level, noble, virtuous, genuine,
            real deal, good guy|egg|apple|soul|sort|person|one|1|as gold, forthright, frank, earnest, veracious, decent,
            spotless, clean as, squeaky clean, white hat, incapable of lying|lies, square, above board, righteous, fresh,
            honorable, honourable, honesty, keeps _ word, plays it straight, pure, true to _ word, worthy of trust,
            to be trusted, believable, wears a halo, has a halo, good faith, a hero
            """,
        "lying": """
            liar*, lie, lies, lying, lied, fib*, deceiv*, deceit*, decept*, crook*, cheat*, rogue*, fraud*, phony, phoney*,
            dishonest*, untruthful*, untrustworthy, unreliable, villain*, scoundrel*, rascal*, trickster*, con man|artist*,
            conman, snake*, two-faced, pinocchio*, pants on fire, bluff*, shady, make|makes|making things|it|stuff|everything up,
            bend*|twist*|stretch* the truth, tall tales, tells tales|fairy, yarn*, tongue*, faker*, fakes, fake, impostor*,
            rotten apple|egg|one|1|to, bad apple|egg|guy|penny|1|one|sort, black sheep, rat, rats, weasel*, swindl*, hoax*,
            mislead*, misled, distrust*, mistrust*, beware, wary of, devil*, baddie*, fabricat*, perjur*, porkies, untrue,
            falsehood*, deceptive, bend the, insincere, dodgy, slippery, charlatan*, double-dealer*, double-tongued,
            fairy tales, pulling your|our leg, not a true word, no true word, crossed fingers, fingers crossed, nose grows|
            grow|growing, bad faith, wicked, scamp*, knavish, invents, full of it|beans|hot, trick*, hoodwink*, dupes, duping
            """,
    }
)


_SAYING = r"statements?|claims?|remarks?|sentence|line|words?|testimony|says?|said|utters?|utterance"
"""A person's statement, whose truth is the person's role."""
_NAME = re.compile(r"\b([^\W\d_]+)(?:'s?)?(?!\w)")
_CLAIM = re.compile(
    rf"\b(?P<name>[^\W\d_]+)(?:'s)? (?P<saying>{_SAYING})[^.,;?]{{0,24}}?\b(?P<verdict>(?P<true>true|correct|right|the truth|accurate)|false|a lie|untrue|wrong|incorrect)\b",
    re.IGNORECASE,
)


@lru_cache(4096)
def _role_words(sentence: str, truthful: str, lying: str) -> tuple[tuple[int, int, str], ...]:
    """Return the spans of the words for a role with the role that they mean."""
    words = words_of(sentence)
    known = {truthful: truthful, f"{truthful}s": truthful, lying: lying, f"{lying}s": lying}
    found = [
        (word.start, word.end, known[word.text.removesuffix("'s")])
        for word in words
        if word.text.removesuffix("'s") in known
    ]
    for phrase in _ROLES.find(words):
        span = words[phrase.first].start, words[phrase.last - 1].end
        found.append((*span, truthful if phrase.symbol == "truthful" else lying))
    return tuple(sorted(found))


def roles(words: tuple[str, str], gold: Assignment) -> Puzzle:
    """Return a puzzle of roles; its parts are the people in the order of `gold`.

    Args:
        words: Names of the truthful and of the lying role.
        gold: Role by person.
    """
    order = tuple(gold)
    truthful, lying = words
    by_name = {str(name).lower(): name for name in order}

    def vocabulary(attempts: Sequence[Assignment | None]) -> Vocabulary:
        attempt = attempts[-1] if attempts else None
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
                role = next((r for r in _role_words(sentence, truthful, lying) if r[0] >= m.start()), None)
                if attempt and role:
                    parts = frozenset(p for p, v in attempt.items() if v == role[2])
                    if len(parts) == 1:
                        found.append(Token("part", m.start(), role[1], sentence[m.start() : role[1]], parts))
            for m in _CLAIM.finditer(sentence):
                if m["name"].lower() not in by_name:
                    continue
                told = truthful if m["true"] else lying
                found.append(Token("value", m.start("saying"), m.end("verdict"), m["verdict"], value=told))
            spans = [(t.start, t.end) for t in found]
            for begin, stop, value in _role_words(sentence, truthful, lying):
                if not any(start < stop and begin < end for start, end in spans):
                    found.append(Token("value", begin, stop, sentence[begin:stop], value=value))
            return found

        return Vocabulary(frozenset(order), read, skips_suppositions=True)

    return Puzzle(order, dict.fromkeys(order, words), gold, vocabulary, is_flipped=True)


_PERSON = re.compile(
    rf"\b(?P<which>{'|'.join(ORDINALS)}|last|final) (?:person|name|1|of them|speaker|islander|villager|position|place|entry|verdict|label|line|spot|on (?:your|the) list|in (?:your|the) (?:list|row|line)|(?=you (?:wrote|named|listed)))"
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
