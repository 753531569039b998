"""Optional parts of an environment, each a base class for one consumer.

An environment inherits from the parts that it implements, e.g. `class Doors(ScriptedHints, Baselines)`.  A consumer
checks with `isinstance`; a mixture is an instance of a part if all its sub-environments are.
"""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from rl2f_core import registry
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import Environment
from rl2f_core.environments.candidates import Candidate, Region
from rl2f_core.types import ConstantBaseline, Task, Verdict


class SolveBounds(NamedTuple):
    """Closed-form solve probabilities within T turns."""

    with_hints: float
    """The best player who uses every hint."""
    without_hints: float
    """The best player who only learns that an attempt was wrong."""
    copying: float | None = None
    """A player who follows the hints and is random otherwise; None if not defined."""


class ScriptedHints(Environment):
    """An environment that writes hints, for the `scripted` teacher."""

    @abstractmethod
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Write a true hint on the last wrong attempt that does not reveal the answer."""


class MisleadingHints(ScriptedHints):
    """An environment that also writes false hints, for the `misleading` control."""

    @abstractmethod
    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Write a hint in the same wording that points away from the answer."""

    def claim_agreement(self, task: Task, before: Verdict, hint: str, attempt: Verdict) -> float | None:
        """Return the fraction of a misleading hint's false claims that an attempt satisfies.

        None if the text makes no false claim that can be checked, which is the default.

        Args:
            task: The task.
            before: Verdict on the attempt that the hint is on.
            hint: The hint as the student reads it.
            attempt: Verdict on the attempt to judge: the same one, or a later one.
        """
        return None

    def is_misled(self, task: Task, before: Verdict, hint: str, after: Verdict) -> bool | None:
        """Return whether `after` is incorrect and satisfies more of the hint's false claims than `before`.

        None if there are none that `before` does not satisfy already.
        """
        old = self.claim_agreement(task, before, hint, before)
        if old is None or old >= 1:
            return None
        new = self.claim_agreement(task, before, hint, after)
        return not after.correct and new is not None and new > old


class Demonstrator(Environment):
    """An environment with a simulated student, for warm-up data."""

    @abstractmethod
    def simulate_attempt(
        self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow_hint: bool, correct: bool
    ) -> str:
        """Write a well-formed attempt of the simulated student, in answer tags.

        Args:
            task: The task.
            attempts: Verdicts on the attempts so far; the hint for the last of them is the scripted one.
            rng: The only source of randomness.
            follow_hint: Whether the attempt respects the last hint or ignores it.
            correct: Whether the attempt must be correct.
        """

    def worked_solution(self, task: Task) -> str | None:
        """Return a complete correct attempt: the steps to the answer, ending in the answer block.

        Deterministic, and accepted by `verify`.  None if the task has none, e.g. if it cannot be solved without a
        hint.
        """
        return None


class Baselines(Environment):
    """An environment with reference lines for reports."""

    @abstractmethod
    def constant_baseline(self) -> ConstantBaseline:
        """Return the best constant answer and its expected score."""

    def bounds(self, turns: int) -> SolveBounds | None:
        """Return closed-form solve probabilities within `turns`, or None if there are none."""
        return None


class LeakVocabulary(Environment):
    """An environment whose answers can be located in free text, for the `mentions` leak detector."""

    @abstractmethod
    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        """Return every span of `text` that could be an answer: `(start, end, normal form)`, ordered by start.

        The `mentions` detector verifies each, so `1,0 24`, `1024.0` and `10 + 1014` are all candidates if the
        environment can parse them.
        """

    def answer_parts(self, task: Task, parsed: str) -> dict[str, str]:
        """Return a parsed answer by named parts: letter by position, role by person, step of a path, cell of a matrix.

        The default is the parts of the verdict.  Without parts, only the whole answer can leak.
        """
        return dict(self.score_parsed(task, parsed).parts)

    def stated_parts(self, task: Task, text: str) -> list[tuple[int, int, str, str]]:
        """Return every statement in `text` about a part of the answer, true or not: `(start, end, name, value)`.

        Suppositions, questions, denials and reports of the student's answer or the problem do not count.
        """
        return []

    def attempt_contains(self, task: Task, parsed: str, answer: str, hint: str) -> bool:
        """Return whether a hint may repeat `answer`, because the attempt `parsed` contains it, and not only its words.

        True by default.  A path contains a shorter one if it begins with it, or if the hint repeats the whole path.
        """
        return True

    def student_parts(self, task: Task, parsed: Sequence[str]) -> set[tuple[str, str]]:
        """Return the parts `(name, value)` that the student wrote, which a hint may confirm.

        The default uses every attempt.  The last attempt is the better choice if a part has few values.

        Args:
            task: The task.
            parsed: The attempts that could be parsed, oldest first.
        """
        return {part for attempt in parsed for part in self.answer_parts(task, attempt).items()}


