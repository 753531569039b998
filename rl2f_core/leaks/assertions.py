r"""Distinguish sentences that assert a value as the answer from those that only mention it.

"the answer is 85", "= 85", "try 85", "85 is right" assert it; "look again at 85", "the answer is not 85", "you wrote
85", "85 is too low", "the first number is 85" do not. A small grammar of English, matched outward from the value:

    assertion := left-cue VALUE | VALUE right-cue | a sentence that is VALUE alone

Each left cue must end at the value, so a negation between them ("is not 85") breaks it. A negation, a condition or a
report *before* the cue ("don't say 85", "if it is 85", "you said it is 85") blocks it. So does a continuation after
the value that makes it part of an expression ("= 85 + 0", "write 85 above 0").
"""

from __future__ import annotations

import re
from functools import lru_cache

from rl2f_core.common.text.normalize import NormalizedText, contains_tokens

WINDOW = 160
"""Characters on either side of the value that are matched."""

_MARKUP = re.compile(
    r"</?(?:b|i|em|strong|code|sub|sup)>|\\(?:boxed|text|mathbf|bf)\b|[*_`\"\u201c\u201d\u00ab\u00bb$#~\\(\[{]"
)
_OPEN = "\u27e8"
"""Replacement for the opening answer tag."""
_ADJ = (
    r"(?:(?:right|correct|final|true|real|actual|exact|proper|hidden|secret|wanted|expected|gold|reference|target|"
    r"missing|only|best|full|whole|complete|new|next|desired) )*"
)
_NOUN = (
    r"(?:answer|solution|result|sum|total|product|difference|quotient|remainder|output|outcome|code|secret|number|"
    r"value|combination|guess|sequence|reply|response|assignment|path)"
)
_ADVERB = (
    r"(?:exactly|just|simply|actually|really|clearly|obviously|probably|likely|definitely|certainly|surely|precisely|"
    r"indeed|in fact|of course|therefore|thus|hence|then|now|instead|only|always|also)"
)
_FILL = (
    rf"(?:[ :,>\u2026{_OPEN}]|\b(?:{_ADVERB}|the|a|an|about|around|approximately|roughly|near|close to|equal to|"
    rf"(?:{_ADJ}(?:letters?|number|value|code|word|answer)))\b)*"
)
_BE = r"(?:is|'s|was|are|were|equals?|be|=|comes? to|comes? out (?:as|at|to)|works? out (?:as|at|to))"
_MODAL = (
    r"(?:should|must|has to|have to|had to|needs? to|ought to|would|will|'ll|could|might|may|can|turns? out to|"
    r"(?:is|are) (?:going|supposed|meant|known|certain|sure) to)"
)
_GAP = (
    r"(?:, [\w' ]{2,30},"
    r"|(?: (?!(?:is|was|and|but|not|or|nor|than|never|cannot|\w+n't)\b)[\w+*/\u00d7\u00f7'?^-]+){1,8}?)"
)

_SUBJECT = (
    rf"(?:{_ADJ}{_NOUN}|it|this|that|correct one|right one|what (?:you|we) (?:want|need)|"
    r"(?:number|code|value) i(?:'m| am| was| have)? (?:thinking|thought|hidden|hid|want|wanted|chose|picked)"
    r"(?: of)?)"
)
_LEFT = {
    "modal": rf"\b{_MODAL}(?: {_ADVERB})* (?:be|equal|read|have been|come to|come out (?:as|at|to)|give|make|become)",
    "copula": rf"(?:\b{_SUBJECT}|\b(?:answer|solution|result){_GAP}) ?(?:{_ADVERB} )*{_BE}",
    "noun": rf"\b{_ADJ}(?:answer|solution|result|sum|total|code|secret|correction) ?(?::|-|\u2014|=)",
    "bare": rf"\b{_ADJ}(?:answer|solution|result)",
    "result": (
        r"\b(?:equals?|gives?|giving|makes?|making|yields?|yielding|gets?|getting|obtains?|produces?|arrives? at|"
        r"ends? up (?:with|at)|comes? (?:out )?(?:as|at|to)|works? out (?:as|at|to)|evaluates? to|amounts? to|"
        r"adds? up to|sums? to|totals?|simplif(?:y|ies) to|reduces? to)"
    ),
    "sign": r"(?:\b[a-z] ?)?[-+*/\u00d7\u00f7^)\d.,? ]{0,40}(?<![!<>=])(?:==?|=>|\u2248|-+>|\u2192|\u21d2)",
    "command": (
        r"\b(?:try|retry|say|write|answer|reply|respond|guess|enter|type|put|choose|pick|select|submit|output|print|"
        r"give|return|state|go (?:with|for|to|up to|down to|back to)|settle (?:on|for)|stick (?:with|to)|switch to|"
        r"(?:change|correct|raise|lower|increase|decrease|set) (?:it|this|that|your \w+|the \w+) (?:to|into)|"
        r"replace (?:it|this|that|your \w+|the \w+) (?:with|by)|make it)(?: (?:down|back|in|with|it as))?"
    ),
    "tag": _OPEN,
    "but": r"\bnot (?:[^\s,]+ ){1,3}?but(?: rather| instead)?",
    "contrast": (
        r"\b(?:you|student|answer)"
        r"(?: (?!(?:should|must|needs?|could|can|may|might|ought|have|want|would|try)\b)[^\s.?!;]+){1,14}? "
        r"(?:instead of|rather than|and not)"
    ),
}
_VERB = re.compile(rf" ?(?:{_BE}|{_MODAL})(?: |$)")
_CUES = {name: re.compile(rf"(?:{cue}){_FILL}$") for name, cue in _LEFT.items()}

