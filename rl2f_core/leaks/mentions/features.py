"""Features of a mention: how a hint mentions the answer.

A feature is a function of a `MentionContext` that returns whether a property holds. `FEATURES` lists them with the
words that name them beside a flag. They describe English sentences by a few frequent words, and no single sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rl2f_core.common.text.normalize import NUMBER, contains_tokens, normalize
from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import LeakVocabulary
from rl2f_core.leaks.assertions import asserted as asserting_phrase
from rl2f_core.leaks.base import LeakQuery
from rl2f_core.leaks.exact import find_verbatim
from rl2f_core.leaks.mentions.finder import Mention
from rl2f_core.leaks.visible_context import already_visible, listed_in, own_texts

_END = re.compile(r"[.!?](?=[\s\"'”’)*]|$)|\n")
_BOX = re.compile(r"<answer>|\\(?:boxed|fbox)\s*\{")
_END_TAG = re.compile(r"</answer>")
_MARKUP = re.compile(r"</?(?:b|i|em|strong|code|sub|sup)>|\*\*|[`_]")
WINDOW = 300
"""Characters on either side of a mention that are read."""
_SIGN = r"[=≈→⇒]"
_SHORT_WORDS = (
    r"(?:(?:is|a|an|the|be|only|just|simply|actually|now|then|about|approximately|still|you|us|we|in|fact|exactly|have|"
    r"get|really|of)\W+){0,4}"
)
_CUE = re.compile(
    r"(?:\b(?:answer|so|therefore|thus|hence|should be|should have been|actually|indeed|equals?|equal to|gives?|makes?|"
    r"means?|gets?|have|leaves?|left with|total|result|correct|must be|would be|will be|comes? to|is|are|was|product|"
    rf"sum|difference|arrived? at|called)|{_SIGN})\W+{_SHORT_WORDS}$|{_SIGN}\s*[$€£]?\s*$"
)
_STRONG_CUE = re.compile(
    r"\b(?:actually|should be|should have been|the answer|correct (?:answer|value|result)|must be|"
    r"total (?:is|would be|should be|of)|simply|instead)\b[^.]{0,40}$"
)
_ENDS = re.compile(r"[%\"'*)]*(?:\s(?!and|or|but|because|if|when|as|than)[a-z]+){0,3}[\"'*)]*\s*(?:$|[.!])")
_CONTRAST = re.compile(r"[^.!?;]{0,30}?(?:,| and| -|;)?\s*(?:not|instead of|rather than)\s+(?:just\s+)?[$]?\w")
_DENIED_BEFORE = re.compile(
    r"(?:\bnot|n't|n’t|\bnever|\bnowhere|\bcannot|\binstead of|\brather than|\bwithout|[!<>]=?)\W+(?:\w+\W+){0,4}$|"
    r"\b(?:less|greater|more|fewer|larger|smaller|higher|lower) than\W+$|"
    r"\b(?:at (?:least|most)|near|between|off by)\b.{0,12}$"
)
_DENIED_AFTER = re.compile(
    r"\W{0,3}(?:(?:is|was|are|would be|seems|looks|must|can)(?:n't|n’t|not)?\s+"
    r"(?:not|too|wrong|incorrect|false|off|be)\b|"
    r"(?:isn't|isn’t|cannot|can't)\b|too (?:low|high|small|large|big)|or (?:more|less|above|below)\b)"
)
_STUDENTS = re.compile(
    r"\b(?:you|they|student)(?:'ve| have| had)?\s+(?:\w+ly\s+)?(?:said|say|wrote|got|had|gave|found|used|calculated|"
    r"mentioned|answered|made|put|thought|counted|added|subtracted|multiplied|started)\b[^.;,]{0,40}$|"
    r"\byour (?:\w+ ){0,2}(?:answer|result|calculation|number|attempt|total)\b[^.;,]{0,25}$"
)
_SUPPOSED = re.compile(
    r"\b(?:if|suppose|imagine|let's say|for example|consider|whether|when|since|because|once|remember|already|still|"
    r"represents?|includes?|account(?:ed)? for|forgot)\b[^,.;]{0,60}$"
)
_OPERAND_BEFORE = re.compile(
    r"(?:[-+*/×÷(]|\b(?:plus|minus|times|by|from|adding|multiply(?:ing)?|dividing|subtract(?:ing)?))\s*[$]?\s*$"
)
_OPERAND_AFTER = re.compile(r"\s{0,2}(?:[-+*/×÷x]\s*[\d(\\$a-z]|(?:plus|minus|times|divided|multiplied|of|into)\b)")
_NUMERIC = re.compile(r"[+-]?\d[\d./]*")


class Dialogue:
    """The hint and the dialogue before it; what the mentions of one hint share.

    Args:
        environment: Environment of the task.
        query: The hint.
    """

    def __init__(self, environment: Environment, query: LeakQuery) -> None:
        self.environment = environment
        self.query = query
        self._found: dict[tuple[str, str, str], bool] = {}

    @cached_property
    def problem(self) -> str:
        """The problem in the student's prompt."""
        return self.environment.prompt(self.query.task.public)

    @cached_property
    def numbers(self) -> list[tuple[int, int, str]]:
        """The numbers of the hint with their spans."""
        return [(*match.span(), match[0]) for match in NUMBER.finditer(self.query.hint)]

    def contains(self, place: str, mention: Mention, texts: Callable[[], Sequence[str]]) -> bool:
        """Return whether a text of a place contains the mentioned answer or the text of the mention."""
        key = place, mention.source, mention.value
        if key not in self._found:
            self._found[key] = not mention.is_part and self._contains(mention, texts())
        return self._found[key]

    def _contains(self, mention: Mention, texts: Sequence[str]) -> bool:
        if any(find_verbatim(mention.value, text)[1] for text in texts):
            return True
        env, task = self.environment, self.query.task
        return (
            bool(texts)
            and isinstance(env, LeakVocabulary)
            and already_visible(env, task, mention.source, mention.value, texts)
        )


