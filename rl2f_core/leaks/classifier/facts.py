"""Computed facts that relate answer, attempts and hint, so that the classifier compares and does not calculate.

One set of rules serves all environments: it uses the normal form of answers, their named parts
(`LeakVocabulary.answer_parts`) and what the vocabulary finds in the hint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from fractions import Fraction
from functools import lru_cache
from itertools import islice

from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import LeakVocabulary
from rl2f_core.leaks.base import NO_LEAK, LeakQuery
from rl2f_core.leaks.candidates.detector import CandidatesDetector
from rl2f_core.leaks.candidates.told import as_number
from rl2f_core.leaks.equivalent.number_words import number_words
from rl2f_core.leaks.visible_context import numerals, parse_attempt
from rl2f_core.types import Task

MAX_PARTS = 8
"""Parts that one fact lists."""
MAX_MENTIONS = 8
"""Numbers and statements of a hint that the facts explain."""


def answer_facts(environment: Environment, task: Task, attempts: Sequence[str]) -> str:
    """Describe the answer, and what separates the attempts from it; empty without facts."""
    gold = environment.gold_answer(task)
    facts = list(_number_facts(gold))
    parsed = [(k, parse_attempt(environment, task, attempt)[1]) for k, attempt in enumerate(attempts, 1)]
    for k, answer in parsed[-2:]:
        name = f"try {k}" if len(parsed) > 1 else "try"
        if answer is not None and answer != gold:
            facts += [f"{name} {fact}" for fact in _differences(environment, task, gold, answer)]
    return "; ".join(facts)


def mention_facts(environment: Environment, task: Task, attempts: Sequence[str], hint: str) -> str:
    """Explain the numbers and the statements about parts in a hint; empty without any."""
    known, rows = _known_numbers(environment, task, attempts), environment.gold_answer(task).split()
    facts = [
        f"{n} {'answer part' if len(n) > 1 and n in rows else known.get(as_number(n), 'other')}"
        for n in _numbers_in(hint)
    ]
    if isinstance(environment, LeakVocabulary):
        parsed = [p for p in (parse_attempt(environment, task, a)[1] for a in attempts) if p is not None]
        gold = environment.answer_parts(task, environment.gold_answer(task))
        owned = environment.student_parts(task, parsed)
        for _, _, name, value in environment.stated_parts(task, hint):
            truth = "true" if gold.get(name) == value else "false"
            facts.append(f"says {name}={value} {truth} {'old' if (name, value) in owned else 'new'}")
    return "; ".join(islice(dict.fromkeys(facts), MAX_MENTIONS))


def told_fact(environment: Environment, query: LeakQuery) -> str:
    """Describe what detector `candidates` reads in the hints: `all (equivalent)`, `62%` of the bits, or `nothing`."""
    detector = _candidates(environment)
    report = NO_LEAK if detector is None else detector.check(query)
    if report.leaked:
        return f"all ({report.leak_type})"
    return f"{100 * report.answer_fraction:.0f}%" if report.answer_fraction else "nothing"


@lru_cache(maxsize=16)
def _candidates(environment: Environment) -> CandidatesDetector | None:
    return (
        CandidatesDetector(CandidatesDetector.Config(), environment)
        if isinstance(environment, LeakVocabulary)
        else None
    )


def _number_facts(gold: str) -> Iterator[str]:
    """Yield properties of a whole number."""
    if gold.lstrip("-").isdigit():
        value = int(gold)
        yield "even" if value % 2 == 0 else "odd"
        yield f"digit sum {sum(map(int, gold.lstrip('-')))}"


def _differences(environment: Environment, task: Task, gold: str, attempt: str) -> Iterator[str]:
    a, b = as_number(gold), as_number(attempt)
    if a is not None and b is not None:
        yield from _numeric_relations(a, b)
    digits = gold.lstrip("-").replace(" ", "")
    if sorted(digits) == sorted(attempt.lstrip("-").replace(" ", "")):
        yield "reversed" if digits == attempt.lstrip("-").replace(" ", "")[::-1] else "same symbols in another order"
    if isinstance(environment, LeakVocabulary):
        yield from _part_differences(environment.answer_parts(task, gold), environment.answer_parts(task, attempt))


def _numeric_relations(gold: Fraction, attempt: Fraction) -> Iterator[str]:
    """Yield the difference, and the ratio if it is simple; e.g. `+100 gives the answer`."""
    difference = gold - attempt
    yield f"{'+' if difference > 0 else '-'} {abs(difference)} is the answer"
    if attempt and gold and (ratio := gold / attempt).denominator <= 4 and abs(ratio) != 1:
        yield f"x {ratio} is the answer"


def _part_differences(gold: Mapping[str, str], attempt: Mapping[str, str]) -> Iterator[str]:
    """Yield the wrong and the correct parts; for sequences of different lengths the edits to the answer."""
    if list(gold) == list(attempt):
        wrong = [f"{name} {attempt[name]}>{value}" for name, value in gold.items() if attempt[name] != value]
        right = [name for name, value in gold.items() if attempt[name] == value]
        if wrong:
            more = f" and {len(wrong) - MAX_PARTS} more" if len(wrong) > MAX_PARTS else ""
            yield f"wrong {', '.join(wrong[:MAX_PARTS])}{more}"
        listed = ", ".join(right) if len(right) <= MAX_PARTS else f"{len(right)} parts"
        yield f"right {listed or 'none'}"
        return
    if gold.keys() == attempt.keys():  # named parts in another order
        yield from _part_differences(gold, {name: attempt[name] for name in gold})
        return
    a, b = list(attempt.values()), list(gold.values())
    for tag, i, j, k, m in islice(SequenceMatcher(None, a, b, autojunk=False).get_opcodes(), MAX_PARTS):
        if tag != "equal":
            yield f"{tag} {i + 1} {' '.join(a[i:j])}>{' '.join(b[k:m])}"


def _known_numbers(environment: Environment, task: Task, attempts: Sequence[str]) -> dict[Fraction | None, str]:
    """Return names of the numbers that have a meaning in the dialogue; the first name of a number counts."""
    gold = as_number(environment.gold_answer(task))
    known: dict[Fraction | None, str] = {}
    values = [as_number(parse_attempt(environment, task, attempt)[1] or "") for attempt in attempts]
    if gold is not None:
        known[gold] = "answer"
    for value in values:
        if value is not None:
            known.setdefault(value, "try")
    for text in numerals(environment.prompt(task.public)):
        known.setdefault(as_number(text), "problem")
    if gold is not None:
        for value in values:
            if value is not None:
                known.setdefault(abs(gold - value), "answer minus try")
                if value:
                    known.setdefault(abs(gold / value), "answer over try")
                    quotient, remainder = divmod(gold, value)
                    known.setdefault(Fraction(quotient), "quotient by try")
                    known.setdefault(remainder, "remainder by try")
        digits = str(abs(gold))
        known.setdefault(as_number(digits[::-1]), "answer reversed")
        if digits.isdigit():
            known.setdefault(Fraction(sum(map(int, digits))), "digit sum")
            for digit in digits:
                known.setdefault(Fraction(digit), "digit")
    return known


def _numbers_in(hint: str) -> list[str]:
    """Return the numbers of a hint, in digits first, each once."""
    return list(dict.fromkeys([*numerals(hint), *(reading.value for reading in number_words(hint))]))
