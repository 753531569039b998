"""`dataset`: questions of a CSV, JSONL or Parquet file, with a checker of choice."""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rl2f_core.common.paths import QUESTIONS_SAMPLE
from rl2f_core.environments.base import listed_task, new_task, parsed_answers, wrap_answer
from rl2f_core.environments.capabilities import (
    Baselines,
    Demonstrator,
    LeakVocabulary,
    MisleadingHints,
    most_common_answer,
)
from rl2f_core.environments.data_files import stamp
from rl2f_core.environments.dataset import checkers
from rl2f_core.environments.dataset import config as settings
from rl2f_core.environments.dataset.checkers import Checker
from rl2f_core.environments.dataset.judge import Judge
from rl2f_core.environments.dataset.loading import Loaded, Question, list_bad_rows, load
from rl2f_core.environments.dataset.row_text import RowError
from rl2f_core.environments.math.answer_text import folded
from rl2f_core.environments.math.base import FALSE_HINT, NO_HINT
from rl2f_core.errors import DataError
from rl2f_core.registry import register
from rl2f_core.types import ConstantBaseline, Split, Task, TaskData, Verdict

CHECKERS: dict[str, type[Checker]] = {
    "exact": checkers.Exact,
    "numeric": checkers.Numeric,
    "multiple_choice": checkers.MultipleChoice,
    "regex": checkers.Pattern,
    "math_verify": checkers.MathVerify,
    "json_fields": checkers.JsonFields,
    "unit_tests": checkers.UnitTests,
    "judge": Judge,
}
SHOWN_BAD_ROWS = 5
_OTHER_ANSWERS = 12
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\s*\n\s*")
_DIGITS = re.compile(r"\d{1,15}")


