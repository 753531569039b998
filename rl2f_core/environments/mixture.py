"""`mixture`: several environments in one run; each task belongs to one part, which alone speaks of it.

The public half of a task names its part, so that a prompt can be made from it; `Task.environment` is the part's own
environment.  Parts come in the configured shares, as evenly as can be: any n tasks in a row hold a part of share s
about n·s times.  Splits are disjoint because each part's are.  Where the parts' system messages differ, each stands
before its own problems, in the student's message.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator

from rl2f_core import registry
from rl2f_core.components import Component
from rl2f_core.config import BASIC, BaseConfig
from rl2f_core.environments.base import Bounds, Environment, Floor
from rl2f_core.errors import DataError
from rl2f_core.types import Split, Task, Verdict

KEY = "mixture"
"""Where the public half of a task names its part."""
SYSTEM = "Answer in the form that each problem asks for."
_GOLDEN = 11_400_714_819_323_198_485  # 2⁶⁴ / φ, odd: multiples of it modulo 2⁶⁴ spread evenly over any stretch


class _Plain(Component):
    """An environment other than a mixture: parts of parts would say nothing that parts cannot."""

    def narrow(self, value: Any) -> Any:
        held = value.get("type") if isinstance(value, dict) else getattr(value, "type", value)
        if held == "mixture":
            raise ValueError("a part of a mixture cannot be a mixture; name its parts here")
        return super().narrow(value)

    def names(self) -> list[str]:
        return [name for name in super().names() if name != "mixture"]


_plain = _Plain("environment")


class Part(BaseConfig):
    """One of the environments."""

    environment: Annotated[SerializeAsAny[BaseConfig], _plain, BeforeValidator(_plain.narrow)] = Field(
        json_schema_extra=BASIC
    )
    """Tasks and verifier."""
    share: float = Field(1.0, gt=0, json_schema_extra=BASIC)
    """How many of the tasks it gives, relative to the other parts."""
    name: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,31})?$")
    """What it is called in ids and metrics; by default as its environment. Parts need names of their own."""

    @property
    def label(self) -> str:
        """The name in effect."""
        return self.name or self.environment.type  # type: ignore[attr-defined, no-any-return]


@registry.register("environment")
class Mixture(Environment):
    """Delegates everything about a task to the task's part."""

    class Config(BaseConfig):
        """The parts and their shares."""

        type: Literal["mixture"] = "mixture"
        """Name of the environment."""
        parts: tuple[Part, ...] = Field(
            ({"environment": "guess_number"}, {"environment": "secret_code"}),  # type: ignore[arg-type]
            min_length=2, json_schema_extra=BASIC,
        )  # fmt: skip
        """The environments that tasks come from."""

        @field_validator("parts")
        @classmethod
        def _distinct(cls, parts: tuple[Part, ...]) -> tuple[Part, ...]:
            labels = [part.label for part in parts]
            twice = next((label for label in labels if labels.count(label) > 1), None)
            if twice is not None:
                raise ValueError(f"two parts are called {twice!r}; give each a name of its own")
            return parts

        def check_run(self, run: Any) -> None:
            """Refuse what any of the parts refuses in this run. Raises `ValueError`."""
            for part in self.parts:
                check = getattr(part.environment, "check_run", None)
                if check is not None:
                    check(run)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._parts: dict[str, Environment] = {}
        for part in config.parts:
            made: Any = registry.get("environment", part.environment.type)
            self._parts[part.label] = made(part.environment)
        total = sum(part.share for part in config.parts)
        self.shares = {part.label: part.share / total for part in config.parts}
        systems = {part.system() for part in self._parts.values()}
        self._system = systems.pop() if len(systems) == 1 else None

    @property
    def parts(self) -> Mapping[str, Environment]:
        return self._parts

    @classmethod
    def copies_in(cls, config: Any) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for kind, part in _kinds(config) for name in kind.copies_in(part)))

    @classmethod
    def unsolved_in(cls, config: Any) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for kind, part in _kinds(config) for name in kind.unsolved_in(part)))

    # -- whose a task is ---------------------------------------------------------------------------------------
    def part_of(self, task: Task) -> str:
        return self._label(task.public)

    def adopted(self, task: Task) -> Task:
        """The task as the part of its name has it; else as the first part that is its environment, for a plain run or
        another mixture may have made it. Raises `DataError` where no part is."""
        named = self._parts.get(str(task.public.get(KEY)))
        if named is not None and named.name == task.environment:
            return task
        label = next((label for label, part in self._parts.items() if part.name == task.environment), None)
        if label is None:
            raise DataError("The task is of no part of this mixture.", value=task.environment, known=list(self._parts))
        return self._marked(label, task, task.id)

    def _label(self, public: Mapping[str, Any]) -> str:
        label = public.get(KEY)
        if label not in self._parts:
            raise DataError("The task names no part of this mixture.", value=label, known=list(self._parts))
        return str(label)

    def _own(self, task: Task) -> tuple[Environment, Task]:
        """The part, and the task as the part made it."""
        part = self._parts[self._label(task.public)]
        return part, task.model_copy(update={"public": _unmarked(task.public)})

    def _marked(self, label: str, task: Task, id_: str) -> Task:
        return task.model_copy(update={"id": id_, "public": {**task.public, KEY: label}})

    # -- tasks -------------------------------------------------------------------------------------------------
    def task(self, split: Split, index: int) -> Task:
        return self._at(self.label_at(index), split, index)

    def label_at(self, index: int) -> str:
        """The part of the task at a position of any split."""
        point = ((index + 1) * _GOLDEN) % 2**64 / 2**64
        for label, share in self.shares.items():
            point -= share
            if point < 0:
                return label
        return label

    def sibling(self, task: Task, index: int) -> Task:
        """A task of the same part."""
        return self._at(self.part_of(task), task.split, index)

    def _at(self, label: str, split: Split, index: int) -> Task:
        return self._marked(label, self._parts[label].task(split, index), f"{label}/{split}/{index}")

    def perturbations(self, task: Task) -> dict[str, Task]:
        part, own = self._own(task)
        label = self.part_of(task)
        return {name: self._marked(label, copy, copy.id) for name, copy in part.perturbations(own).items()}

    def canonical(self, task: Task) -> str:
        """The part's own key below the name of its environment, which two parts may share."""
        part, own = self._own(task)
        return f"{part.name}:{part.canonical(own)}"

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """The task of the first part that can read it; a part whose system message begins the problem goes first.

        Raises `DataError` where no part can.
        """
        said: list[str] = []
        heads = {label: self._head(part) for label, part in self._parts.items()}
        for label in sorted(self._parts, key=lambda label: not (heads[label] and problem.startswith(heads[label]))):
            try:
                made = self._parts[label].task_from_gold(problem.removeprefix(heads[label]), answer)
                return self._marked(label, made, made.id)
            except DataError as error:
                said.append(f"{label}: {error}")
        raise DataError(f"No part of the mixture can read it. {' '.join(said)}", value=problem)

    # -- the student's side ------------------------------------------------------------------------------------
    def system(self) -> str:
        """The parts' system message where they have the same one."""
        return SYSTEM if self._system is None else self._system

    def prompt(self, public: dict[str, Any]) -> str:
        part = self._parts[self._label(public)]
        return f"{self._head(part)}{part.prompt(_unmarked(public))}"

    def _head(self, part: Environment) -> str:
        """What stands before a part's problems: its system message, where the parts' differ."""
        return f"{part.system()}\n\n" if self._system is None and part.system() else ""

    # -- the verifier ------------------------------------------------------------------------------------------
    def answer(self, task: Task) -> str:
        part, own = self._own(task)
        return part.answer(own)

    def parse(self, task: Task, text: str) -> str | None:
        part, own = self._own(task)
        return part.parse(own, text)

    def judge(self, task: Task, parsed: str) -> Verdict:
        part, own = self._own(task)
        return part.judge(own, parsed)

    def verify(self, task: Task, attempt: str) -> Verdict:
        part, own = self._own(task)
        return part.verify(own, attempt)

    def prepare(self, attempts: Sequence[tuple[Task, str]]) -> None:
        """Each part is told of its own attempts together."""
        for label, part in self._parts.items():
            own = [(self._own(task)[1], text) for task, text in attempts if self._label(task.public) == label]
            if own:
                part.prepare(own)

    def accepts(self, task: Task, said: str) -> bool:
        part, own = self._own(task)
        return part.accepts(own, said)

    def solution(self, task: Task) -> str | None:
        part, own = self._own(task)
        return part.solution(own)

    def worked_solution(self, task: Task) -> str | None:
        part, own = self._own(task)
        return part.worked_solution(own)

    # -- teacher and imperfect student -------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        part, own = self._own(task)
        return part.hint(own, attempts, rng)

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        part, own = self._own(task)
        return part.misleading_hint(own, attempts, rng)

    def imitate(self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow: bool, right: bool) -> str:
        part, own = self._own(task)
        return part.imitate(own, attempts, rng, follow=follow, right=right)

    # -- reference lines ---------------------------------------------------------------------------------------
    def floor(self) -> Floor:
        """Each part's best constant answer, for a player who sees which part a problem is of: never below the best
        single answer."""
        floors = {label: part.floor() for label, part in self._parts.items()}
        return Floor(
            "; ".join(f"{label}: {floor.answer}" for label, floor in floors.items()),
            sum(self.shares[label] * floor.score for label, floor in floors.items()),
        )

    def bounds(self, turns: int) -> Bounds | None:
        """The parts' by their shares; None where a part has none."""
        held = {label: part.bounds(turns) for label, part in self._parts.items()}
        known = {label: bounds for label, bounds in held.items() if bounds is not None}
        if len(known) < len(held):
            return None
        copying = [self.shares[label] * bounds.copying for label, bounds in known.items() if bounds.copying is not None]
        return Bounds(
            sum(self.shares[label] * bounds.with_hints for label, bounds in known.items()),
            sum(self.shares[label] * bounds.without_hints for label, bounds in known.items()),
            sum(copying) if len(copying) == len(held) else None,
        )

    # -- for leak detectors ------------------------------------------------------------------------------------
    def candidates(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        part, own = self._own(task)
        return part.candidates(own, text)

    def parts_of(self, task: Task, parsed: str) -> dict[str, str]:
        part, own = self._own(task)
        return part.parts_of(own, parsed)

    def told_parts(self, task: Task, text: str) -> list[tuple[int, int, str, str]]:
        part, own = self._own(task)
        return part.told_parts(own, text)

    def holds(self, task: Task, parsed: str, answer: str, hint: str) -> bool:
        part, own = self._own(task)
        return part.holds(own, parsed, answer, hint)

    def held_parts(self, task: Task, parsed: Sequence[str]) -> set[tuple[str, str]]:
        part, own = self._own(task)
        return part.held_parts(own, parsed)


def _kinds(config: Any) -> list[tuple[type[Environment], Any]]:
    """The class and the configuration of each part."""
    return [(registry.get("environment", part.environment.type), part.environment) for part in config.parts]


def _unmarked(public: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in public.items() if key != KEY}
