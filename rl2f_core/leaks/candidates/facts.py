"""A small grammar of statements about the parts of an answer.

A sentence becomes a sequence of *tokens*: parts of the answer (a person, a place, a digit, a row), values (a role, a
letter, a digit), and the concepts of `LEXICON`. `read_sentence` scans it once from left to right. The last part
mentioned is the subject of the values and verdicts that follow, as in shallow parsing with finite-state cascades
(Abney, "Partial Parsing via Finite-State Cascades", 1996). Text that is in no token contributes nothing.

The grammar is the same for all environments; a `Vocabulary` names the parts and values of one task.
"""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Part = str | int
PartValue = str
Relation = Literal["is", "right", "count", "count_right", "exchange", "same", "different"]


@dataclass(frozen=True)
class Fact:
    """A statement about the answer, true or not."""

    relation: Relation
    """is: `parts` have `value`. right: the attempt is right in `parts`. count: the number of parts with `value`.
    count_right: the number of parts in which the attempt is right. exchange: the attempt with two parts exchanged is
    the answer. same, different: `parts` have one value, or not all the same one."""
    start: int
    end: int
    parts: frozenset[Part] = frozenset()
    value: PartValue = ""
    positive: bool = True
    count: int = 0
    command: bool = False
    """The student is told to change exactly these parts."""


class Token(NamedTuple):
    """A word or phrase with a meaning."""

    symbol: str
    start: int
    end: int
    text: str
    parts: frozenset[Part] = frozenset()
    value: PartValue = ""


@dataclass(frozen=True)
class Vocabulary:
    """Words for the parts and values of one task."""

    parts: frozenset[Part]
    """All parts."""
    read: Callable[[str], list[Token]]
    """Returns the tokens `part` and `value` of a sentence."""
    located: Callable[[PartValue], frozenset[Part]] = lambda value: frozenset()
    """Returns the parts of the last attempt with a value."""
    skips_suppositions: bool = False
    """Suppositions about the parts are common, so that they are no statements."""


@dataclass
class Memory:
    """What earlier sentences mentioned, for "the others", "it" and "nor Jack"."""

    mentioned: set[Part] = field(default_factory=set)
    subject: frozenset[Part] = frozenset()
    """The last part with a value or verdict."""
    value: PartValue | None = None
    single: tuple[Relation, PartValue] | None = None
    """The concept of which there is exactly one: a value, or a wrong part."""
    last: tuple[str, PartValue] | None = None