class AnswerSpace(Environment):
    """An environment whose possible answers can be counted, for the information in a hint (`hint_bits`).

    The candidates are all answers of the form that the problem asks for, before any work on it: all assignments of
    roles, all ways through a grid.  If they were the answers that agree with the problem, a problem with one solution
    would have one candidate, and no hint on it any information.
    """

    @abstractmethod
    def answer_space(self, task: Task) -> Region | None:
        """Return the candidates; None if they have no known form or are too many to count."""

    @abstractmethod
    def answer_values(self, task: Task, parsed: str) -> Candidate:
        """Return the values of a parsed answer by part of `answer_space`."""

    def right_answers(self, task: Task, parsed: str | None = None) -> list[Candidate]:
        """Return the values of the right answers; by default there is one, the gold answer.

        Of several, those that continue the right beginning of an attempt, if it is given.
        """
        return [self.answer_values(task, self.gold_answer(task))]

    @abstractmethod
    def hint_statements(self, task: Task, attempts: Sequence[Verdict], hint: str) -> tuple[Region, ...] | None:
        """Return what a hint in the wording of `hint` or `misleading_hint` states about the answer, true or not.

        Args:
            task: The task.
            attempts: Verdicts on the attempts so far; the hint is on the last of them.
            hint: The text that the student reads.

        Returns:
            One region per statement, and none for a text that states nothing about the answer.  None if the text has
            another wording, so that its meaning is unknown.
        """


class Levels(Environment):
    """An environment with one field that sets its difficulty, for evaluations by level."""

    level_field: ClassVar[str]
    """The difficulty field of `Config`."""
    level_values: ClassVar[tuple[int, ...]]
    """Default values of a levels run, from easy to hard."""


class Perturbations(Environment):
    """An environment with perturbed copies of its tasks, for the memorization score."""

    perturbation_kinds: ClassVar[tuple[str, ...]] = ()
    """The names of the copies that `perturbations` can return."""

    @abstractmethod
    def perturbations(self, task: Task) -> dict[str, Task]:
        """Return copies of a task, by a name of `perturbation_kinds`, that are as easy for a solver who reasons.

        They depend only on the task and keep its split: no copy is a training problem unless the task is one.  This
        environment prompts, hints on and verifies them.  A name is absent if there is no such copy.
        """


def last_parsed(attempts: Sequence[Verdict]) -> str | None:
    """Return the last attempt in normal form; None without attempts or if it could not be parsed."""
    return attempts[-1].parsed if attempts else None


def most_common_answer(answers: Sequence[str]) -> tuple[str, int]:
    """Return the most frequent answer and its count; of equally frequent ones the shortest."""
    return min(Counter(answers).items(), key=lambda item: (-item[1], len(item[0]), item[0]))


# -- parts of a configuration --------------------------------------------------------------------------------------
def members(config: ComponentConfig) -> list[tuple[type[Environment], ComponentConfig]]:
    """Return the environment classes of a configuration, each with its configuration; a mixture has several."""
    return registry.get("environment", config.type).members(config)


def missing_part(config: ComponentConfig, parts: Sequence[type[Environment]]) -> str:
    """Describe the first of `parts` that an environment lacks, e.g. `misleading hints`; empty if it has them all."""
    classes = [kind for kind, _ in members(config)]
    lacking = (part for part in parts if not all(issubclass(kind, part) for kind in classes))
    return next((describe_part(part) for part in lacking), "")


def check_parts(config: ComponentConfig, parts: Sequence[type[Environment]], consumer: str, fix: str) -> None:
    """Raise `ValueError` if an environment lacks one of `parts`.

    Args:
        config: The environment's configuration.
        parts: The parts that the consumer needs.
        consumer: Name in the error, e.g. `teacher 'scripted'`.
        fix: Alternatives to implementing the part.
    """
    missing = missing_part(config, parts)
    if missing:
        class_name = next(part.__name__ for part in parts if describe_part(part) == missing)
        raise ValueError(
            f"{consumer} needs an environment with {missing}, which {config.type!r} does not have; "
            f"{fix}, or implement capabilities.{class_name} in it"
        )


def describe_part(part: type[Environment]) -> str:
    """Return the name of an optional part in words, e.g. `misleading hints`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", part.__name__).lower()


def perturbation_names(config: ComponentConfig) -> tuple[str, ...]:
    """Return the names of the perturbed copies that tasks of this configuration may have."""
    kinds = [kind for kind, _ in members(config) if issubclass(kind, Perturbations)]
    return tuple(dict.fromkeys(name for kind in kinds for name in kind.perturbation_kinds))


def without_worked_solution(config: ComponentConfig) -> tuple[str, ...]:
    """Return the names of the environments in this configuration that never have a `worked_solution`."""
    names = (
        member.type
        for kind, member in members(config)
        if not issubclass(kind, Demonstrator) or kind.worked_solution is Demonstrator.worked_solution
    )
    return tuple(dict.fromkeys(names))
