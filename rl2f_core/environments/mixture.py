"""`mixture`: several environments in one run; each task belongs to one sub-environment, which handles it.

The public data of a task names its sub-environment; `Task.environment` is the sub-environment's registered name.
Tasks follow the configured weights as evenly as possible: any n consecutive tasks contain about n·w tasks of a
sub-environment with weight w.  Splits are disjoint because those of each sub-environment are.  If the system messages
differ, each is prepended to the problems of its sub-environment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from rl2f_core import registry
from rl2f_core.config.components import Component, by_name
from rl2f_core.config.fields import BASIC_FIELD, BaseConfig, ComponentConfig
from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import (
    AnswerSpace,
    Baselines,
    Demonstrator,
    LeakVocabulary,
    MisleadingHints,
    Perturbations,
    ScriptedHints,
    SolveBounds,
)
from rl2f_core.environments.stateful import OracleEnvironment, StatefulEnvironment
from rl2f_core.errors import DataError
from rl2f_core.types import ConstantBaseline, Split, Task, TaskData

if TYPE_CHECKING:
    from rl2f_core.config.run import RunConfig

KEY = "mixture"
"""Key of the sub-environment's name in a task's public data."""
SYSTEM = "Answer in the form that each problem asks for."
_GOLDEN = 11_400_714_819_323_198_485  # 2⁶⁴ / φ, odd: multiples of it modulo 2⁶⁴ spread evenly over any range
_NOT_A_MIXTURE = Component(
    "environment", other_than=("mixture",), reason="a part of a mixture cannot be a mixture; name its parts here"
)


class Part(BaseConfig):
    """One of the environments."""

    environment: Annotated[ComponentConfig, _NOT_A_MIXTURE] = Field(json_schema_extra=BASIC_FIELD)
    """Tasks and verifier."""
    weight: float = Field(1.0, gt=0, json_schema_extra=BASIC_FIELD)
    """Number of its tasks relative to the other environments."""
    name: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,31})?$")
    """Unique name in ids and metrics; the environment's name by default."""

    @property
    def label(self) -> str:
        """The name in effect."""
        return self.name or self.environment.type