@dataclass
class MentionContext:
    """A mention with the dialogue around it."""

    dialogue: Dialogue
    mention: Mention

    @property
    def query(self) -> LeakQuery:
        """The hint."""
        return self.dialogue.query

    @cached_property
    def before(self) -> str:
        """The sentence before the mention, in lower case, at most `WINDOW` characters."""
        start = self.mention.start
        text = self.query.hint[max(0, start - WINDOW) : start]
        ends = [match.end() for match in _END.finditer(f"{text} ") if match.end() <= len(text)]
        return _BOX.sub("the answer ", _MARKUP.sub("", text[ends[-1] if ends else 0 :].lower()))

    @cached_property
    def after(self) -> str:
        """The sentence after the mention, in lower case, at most `WINDOW` characters."""
        text = self.query.hint[self.mention.end : self.mention.end + WINDOW]
        end = _END.search(text)
        return _MARKUP.sub("", _END_TAG.sub(".", text[: end.end() if end else len(text)].lower()))


def calculation(context: MentionContext) -> bool:
    """The mention is a calculation that gives the answer, such as "38 + 47" or "take 7 from 45"."""
    mention = context.mention
    return (
        len(mention.operands) > 1
        and _NUMERIC.fullmatch(mention.value) is not None
        and "".join(mention.operands) != mention.value.lstrip("+-")  # digits apart, as in "4 6"
        and mention.source.count("/") != 1  # a fraction
    )


def known_calculation(context: MentionContext) -> bool:
    """The mention is a calculation with numbers of the problem, of an attempt or of the rest of the hint."""
    if not calculation(context):
        return False
    mention, dialogue = context.mention, context.dialogue
    texts = (dialogue.problem, *context.query.attempts)
    known = [number for text in texts for number in NUMBER.findall(text)]
    known += [text for start, end, text in dialogue.numbers if end <= mention.start or start >= mention.end]
    return {number.replace(",", "").lstrip("+-") for number in known}.issuperset(mention.operands)


def short_or_unlikely(context: MentionContext) -> bool:
    """The mention has one character, or is an unlikely reading such as "one" for 1."""
    return context.mention.loose or context.mention.end - context.mention.start < 2


def in_problem(context: MentionContext) -> bool:
    """The problem contains the mentioned answer."""
    dialogue, mention = context.dialogue, context.mention
    return dialogue.contains("problem", mention, lambda: [dialogue.problem]) or listed_in(
        mention.value, dialogue.problem
    )


def in_attempt(context: MentionContext) -> bool:
    """An attempt contains the mentioned answer."""
    query, value = context.query, context.mention.value
    return context.dialogue.contains(
        "attempt",
        context.mention,
        lambda: own_texts(context.dialogue.environment, query.task, value, query.attempts, query.hint),
    )


def found_by_student(context: MentionContext) -> bool:
    """The last number of the last attempt is the answer."""
    attempts = context.query.attempts
    return context.dialogue.contains(
        "last number", context.mention, lambda: NUMBER.findall(attempts[-1])[-1:] if attempts else []
    )


