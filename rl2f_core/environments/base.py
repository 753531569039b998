"""The environment contract: tasks, a prompt and a verifier.

Task data is separate from behavior: `prompt` receives only `task.public`, so it cannot show the answer.  Everything
random takes an explicit `random.Random`, so the same seed gives the same text.

The student answers in `<answer>…</answer>`.  Training and evaluation use the same parser.  Optional parts (scripted
hints, demonstrations, baselines, …) are the base classes in `capabilities`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, TypeVar

from rl2f_core.config.fields import ComponentConfig
from rl2f_core.errors import DataError, shorten
from rl2f_core.types import SPLITS, Message, Split, Task, TaskData, Verdict

ItemT = TypeVar("ItemT")
CONTENTLESS = "That is not correct. Try again."
NO_VERDICT_HINT = "Check your answer and give it again."
"""Replaces `CONTENTLESS`, which reveals the verdict, in dialogues that continue without it."""
MAX_ATTEMPT_CHARS = 20_000
"""Longer attempts are unparsable."""
MAX_DRAWS = 10_000
"""Draws until a task belongs to the wanted split."""
MIN_REPEATS, REPEATS_PER_PROBLEM = 200, 10
"""A split with k known problems is exhausted after `MIN_REPEATS` + `REPEATS_PER_PROBLEM` · k repeats in a row."""


class Environment(ABC):
    """Tasks, their prompt and their verifier.

    A subclass implements `task` and `prompt`.  The other defaults fit tasks with the gold answer in
    `privileged["answer"]`, verified by exact comparison.
    """

    Config: ClassVar[type[ComponentConfig]]
    """The nested configuration, with a `type` literal that is the registered name."""
    stateful: ClassVar[bool] = False
    """Attempts are actions that change a state; see `stateful.StatefulEnvironment`."""
    has_rewards: ClassVar[bool] = False
    """Verdicts have a `reward`, for `reward.preset: environment`."""

    def __init__(self, config: ComponentConfig) -> None:
        self.config = config

    @property
    def name(self) -> str:
        """The registered name."""
        return self.config.type

    @classmethod
    def members(cls, config: ComponentConfig) -> list[tuple[type[Environment], ComponentConfig]]:
        """Return the environment classes of a configuration, each with its configuration; a mixture has several."""
        return [(cls, config)]

    # -- sub-environments: a mixture overrides these -----------------------------------------------------------
    @property
    def sub_environments(self) -> Mapping[str, Environment]:
        """The environments of a mixture by name; empty for any other environment."""
        return {}

    def sub_environment_of(self, task: Task) -> str:
        """Return the name of the task's sub-environment; empty if there are none."""
        return ""

    def for_tasks(self, task_ids: Collection[str]) -> Environment:
        """Return a mixture with the weights that these tasks have; any other environment itself."""
        return self

    def owns_environment(self, name: str) -> bool:
        """Return whether `Task.environment` may be this name: its own or that of a sub-environment."""
        return name == self.name

    def adopt_task(self, task: Task) -> Task:
        """Mark a task, which another run may have generated, with its sub-environment.

        Raises `DataError` if it belongs to none.
        """
        return task

    # -- tasks -------------------------------------------------------------------------------------------------
    @abstractmethod
    def task(self, split: Split, index: int) -> Task:
        """Return the task at position `index` (0, 1, 2 …) of a split.

        The task order is endless, seeded and repeatable, and may repeat tasks of a small split.  The three splits
        are disjoint under `canonical`.
        """

    def canonical(self, task: Task) -> str:
        """Return a key that two tasks share exactly if they are the same problem up to renaming.

        The default is the public data as JSON.
        """
        return json.dumps(task.public, sort_keys=True, ensure_ascii=False)

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Build a task from a problem text and a gold answer (for `rl2f verify`).

        Raises `DataError` if the answer, or the required data of the problem, cannot be parsed.  The default parses
        no problem.
        """
        raise DataError(
            "The environment cannot read a problem text.", value=self.name, fix="Implement `task_from_gold` in it."
        )

    def describe_data(self) -> str:
        """Describe the tasks in a few sentences, which a run logs when it starts; empty to log nothing."""
        return ""

    # -- student -----------------------------------------------------------------------------------------------
    def system_prompt(self) -> str:
        """Return the system message: how to answer."""
        return "Answer as <answer>…</answer>."

    def hint_names(self, task: Task) -> tuple[str, ...]:
        """Return the words that hints use for parts of this problem alone (letters, people), in a fixed order.

        The `shuffled` control replaces the names in a hint on another problem by those at the same positions.  The
        default is none: all problems of a level use the same words.
        """
        return ()

    @abstractmethod
    def prompt(self, public: TaskData) -> str:
        """Return the problem text for the student, from the public data only."""

    def prompt_messages(self, public: TaskData) -> list[Message]:
        """Return the messages before the first attempt: the system message, unless it is empty, and the problem."""
        system = self.system_prompt()
        start = [Message(role="system", content=system)] if system else []
        return [*start, Message(role="user", content=self.prompt(public))]

    def solution(self, task: Task) -> str | None:
        """Return the worked solution for teachers, by default `privileged["solution"]`; None if there is none."""
        text = task.privileged.get("solution")
        return text if isinstance(text, str) and text.strip() else None

    def has_secret(self, task: Task) -> bool:
        """Return whether hints on a task without a gold answer could leak something, by default any privileged data."""
        return bool(task.privileged)

    # -- verifier ----------------------------------------------------------------------------------------------
    def gold_answer(self, task: Task) -> str:
        """Return the gold answer in normal form, such that `verify(task, wrap_answer(answer))` is correct."""
        return str(task.privileged["answer"])

    def parse(self, task: Task, text: str) -> str | None:
        """Return the normal form of the text inside the answer tags, or None. Never raises, never evaluates.

        The default joins the words by single spaces; an empty text has no normal form.
        """
        return " ".join(text.split()) or None

    def score_parsed(self, task: Task, parsed: str) -> Verdict:
        """Return the verdict on a parsed answer. The default compares it with the gold answer."""
        gold = self.gold_answer(task)
        correct = parsed == gold
        detail = "right" if correct else f"{shorten(parsed, 80)} is wrong: the answer is {shorten(gold, 200)}"
        return Verdict(correct=correct, score=float(correct), parsed=parsed, well_formed=True, detail=detail)

    def extract(self, attempt: str) -> tuple[str | None, str]:
        """Return the answer text of an attempt, or None and the reason."""
        return extract_answer(attempt)

    def verify(self, task: Task, attempt: str) -> Verdict:
        """Return the verdict on an attempt. Hostile text scores 0 and never raises."""
        inner, problem = self.extract(attempt)
        parsed = None if inner is None else self.parse(task, inner)
        if parsed is None:
            return Verdict(correct=False, score=0.0, detail=problem or f"unparsable: {shorten(repr(inner), 80)}")
        return self.score_parsed(task, parsed)

    def verify_turn(self, task: Task, earlier: Sequence[Verdict], attempt: str) -> Verdict:
        """Return the verdict on the next attempt of a dialogue.

        `earlier` are the verdicts on the attempts before it. Only stateful environments use them.
        """
        return self.verify(task, attempt)

    def restore(self, task: Task, earlier: Sequence[Verdict]) -> object:
        """Return the state after recorded attempts; None without a state.

        Raises `DataError` if the recorded observations do not match.
        """
        return None

    def unfinished_reward(self, task: Task) -> float:
        """Return the reward of an episode that uses all turns, or fills the context, before it ends."""
        return 0.0

    def prefetch_verdicts(self, attempts: Sequence[tuple[Task, str]]) -> None:
        """Prepare the `verify` calls for a batch of attempts, if that is cheaper than one by one.

        Never raises and never changes the verdicts.  The default does nothing.
        """
        return

    def is_correct_answer(self, task: Task, answer: str) -> bool:
        """Return whether an answer, without tags, is correct. An override may be cheaper but must return the same."""
        parsed = self.parse(task, answer)
        return parsed is not None and bool(self.score_parsed(task, parsed).correct)


_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)


def wrap_answer(answer: str) -> str:
    """Put an answer in answer tags."""
    return f"<answer>{answer}</answer>"


def parsed_answers(environment: Environment, attempts: Sequence[tuple[Task, str]]) -> list[tuple[Task, str]]:
    """Return the answers of the attempts that can be parsed, in normal form."""
    inner = ((task, environment.extract(attempt)[0]) for task, attempt in attempts)
    parsed = ((task, None if text is None else environment.parse(task, text)) for task, text in inner)
    return [(task, answer) for task, answer in parsed if answer is not None]


def extract_answer(attempt: str) -> tuple[str | None, str]:
    """Return the text inside the answer block, or None and the reason.

    Strict against reward hacking: exactly one block, opened before closed, and only white space after it.
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


