"""What all environments with mathematical answers share: the verifier, hints on numbers, the imperfect student.

The parser that rewards is the parser that evaluates. A hint exists where the gold answer is a number; otherwise only a
model teacher with the answer or the solution has something to say.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from rl2f_core.environments._integers import find_integers
from rl2f_core.environments._math_judge import Finding, Judge, Pair, too_wordy
from rl2f_core.environments._math_text import canonical, last_boxed, normal, number_text, read_number
from rl2f_core.environments._tokens import kept_one
from rl2f_core.environments.base import MAX_ATTEMPT_CHARS, Environment, Floor, extract_answer, wrap
from rl2f_core.errors import DataError, shorten
from rl2f_core.types import Task, Verdict

NO_NUMBER = "The answer is a number, and no number was found."
NO_HINT = "That is not the answer. Check each step again."
FALSE_HINT = "The steps are right; only the way the answer is written is not."
_FLOOR_TASKS = 200
_DECIMAL = re.compile(r"(?<![\w.,])[+\-−]?\d+(?:,\d{3})*\.\d+(?![\w]|\.\d)")
_RATIO = re.compile(r"(?<![\w.,/])[+\-−]?\d{1,20} ?/ ?\d{1,20}(?![\w/]|\.\d)")
_LATEX = re.compile(
    r"\$([^$\n]{1,200})\$|\\\(([^\n]{1,200}?)\\\)|\\boxed\s*\{|\\[dt]?frac\s*\{[^{}]{1,40}\}\s*\{[^{}]{1,40}\}"
)
_SPELLED = re.compile(r"(?<![\w\\])[A-Za-z0-9(\[\\+\-][\w\\^{}()\[\]+\-*/=.,]{1,80}")


class MathEnvironment(Environment):
    """Problems in words whose answers are numbers or expressions."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._judge = Judge(config.time_limit)
        self._floor: Floor | None = None

    @property
    def form(self) -> str:
        """How an answer is marked: tags, boxed, or either."""
        return str(getattr(self.config, "answer_form", "tags"))

    # -- tasks -------------------------------------------------------------------------------------------------
    def canonical(self, task: Task) -> str:
        """The problem's words and signs, without case, spacing and punctuation."""
        return canonical(task.public["problem"])

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Any problem text with an answer that can be read; raises `DataError` where it cannot."""
        gold = gold_answer(answer)
        if gold is None:
            raise DataError("The gold answer cannot be read.", value=answer, fix="Write it like 132, 3/4 or x^2+1.")
        return self._task(problem, gold, None, "given")

    def _task(self, problem: str, gold: str, solution: str | None, level: str) -> Task:
        privileged = {"answer": gold} | ({"solution": solution} if solution else {})
        return Task(id=f"{self.name}/gold", environment=self.name, split="test", level=level,
                    public={"problem": problem}, privileged=privileged)  # fmt: skip

    # -- the student's side ------------------------------------------------------------------------------------
    def system(self) -> str:
        if self.form == "boxed":
            return r"Think, then end with the answer as \boxed{answer}."
        return "Think, then end with <answer>answer</answer>."

    def prompt(self, public: dict[str, Any]) -> str:
        return str(public["problem"])

    def worked_solution(self, task: Task) -> str | None:
        """The way to the answer as the data set has it, with the answer marked at its end; None where it has none."""
        told = self.solution(task)
        return None if told is None else f"{told.strip()}\n{self.marked(self.answer(task))}"

    def marked(self, answer: str) -> str:
        """An answer as a student writes it."""
        return rf"\boxed{{{answer}}}" if self.form == "boxed" else wrap(answer)

    # -- the verifier ------------------------------------------------------------------------------------------
    def answer(self, task: Task) -> str:
        return str(task.privileged["answer"])

    def parse(self, task: Task, text: str) -> str | None:
        """The normal form of an answer; None where it is empty, prose, or not to be read."""
        said = normal(text)
        return None if said is None or too_wordy(self.answer(task), said) else said

    def extract(self, attempt: str) -> tuple[str | None, str]:
        r"""What stands in the answer's tags, or in the last `\boxed{…}`, as configured; or None and the reason."""
        if self.form == "tags":
            return extract_answer(attempt)
        if len(attempt) > MAX_ATTEMPT_CHARS:
            return None, f"unparsable: the attempt is {len(attempt)} characters long"
        if self.form == "either" and "<answer>" in attempt.lower():
            inner, problem = extract_answer(attempt)
            boxed = None if inner is None or r"\boxed" not in inner else last_boxed(inner)[0]
            return (inner if boxed is None else boxed), problem
        return last_boxed(attempt)

    def verify(self, task: Task, attempt: str) -> Verdict:
        """The verdict on a student's text. Total: what hangs or crashes the comparison has no verdict and scores 0."""
        inner, problem = self.extract(attempt)
        parsed = None if inner is None else self.parse(task, inner)
        if parsed is None:
            return Verdict(correct=False, score=0.0, detail=problem or f"unparsable: {shorten(repr(inner), 80)}")
        return self.judge(task, parsed)

    def prepare(self, attempts: Sequence[tuple[Task, str]]) -> None:
        """Compare the answers of a batch in one go, so that `verify` finds them known."""
        pairs = []
        for task, attempt in attempts:
            inner, _ = self.extract(attempt)
            parsed = None if inner is None else self.parse(task, inner)
            if parsed is not None:
                pairs.append(self._pair(task, parsed))
        self._judge.find(pairs)

    def _pair(self, task: Task, parsed: str) -> Pair:
        return Pair(self.answer(task), parsed, task.public["problem"])

    def judge(self, task: Task, parsed: str) -> Verdict:
        """Score 1 or 0. For two numbers the distance is min(1, |said − gold| / scale), see `scale`."""
        found: Finding = self._judge.find([self._pair(task, parsed)])[0]
        detail = (
            "right"
            if found.right
            else f"{shorten(parsed, 80)} is wrong ({found.why}): the answer is {self.answer(task)}"
        )
        return Verdict(
            correct=found.right,
            score=float(found.right),
            parsed=parsed,
            well_formed=True,
            distance=0.0 if found.right else self._distance(task, parsed),
            detail=detail,
        )

    def accepts(self, task: Task, said: str) -> bool:
        parsed = self.parse(task, said)
        return parsed is not None and self._judge.find([self._pair(task, parsed)])[0].right

    def _distance(self, task: Task, parsed: str) -> float | None:
        gold, said = read_number(self.answer(task)), read_number(parsed)
        if gold is None or said is None:
            return None
        return min(1.0, max(float(abs(said - gold) / scale(gold)), 1e-9))

    # -- the scripted teacher ----------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """`Too low, by a little.`: far means at least a tenth of the scale. Without a number: nothing of the answer."""
        gold = read_number(self.answer(task))
        if gold is None:
            return NO_HINT
        said = _last(attempts)
        return NO_NUMBER if said is None else _side(said < gold, abs(said - gold) * 10 >= scale(gold))

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """The other side and the other distance; for no number, that only the form is wrong."""
        gold = read_number(self.answer(task))
        if gold is None:
            return FALSE_HINT
        said = _last(attempts)
        if said is None:
            return _side(rng.random() < 0.5, True)
        return _side(said >= gold, abs(said - gold) * 10 < scale(gold))

    # -- the imperfect student ---------------------------------------------------------------------------------
    def imitate(self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow: bool, right: bool) -> str:
        """Wrong numbers are slips near the answer, on the side that the hint names where it is followed; other wrong
        answers are the answer with a slip in it."""
        if right:
            return self.marked(self.answer(task))
        gold = read_number(self.answer(task))
        if gold is None:
            return self.marked(self._other(task, attempts, rng))
        last = _last(attempts)
        if not follow and last is not None and last != gold and rng.random() < 0.25:
            return self.marked(number_text(last))
        tried = {gold} | {n for v in attempts if v.parsed is not None and (n := read_number(v.parsed)) is not None}
        side = (1 if last < gold else -1) if follow and last is not None else 0
        start = last if follow and last is not None else gold
        step = Fraction(1) if gold.denominator == 1 else Fraction(1, gold.denominator)
        most = max(3, int(scale(gold) / step) // 4)
        for _ in range(30):
            value = start + step * rng.randint(1, most) * (side or rng.choice((-1, 1)))
            if value not in tried:
                return self.marked(number_text(value))
        while start in tried:
            start += step * (side or 1)
        return self.marked(number_text(start))

    def _other(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """A wrong expression: the answer with one digit changed, or with something added."""
        gold = self.answer(task)
        places = [m.start() for m in re.finditer(r"[0-9]", gold)]
        forms = [gold[:i] + rng.choice([d for d in "123456789" if d != gold[i]]) + gold[i + 1 :] for i in places]
        forms += [f"-({gold})", f"2({gold})", "0", "1", "x"]
        rng.shuffle(forms)
        return next((said for said in forms if not self.accepts(task, said) and self.parse(task, said)), "y")

    # -- reference lines ---------------------------------------------------------------------------------------
    def floor(self) -> Floor:
        """The most frequent gold answer and its share, over the first 200 different test tasks."""
        if self._floor is None:
            tasks = {self.canonical(t): t for t in (self.task("test", i) for i in range(_FLOOR_TASKS))}
            counts = Counter(self.answer(task) for task in tasks.values())
            best, count = min(counts.items(), key=lambda item: (-item[1], len(item[0]), item[0]))
            self._floor = Floor(best, count / len(tasks))
        return self._floor

    # -- for leak detectors ------------------------------------------------------------------------------------
    def candidates(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        """Whole numbers and small expressions, decimals, ratios, and LaTeX that reads as an answer."""
        number = read_number(self.answer(task)) is not None
        found = {*number_candidates(text)} if number else set()
        latex = (_LATEX,) if "$" in text or "\\" in text else ()
        for pattern in latex if number else (*latex, _SPELLED):
            for match in pattern.finditer(text):
                said = next((group for group in match.groups() if group), match[0])
                end = match.end()
                if said.endswith("{"):
                    inside = last_boxed(text[match.start() : match.start() + 400].split("\n")[0])[0]
                    said, end = inside or "", min(len(text), match.end() + len(inside or "") + 1)
                form = self.parse(task, said.rstrip(".,;:")) if said else None
                if form is not None:
                    found.add((match.start(), end, form))
        return sorted(found)


def gold_answer(answer: str) -> str | None:
    """A gold answer in normal form, or None where it cannot be read or is a sentence, which no verifier can judge."""
    gold = normal(answer)
    return None if gold is None or too_wordy("", gold) else gold


@kept_one(1024)
def number_candidates(text: str) -> frozenset[tuple[int, int, str]]:
    """Whole numbers and small expressions of them, decimals and ratios, with their places and normal forms."""
    found = {*find_integers(text)}
    for mark, pattern in ((".", _DECIMAL), ("/", _RATIO)):
        for match in pattern.finditer(text) if mark in text else ():
            value = read_number(match[0].replace("−", "-"))
            if value is not None:
                found.add((match.start(), match.end(), number_text(value)))
    return frozenset(found)


def scale(gold: Fraction) -> int:
    """The distance that counts as 1: the power of ten above the answer, at least 10."""
    return int(10 ** max(1, len(str(abs(int(gold))))))


def _side(low: bool, far: bool) -> str:
    return f"Too {'low' if low else 'high'}, by a {'lot' if far else 'little'}."


def _last(attempts: Sequence[Verdict]) -> Fraction | None:
    return read_number(attempts[-1].parsed) if attempts and attempts[-1].parsed is not None else None
