"""Statements of a sentence, from one pass over its tokens.

The last part mentioned is the subject of the values and verdicts that follow, as in shallow parsing with finite-state
cascades (Abney, "Partial Parsing via Finite-State Cascades", 1996). Text that is in no token contributes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from rl2f_core.leaks.candidates.facts import (
    Fact,
    Memory,
    Part,
    Relation,
    Token,
    Vocabulary,
    integer,
    known_tokens,
    meant,
    with_numbered_parts,
)

_COMMAND = re.compile(r"flip|turn|chang(?!ed)|toggl|invert|switch(?!ed)|kinder|harsher|fix", re.IGNORECASE)
_SOLE = ("only", "sole", "single", "lone", "solitary", "a single")
_BESIDE = 28
"""Characters between a place and its letter."""
_TO_NUMBER = 14
"""Characters between a number and the word it counts."""
_SOME = ("some", "any", "either of", "several", "a few", "most", "at ", "partly")


def read_sentence(sentence: str, offset: int, vocabulary: Vocabulary, memory: Memory) -> list[Fact]:
    """Return the statements of a sentence; `memory` is updated.

    Args:
        sentence: The sentence, with numbers in digits.
        offset: Where it begins; the spans of the facts are shifted by it.
        vocabulary: Words of the task.
        memory: What the earlier sentences of the dialogue mentioned.
    """
    tokens = known_tokens(sentence, vocabulary)
    if not tokens:
        return []
    asked = sentence.rstrip().endswith("?")
    if asked or (vocabulary.skips_suppositions and any(token.symbol == "suppose" for token in tokens[:2])):
        memory.mentioned |= {part for token in tokens for part in token.parts}
        values = [token.value for token in tokens if token.symbol == "value"]
        memory.value = values[-1] if values else memory.value
        memory.fact = None
        return []
    numbered = with_numbered_parts(tokens, vocabulary) if vocabulary.is_numbered else None
    other = _Scan(numbered, offset, vocabulary, replace(memory)).run() if numbered else []
    return _Scan(tokens, offset, vocabulary, memory).run() + other


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
        self.sole = False
        """The value or verdict that follows is that of one part alone."""
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
        last = [token.symbol for token in self.tokens if token.symbol not in ("join", "pronoun")][-3:]
        if self.negated and not self.used and "not" in last[:-1] and last[-1] == "part" and self.facts:
            self._dangling(self.tokens[-1])  # "Otto is honest, and neither Mia nor Rex is"
        if self.vocabulary.is_numbered:
            self._pairs()
        self._ellipsis()
        self._also()
        self.memory.mentioned = self._mentioned(len(self.tokens))
        self.memory.recent = self._recent(len(self.tokens))
        self.memory.fact = self.facts[-1] if self.facts else self.memory.fact
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
                self._set(self._others(i), token)
            case "all" | "none":
                following = self.tokens[i + 1 : i + 2]
                if not (following and following[0].symbol in ("number", "value", "part")) or token.symbol == "none":
                    if self.subject is None or token.symbol == "none":
                        self._set(self.vocabulary.parts, token)
                    self.negated ^= token.symbol == "none"
            case "except":
                excluded = self.tokens[i + 1].parts if i + 1 < len(self.tokens) else frozenset()
                if not excluded and [t.symbol for t in self.tokens[i + 1 : i + 2]] == ["value"]:
                    self.negated = True  # "anything but P or R"
                elif (
                    excluded
                    and self.facts
                    and self.facts[-1].parts > excluded
                    and self.facts[-1].relation in ("is", "right")
                ):
                    last = self.facts.pop()
                    told = {"value": last.value, "positive": last.positive}
                    self._add(last.relation, token, parts=last.parts - excluded, **told)
                    self._add(last.relation, token, parts=excluded, **(told | {"positive": not last.positive}))
                    self._set(excluded, token)
                    self.negated = False
                    return i + 2
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
                following = self.tokens[i + 1 : i + 2]
                if token.text.lower() in _SOLE and following and following[0].symbol in ("value", "right", "wrong"):
                    self.sole = True
                if "single" in token.text.lower() or token.text.lower() in ("sole", "lone", "solitary"):
                    self.number = Token("number", token.start, token.end, "1")
            case "report":
                self.reported = True
            case "suppose":
                self.reported |= self.vocabulary.skips_suppositions or token.text.lower().startswith(_SOME)
            case "value":
                self._value(i)
            case "right" | "wrong":
                self._verdict(i)
            case "same" | "different":
                ahead = [t.parts for t in self.tokens[i + 1 : i + 4] if t.symbol == "part"][:1]
                parts = (self.subject or frozenset()).union(*(ahead if len(self.subject or ()) < 2 else ()))
                if len(parts) > 1:
                    same = (token.symbol == "same") ^ self.negated
                    self._add("same" if same else "different", token, parts=parts)
                    self.used = True
            case "loner":
                if self.memory.value is not None:
                    self._add("count", token, value=self.memory.value, count=1)
            case "them":
                self._them(token)
            case "pronoun":
                if self.subject is None:
                    self._set(self._meant(i), token)
                    self.subject = self.subject or None
            case "nothing_else":
                self._nothing_else(token)
            case "clause":
                self._end_clause()
        self.fresh = token.symbol in ("part", "join")
        return i + 1

    def _set(self, parts: frozenset[Part], token: Token) -> None:
        self.subject, self.subject_at, self.used = parts, token.start, False
        self.contrast = frozenset()

    def _recent(self, i: int) -> tuple[frozenset[Part], ...]:
        """Return the parts of the last tokens before a token, oldest first."""
        return (*self.memory.recent, *(token.parts for token in self.tokens[:i] if token.parts))[-8:]

    def _meant(self, i: int) -> frozenset[Part]:
        return meant(self.tokens[i].text.lower(), self._recent(i))

    def _nothing_else(self, token: Token) -> None:
        """Give all other parts the opposite of the verdict or value that comes next, or came last."""
        if self.subject is not None and not self.used:
            self.contrast = self.vocabulary.parts - self.subject
            return
        told = [fact for fact in self.facts if fact.relation in ("is", "right") and fact.parts]
        if not told and self.memory.fact is not None and not any(t.parts for t in self.tokens):
            told = [self.memory.fact]
        if told and told[-1].relation in ("is", "right"):
            same = [
                f
                for f in told
                if (f.relation, f.value, f.positive) == (told[-1].relation, told[-1].value, told[-1].positive)
            ]
            others = self.vocabulary.parts.difference(*(fact.parts for fact in same))
            self._add(told[-1].relation, token, parts=others, value=told[-1].value, positive=not told[-1].positive)

    def _others(self, i: int) -> frozenset[Part]:
        """Return the parts that were not mentioned before a token; none after "some of them" alone."""
        mentioned = self._mentioned(i)
        return self.vocabulary.parts - mentioned if mentioned else frozenset()

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
                return self._others(k) if token.symbol == "others" else self.vocabulary.parts
            elif token.symbol == "pronoun" and not parts:
                return self._meant(k)
            elif token.symbol == "report" and not parts and token.text.lower().startswith("you"):
                continue
            elif token.text == ":" and not parts and k == i + 1:
                continue
            elif token.symbol not in ("join", "all", "only", "number") or (token.symbol == "join" and not parts):
                break
        return parts

    def _end_clause(self) -> None:
        self.negated = self.only = self.sole = self.reported = False
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
        return None if any(t.symbol in ("part", "value") for t in between) else integer(self.number)

    def _value(self, i: int) -> None:
        token = self.tokens[i]
        if self.reported:
            self.memory.value = token.value
            return
        count = self._counted(token)
        if count is not None and not self.negated:
            self._add("count", token, value=token.value, count=count)
            self.memory.single = ("is", token.value) if count == 1 else None
            named, negated = self._named_after(i) if count == 1 else (frozenset(), False)
            self._add("is", token, parts=named, value=token.value, positive=not negated)
        else:
            ahead = self._ahead(i) if self.subject is None or self.used else frozenset()
            if not ahead and self.subject is None and [t.symbol for t in self.tokens[i + 1 : i + 2]] == ["not"]:
                ahead, self.negated = self._ahead(i + 1), True  # "C is not the one that leads"
            parts = ahead or self.subject
            if parts:
                self._add("is", token, parts=parts, value=token.value, positive=not self.negated)
                contrast = self._contrast(parts, ahead)
                self._add("is", token, parts=contrast, value=token.value, positive=self.negated)
                self.used = not ahead or self.used
                self.memory.subject = parts
            elif self.negated:
                self._add("count", token, value=token.value, count=0)
                self._add("is", token, parts=self.memory.subject, value=token.value, positive=False)
                if self.memory.known:
                    unknown = self.vocabulary.parts - self.memory.known
                    self._add("is", token, parts=unknown, value=token.value, positive=False)
            else:
                self.pending.append(token)
                after = next((t for t in self.tokens[i + 1 :] if t.symbol in ("number", "value", "clause")), None)
                if after is not None and after.symbol == "number" and len(self.vocabulary.parts) >= integer(after):
                    self._add("count", token, value=token.value, count=integer(after))
        self.memory.value, self.memory.last = token.value, ("value", token.value)
        self.number = None

    def _contrast(self, parts: frozenset[Part], ahead: frozenset[Part]) -> frozenset[Part]:
        """Return the parts with the opposite verdict or value."""
        return self.vocabulary.parts - parts if self.sole else frozenset() if ahead else self.contrast

    def _named_after(self, i: int) -> tuple[frozenset[Part], bool]:
        """Return the parts that a count of one introduces, as in "one liar: Otto", and whether they are denied."""
        negated = False
        for k, token in enumerate(self.tokens[i + 1 :], i + 1):
            if token.symbol == "part":
                return token.parts, negated
            if token.symbol not in ("join", "clause", "pronoun", "only", "not"):
                break
            negated |= self.tokens[k].symbol == "not"
        return frozenset(), False

    def _verdict(self, i: int) -> None:
        token = self.tokens[i]
        if self.reported and not self._is_own_verdict(i):
            return
        right = (token.symbol == "right") ^ self.negated
        command = _COMMAND.match(token.text) is not None and not self.negated
        count = self._counted(token)
        if count is None and self.number is not None and self.number.start < token.start:
            between = [t for t in self.tokens if self.number.end <= t.start < token.start]
            if all(t.symbol in ("number", "only", "all") for t in between) and self.subject is None:
                count = integer(self.number)
        nearby = self.tokens[i + 1 : i + 3]
        if self.subject is None and [t.symbol for t in nearby[:1]] == ["none"]:  # "I can tick none of them"
            self._add("right", token, parts=self.vocabulary.parts, positive=not right)
        counts_them = bool(nearby) and nearby[0].symbol == "them" and nearby[0].text[0].isdigit()
        if count is None and self.subject is None and counts_them:
            count = integer(nearby[0])  # "I agree about two of them"
        if token.text.lower().startswith("differ") and any(t.symbol == "number" for t in nearby):
            count = integer(next(t for t in nearby if t.symbol == "number"))
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
                contrast = self._contrast(parts, ahead)
                self._add("right", token, parts=contrast, positive=not right)  # "slot 2 is the only bad one"
                self.subject, self.used = parts, True
                self.memory.subject = parts
        self.memory.last = ("right" if token.symbol == "right" else "wrong", "")
        self.negated = False
        self.number = None

    def _is_own_verdict(self, i: int) -> bool:
        """Return whether a verdict after a report is the teacher's, as in "you have placed correctly"."""
        k = max((k for k in range(i) if self.tokens[k].symbol in ("report", "suppose")), default=0)
        between = [token.symbol for token in self.tokens[k + 1 : i]]
        yours = self.tokens[k].symbol == "report" and self.tokens[k].text.lower().startswith("you")
        return yours and ("value" not in between or between[-2:] == ["value", "join"])

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
            self._add("count", self.number, value=value, count=integer(self.number))
            self.memory.single = ("is", value) if integer(self.number) == 1 else None
        if symbols == {"number"} and " of " in self.tokens[0].text and not self.facts:  # "Three out of four."
            self._add("count_right", self.tokens[0], count=integer(self.tokens[0]))
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

    def _also(self) -> None:
        """Repeat the last statement with other parts or values, as in "so does Jack" and "E too"."""
        symbols = {token.symbol for token in self.tokens}
        last = self.memory.fact
        begins = self.tokens[0].text.lower() in ("and", "nor", "or", "neither", "not") if self.tokens else False
        if (
            self.facts
            or last is None
            or not (begins or "also" in symbols)
            or symbols & {"right", "wrong", "report", "swap"}
        ):
            return
        parts = frozenset(part for token in self.tokens for part in token.parts)
        values = [token for token in self.tokens if token.symbol == "value"]
        if parts and not values:
            self._add(last.relation, self.tokens[0], parts=parts, value=last.value, positive=last.positive)
        for token in values if last.relation in ("is", "count") and last.value else ():
            told = replace(last, value=token.value, start=self.offset + token.start, end=self.offset + token.end)
            self.facts.append(replace(told, parts=parts or last.parts))

    def _pairs(self) -> None:
        """Read a place and a letter next to each other, such as "second: T" and "the T up front"."""
        values: list[Token] = []
        for i, token in enumerate(self.tokens):
            if token.symbol == "not" and values:  # "W and R are out for the first", "W has an alibi"
                near = [t.parts for t in self.tokens[i + 1 : i + 3] if t.symbol == "part"]
                parts = near[0] if near else (self._recent(i) or (frozenset[Part](),))[-1]
                for value in values:
                    self._add("count", value, value=value.value, count=0)
                    self._add("is", value, parts=parts, value=value.value, positive=False)
            values = [*values, token] if token.symbol == "value" else values if token.symbol == "join" else []
        if any(token.symbol in ("not", "report", "except", "swap") for token in self.tokens):
            return
        for one, other in pairwise(t for t in self.tokens if t.symbol not in ("join", "number", "only", "each", "all")):
            named = {one.symbol: one, other.symbol: other}
            if set(named) == {"part", "value"} and other.start - one.end < _BESIDE:
                self._add("is", named["value"], parts=named["part"].parts, value=named["value"].value)

    def _sequence(self) -> None:
        """Read "the first three go G then F then D" and "second and third: F, D"."""
        listed = [t for t in self.tokens if t.symbol not in ("join", "clause", "number", "each", "only", "pronoun")]
        named = [t for t in listed if t.symbol == "part" and len(t.parts) == 1]
        told = [t for t in listed if t.symbol == "value"]
        if len(told) > 1 and len(named) == len(told) and listed[: 2 * len(told)] == [*told, *named]:
            for one, value in zip(named, told, strict=True):
                self._add("is", value, parts=one.parts, value=value.value)
        for i, token in enumerate(listed):
            parts: list[Part] = []
            values: list[Token] = []
            for following in listed[i:]:
                if following.symbol == "part" and not values:
                    parts += sorted(following.parts, key=str)
                elif following.symbol == "value":
                    values.append(following)
                else:
                    break
            if token.symbol == "part" and len(parts) > 1 and len(values) == len(parts) == len(set(parts)):
                for part, value in zip(parts, values, strict=True):
                    self._add("is", value, parts=frozenset([part]), value=value.value)

    def _exchange(self) -> Fact | None:
        swap = next((token for token in self.tokens if token.symbol == "swap"), None)
        named = [token for token in self.tokens if token.symbol == "part" and len(token.parts) == 1]
        for four in zip(named, named[1:], named[2:], named[3:], strict=False):  # "Ann wears Bob's, Bob wears Ann's"
            crossed = [t.parts for t in four] == [four[0].parts, four[1].parts, four[1].parts, four[0].parts]
            if crossed and four[0].parts != four[1].parts and four[1].text.endswith("s") and four[3].text.endswith("s"):
                swap = four[1]
        if swap is None:
            return None
        pairs = [token.parts for token in self.tokens if len(token.parts) == 2]
        singles = [token.parts for token in self.tokens if len(token.parts) == 1]
        parts = pairs[0] if pairs else frozenset().union(*singles[:2]) if len(singles) >= 2 else frozenset()
        if not pairs and not singles:  # "let them trade"
            earlier = list(dict.fromkeys(self.memory.recent))
            parts = earlier[-1] if earlier and len(earlier[-1]) == 2 else frozenset().union(*earlier[-2:])
        others = next((i for i, token in enumerate(self.tokens) if token.symbol == "others"), None)
        if len(parts) != 2 and others is not None:
            parts = self.vocabulary.parts - self._mentioned(others)
        if len(parts) != 2:
            return None
        return Fact("exchange", self.offset + swap.start, self.offset + swap.end, parts, command=True)
