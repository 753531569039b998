"""The contract of an environment: seeded tasks, a prompt, a strict verifier, a scripted teacher, an imperfect student.

Task data stands apart from behaviour: `prompt` receives `task.public` alone, so it cannot show the answer.  Everything
random takes an explicit `random.Random`, so the same seed gives the same words.

Answers travel in `<answer>…</answer>`, and the parser that rewards is the parser that evaluates.
"""

from __future__ import annotations

import hashlib
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from rl2f_core.config import BaseConfig
from rl2f_core.errors import DataError, shorten
from rl2f_core.types import SPLITS, Split, Task, Verdict

CONTENTLESS = "That is not correct. Try again."
NEUTRAL = "Check your answer and give it again."
"""In place of `CONTENTLESS` where the dialogue goes on without the verifier's word, which that message would tell."""
MAX_ATTEMPT_CHARS = 20_000
"""Longer attempts are unparsable: no honest answer is that long, and no parser should have to read it."""


class Floor(NamedTuple):
    """The best that can be had without looking at the problem."""

    answer: str
    """The constant answer."""
    score: float
    """The expected share of tasks it solves at one attempt."""


class Bounds(NamedTuple):
    """Closed-form solve probabilities within T turns."""

    with_hints: float
    """The best possible player who uses every hint."""
    without_hints: float
    """The best possible player who is told only that an attempt was wrong."""
    copying: float | None = None
    """A player who keeps or respects what hints say, and is random otherwise; None where not defined."""