LEXICON: dict[str, str] = {
    "suppose": r"if|suppos\w+|assum\w+|pretend\w*|whether|would|could|might|may|maybe|perhaps|unless|what about|imagine|when|try|test|cannot both|can't both|either",
    "report": (
        r"you(?:'ve| have| had|'d)? (?:sa(?:id|y)|wr[io]te?n?|claim(?:ed)?|got|made|make|put|list(?:ed)?|call(?:ed)?|name(?:d)?|ha(?:ve|d)|"
        r"answer(?:ed)?|guess(?:ed)?|think|thought|treat(?:ed)?|g[ai]ven?|chose|pick(?:ed)?|label(?:l?ed)?|insult(?:ed)?|accus(?:ed?)|trust(?:ed)?|believed?)(?: that| down)?"
        r"|(?:you|your \w+) (?:\w+ )?(?:lists?|says|has|claims)|says|said(?! so)|claim(?:s|ed)|calls|called|remarks?|tells you|insists|swears|vouch\w+|according to|accus\w+|speaks? (?:so )?well of"
    ),
    "except": r"except(?: for)?|but for|apart from|aside from|other than|besides|save for|bar(?= )|everyone but|everybody but|all but|nobody but|nothing but|no 1 but|none but",
    "others": r"(?:(?:all|any|every) )?(?:the |these |those |your )?(?:\d+ )?(?:others?(?!'s| (?:way|hand|words?|1))|rest|remainder|remaining(?: \w+)?)|everyone else|everybody else|everything else|anyone else|all else|otherwise|elsewhere",
    "all": r"all|every(?:one|body|thing)?|each|both|the lot|whole lot|any(?:one|body|thing)?",
    "none": r"nobody|no one|no 1|nothing|none",
    "not": r"not|isnt|arent|dont|doesnt|didnt|wasnt|werent|wont|cannot|cant|never|no|neither|nor|without|nowhere|hardly|lacks?|\w+n't|forget|ban(?:ned|ish)?|absent|missing from|no part|stays? away|stays? out|stays? home|leave out|drop(?= the [A-Z]\b)|excluded|eliminated|stranger",
    "swap": r"swap(?:ped|s)?|exchang\w+|trad(?:e|ed|ing)s?|interchang\w+|(?:change|switch|swap)(?:d|ed)? (?:seats|places|roles|positions|hats)|switch(?:ed)?(?= (?:the )?(?:roles|two|last|first|\d))|transpos\w+|mixed up|mix-?up|crossed over|each other'?s?|the other'?s|eachother|(?<=s )(?:badge|place|coat|hat|seat|role|shoes|label|chair|spot)s?|switcheroo",
    "right": (
        r"(?:exactly |just )?(?:what|as|like) you (?:said|wrote|had it|put it|have it|thought)|right|rightly|correct(?:ly)?|fine|good|ok(?:ay)?|perfect(?:ly)?|sound|accurate(?:ly)?|keep|kept|stays?|stay put|remains?|leave|hold (?:on|fast)|hang on|"
        r"untouched|as (?:it|they) (?:should|ought)|where (?:it|they|he|she) belongs?|at home|in (?:its|their|the right|the correct|his|her) (?:proper )?(?:place|places|seat|seats|spot|spots|position|positions)|"
        r"accepted|settled|safe|spot-? ?on|bang on|lovely|yes|nailed|match(?:es)?|true|unchanged|impeccable|solid|stands?|flawless|proud of|belongs?|well done|judged well|do(?:es)?n't (?:change|touch)|innocent|locked|in the bag|winners?|taken|sorted|gold|fits?|works?|ticked|untouchable|slaps|wouldn't change|leave be|on the money"
    ),
    "wrong": (
        r"(?:the )?wrong way (?:round|around|up)|wrong(?:ly)?|incorrect(?:ly)?|mistak\w+|false|errors?|bad|off|flip(?:ped|s)?|turn(?:ed)?(?=(?: \w+){0,3} (?:around|over|into))|chang(?:e|ed|es|ing)|toggl\w+|invert\w*|switch(?:ed)?|"
        r"(?:the )?other way(?: round| around)?|needs? fixing|fix|slips?|misjudg\w+|mislabel\w*|misread|spoil(?:ed|t)?|culprit|the opposite|opposite|trouble|(?:must|has to|have to) go|"
        r"out of place|sinner|impostor|odd one out|injustice|unfair\w*|wronged|kinder|harsher|touch|lies in your|misplaced|busted|did dirty|pack its bags|booed|bad(?: 1)?|differs? in|to think about|to look at again|booted|evicted|to (?:go over|look over) again|uncertain"
    ),
    "same": r"the same|same|equal|identical|twins?|alike|agree|match each other",
    "different": r"different|differ|opposites?|unlike|disagree|not the same|opposed",
    "them": r"(?:one|1|any|some|\d+) of (?:them|those|these)|among (?:them|those)|in it|of (?:that|this) (?:kind|sort)",
    "only": r"only|just|exactly|precisely|a single|single|sole|lone|merely|solitary",
    "number": r"\d{1,2}(?: (?:out )?of (?:the |your |these )?\d{1,2})?(?![\w.]*\d)(?!\w)|once|twice",
}  # fmt: skip
"""Concepts with their words, in order of precedence."""
_COMMAND = re.compile(r"flip|turn|chang(?!ed)|toggl|invert|switch(?!ed)|kinder|harsher|fix", re.IGNORECASE)
_CONCEPT = re.compile(
    "|".join(rf"(?P<{name}>(?<![\w'])(?:{words})(?![\w]))" for name, words in LEXICON.items())
    + r"|(?P<join>,|&|\+|/|\b(?:and|nor|or)\b)",
    re.IGNORECASE,
)
_ENDS_CLAUSE = re.compile(r"[:;—–]|, (?:but|so|only|though|while|whereas|and then)\b|\bbut\b")
_TO_NUMBER = 14
"""Characters between a number and the word it counts."""


def tokens_of(sentence: str, vocabulary: Vocabulary) -> list[Token]:
    """Return the tokens of a sentence in order; parts and values take precedence over concepts."""
    named = vocabulary.read(sentence)
    taken = [(token.start, token.end) for token in named]
    found = [
        Token(str(match.lastgroup), *match.span(), match[0])
        for match in _CONCEPT.finditer(sentence)
        if not any(start < match.end() and match.start() < end for start, end in taken)
    ]
    found = [_neither_nor(token, [*named, *found]) for token in found]
    taken += [(token.start, token.end) for token in found if token.symbol != "join"]
    found += [
        Token("clause", *match.span(), match[0])
        for match in _ENDS_CLAUSE.finditer(sentence)
        if not any(start < match.end() and match.start() < end for start, end in taken)
    ]
    return sorted([*named, *found], key=lambda token: (token.start, token.symbol != "clause"))