@registry.register("environment")
class Mixture(Perturbations):
    """Delegates every method on a task to the task's sub-environment.

    An instance has each optional base class of `capabilities` that all its sub-environments have.
    """

    class Config(ComponentConfig):
        """The environments and their weights."""

        type: Literal["mixture"] = "mixture"
        """Name of the environment."""
        environments: tuple[Part, ...] = Field(
            by_name(({"environment": "guess_number"}, {"environment": "secret_code"})),
            min_length=2,
            json_schema_extra=BASIC_FIELD,
        )
        """The environments that tasks come from."""

        @field_validator("environments")
        @classmethod
        def _check_labels(cls, parts: tuple[Part, ...]) -> tuple[Part, ...]:
            labels = [part.label for part in parts]
            twice = next((label for label in labels if labels.count(label) > 1), None)
            if twice is not None:
                raise ValueError(f"two parts are called {twice!r}; give each a unique name")
            return parts

        def check_run(self, run: RunConfig) -> None:
            """Apply the run checks of all environments. Raises `ValueError`."""
            for part in self.environments:
                if hasattr(part.environment, "check_run"):
                    part.environment.check_run(run)

    config: Config

    def __new__(cls, config: Config) -> Mixture:
        return super().__new__(_with_shared_parts(tuple(member for member, _ in cls.members(config))))

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._parts = {
            part.label: registry.get("environment", part.environment.type)(part.environment)
            for part in config.environments
        }
        total = sum(part.weight for part in config.environments)
        self.weights = {part.label: part.weight / total for part in config.environments}
        systems = {part.system_prompt() for part in self._parts.values()}
        self._system = systems.pop() if len(systems) == 1 else None

    @classmethod
    def members(cls, config: ComponentConfig) -> list[tuple[type[Environment], ComponentConfig]]:
        assert isinstance(config, Mixture.Config)
        return [(registry.get("environment", part.environment.type), part.environment) for part in config.environments]

    def describe_data(self) -> str:
        texts = {name: part.describe_data() for name, part in self._parts.items()}
        return "\n".join(f"{name}: {text}" for name, text in texts.items() if text)

    # -- tasks and their sub-environments ----------------------------------------------------------------------
    @property
    def sub_environments(self) -> Mapping[str, Environment]:
        return self._parts

    def sub_environment_of(self, task: Task) -> str:
        return self._label(task.public)

    def for_tasks(self, task_ids: Collection[str]) -> Mixture:
        """A split with few problems has other fractions than the configured weights; see `distinct_tasks`.

        With ids that `task` did not assign, the weights are the configured ones.
        """
        counts = Counter(task_id.partition("/")[0] for task_id in task_ids)
        if not counts.keys() <= self._parts.keys():
            return self
        weights = {label: counts[label] / counts.total() for label in self._parts if label in counts}
        changed = Mixture.__new__(Mixture, self.config)
        vars(changed).update(vars(self), weights=weights)
        return changed

    def owns_environment(self, name: str) -> bool:
        return name == self.name or any(part.name == name for part in self._parts.values())

    def adopt_task(self, task: Task) -> Task:
        """A task without a valid mark gets the first sub-environment of its registered name."""
        current = self._parts.get(str(task.public.get(KEY)))
        if current is not None and current.name == task.environment:
            return task
        label = next((label for label, part in self._parts.items() if part.name == task.environment), None)
        if label is None:
            raise DataError("The task is of no part of this mixture.", value=task.environment, known=list(self._parts))
        return _marked(label, task, task.id)

    def _label(self, public: TaskData) -> str:
        label = public.get(KEY)
        if label not in self._parts:
            raise DataError("The task names no part of this mixture.", value=label, known=list(self._parts))
        return str(label)

    def _local(self, task: Task) -> tuple[Environment, Task]:
        """Return the sub-environment, and the task without its mark."""
        part = self._parts[self._label(task.public)]
        return part, task.model_copy(update={"public": _unmarked(task.public)})

    def task(self, split: Split, index: int) -> Task:
        label = self.label_at(index)
        return _marked(label, self._parts[label].task(split, index), f"{label}/{split}/{index}")

    def label_at(self, index: int) -> str:
        """Return the sub-environment of the task at a position of any split."""
        point = ((index + 1) * _GOLDEN) % 2**64 / 2**64
        for label, weight in self.weights.items():
            point -= weight
            if point < 0:
                return label
        return label

    def perturbations(self, task: Task) -> dict[str, Task]:
        part, local_task = self._local(task)
        copies = part.perturbations(local_task) if isinstance(part, Perturbations) else {}
        label = self.sub_environment_of(task)
        return {name: _marked(label, copy, copy.id) for name, copy in copies.items()}

    def canonical(self, task: Task) -> str:
        """The sub-environment's key, prefixed with its registered name, which two of them may share."""
        part, local_task = self._local(task)
        return f"{part.name}:{part.canonical(local_task)}"

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """The task of the first sub-environment that can parse it, preferring one whose system message the problem has.

        Raises `DataError` if none can.
        """
        errors: list[str] = []
        heads = {label: self._head(part) for label, part in self._parts.items()}
        for label in sorted(heads, key=lambda label: not (heads[label] and problem.startswith(heads[label]))):
            try:
                task = self._parts[label].task_from_gold(problem.removeprefix(heads[label]), answer)
                return _marked(label, task, task.id)
            except DataError as error:
                errors.append(f"{label}: {error}")
        raise DataError(f"No part of the mixture can read it. {' '.join(errors)}", value=problem)

    # -- student and verifier; `_DELEGATED` lists the other methods ---------------------------------------------
    def system_prompt(self) -> str:
        """The system message that all sub-environments share, or a general one."""
        return SYSTEM if self._system is None else self._system

    def prompt(self, public: TaskData) -> str:
        part = self._parts[self._label(public)]
        return f"{self._head(part)}{part.prompt(_unmarked(public))}"

    def _head(self, part: Environment) -> str:
        """Return the prefix of a sub-environment's problems: its system message, if these differ."""
        return f"{part.system_prompt()}\n\n" if self._system is None and part.system_prompt() else ""

    def prefetch_verdicts(self, attempts: Sequence[tuple[Task, str]]) -> None:
        """Prefetch the attempts of each sub-environment together."""
        for label, part in self._parts.items():
            batch = [(self._local(task)[1], text) for task, text in attempts if self._label(task.public) == label]
            if batch:
                part.prefetch_verdicts(batch)