@register("environment")
class Dataset(MisleadingHints, Demonstrator, Baselines, LeakVocabulary):
    """The task order is a seeded permutation of the split, then another one, and so on."""

    Config = settings.Config
    config: settings.Config

    def __init__(self, config: settings.Config) -> None:
        super().__init__(config)
        self.checker = CHECKERS[config.checker](config)

    # -- tasks -------------------------------------------------------------------------------------------------
    @property
    def loaded(self) -> Loaded:
        """The questions of the file, read once per process. Raises `DataError` if it cannot be used at all."""
        config = self.config
        path = str(QUESTIONS_SAMPLE) if config.path == settings.SAMPLE else config.path
        return _load(config.model_dump_json(exclude={"seed", "bad_rows"}), stamp(path))

    def read_loaded(self, stamped: tuple[str, int, int]) -> Loaded:
        """Read the file anew; `loaded` caches the result."""
        if isinstance(self.checker, checkers.UnitTests):
            self.checker.code.describe_data()  # raises if the sandbox is too weak
        path = Path(stamped[0]).expanduser()
        drop = self.config.near_duplicates == "drop"
        return load(path, self.config.columns, self.checker.columns, self.checker.read, self._gold_errors, drop)

    def _gold_errors(self, questions: Sequence[Question]) -> list[str]:
        """Return why the checker rejects each gold answer; empty if it accepts it."""
        tasks = [self._task(question) for question in questions]
        self.checker.prefetch([(task, self.gold_answer(task)) for task in tasks])
        verdicts = [self.verify(task, wrap_answer(self.gold_answer(task))) for task in tasks]
        return ["" if v.correct else f"is not accepted by its checker: {v.detail}" for v in verdicts]

    def describe_data(self) -> str:
        """Count rows and problems.

        Raises `DataError` if there are bad rows, and `ConfigError` if the judge does not reply.
        """
        loaded, name = self._usable(), Path(self.config.path).name
        if isinstance(self.checker, Judge):
            self.checker.check()
        sizes = ", ".join(f"{len(questions):,} {split}" for split, questions in loaded.questions.items())
        near = "left out" if self.config.near_duplicates == "drop" else "kept"
        text = (
            f"{name}: {loaded.rows:,} rows; problems: {sizes}. {len(loaded.bad_rows):,} bad rows and "
            f"{loaded.duplicates:,} repeated rows are left out; {loaded.near_duplicates:,} near-duplicates of test "
            f"problems are {near}."
        )
        if loaded.bad_rows:
            text += f" {list_bad_rows(loaded.bad_rows, SHOWN_BAD_ROWS)}"
        return text if "solution" in loaded.columns else f"{text} Without solutions, scripted hints have no content."

    def _usable(self) -> Loaded:
        loaded = self.loaded
        if loaded.bad_rows and self.config.bad_rows == "error":
            raise DataError(
                f"{len(loaded.bad_rows)} of {loaded.rows} rows cannot be used. "
                f"{list_bad_rows(loaded.bad_rows, SHOWN_BAD_ROWS)}",
                value=self.config.path,
                fix="Correct the rows, which `rl2f data check FILE` lists, or set environment.bad_rows: skip.",
            )
        return loaded

    def task(self, split: Split, index: int) -> Task:
        """Raises `DataError` if the file cannot be read, has bad rows, or the split is empty."""
        questions, fix = self._usable().questions[split], "Give a larger file, or another column for the split."
        return listed_task(self, questions, split, index, self.config.seed, self._task, fix)

    def _task(self, question: Question) -> Task:
        return new_task(self, question.level, {"problem": question.problem, **question.public}, question.privileged)

    def canonical(self, task: Task) -> str:
        return folded(task.public["problem"])

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Accept any problem text; the pattern of checker regex is the answer itself.

        Raises `DataError` if the answer cannot be read, or if the checker needs tests.
        """
        try:
            more = {"pattern": re.escape(" ".join(answer.split())), "tests": None}
            public, privileged = self.checker.read(problem, answer, more)
        except RowError as error:
            raise DataError(
                f"The gold answer {error}.", value=answer, fix="Give one that the checker reads."
            ) from error
        return new_task(self, "given", {"problem": problem, **public}, privileged)

    # -- student -----------------------------------------------------------------------------------------------
    def system_prompt(self) -> str:
        return self.checker.system

    def prompt(self, public: TaskData) -> str:
        return str(public["problem"])

    def worked_solution(self, task: Task) -> str | None:
        """The solution of the file, followed by the answer; None without one."""
        solution = self.solution(task)
        return None if solution is None else f"{solution.strip()}\n{wrap_answer(self.gold_answer(task))}"

    # -- verifier ----------------------------------------------------------------------------------------------
    def parse(self, task: Task, text: str) -> str | None:
        return self.checker.parse(task, text)

    def score_parsed(self, task: Task, parsed: str) -> Verdict:
        return self.checker.score(task, parsed)

    def prefetch_verdicts(self, attempts: Sequence[tuple[Task, str]]) -> None:
        self.checker.prefetch(parsed_answers(self, attempts))

    # -- scripted teacher --------------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Give the next sentence of the solution that does not contain the answer; without one, no content."""
        sentences = list(self._sentences(task))
        return sentences[min(len(attempts), len(sentences)) - 1] if sentences and attempts else NO_HINT

    def _sentences(self, task: Task) -> Iterator[str]:
        """Yield the sentences of the solution that do not contain the answer."""
        for text in _SENTENCE.split(self.solution(task) or ""):
            if text and not self._tells(task, text):
                yield text

    def count_empty_hints(self, limit: int) -> tuple[int, int]:
        """Return how many of the first problems have no content for a scripted hint, and how many were checked."""
        questions = itertools.islice(itertools.chain(*self.loaded.questions.values()), limit)
        empty = [next(self._sentences(self._task(question)), None) is None for question in questions]
        return sum(empty), len(empty)

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Change the numbers of the true hint; without numbers, state that only the form of the answer is wrong."""
        true = self.hint(task, attempts, rng)
        false = _DIGITS.sub(lambda match: str(int(match[0]) + rng.randint(1, 3)), true)
        return FALSE_HINT if false == true or self._tells(task, false) else false

    def _tells(self, task: Task, text: str) -> bool:
        return any(self.is_correct_answer(task, answer) for _, _, answer in self.find_answers(task, text))

    # -- simulated student -------------------------------------------------------------------------------------
    def simulate_attempt(
        self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow_hint: bool, correct: bool
    ) -> str:
        """Give the answer of another problem, or a changed one; with `follow_hint` none that was tried before."""
        gold = self.gold_answer(task)
        if correct:
            return wrap_answer(gold)
        tried = {verdict.parsed for verdict in attempts} if follow_hint else set()
        for answer in itertools.chain(self._other_answers(rng), self.checker.wrong_answers(task, rng)):
            parsed = self.parse(task, answer)
            if parsed is not None and parsed not in tried and not self.score_parsed(task, parsed).correct:
                return wrap_answer(answer)
        return wrap_answer("?")

    def _other_answers(self, rng: random.Random) -> Iterator[str]:
        questions = self._usable().questions["train"]
        yield from (rng.choice(questions).privileged["answer"] for _ in range(_OTHER_ANSWERS if questions else 0))

    # -- reference lines ---------------------------------------------------------------------------------------
    def constant_baseline(self) -> ConstantBaseline:
        """The most frequent gold answer of the test problems, and its fraction."""
        answers = [question.privileged["answer"] for question in self._usable().questions["test"]]
        if not answers:
            raise DataError("The test split has no problems.", value=self.config.path, fix="Give a larger file.")
        best, count = most_common_answer(answers)
        return ConstantBaseline(best, count / len(answers))

    # -- leak detection ----------------------------------------------------------------------------------------
    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        return self.checker.find_answers(task, text)

    def stated_parts(self, task: Task, text: str) -> list[tuple[int, int, str, str]]:
        return self.checker.stated_parts(task, text)


@functools.lru_cache(8)
def _load(config: str, stamped: tuple[str, int, int]) -> Loaded:
    """Cache `Dataset.read_loaded` by configuration, and by the file's path, modification time and size."""
    return Dataset(settings.Config.model_validate_json(config)).read_loaded(stamped)
