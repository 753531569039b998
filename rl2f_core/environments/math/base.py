"""Common base of the math environments: verifier, hints on numbers, simulated student.

Training and evaluation use the same parser. Scripted hints need a numeric gold answer; other answers need an LLM
teacher with the answer or the solution.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from rl2f_core.common.text.integers import find_integers
from rl2f_core.common.text.tokens import cached
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import MAX_ATTEMPT_CHARS, extract_answer, new_task, parsed_answers, wrap_answer
from rl2f_core.environments.capabilities import (
    Baselines,
    Demonstrator,
    LeakVocabulary,
    MisleadingHints,
    last_parsed,
    most_common_answer,
)
from rl2f_core.environments.false_claims import side_agreement
from rl2f_core.environments.math.answer_text import (
    canonical,
    last_boxed,
    normal,
    number_text,
    read_number,
    read_quantity,
    read_value,
)
from rl2f_core.environments.math.equivalence import Pair, check_units, compare_answers, too_wordy
from rl2f_core.errors import DataError, shorten
from rl2f_core.types import ConstantBaseline, Task, TaskData, Verdict

AnswerForm = Literal["tags", "boxed", "either"]
NO_NUMBER = "The answer is a number, and no number was found."
NO_HINT = "That is not the answer. Check each step again."
OTHER_UNIT = "Another unit is asked for."
FALSE_HINT = "The steps are right; only the way the answer is written is not."
_BASELINE_TASKS = 200
_DECIMAL = re.compile(r"(?<![\w.,])[+\-−]?\d+(?:,\d{3})*\.\d+(?![\w]|\.\d)")
_DECIMALS = re.compile(r"-?\d+(\.\d+)(?![\d.])")
_RATIO = re.compile(r"(?<![\w.,/])[+\-−]?\d{1,20} ?/ ?\d{1,20}(?![\w/]|\.\d)")
_PERCENTAGE = re.compile(r"(?<![\w.,])[+\-−]?\d+(?:,\d{3})*(?:\.\d+)? ?(?:\\?%|percent\b)")
_LATEX = re.compile(
    r"\$([^$\n]{1,200})\$|\\\(([^\n]{1,200}?)\\\)|\\boxed\s*\{|\\[dt]?frac\s*\{[^{}]{1,40}\}\s*\{[^{}]{1,40}\}"
)
_MAX_BEFORE = 400
"""Characters before a box that are searched for an operator."""
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_OPENED = re.compile(
    r"(?:\\(?:[fm]?box|boxed|text[a-z]*|math[a-z]+|bm|boldsymbol)\s*\{|(?<![\w}\]^])\{|\\left|(?<!\\)[(\[])\s*\Z"
)
"""What may open around a box."""
_OPERATOR = re.compile(
    r"(?:[+\-−‐‑‒–—―±∓/÷⁄∕×·⋅∙∗√^_¬\d]|[\w)}]\*{1,2}|\\[dt]?frac\s*(?:\w|\{[^{}]*\})"
    r"|(?:[<≠≤≥]|(?<![-=])>|[!<>]=|\bnot)[ \t]*"
    r"|\\(?:times|cdot|div|pm|mp|frac|sqrt|not|neg|lnot|neq?|[lg](?:eq?|t)|sin|cos|tan|cot|log|ln|exp|sum|prod|int)\s*"
    r"|(?:[\d)}\]$=^_]|(?<![A-Za-z])[A-Za-z]|\\[A-Za-z]+)[ \t]*[+\-−–±/÷×·⋅*^_][ \t]+)\Z"
)
"""A sign, operator, relation or function before a box. Before white space, a dash or bullet of a text is none."""
_SPELLED = re.compile(r"(?<![\w\\])[A-Za-z0-9(\[\\+\-][\w\\^{}()\[\]+\-*/=.,]{1,80}")


class MathEnvironment(MisleadingHints, Demonstrator, Baselines, LeakVocabulary):
    """Problems in words whose answers are numbers or expressions."""

    def __init__(self, config: ComponentConfig, form: AnswerForm, time_limit: float) -> None:
        """Create the environment.

        Args:
            config: The configuration of the subclass.
            form: How an answer is marked.
            time_limit: Seconds for the comparison of two answers.
        """
        super().__init__(config)
        self.form = form
        self.time_limit = time_limit
        self._baseline: ConstantBaseline | None = None

    # -- tasks -------------------------------------------------------------------------------------------------
    def canonical(self, task: Task) -> str:
        return canonical(task.public["problem"])

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Accept any problem text. Raises `DataError` if the answer cannot be parsed."""
        gold = normalize_gold(answer)
        if gold is None:
            raise DataError("The gold answer cannot be read.", value=answer, fix="Write it like 132, 3/4 or x^2+1.")
        return self._task(problem, gold, None, "given")

    def _task(self, problem: str, gold: str, solution: str | None, level: str) -> Task:
        privileged = {"answer": gold} | ({"solution": solution} if solution else {})
        return new_task(self, level, {"problem": problem}, privileged)

    # -- student -----------------------------------------------------------------------------------------------
    def system_prompt(self) -> str:
        if self.form == "boxed":
            return r"Think, then end with the answer as \boxed{answer}."
        return "Think, then end with <answer>answer</answer>."

    def prompt(self, public: TaskData) -> str:
        return str(public["problem"])

    def worked_solution(self, task: Task) -> str | None:
        """The solution of the data set, followed by the marked answer; None if it has none."""
        solution = self.solution(task)
        return None if solution is None else f"{solution.strip()}\n{self.marked(self.gold_answer(task))}"

    def marked(self, answer: str) -> str:
        """Mark an answer as a student does."""
        return rf"\boxed{{{answer}}}" if self.form == "boxed" else wrap_answer(answer)

    # -- verifier ----------------------------------------------------------------------------------------------
    def parse(self, task: Task, text: str) -> str | None:
        """The normal form of an answer; None if it is empty, prose, or cannot be parsed."""
        candidate = normal(text)
        return None if candidate is None or too_wordy(self.gold_answer(task), candidate) else candidate

    def extract(self, attempt: str) -> tuple[str | None, str]:
        r"""The text in the answer tags or the last `\boxed{…}`, as configured; or None and the reason."""
        if self.form == "tags":
            return extract_answer(attempt)
        if len(attempt) > MAX_ATTEMPT_CHARS:
            return None, f"unparsable: the attempt is {len(attempt)} characters long"
        if self.form == "either" and "<answer>" in attempt.lower():
            return extract_answer(attempt)  # `normal` reads a box that is the whole answer, and no other one
        boxed, problem = last_boxed(attempt)
        if boxed is not None and _is_operand(attempt, boxed):
            return None, r"unparsable: the last \boxed{…} is a part of an expression"
        return boxed, problem

    def prefetch_verdicts(self, attempts: Sequence[tuple[Task, str]]) -> None:
        """Compare the answers of a batch together; `verify` then uses the cached results."""
        compare_answers([self._pair(task, parsed) for task, parsed in parsed_answers(self, attempts)], self.time_limit)

    def _pair(self, task: Task, parsed: str) -> Pair:
        return Pair(self.gold_answer(task), parsed, task.public["problem"])

    def score_parsed(self, task: Task, parsed: str) -> Verdict:
        """Score 1 or 0. For two numbers the distance is min(1, |answer − gold| / scale), see `scale`."""
        correct, reason = compare_answers([self._pair(task, parsed)], self.time_limit)[0]
        wrong = f"{shorten(parsed, 80)} is wrong ({reason}): the answer is {self.gold_answer(task)}"
        return Verdict(
            correct=correct,
            score=float(correct),
            parsed=parsed,
            well_formed=True,
            distance=0.0 if correct else self._distance(task, parsed),
            detail="right" if correct else wrong,
        )

    def is_correct_answer(self, task: Task, answer: str) -> bool:
        parsed = self.parse(task, answer)
        return parsed is not None and compare_answers([self._pair(task, parsed)], self.time_limit)[0].correct

    def _distance(self, task: Task, parsed: str) -> float | None:
        gold, candidate = read_value(self.gold_answer(task)), read_value(parsed)
        if gold is None or candidate is None:
            return None
        return max(float(min(abs(candidate - gold) / scale(gold), Fraction(1))), 1e-9)

    # -- scripted teacher --------------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """`Too low, by a little.`; a lot is at least a tenth of the scale. Other answers get a hint without content."""
        gold = read_value(self.gold_answer(task))
        if gold is None:
            return NO_HINT
        candidate = _last(attempts)
        if candidate is None:
            return NO_NUMBER
        units = [quantity.unit for text in (self.gold_answer(task), last_parsed(attempts) or "")
                 if (quantity := read_quantity(text)) is not None]  # fmt: skip
        if len(units) == 2 and check_units(*units) is not None:
            return OTHER_UNIT
        return _side(candidate < gold, abs(candidate - gold) * 10 >= scale(gold))

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """State the opposite side and distance; if the answer is not a number, that only its form is wrong."""
        gold = read_value(self.gold_answer(task))
        if gold is None:
            return FALSE_HINT
        candidate = _last(attempts)
        if candidate is None:
            return _side(rng.random() < 0.5, True)
        return _side(candidate >= gold, abs(candidate - gold) * 10 < scale(gold))

    def claim_agreement(self, task: Task, before: Verdict, hint: str, attempt: Verdict) -> float | None:
        """False claim: the side of the last attempt on which the answer is; none if the answer is not a number."""
        gold = read_value(self.gold_answer(task))
        return None if gold is None else side_agreement(hint, _last([before]), _last([attempt]), gold)

    # -- simulated student -------------------------------------------------------------------------------------
    def simulate_attempt(
        self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow_hint: bool, correct: bool
    ) -> str:
        """Draw a number close to the answer, on the hinted side if the hint is followed.

        If the answer is not a number, change one digit or add something.
        """
        if correct:
            return self.marked(self.gold_answer(task))
        gold = read_value(self.gold_answer(task))
        if gold is None:
            return self.marked(self._wrong_expression(task, rng))
        last = _last(attempts)
        if not follow_hint and last is not None and last != gold and rng.random() < 0.25:
            return self.marked(number_text(last))
        tried = {gold} | {n for v in attempts if v.parsed is not None and (n := read_value(v.parsed)) is not None}
        side = (1 if last < gold else -1) if follow_hint and last is not None else 0
        start = last if follow_hint and last is not None else gold
        step = Fraction(1) if gold.denominator == 1 else Fraction(1, gold.denominator)
        most = max(3, int(scale(gold) / step) // 4)
        for _ in range(30):
            value = start + step * rng.randint(1, most) * (side or rng.choice((-1, 1)))
            if value not in tried:
                return self.marked(number_text(value))
        while start in tried:
            start += step * (side or 1)
        return self.marked(number_text(start))

    def _wrong_expression(self, task: Task, rng: random.Random) -> str:
        """Return a wrong expression: the answer with one digit changed, or with something added."""
        gold = self.gold_answer(task)
        digits = [m.start() for m in re.finditer(r"[0-9]", gold)]
        forms = [gold[:i] + rng.choice([d for d in "123456789" if d != gold[i]]) + gold[i + 1 :] for i in digits]
        forms += [f"-({gold})", f"2({gold})", "0", "1", "x"]
        rng.shuffle(forms)
        wrong = (form for form in forms if not self.is_correct_answer(task, form) and self.parse(task, form))
        return next(wrong, "y")

    # -- reference lines ---------------------------------------------------------------------------------------
    def constant_baseline(self) -> ConstantBaseline:
        """The most frequent gold answer and its fraction, over the distinct ones of the first 200 test tasks."""
        if self._baseline is None:
            tasks = {self.canonical(t): t for t in (self.task("test", i) for i in range(_BASELINE_TASKS))}
            best, count = most_common_answer([self.gold_answer(task) for task in tasks.values()])
            self._baseline = ConstantBaseline(best, count / len(tasks))
        return self._baseline

    # -- leak detection ----------------------------------------------------------------------------------------
    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        """Whole numbers and small expressions, decimals, ratios, and LaTeX that can be parsed as an answer."""
        number = read_value(self.gold_answer(task)) is not None
        result = {*number_candidates(text)} if number else set()
        latex = (_LATEX,) if "$" in text or "\\" in text else ()
        for pattern in latex if number else (*latex, _SPELLED):
            for match in pattern.finditer(text):
                candidate = next((group for group in match.groups() if group), match[0])
                end = match.end()
                if candidate.endswith("{"):
                    inside = last_boxed(text[match.start() : match.start() + 400].split("\n")[0])[0]
                    candidate, end = inside or "", min(len(text), match.end() + len(inside or "") + 1)
                form = self.parse(task, candidate.rstrip(".,;:")) if candidate else None
                if form is not None:
                    result.add((match.start(), end, form))
        return sorted(result)


def _is_operand(attempt: str, boxed: str) -> bool:
    """Return whether the last box, with this content, is a part of an expression."""
    box = list(_BOX.finditer(attempt))[-1]
    before, closed = attempt[: box.start()][-_MAX_BEFORE:], attempt[box.end() + len(boxed) + 1 :].count("}")
    outer, text = before, ""
    while outer != text:
        text, outer = outer, re.sub(r"\{[^{}]*\}", "", outer)
    open_braces = [match.end() for match in re.finditer(r"\{", outer)][-closed:] if closed else []
    if not all(_OPENED.search(outer[:end]) for end in open_braces):
        return True
    while opened := _OPENED.search(before):
        before = before[: opened.start()]
        if opened[0][0] in "([" and re.search(r"[\w)]\Z", before):
            return True
    return bool(_OPERATOR.search(before))


def normalize_gold(answer: str) -> str | None:
    """Return a gold answer in normal form, or None if it cannot be parsed or is a sentence.

    Zeros at the end of a decimal are kept: they say to how many digits it is rounded.
    """
    gold = normal(answer)
    if gold is None or too_wordy("", gold):
        return None
    decimals = _DECIMALS.match(gold)
    zeros = re.search(rf"{re.escape(decimals[1])}(0+)(?!\d)", answer) if decimals else None
    return gold if decimals is None or zeros is None else gold[: decimals.end()] + zeros[1] + gold[decimals.end() :]


@cached(1024)
def number_candidates(text: str) -> frozenset[tuple[int, int, str]]:
    """Return the spans and normal forms of whole numbers, small expressions of them, decimals, ratios, percentages."""
    result = {*find_integers(text)}
    for mark, pattern in ((".", _DECIMAL), ("/", _RATIO), ("%", _PERCENTAGE), ("percent", _PERCENTAGE)):
        for match in pattern.finditer(text) if mark in text else ():
            value = read_number(match[0].replace("−", "-"))
            if value is not None:
                result.add((match.start(), match.end(), number_text(value)))
    return frozenset(result)


def scale(gold: Fraction) -> int:
    """Return the distance that counts as 1: the power of ten above the answer, at least 10."""
    return int(10 ** max(1, len(str(abs(int(gold))))))


def _side(low: bool, far: bool) -> str:
    return f"Too {'low' if low else 'high'}, by a {'lot' if far else 'little'}."


def _last(attempts: Sequence[Verdict]) -> Fraction | None:
    parsed = last_parsed(attempts)
    return None if parsed is None else read_value(parsed)