_NEGATION = re.compile(
    r"(?:n't|\b(?<!why )not|\bnever|\bcannot|\bwithout|\bavoid|\bstop|\bno longer|\brather than|\binstead of|\bneither|"
    r"\bnor|\bhardly|\bdoubt|\bwrong to|\bwrong that|\bfalse that|\bincorrect that|\bmistake to)"
    rf"(?: (?:{_ADVERB}|to|be|ever|even|think|thinking|believe|say|said|saying|write|writing|answer|claim|assume|mean|"
    r"(?:true|correct|right|the case|certain|sure) that|that|it|this|the))* ?$"
)
_CONDITION = re.compile(
    r"\b(?:if|whether|unless|suppose|supposing|assume|assuming|imagine|pretend)"
    r"(?: (?:that|you|it|this|the|your|we|to))* ?$"
)
_STUDENT = r"(?:you(?:'ve| have| had)?|the student|student|he|she|they)"
_REPORT = re.compile(
    rf"\b{_STUDENT} (?:\w+ly )?(?:sa(?:id|y|ys)|wr(?:ote|itten|ite|ites)|answer(?:ed|s)?|gave|gives?|tried|"
    r"guess(?:ed)?|claim(?:ed|s)?|think|thinks|thought|believed?|got|put|chose|found|have|had|suggest(?:ed)?|assumed?|"
    r"submitted|entered|typed|computed|calculated)(?: that| down)?(?: the| a)? ?$"
)
_YOURS = re.compile(
    r"\b(?:your|student's|his|her|their|previous|last|wrong|earlier|old|incorrect|first|second|third)"
    r"(?: (?:own|last|previous|first|second|third|current|wrong|old|earlier|latest|new|final))* ?$"
)
_YOU_DO = re.compile(
    r"(?:^|[.!?,;:] ?|\b(?:when|where|why|how|did|do|as|since|because|here|there|and|but|that) )you ?$"
)
_OPERAND = re.compile(
    r"\b(?:(?:first|second|third|fourth|fifth|last|other|left|top|bottom|upper|lower|larger|smaller|bigger|given|"
    r"starting) (?:\w+ )?(?:number|one|part|letter|value|line|row|person|place|position|step)"
    r"|operand|addend|factor|digit|column|term|summand|multiplicand|minuend|subtrahend|tens|ones|hundreds|units)s?"
    rf" ?(?:{_BE})? ?$"
)
_ASKS = re.compile(r"\b(?:is|was|isn't|wasn't)(?: (?:the|that|it|this))? ?$")
_ASKED = re.compile(r"\b(?:did|do|does|why|how|where|when) you ?$")
_GIVEN = re.compile(r"\b(?:let|given|when|where|for|with) ?$")
_PROBLEM = re.compile(r"\b(?:problem|question|puzzle|task|text|statement|example|prompt) ?$")
_BLOCKS = {
    "modal": (_NEGATION, _CONDITION, _OPERAND),
    "copula": (_NEGATION, _CONDITION, _REPORT, _YOURS, _OPERAND),
    "noun": (_NEGATION, _CONDITION, _REPORT, _YOURS),
    "bare": (_NEGATION, _CONDITION, _REPORT, _YOURS, _YOU_DO, _ASKS),
    "result": (_NEGATION, _CONDITION, _ASKED, _PROBLEM, _OPERAND),
    "sign": (_NEGATION, _CONDITION, _REPORT, _GIVEN),
    "command": (_NEGATION, _CONDITION, _REPORT, _YOURS, _YOU_DO),
    "tag": (_NEGATION, _CONDITION, _REPORT, _YOURS),
    "but": (),
    "contrast": (_CONDITION,),
}