def _neither_nor(token: Token, tokens: Sequence[Token]) -> Token:
    """Return `nor` after a part as a conjunction, since `neither` before it negates already."""
    before = max((t for t in tokens if t.end <= token.start), key=lambda t: t.end, default=None)
    joins = token.text.lower() == "nor" and before is not None and before.symbol == "part"
    return token._replace(symbol="join") if joins else token


def read_sentence(sentence: str, offset: int, vocabulary: Vocabulary, memory: Memory) -> list[Fact]:
    """Return the statements of a sentence; `memory` is updated.

    Args:
        sentence: The sentence, with numbers in digits.
        offset: Where it begins; the spans of the facts are shifted by it.
        vocabulary: Words of the task.
        memory: What the earlier sentences of the dialogue mentioned.
    """
    scan = _Scan(tokens_of(sentence, vocabulary), offset, vocabulary, memory)
    asked = sentence.rstrip().endswith("?")
    if asked or (vocabulary.skips_suppositions and any(token.symbol == "suppose" for token in scan.tokens[:2])):
        memory.mentioned |= {part for token in scan.tokens for part in token.parts}
        return []
    return scan.run()


def _integer(token: Token) -> int:
    """Return the number of a token such as `2` or `2 out of 3`."""
    first = token.text.lower().split()[0]
    return {"once": 1, "twice": 2}.get(first) or int(first)


