"""Augmentation of labeled hints: every derived example has a label that follows from the original one.

| name | change | label |
|---|---|---|
| `transplant` | the hint follows the attempts on another problem | no leak: its statements no longer hold |
| `rename` | other people in problem, answer, attempts and hints | unchanged |
| `shift` | the numbers of a sum and its attempts move together | unchanged, if the hint names none of them |
| `typos` | exchanged or missing letters, other case and punctuation | unchanged |

A derived task passes the environment's parser, and its answer the verifier. `exact` and `equivalent` must not flag a
transplanted hint.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rl2f_core.config.leaks import LeaksConfig
from rl2f_core.environments.base import Environment, wrap_answer
from rl2f_core.errors import DataError
from rl2f_core.leaks.base import LeakQuery, run_cascade
from rl2f_core.leaks.classifier.examples import Example
from rl2f_core.leaks.classifier.facts import answer_facts
from rl2f_core.leaks.equivalent.number_words import number_words
from rl2f_core.leaks.guard import make_detectors
from rl2f_core.leaks.visible_context import numerals, parse_attempt
from rl2f_core.types import Task

NAMES = (
    "Anna", "Boris", "Cleo", "Dora", "Edgar", "Fay", "Gwen", "Hank", "Iris", "Jonas", "Karl", "Lena", "Milo", "Nadia",
    "Otto", "Petra", "Quinn", "Rita", "Simon", "Tess", "Ursula", "Viktor", "Wanda", "Xenia", "Yara", "Zack",
)  # fmt: skip
MAX_TRIES = 20
"""Contexts that a transplant tries."""
TYPO_RATE = 0.06
"""Probability that a word has a typo."""
_WORD = re.compile(r"[A-Za-z]{4,}")


def augment(examples: Sequence[Example], copies: int, rng: random.Random) -> Iterator[Example]:
    """Yield up to `copies` derived examples per example.

    Every second copy of a leak and the first one of another hint are transplanted.
    """
    contexts: dict[tuple[str, int], list[Example]] = defaultdict(list)
    for example in examples:
        contexts[_context_key(example)].append(example)
    for example in examples:
        for k in range(copies):
            derived = None
            if k % 2 == 0 and (example.leak or k == 0):
                derived = transplant(example, contexts[_context_key(example)], rng)
            else:
                derived = rename(example, rng) or shift(example, rng)
                derived = typos(derived or example, rng)
            if derived is not None:
                yield derived


def _context_key(example: Example) -> tuple[str, int]:
    return example.environment.name, len(example.query.attempts)


def transplant(example: Example, contexts: Sequence[Example], rng: random.Random) -> Example | None:
    """Return the hints of an example on another problem; None without one on which they state something else."""
    environment, query = example.environment, example.query
    facts = _fact_set(environment, query.task, query.attempts)
    names = _long_names(environment, query.task)
    for _ in range(MAX_TRIES):
        other = rng.choice(contexts)
        others = _long_names(other.environment, other.query.task)
        task, attempts = other.query.task, other.query.attempts
        if other.group == example.group or len(names) != len(others):
            continue
        if environment.gold_answer(query.task) == other.environment.gold_answer(task):
            continue
        if facts & _fact_set(other.environment, task, attempts):
            continue
        hint = _replace(query.hint, names, others)
        hints = tuple(_replace(text, names, others) for text in query.hints)
        moved = LeakQuery(task, hint, attempts, hints)
        detectors = make_detectors(LeaksConfig().detectors, other.environment)
        if not run_cascade(detectors, [moved])[0].leaked:
            no_leak = replace(example, leak=False, leak_type=None, augmentation="transplant")
            return replace(no_leak, environment=other.environment, query=moved)
    return None


def _fact_set(environment: Environment, task: Task, attempts: Sequence[str]) -> set[str]:
    """Return what separates the last attempt from the answer."""
    facts = answer_facts(environment, task, attempts[-1:]).split("; ")
    return {fact for fact in facts if fact.startswith("try") and "right" not in fact}


def rename(example: Example, rng: random.Random) -> Example | None:
    """Return the example with other people; None if its problem has none."""
    environment, query = example.environment, example.query
    names = _long_names(environment, query.task)
    if not names or example.kind == "encoded":
        return None
    others = tuple(rng.sample([name for name in NAMES if name not in names], len(names)))
    problem = _replace(environment.prompt(query.task.public), names, others)
    return _with_task(
        example,
        problem,
        _replace(environment.gold_answer(query.task), names, others),
        [_replace(text, names, others) for text in query.attempts],
        [_replace(text, names, others) for text in (*query.hints, query.hint)],
        "rename",
    )


def shift(example: Example, rng: random.Random) -> Example | None:
    """Return a sum with one operand, answer and attempts moved by the same number; None if a hint names any of them."""
    environment, query = example.environment, example.query
    public = query.task.public
    if environment.name != "arithmetic" or public.get("operation") != "+":
        return None
    texts = [*query.hints, query.hint]
    named = {int(n) for text in texts for n in [*numerals(text), *(r.value for r in number_words(text))] if _is_int(n)}
    parsed = [parse_attempt(environment, query.task, attempt)[1] for attempt in query.attempts]
    values = [int(p) for p in parsed if p is not None]
    gold = int(environment.gold_answer(query.task))
    digits = {int(digit) for n in (gold, *values) for digit in str(abs(n))}
    if (
        len(values) != len(parsed)
        or named & {gold, public["a"], public["b"], *values, *digits}
        or "digit" in query.hint
    ):
        return None
    delta = rng.choice([n for n in range(-9, 10) if n]) * 10
    a = public["a"] + delta
    if a < 1:
        return None
    attempts = [wrap_answer(str(value + delta)) for value in values]
    return _with_task(example, f"What is {a} + {public['b']}?", str(gold + delta), attempts, texts, "shift")


def typos(example: Example, rng: random.Random) -> Example:
    """Return the example with typos, and sometimes without capitals or with other punctuation, in its hints."""
    query = example.query
    protected = frozenset(name.lower() for name in _long_names(example.environment, query.task))

    def slip(match: re.Match[str]) -> str:
        word = match[0]
        if word.lower() in protected or rng.random() > TYPO_RATE or number_words(word):
            return word
        i = rng.randrange(1, len(word) - 1)
        return word[:i] + word[i + 1] + word[i] + word[i + 2 :] if rng.random() < 0.7 else word[:i] + word[i + 1 :]

    def spoil(text: str) -> str:
        text = _WORD.sub(slip, text)
        if rng.random() < 0.3:
            text = text.rstrip(".!") + rng.choice(("", "!", " :)", "..", "."))
        return text

    hints = tuple(map(spoil, query.hints))
    name = f"{example.augmentation}+typos".lstrip("+")
    return replace(example, query=replace(query, hint=spoil(query.hint), hints=hints), augmentation=name)


def _with_task(
    example: Example, problem: str, answer: str, attempts: Sequence[str], hints: Sequence[str], name: str
) -> Example | None:
    """Return the example on another task, if the environment accepts its answer and rejects its attempts."""
    environment = example.environment
    try:
        task = environment.task_from_gold(problem, answer)
    except DataError:
        return None
    right = environment.verify(task, wrap_answer(environment.gold_answer(task))).correct
    if not right or any(environment.verify(task, attempt).correct for attempt in attempts):
        return None
    query = LeakQuery(task, hints[-1], tuple(attempts), tuple(hints[:-1]))
    return replace(example, query=query, augmentation=name)


def _long_names(environment: Environment, task: Task) -> tuple[str, ...]:
    """Return the names of a problem with at least two letters; a single letter is often a word."""
    return tuple(name for name in environment.hint_names(task) if len(name) > 1)


def _replace(text: str, names: Sequence[str], others: Sequence[str]) -> str:
    mapping = dict(zip(names, others, strict=True))
    if not mapping:
        return text
    pattern = "|".join(re.escape(name) for name in sorted(mapping, key=len, reverse=True))
    return re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", lambda match: mapping[match[0]], text)


def _is_int(text: str) -> bool:
    return text.lstrip("-").isdigit()