class _MixtureBaselines(Mixture, Baselines):
    def _baselines(self) -> dict[str, Baselines]:
        parts = {label: self._parts[label] for label in self.weights}
        return {label: part for label, part in parts.items() if isinstance(part, Baselines)}

    def constant_baseline(self) -> ConstantBaseline:
        """The weighted constant baselines of a player who knows each problem's sub-environment.

        Never below the best single constant answer.
        """
        baselines = {label: part.constant_baseline() for label, part in self._baselines().items()}
        return ConstantBaseline(
            "; ".join(f"{label}: {baseline.answer}" for label, baseline in baselines.items()),
            sum(self.weights[label] * baseline.score for label, baseline in baselines.items()),
        )

    def bounds(self, turns: int) -> SolveBounds | None:
        """The weighted bounds of the sub-environments; None if one has none."""
        optional = {label: part.bounds(turns) for label, part in self._baselines().items()}
        known = {label: bounds for label, bounds in optional.items() if bounds is not None}
        if len(known) < len(optional):
            return None
        copying = [
            self.weights[label] * bounds.copying for label, bounds in known.items() if bounds.copying is not None
        ]
        return SolveBounds(
            sum(self.weights[label] * bounds.with_hints for label, bounds in known.items()),
            sum(self.weights[label] * bounds.without_hints for label, bounds in known.items()),
            sum(copying) if len(copying) == len(known) else None,
        )


_DELEGATED: dict[type[Environment], tuple[str, ...]] = {
    Environment: (
        "hint_names",
        "solution",
        "has_secret",
        "gold_answer",
        "parse",
        "score_parsed",
        "verify",
        "verify_turn",
        "restore",
        "unfinished_reward",
        "is_correct_answer",
    ),
    OracleEnvironment: ("oracle_action", "plan"),
    StatefulEnvironment: ("initial", "valid_actions", "step", "distance"),
    MisleadingHints: ("misleading_hint", "claim_agreement", "is_misled"),
    ScriptedHints: ("hint",),
    Demonstrator: ("simulate_attempt", "worked_solution"),
    Baselines: (),
    AnswerSpace: ("answer_space", "answer_values", "right_answers", "hint_statements"),
    LeakVocabulary: ("find_answers", "answer_parts", "stated_parts", "attempt_contains", "student_parts"),
}
"""Methods on a task by base class (subclasses first), which call the same method of the task's sub-environment."""


def _delegate(name: str) -> Callable[..., object]:
    def forward(self: Mixture, task: Task, *args: object, **kwargs: object) -> object:
        part, local_task = self._local(task)
        return getattr(part, name)(local_task, *args, **kwargs)

    return forward


@lru_cache
def _with_shared_parts(members: tuple[type[Environment], ...]) -> type[Mixture]:
    """Return the subclass of `Mixture` with each optional base class that all `members` have."""
    shared = [part for part in _DELEGATED if all(issubclass(member, part) for member in members)]
    methods = {name: _delegate(name) for part in shared for name in _DELEGATED[part]}
    mixture = _MixtureBaselines if Baselines in shared else Mixture
    others = [part for part in shared if part not in (Environment, Baselines)]
    return type("Mixture", (mixture, *others), {"__module__": __name__, **methods})


def _marked(label: str, task: Task, task_id: str) -> Task:
    return task.model_copy(update={"id": task_id, "public": {**task.public, KEY: label}})


def _unmarked(public: TaskData) -> TaskData:
    return {key: value for key, value in public.items() if key != KEY}
