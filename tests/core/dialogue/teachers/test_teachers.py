"""Teachers: each answers from the request alone, singly, in batches and in any order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from rl2f_core import registry
from rl2f_core.config.fields import BaseConfig
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.dialogue.teachers.contentless import ContentlessTeacher
from rl2f_core.environments.base import CONTENTLESS, Environment, wrap_answer
from rl2f_core.environments.capabilities import Baselines, Demonstrator, MisleadingHints
from rl2f_core.types import ConstantBaseline, Split, Task, Turn, Verdict

ENVIRONMENTS = ("arithmetic", "guess_number", "knights_knaves", "secret_code")
TEACHERS = ("contentless", "misleading", "scripted")


class Doors(MisleadingHints, Demonstrator, Baselines):
    """One of n doors is right; the hint says left or right of the last try, with a random exclamation."""

    class Config(BaseConfig):
        """Number of doors, and whether the colour differs from task to task."""

        type: Literal["doors"] = "doors"
        doors: int = 9
        colours: int = 3

    def task(self, split: Split, index: int) -> Task:
        door, colour = index % self.config.doors, index // self.config.doors % self.config.colours
        return Task(
            id=f"doors/{split}/{index}",
            environment="doors",
            split=split,
            level="all",
            public={"colour": colour},
            privileged={"door": door},
        )

    def canonical(self, task: Task) -> str:
        return f"{task.public['colour']}/{task.privileged['door']}"

    def task_from_gold(self, problem: str, answer: str) -> Task:
        return self.task("test", int(answer))

    def prompt(self, public: dict[str, Any]) -> str:
        return f"Which door of colour {public['colour']}?"

    def gold_answer(self, task: Task) -> str:
        return str(task.privileged["door"])

    def parse(self, task: Task, text: str) -> str | None:
        return text if text.isascii() and text.isdigit() else None

    def score_parsed(self, task: Task, parsed: str) -> Verdict:
        correct = parsed == self.gold_answer(task)
        return Verdict(correct=correct, score=float(correct), parsed=parsed, well_formed=True)

    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        more = task.privileged["door"] > int(attempts[-1].parsed or -1)
        return f"{'Further right' if more else 'Further left'}{'.' * rng.randint(1, 9)}"

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        told = self.hint(task, attempts, rng)
        return told.replace("right", "left") if "right" in told else told.replace("left", "right")

    def simulate_attempt(
        self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow_hint: bool, correct: bool
    ) -> str:
        wrong = [door for door in range(self.config.doors) if door != task.privileged["door"]]
        return wrap_answer(self.gold_answer(task) if correct or not wrong else str(rng.choice(wrong)))

    def constant_baseline(self) -> ConstantBaseline:
        return ConstantBaseline("0", 1 / self.config.doors)


def teacher(name: str, environment: Environment, **settings: Any) -> Teacher:
    cls: Any = registry.get("teacher", name)
    return cls(cls.Config(**settings), environment)


def environment(name: str) -> Environment:
    cls: Any = registry.get("environment", name)
    return cls(cls.Config())


def wrong_request(
    env: Environment, index: int, turns: int = 1, seed: int = 0, split: Split = "test"
) -> FeedbackRequest:
    """A dialogue of `turns` wrong attempts on task `index`."""
    task, rng = env.task(split, index), random.Random(f"{index}/{seed}")
    held: list[Turn] = []
    while len(held) < turns:
        verdicts = [turn.verdict for turn in held]
        attempt = env.simulate_attempt(task, verdicts, rng, follow_hint=False, correct=False)
        held.append(Turn(index=len(held), attempt=attempt, verdict=env.verify(task, attempt)))
    return FeedbackRequest(task, tuple(held), seed=seed)


def requests_of(env: Environment, count: int = 12) -> list[FeedbackRequest]:
    return [wrong_request(env, index, turns=1 + index % 3, seed=index * 7) for index in range(count)]


def test_teachers_are_registered():
    assert set(TEACHERS) <= set(registry.names("teacher"))
    for name in TEACHERS:
        assert teacher(name, Doors(Doors.Config())).name == name


@pytest.mark.parametrize("name", TEACHERS)
@pytest.mark.parametrize("world", [*ENVIRONMENTS, "doors"])
def test_hints_depend_only_on_the_request(name: str, world: str):
    env = Doors(Doors.Config()) if world == "doors" else environment(world)
    requests = requests_of(env)
    together = teacher(name, env).feedback(requests)
    assert len(together) == len(requests) and all(isinstance(f, Feedback) and f.text for f in together)
    assert all(feedback.error is None for feedback in together)
    singly = [teacher(name, env).feedback([request])[0] for request in requests]
    assert singly == together
    used = teacher(name, env)
    used.feedback(requests[5:])
    assert used.feedback(requests[::-1]) == together[::-1]


@pytest.mark.parametrize("name", TEACHERS)
def test_empty_batch(name: str):
    assert teacher(name, Doors(Doors.Config())).feedback([]) == []


@pytest.mark.parametrize("world", ENVIRONMENTS)
def test_scripted_returns_environment_hint(world: str):
    env = environment(world)
    for request in requests_of(env):
        expected = env.hint(request.task, request.verdicts, request.rng())
        assert teacher("scripted", env).feedback([request]) == [Feedback(expected)]


@pytest.mark.parametrize("world", [*ENVIRONMENTS, "doors"])
def test_misleading_returns_misleading_hint(world: str):
    env = Doors(Doors.Config()) if world == "doors" else environment(world)
    requests = [wrong_request(env, index, seed=index) for index in range(60)]
    true = teacher("scripted", env).feedback(requests)
    false = teacher("misleading", env).feedback(requests)
    assert false == [Feedback(env.misleading_hint(r.task, r.verdicts, r.rng())) for r in requests]
    assert all(a.text != b.text for a, b in zip(true, false, strict=True))


def test_contentless_is_constant():
    env = Doors(Doors.Config())
    assert {f.text for f in teacher("contentless", env).feedback(requests_of(env))} == {CONTENTLESS}
    assert {f.text for f in teacher("contentless", env, text="No.").feedback(requests_of(env))} == {"No."}
    with pytest.raises(ValidationError):
        ContentlessTeacher.Config(text="")


def test_rng_differs_by_seed_turn_and_retry():
    env = Doors(Doors.Config())
    base = wrong_request(env, 3, seed=1)
    texts = Counter(
        teacher("scripted", env).feedback([FeedbackRequest(base.task, base.turns, seed=seed, retry=retry)])[0].text
        for seed in range(10)
        for retry in range(3)
    )
    assert len(texts) > 5


def test_config_round_trip():
    config = ContentlessTeacher.Config(text="Hm.")
    assert ContentlessTeacher.Config.model_validate(config.model_dump(mode="json")) == config