class Environment(ABC):
    """Tasks and everything that can be said about attempts on them."""

    Config: ClassVar[type[BaseConfig]]
    needs_hint: ClassVar[bool] = False
    """True where no player without hints can reach what a player with hints can."""
    level_field: ClassVar[str | None] = None
    """The field of `Config` that says how hard the tasks are; None where no single one does."""
    level_values: ClassVar[tuple[int, ...]] = ()
    """Its values from easy to hard, that an evaluation over levels plays by default."""
    perturbed: ClassVar[tuple[str, ...]] = ()
    """The names under which `perturbations` gives copies of a task."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    def name(self) -> str:
        """The registered name."""
        return self.config.type

    # -- tasks -------------------------------------------------------------------------------------------------
    @abstractmethod
    def task(self, split: Split, index: int) -> Task:
        """The task at position `index` (0, 1, 2 …) of a split: an endless, seeded, repeatable stream.

        The three splits are disjoint under `canonical`; a stream may repeat itself where a split is small.
        """

    @abstractmethod
    def canonical(self, task: Task) -> str:
        """A key that two tasks share exactly when they are the same problem up to renaming."""

    @abstractmethod
    def task_from_gold(self, problem: str, answer: str) -> Task:
        """A task from a problem text and a gold answer in the environment's own form (for `rl2f verify`).

        Raises `DataError` where the answer, or what the verifier needs of the problem, cannot be read.
        """

    def about(self) -> str:
        """What a run should say of its tasks before it begins, in a sentence or a few; empty where there is nothing."""
        return "\n".join(f"{name}: {text}" for name, part in self.parts.items() if (text := part.about()))

    @property
    def parts(self) -> Mapping[str, Environment]:
        """The environments of a mixture by their names; empty where it is none."""
        return {}

    def speaks_of(self, environment: str) -> bool:
        """Whether tasks whose `Task.environment` is this name are its own; a mixture's are named for its parts'."""
        return environment == self.name or any(part.name == environment for part in self.parts.values())

    def adopted(self, task: Task) -> Task:
        """A task that `speaks_of` covers and another configuration may have made, as it is told among its own: in a
        mixture, with the part that it belongs to."""
        return task

    def part_of(self, task: Task) -> str:
        """The name of the part that a task belongs to; empty where the environment is no mixture."""
        return ""

    @classmethod
    def copies_in(cls, config: Any) -> tuple[str, ...]:
        """The names of the copies that tasks of this configuration may have: `perturbed`, or those of its parts."""
        return cls.perturbed

    @classmethod
    def unsolved_in(cls, config: Any) -> tuple[str, ...]:
        """The environments of this configuration that never have a `worked_solution`, by their names."""
        return (config.type,) if cls.worked_solution is Environment.worked_solution else ()

    def sibling(self, task: Task, index: int) -> Task:
        """A task of the same split and sort at a position of the stream; in a mixture, one of the same part."""
        return self.task(task.split, index)

    def perturbations(self, task: Task) -> dict[str, Task]:
        """Copies of a task that a solver who reasons does as well on: by name, of those in `perturbed`.

        They follow from the task alone, are as hard, keep its split (no copy is a problem of the training split that
        the task itself is not), and are judged, prompted and hinted on by this environment. A name is absent where
        there is no such copy of this task. By default there are none.
        """
        return {}

    # -- the student's side ------------------------------------------------------------------------------------
    def system(self) -> str:
        """The system message: how to answer."""
        return "Answer as <answer>…</answer>."

    @abstractmethod
    def prompt(self, public: dict[str, Any]) -> str:
        """The problem as the student reads it, from the public half alone."""

    # -- the verifier ------------------------------------------------------------------------------------------
    @abstractmethod
    def answer(self, task: Task) -> str:
        """The gold answer in normal form, such that `verify(task, wrap(answer))` is correct."""

    @abstractmethod
    def parse(self, task: Task, text: str) -> str | None:
        """The normal form of what stands inside the answer tags, or None. Never raises, never evaluates."""

    @abstractmethod
    def judge(self, task: Task, parsed: str) -> Verdict:
        """The verdict on a parsed answer."""

    def verify(self, task: Task, attempt: str) -> Verdict:
        """The verdict on a student's text. Total: hostile text scores 0 and never raises."""
        inner, problem = extract_answer(attempt)
        parsed = None if inner is None else self.parse(task, inner)
        if parsed is None:
            return Verdict(correct=False, score=0.0, detail=problem or f"unparsable: {shorten(repr(inner), 80)}")
        return self.judge(task, parsed)

    def prepare(self, attempts: Sequence[tuple[Task, str]]) -> None:
        """Told of a batch of attempts before `verify` is asked for each, where judging together is cheaper.

        Total like `verify`, and without any effect on what it says. The default does nothing.
        """
        return

    def accepts(self, task: Task, said: str) -> bool:
        """Whether `verify` calls the bare answer `said` right. An environment may decide it more cheaply, never
        otherwise."""
        return self.verify(task, wrap(said)).correct

    def solution(self, task: Task) -> str | None:
        """The way to the answer in words, for teachers; None where the environment has none.

        The default is the text under `solution` in the privileged half, if there is one.
        """
        held = task.privileged.get("solution")
        return held if isinstance(held, str) and held.strip() else None

    def worked_solution(self, task: Task) -> str | None:
        """A student's whole right attempt: the way to the answer step by step, ending in the answer block.

        Follows from the problem and is the same every time; `verify` calls it correct. None where the environment (or
        this task) has none, e.g. where nobody can know the answer without a hint.
        """
        return None

    # -- the scripted teacher ----------------------------------------------------------------------------------
    @abstractmethod
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """A true hint on the last wrong attempt that does not give the answer away."""

    @abstractmethod
    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """A hint in the same words that points away from the answer."""

    # -- the imperfect student (warm-up data) ------------------------------------------------------------------
    @abstractmethod
    def imitate(self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow: bool, right: bool) -> str:
        """A well-formed attempt of an imperfect student, in answer tags.

        Args:
            task: The task.
            attempts: Verdicts on the attempts so far; the hint for the last of them is the scripted one.
            rng: The only source of chance.
            follow: Whether this attempt respects the last hint (keeps what it confirmed, moves where it points) or
                ignores it.
            right: Whether this attempt must be right.
        """

    # -- reference lines ---------------------------------------------------------------------------------------
    @abstractmethod
    def floor(self) -> Floor:
        """The best constant answer and its expected score."""

    def bounds(self, turns: int) -> Bounds | None:
        """Closed-form solve probabilities within `turns`, or None where there are none."""
        return None

    # -- for leak detectors ------------------------------------------------------------------------------------
    def candidates(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        """Everything in `text` that could be read as an answer: `(start, end, normal form)`, in order of start.

        The `equivalent` tier judges each by the verifier, so `1,0 24`, `1024.0` and `10 + 1014` are all found where
        the environment reads them so. The default finds nothing.
        """
        return []

    def parts_of(self, task: Task, parsed: str) -> dict[str, str]:
        """A parsed answer by its named parts: letter by place, role by person, step of a path, row of a matrix.

        By default what the verdict names. With no parts, no share of the answer can be given away but the whole.
        """
        return dict(self.judge(task, parsed).parts)

    def told_parts(self, task: Task, text: str) -> list[tuple[int, int, str, str]]:
        """Every place where `text` says what a part of the answer is: `(start, end, name, value)`, true or not.

        What is only supposed, asked, denied, or reported of the student or the problem is not said. The default finds
        nothing.
        """
        return []

    def holds(self, task: Task, parsed: str, answer: str, hint: str) -> bool:
        """May a hint repeat `answer` because the attempt `parsed`, in which its words stand, holds it?

        By default yes. A walk holds a shorter one where it begins with it, or where the hint repeats the whole walk.
        """
        return True

    def held_parts(self, task: Task, parsed: Sequence[str]) -> set[tuple[str, str]]:
        """The parts `(name, value)` that the student wrote itself, so that a hint may confirm them.

        By default of every attempt. Where a part has so few values that the student soon wrote them all, the last
        attempt alone is the better choice.

        Args:
            task: The task.
            parsed: The attempts that could be parsed, oldest first.
        """
        return {part for attempt in parsed for part in self.parts_of(task, attempt).items()}


_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)