class _Scan:
    """One pass over the tokens of a sentence."""

    def __init__(self, tokens: Sequence[Token], offset: int, vocabulary: Vocabulary, memory: Memory) -> None:
        self.tokens, self.offset, self.vocabulary, self.memory = tokens, offset, vocabulary, memory
        self.facts: list[Fact] = []
        self.subject: frozenset[Part] | None = None
        self.subject_at = 0
        self.used = False
        """The subject has a value or verdict already."""
        self.consumed: set[int] = set()
        """Indices of the parts that a cue before them used."""
        self.contrast: frozenset[Part] = frozenset()
        """Parts with the opposite value or verdict, as in "only" and "except"."""
        self.negated = False
        self.number: Token | None = None
        self.only = False
        self.reported = False
        self.pending: list[Token] = []
        """Values without a part, a number or a negation so far."""
        self.fresh = False
        """The last token was a part, so that a list may continue."""

    def run(self) -> list[Fact]:
        self._sequence()
        exchange = self._exchange()
        if exchange:
            self.facts.append(exchange)
        i = 0
        while i < len(self.tokens):
            i = self._step(i)
        self._ellipsis()
        self.memory.mentioned = self._mentioned(len(self.tokens))
        return self.facts

    def _step(self, i: int) -> int:
        token = self.tokens[i]
        match token.symbol:
            case "part":
                before = self.tokens[i - 1].symbol if i else ""
                continues = self.subject is not None and self.fresh and not self.used
                self.subject = (self.subject or frozenset()) | token.parts if continues else token.parts
                self.subject_at, self.used = token.start, i in self.consumed
                if self.negated and self.tokens[i - 1].symbol != "not" and not continues:
                    self.negated = False
                self.fresh = True
                if not continues:
                    self.contrast = self.vocabulary.parts - token.parts if before == "only" else frozenset()
                return i + 1
            case "others":
                self._set(self.vocabulary.parts - self._mentioned(i), token)
            case "all" | "none":
                following = self.tokens[i + 1 : i + 2]
                if not (following and following[0].symbol in ("number", "value", "part")) or token.symbol == "none":
                    if self.subject is None or token.symbol == "none":
                        self._set(self.vocabulary.parts, token)
                    self.negated ^= token.symbol == "none"
            case "except":
                excluded = self.tokens[i + 1].parts if i + 1 < len(self.tokens) else frozenset()
                if excluded:
                    positive_rest = token.text.lower().startswith(("no", "none"))
                    self._set(self.vocabulary.parts - excluded, token)
                    self.contrast = excluded
                    self.negated = positive_rest
                    return i + 2
            case "not":
                self.negated = True
                if i + 1 == len(self.tokens) or self.tokens[i + 1].symbol in ("clause", "join"):
                    self._dangling(token)
            case "number":
                self.number = token
            case "only":
                self.only = True
                if "single" in token.text.lower() or token.text.lower() in ("sole", "lone", "solitary"):
                    self.number = Token("number", token.start, token.end, "1")
            case "report":
                self.reported = True
            case "suppose":
                self.reported |= self.vocabulary.skips_suppositions
            case "value":
                self._value(i)
            case "right" | "wrong":
                self._verdict(i)
            case "same" | "different":
                if self.subject is not None and len(self.subject) > 1:
                    same = (token.symbol == "same") ^ self.negated
                    self._add("same" if same else "different", token, parts=self.subject)
                    self.used = True
            case "them":
                self._them(token)
            case "clause":
                self._end_clause()
        self.fresh = token.symbol in ("part", "join")
        return i + 1

    def _set(self, parts: frozenset[Part], token: Token) -> None:
        self.subject, self.subject_at, self.used = parts, token.start, False
        self.contrast = frozenset()

    def _mentioned(self, i: int) -> set[Part]:
        """Return the parts that were mentioned before a token."""
        return self.memory.mentioned | {part for token in self.tokens[:i] for part in token.parts}

    def _ahead(self, i: int) -> frozenset[Part]:
        """Return the list of parts that follows a cue in its clause, before any other cue."""
        parts: frozenset[Part] = frozenset()
        for k, token in enumerate(self.tokens[i + 1 :], i + 1):
            if token.symbol == "part":
                parts |= token.parts
                self.consumed.add(k)
            elif token.symbol in ("others", "all") and not parts:
                return self.vocabulary.parts - (self._mentioned(k) if token.symbol == "others" else frozenset())
            elif token.symbol not in ("join", "all", "only", "number") or (token.symbol == "join" and not parts):
                break
        return parts

    def _end_clause(self) -> None:
        self.negated = self.only = self.reported = False
        self.number = None
        if self.used:
            self.subject = None

    def _add(self, relation: Relation, token: Token, **fields: object) -> None:
        if "parts" in fields and not fields["parts"]:
            return
        start = min(token.start, self.subject_at) if self.subject is not None else token.start
        span = self.offset + start, self.offset + token.end
        self.facts.append(Fact(relation, *span, **fields))  # type: ignore[arg-type]

    def _counted(self, token: Token) -> int | None:
        """Return the number that counts a token's word, if one is just before it."""
        if self.number is None or not 0 <= token.start - self.number.end <= _TO_NUMBER:
            return None
        between = [t for t in self.tokens if self.number.end <= t.start < token.start]
        return None if any(t.symbol in ("part", "value") for t in between) else _integer(self.number)

    def _value(self, i: int) -> None:
        token = self.tokens[i]
        if self.reported:
            self.memory.value = token.value
            return
        count = self._counted(token)
        if count is not None and not self.negated:
            self._add("count", token, value=token.value, count=count)
            self.memory.single = ("is", token.value) if count == 1 else None
        else:
            ahead = self._ahead(i) if self.subject is None or self.used else frozenset()
            if not ahead and self.subject is None and [t.symbol for t in self.tokens[i + 1 : i + 2]] == ["not"]:
                ahead, self.negated = self._ahead(i + 1), True  # "C is not the one that leads"
            parts = ahead or self.subject
            if parts:
                self._add("is", token, parts=parts, value=token.value, positive=not self.negated)
                if self.contrast and not ahead:
                    self._add("is", token, parts=self.contrast, value=token.value, positive=self.negated)
                self.used = not ahead or self.used
                self.memory.subject = parts
            elif self.negated:
                self._add("count", token, value=token.value, count=0)
                self._add("is", token, parts=self.memory.subject, value=token.value, positive=False)
            else:
                self.pending.append(token)
                after = next((t for t in self.tokens[i + 1 :] if t.symbol in ("number", "value", "clause")), None)
                if after is not None and after.symbol == "number" and len(self.vocabulary.parts) >= _integer(after):
                    self._add("count", token, value=token.value, count=_integer(after))
        self.memory.value, self.memory.last = token.value, ("value", token.value)
        self.number = None

    def _verdict(self, i: int) -> None:
        token = self.tokens[i]
        if self.reported:
            return
        right = (token.symbol == "right") ^ self.negated
        command = _COMMAND.match(token.text) is not None and not self.negated
        count = self._counted(token)
        if count is None and self.number is not None and self.number.start < token.start:
            between = [t for t in self.tokens if self.number.end <= t.start < token.start]
            if all(t.symbol in ("number", "only", "all") for t in between) and self.subject is None:
                count = _integer(self.number)
        nearby = self.tokens[i + 1 : i + 3]
        if token.text.lower().startswith("differ") and any(t.symbol == "number" for t in nearby):
            count = _integer(next(t for t in nearby if t.symbol == "number"))
        if count is not None and (self.subject is None or self.used):
            self._add("count_right", token, count=count, positive=right)
            left = len(self.vocabulary.parts) - count
            if 1 in (count, left):
                self.memory.single = ("right", "" if right == (left == 1) else "one")
            following = next((t for t in self.tokens[i + 1 :] if t.symbol == "part"), None)
            if count == 1 and not right and following is not None:
                self._add("right", following, parts=following.parts, positive=False, command=command)
        else:
            ahead = self._ahead(i) if self.subject is None or self.used else frozenset()
            parts = ahead or self.subject
            if self.pending and self.subject is None:
                for named in self.pending:  # "D does not fit either", "the E has to go"
                    self._add("is", named, parts=self.memory.subject, value=named.value, positive=right)
                    located = self.vocabulary.located(named.value)
                    self._add("right", named, parts=located, positive=right, command=command)
                self.pending = []
            if parts:
                self._add("right", token, parts=parts, positive=right, command=command)
                if self.contrast and not ahead:
                    self._add("right", token, parts=self.contrast, positive=not right)
                elif self.only and not ahead and not right:  # "slot 2 is the only bad one"
                    self._add("right", token, parts=self.vocabulary.parts - parts, positive=True)
                self.subject, self.used = parts, True
                self.memory.subject = parts
        self.memory.last = ("right" if token.symbol == "right" else "wrong", "")
        self.negated = False
        self.number = None

    def _them(self, token: Token) -> None:
        """Read "is one of them" with the last value."""
        value = self.memory.value
        if value is not None and self.subject is not None:
            self._add("is", token, parts=self.subject, value=value, positive=not self.negated)
            self.used = True

    def _dangling(self, token: Token) -> None:
        """Read "the ones isn't" with the last verdict or value, and "E is absent"."""
        for absent in self.pending:
            self._add("count", absent, value=absent.value, count=0)
        self.pending = []
        if self.subject is None or self.used or self.memory.last is None:
            return
        kind, value = self.memory.last
        if kind == "value":
            self._add("is", token, parts=self.subject, value=value, positive=False)
        else:
            self._add("right", token, parts=self.subject, positive=kind != "right")
        self.used, self.negated = True, False

    def _ellipsis(self) -> None:
        """Read "Not Emma. Nor Jack." and "Only Kate" with the concept of which there is one."""
        symbols = {token.symbol for token in self.tokens}
        value = self.memory.value
        if value is not None and self.only and self.number is not None and not symbols & {"value", "right", "wrong"}:
            self._add("count", self.number, value=value, count=_integer(self.number))
            self.memory.single = ("is", value) if _integer(self.number) == 1 else None
        denied = "report" in symbols and "not" not in symbols
        if self.memory.single is None or denied or symbols & {"value", "right", "wrong", "them", "swap"}:
            return
        parts = frozenset(part for token in self.tokens for part in token.parts)
        if not parts:
            return
        relation, value = self.memory.single
        token = next(t for t in self.tokens if t.parts)
        negated = "not" in symbols
        if relation == "is":
            self._add("is", token, parts=parts, value=value, positive=not negated)
        else:
            self._add("right", token, parts=parts, positive=negated != (value == "one"))

    def _sequence(self) -> None:
        """Read "the first three go G then F then D"."""
        for i, token in enumerate(self.tokens):
            following = [t for t in self.tokens[i + 1 :] if t.symbol not in ("join", "clause", "number")]
            values = following[: len(token.parts)]
            if len(token.parts) > 1 and len(values) == len(token.parts) and all(t.symbol == "value" for t in values):
                for part, value in zip(sorted(token.parts, key=str), values, strict=True):
                    self._add("is", value, parts=frozenset([part]), value=value.value)

    def _exchange(self) -> Fact | None:
        swap = next((token for token in self.tokens if token.symbol == "swap"), None)
        if swap is None:
            return None
        pairs = [token.parts for token in self.tokens if len(token.parts) == 2]
        singles = [token.parts for token in self.tokens if len(token.parts) == 1]
        parts = pairs[0] if pairs else frozenset().union(*singles[:2]) if len(singles) >= 2 else frozenset()
        if len(parts) != 2:
            return None
        return Fact("exchange", self.offset + swap.start, self.offset + swap.end, parts, command=True)