def find_rows(text: str, cells: str) -> list[str]:
    """Return the first consecutive lines of a text that consist of `cells`, without their spaces."""
    rows: list[str] = []
    for line in text[:10_000].splitlines():
        row = line.replace(" ", "")
        if row and set(row) <= set(cells):
            rows.append(row)
        elif rows:
            break
    return rows


def assign_split(key: str, fractions: Sequence[float] = (0.6, 0.2, 0.2)) -> Split:
    """Return the split of a canonical key, by a hash of the key, so that splits are disjoint by construction."""
    point = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
    for split, edge in zip(SPLITS, (fractions[0], fractions[0] + fractions[1], 2.0), strict=True):
        if point < edge:
            return split
    raise AssertionError("unreachable: the last edge is above 1")


def new_task(environment: Environment, level: str, public: TaskData, privileged: TaskData) -> Task:
    """Build a task without a position in a split; `sample_task` sets its split and id."""
    return Task(
        id=f"{environment.name}/gold",
        environment=environment.name,
        split="test",
        level=level,
        public=public,
        privileged=privileged,
    )


def problem_key(environment: Environment, task: Task) -> str:
    """Return a short key that the tasks of one problem share in all runs: a hash of `canonical`."""
    return hashlib.sha256(environment.canonical(task).encode()).hexdigest()[:12]