_GOES_ON = re.compile(
    rf" ?(?:[+*/\u00d7\u00f7^\u00b7]|[-%] ?\d|and \W?\d|as (?!(?:your|the|my|an?|our) {_ADJ}{_NOUN})|"
    r"or (?:more|less|above|below|higher|lower|greater|fewer|smaller|larger|bigger|under|over)\b|"
    r"(?:plus|minus|times|multiplied|divided|over|mod|above|below|under|on top|next to|out of|"
    r"of (?:the|your|them|these)|more|less|fewer|too|off|away|short|larger|smaller|higher|greater|lower|bigger|"
    r"steps?|units?|points?|digits?|places?|positions?|people|persons?|letters?|parts?)\b|"
    r"(?:is|was|'s|isn't|wasn't|would be|looks|seems)(?: \w+ly)? ?"
    r"(?:not|n't|wrong|incorrect|too|off|false|far|below|above|less|more|close|near|right|correct|an?)\b)"
)
_AFTER = re.compile(
    rf" ?(?:(?:is|was|'s|seems|looks|{_MODAL} be) (?:{_ADVERB} )*(?:"
    rf"(?:(?:the|your|our|an?|my) )?{_ADJ}{_NOUN}\b(?! of\b| you (?:wrote|gave|said|start))"
    rf"|(?:correct|right|true)\b(?!-| so far| there| here| above| in the| at the| next to| as | \w*(?:hand|side|"
    rf"operand|digit|place))|what (?:you|we) (?:want|need|should|are looking))"
    rf"|(?:{_MODAL} )?(?:works?|solves?|fits?)\b(?! out)|(?:it is|will do|does it|checks out)\b"
    rf"|as (?:your|the|my|an?|our) {_ADJ}{_NOUN}\b"
    r")"
)
_ENDS = re.compile(r" ?(?:$|[.!]|,? ?(?:not|instead of|rather than)\b)")
_OUT_OF = r"[\d.]{0,8}\d ?(?:(?:out )?of|/) ?[\d.]{0,8}\d"
_SCORE = re.compile(rf"\bscor(?:e|es|ed|ing)\b(?: \w+){{0,2}}? {_OUT_OF}|\b{_OUT_OF} points?\b", re.IGNORECASE)


def assertion(text: str, start: int, end: int) -> str | None:
    """Return the phrase that asserts the value at [start, end) as the answer, or None.

    `text` is in normal form (`text.normalize`); the phrase is in lower case without markup.
    """
    left, right = text[max(0, start - WINDOW) : start], text[end : end + WINDOW]
    return _in_context(_plain(left), _plain(text[start:end]), _plain(right))


@lru_cache(4096)
def _in_context(left: str, value: str, right: str) -> str | None:
    if not _GOES_ON.match(right):
        cue = _left_cue(left)
        if cue is not None:
            return " ".join(f"{cue} {value}".replace(_OPEN, "<answer>").split())
        if left.strip()[-1:] in ("", ".", "!", "?") and _ENDS.match(right):
            return value
    after = _AFTER.match(right)
    blocks = (_NEGATION, _CONDITION, _REPORT, _YOURS, _OPERAND)
    if after and not any(block.search(left) for block in blocks):
        return " ".join(f"{value}{after[0]}".split())
    return None


def in_score(text: str, start: int, end: int) -> bool:
    """Return whether a value is part of a score, as in "scores 0.5 of 1"."""
    return any(m.start() <= start and end <= m.end() for m in _SCORE.finditer(text, max(0, start - 50), end + 30))


def _left_cue(left: str) -> str | None:
    """Return the first cue that ends at the value, unless something before it blocks it."""
    for name, cue in _CUES.items():
        match = cue.search(left)
        if match:
            before = left[: match.start()]
            subject = before + _VERB.split(match[0])[0]
            operand = name in ("copula", "modal") and _OPERAND.search(subject)
            return None if operand or any(block.search(before) for block in _BLOCKS[name]) else match[0]
    return None


def _plain(text: str) -> str:
    """Convert to lower case with single spaces and without markup, except the opening answer tag."""
    tagged = text.lower().replace("<answer>", _OPEN).replace("</answer>", ".")
    return re.sub(r"\s+", " ", _MARKUP.sub(" ", tagged))


def asserted(hint: NormalizedText, start: int, end: int, problem: str) -> str | None:
    """Like `assertion`, without phrases that quote the problem ("x = 85" if x is given)."""
    phrase = assertion(hint.text, start, end)
    value = _plain(hint.text[start:end]).strip()
    if phrase and phrase != value and phrase[0].isalnum() and contains_tokens(phrase, problem):
        return None
    return phrase