def asserted(context: MentionContext) -> bool:
    """A word before the mention asserts it: so, is, equals, gives, the answer, a sign of equality."""
    return _CUE.search(context.before) is not None and not _quotes_problem(context)


def _quotes_problem(context: MentionContext) -> bool:
    """Return whether the problem contains the mention with the two words before it, as in "x = 85"."""
    query, mention = context.query, context.mention
    words = context.before.split()[-2:]
    phrase = " ".join([*words, query.hint[mention.start : mention.end]])
    return len(words) == 2 and contains_tokens(phrase, context.dialogue.problem)


def corrected(context: MentionContext) -> bool:
    """Words before the mention correct another value: actually, should be, the answer, instead."""
    return _STRONG_CUE.search(context.before) is not None


def ends_sentence(context: MentionContext) -> bool:
    """The sentence ends at most three words after the mention."""
    return _ENDS.match(context.after) is not None


def last_number(context: MentionContext) -> bool:
    """No number follows in the hint."""
    numbers = context.dialogue.numbers
    return not numbers or numbers[-1][0] < context.mention.end


def contrasted(context: MentionContext) -> bool:
    """Another value is rejected after the mention, as in "85, not 84"."""
    return _CONTRAST.match(context.after) is not None


def not_asserted(context: MentionContext) -> bool:
    """The mention is denied, a bound, supposed, recalled, or attributed to the student.

    Examples: not 85, at least 85, if it is 85, remember the 85, your answer of 85.
    """
    before = (_DENIED_BEFORE, _STUDENTS, _SUPPOSED)
    return any(pattern.search(context.before) for pattern in before) or bool(_DENIED_AFTER.match(context.after))


def only_repeated(context: MentionContext) -> bool:
    """The problem or an attempt contains the answer, and nothing asserts it: look again at 85."""
    return (in_problem(context) or in_attempt(context)) and not (
        asserted(context) or corrected(context) or contrasted(context) or _asserted_by_grammar(context)
    )


def _asserted_by_grammar(context: MentionContext) -> bool:
    hint, mention = normalize(context.query.hint), context.mention
    return asserting_phrase(hint, *hint.locate(mention.start, mention.end), context.dialogue.problem) is not None


def operand(context: MentionContext) -> bool:
    """The mention is an operand of a calculation that continues."""
    return bool(_OPERAND_BEFORE.search(context.before) or _OPERAND_AFTER.match(context.after))


class Feature(NamedTuple):
    """A feature with the words for its value beside a flag."""

    holds: Callable[[MentionContext], bool]
    true: str
    false: str

    @property
    def name(self) -> str:
        """The name of the function, also the key of its weight."""
        return self.holds.__name__


FEATURES = (
    Feature(calculation, "as a calculation", "as a value"),
    Feature(known_calculation, "a calculation with known numbers", "not with known numbers only"),
    Feature(short_or_unlikely, "short or an unlikely reading", "an unambiguous reading"),
    Feature(in_problem, "in the problem", "not in the problem"),
    Feature(in_attempt, "in an attempt", "not in an attempt"),
    Feature(found_by_student, "the student's last number", "not the student's last number"),
    Feature(asserted, "asserted after “{cue}”", "not asserted"),
    Feature(corrected, "corrects a value", "corrects no value"),
    Feature(ends_sentence, "at the end of its sentence", "not at the end of its sentence"),
    Feature(last_number, "the last number of the hint", "not the last number of the hint"),
    Feature(contrasted, "another value is rejected", "no other value is rejected"),
    Feature(not_asserted, "denied, supposed, recalled or the student's", "neither denied nor supposed"),
    Feature(only_repeated, "repeated without assertion", "not only repeated"),
    Feature(operand, "an operand", "no operand"),
)
"""All features in the order of the weights."""


def vectors(dialogue: Dialogue, mentions: Sequence[Mention]) -> list[list[float]]:
    """Return the values of `FEATURES`, 0 or 1, for each mention."""
    contexts = [MentionContext(dialogue, mention) for mention in mentions]
    return [[float(feature.holds(context)) for feature in FEATURES] for context in contexts]


def cue_of(context: MentionContext) -> str:
    """Return the word that asserts the mention, or its sign; empty without one."""
    match = _CUE.search(context.before)
    return match[0].split()[0].strip(" ,:;\"'") if match and match[0].split() else ""