def distinct_tasks(environment: Environment, split: Split, count: int) -> list[Task]:
    """Return the first `count` tasks of a split that are distinct problems (`canonical`), in a repeatable order.

    Each sub-environment of a mixture has as many as it has of the first `count` positions. A split with fewer problems
    returns all that were found: the search ends after `MIN_REPEATS` repeats in a row, plus `REPEATS_PER_PROBLEM` for
    each problem found.
    """
    first = [environment.task(split, index) for index in range(count)]
    missing = Counter(environment.sub_environment_of(task) for task in first)
    repeats: Counter[str] = Counter()
    tasks: dict[str, Task] = {}
    for index in range(count + MAX_DRAWS):
        if not missing.total():
            break
        task = first[index] if index < count else environment.task(split, index)
        name, key = environment.sub_environment_of(task), environment.canonical(task)
        if not missing[name]:
            continue
        if key not in tasks:
            tasks[key] = task
            missing[name] -= 1
            repeats[name] = 0
            continue
        repeats[name] += 1
        if repeats[name] > MIN_REPEATS + REPEATS_PER_PROBLEM * len(tasks):
            missing[name] = 0
    return list(tasks.values())


def sample_task(
    environment: Environment,
    split: Split,
    index: int,
    seed: int,
    make: Callable[[random.Random], Task],
) -> Task:
    """Draw tasks from `make(rng)` until one belongs to `split`; repeatable from (seed, split, index)."""
    rng = random.Random(f"{environment.name}/{seed}/{split}/{index}")
    for _ in range(MAX_DRAWS):
        task = make(rng)
        if assign_split(environment.canonical(task)) == split:
            return task.model_copy(update={"split": split, "id": f"{environment.name}/{split}/{index}"})
    raise DataError(
        f"No {split} task was found in {MAX_DRAWS} draws: the space of {environment.name} tasks is too small to split.",
        value=environment.config.model_dump(),
        fix="Choose a larger level.",
    )


def listed_task(
    environment: Environment,
    items: Sequence[ItemT],
    split: Split,
    index: int,
    seed: int,
    make: Callable[[ItemT], Task],
    fix: str,
) -> Task:
    """Make the task at a position of an endless order of a split's items, which is shuffled anew in each round.

    Raises `DataError` with `fix` if the split is empty.
    """
    if not items:
        raise DataError(f"The {split} split has no problems.", value=environment.config.model_dump(), fix=fix)
    epoch, offset = divmod(index, len(items))
    item = items[_order(len(items), f"{seed}/{split}/{epoch}")[offset]]
    return make(item).model_copy(update={"split": split, "id": f"{environment.name}/{split}/{index}"})


@functools.lru_cache(64)
def _order(count: int, seed: str) -> tuple[int, ...]:
    """Return a permutation of `count` positions."""
    positions = list(range(count))
    random.Random(seed).shuffle(positions)
    return tuple(positions)