def wrap(answer: str) -> str:
    """The answer as a student writes it."""
    return f"<answer>{answer}</answer>"


def extract_answer(attempt: str) -> tuple[str | None, str]:
    """The text inside the one answer block, or None and the reason.

    Strict, so that reward hacking does not pay: exactly one block, opened before closed, nothing but white space
    after it.
    """
    if len(attempt) > MAX_ATTEMPT_CHARS:
        return None, f"unparsable: the attempt is {len(attempt)} characters long"
    tags = list(_TAG.finditer(attempt))
    if not tags:
        return None, "unparsable: no <answer> block"
    if [tag.group(1) for tag in tags] != ["", "/"]:
        return None, "unparsable: not exactly one <answer> block"
    opening, closing = tags
    if attempt[closing.end() :].strip():
        return None, "unparsable: text after the <answer> block"
    return attempt[opening.end() : closing.start()], ""


def split_of(key: str, shares: Sequence[float] = (0.6, 0.2, 0.2)) -> Split:
    """The split that a canonical key belongs to: a hash of the key, so splits are disjoint by construction."""
    point = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
    for split, edge in zip(SPLITS, (shares[0], shares[0] + shares[1], 2.0), strict=True):
        if point < edge:
            return split
    raise AssertionError("unreachable: the last edge is above 1")


def draw(environment: Environment, split: Split, index: int, seed: int, make: Any, tries: int = 10_000) -> Task:
    """Draw tasks from `make(rng) -> Task` until one belongs to `split`; repeatable from (seed, split, index)."""
    rng = random.Random(f"{environment.name}/{seed}/{split}/{index}")
    for _ in range(tries):
        task = make(rng)
        if split_of(environment.canonical(task)) == split:
            return task.model_copy(update={"split": split, "id": f"{environment.name}/{split}/{index}"})
    raise DataError(
        f"No {split} task was found in {tries} draws: the space of {environment.name} tasks is too small to split.",
        value=environment.config.model_dump(),
        fix="Choose a larger level.",
    )
