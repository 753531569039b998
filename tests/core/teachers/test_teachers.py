"""Teachers: each answers from the request alone, singly, in batches and in any order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from rl2f_core import registry
from rl2f_core.config.fields import BaseConfig
from rl2f_core.environments.base import CONTENTLESS, Environment, wrap_answer
from rl2f_core.environments.capabilities import Baselines, Demonstrator, MisleadingHints
from rl2f_core.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.teachers.contentless import ContentlessTeacher
from rl2f_core.teachers.misleading import MisleadingTeacher
from rl2f_core.teachers.scripted import ScriptedTeacher
from rl2f_core.teachers.shuffled import ShuffledTeacher
from rl2f_core.types import ConstantBaseline, Split, Task, Turn, Verdict

ENVIRONMENTS = ("arithmetic", "guess_number", "knights_knaves", "secret_code")
TEACHERS = ("contentless", "misleading", "scripted", "shuffled")


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


@pytest.mark.parametrize("world", [*ENVIRONMENTS, "doors"])
def test_shuffled_hint_is_from_another_problem(world: str):
    env = Doors(Doors.Config()) if world == "doors" else environment(world)
    shuffled = teacher("shuffled", env)
    for split in ("train", "test"):
        requests = [wrong_request(env, i, turns=1 + i % 3, seed=s, split=split) for i in range(15) for s in (0, 1)]
        for request, feedback in zip(requests, shuffled.feedback(requests), strict=True):
            assert feedback.source_task is not None and feedback.source_task != request.task.id
            other = env.task(split, int(feedback.source_task.rsplit("/", 1)[1]))
            assert other.id == feedback.source_task
            assert env.canonical(other) != env.canonical(request.task)
            assert env.gold_answer(other) != env.gold_answer(request.task)


def test_shuffled_prefers_equal_public_data():
    env = Doors(Doors.Config())
    requests = [wrong_request(env, index, seed=seed) for index in range(27) for seed in range(4)]
    for request, feedback in zip(requests, teacher("shuffled", env).feedback(requests), strict=True):
        other = env.task("test", int(str(feedback.source_task).rsplit("/", 1)[1]))
        assert other.public == request.task.public


def test_shuffled_prefers_similar_problem_text():
    env = environment("secret_code")
    shared, chance = [], []
    for request in (wrong_request(env, index, seed=index) for index in range(25)):
        feedback = teacher("shuffled", env).feedback([request])[0]
        other = env.task("test", int(str(feedback.source_task).rsplit("/", 1)[1]))
        letters = set(env.prompt(request.task.public).split())
        shared.append(len(letters & set(env.prompt(other.public).split())))
        chance.append(len(letters & set(env.prompt(env.task("test", request.seed + 100).public).split())))
    assert sum(shared) > sum(chance)


class Recorder(Teacher):
    """Remembers what it was asked; fails where the other task's door is even."""

    Config = ScriptedTeacher.Config

    def __init__(self, config: Any, environment: Environment) -> None:
        super().__init__(config, environment)
        self.asked: list[list[FeedbackRequest]] = []

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        self.asked.append(list(requests))
        return [
            Feedback("", error="no connection") if r.task.privileged["door"] % 2 == 0 else Feedback("odd")
            for r in requests
        ]


def recorded(env: Environment) -> tuple[ShuffledTeacher, Recorder]:
    shuffled = ShuffledTeacher(ShuffledTeacher.Config(), env)
    shuffled.source = Recorder(ScriptedTeacher.Config(), env)
    return shuffled, shuffled.source


def test_shuffled_source_gets_one_batch():
    env = Doors(Doors.Config())
    shuffled, source = recorded(env)
    requests = [wrong_request(env, index, turns=1 + index % 4, seed=index) for index in range(20)]
    shuffled.feedback(requests)
    assert len(source.asked) == 1
    for request, other in zip(requests, source.asked[0], strict=True):
        assert len(other.turns) == len(request.turns)
        assert not any(verdict.correct for verdict in other.verdicts)
        assert [turn.index for turn in other.turns] == list(range(len(other.turns)))
        assert all(turn.hint is not None for turn in other.turns[:-1]) and other.turns[-1].hint is None
        assert other.verdicts == tuple(env.verify(other.task, turn.attempt) for turn in other.turns)


def test_shuffled_dialogue_extends_over_turns():
    env = Doors(Doors.Config())
    shuffled, source = recorded(env)
    long = wrong_request(env, 4, turns=4, seed=9)
    for turns in range(1, 5):
        shuffled.feedback([FeedbackRequest(long.task, long.turns[:turns], seed=9)])
    others = [asked[0] for asked in source.asked]
    assert len({other.task.id for other in others}) == 1
    for shorter, longer in pairwise(others):
        assert [t.attempt for t in longer.turns[: len(shorter.turns)]] == [t.attempt for t in shorter.turns]
    assert len(others[3].turns) == 4


def test_shuffled_dialogue_contains_scripted_hints():
    env = Doors(Doors.Config())
    shuffled, source = recorded(env)
    long = wrong_request(env, 4, turns=3, seed=9)
    said = [
        teacher("shuffled", env).feedback([FeedbackRequest(long.task, long.turns[:n], seed=9)])[0].text for n in (1, 2)
    ]
    shuffled.feedback([long])
    assert [turn.hint.text for turn in source.asked[0][0].turns[:2] if turn.hint] == said


def test_shuffled_retry_uses_another_dialogue():
    env = Doors(Doors.Config(doors=30, colours=1))
    request = wrong_request(env, 4, seed=9)
    again = [FeedbackRequest(request.task, request.turns, seed=9, retry=retry) for retry in range(8)]
    assert len({f.source_task for f in teacher("shuffled", env).feedback(again)}) > 1


def test_shuffled_source_error_is_kept():
    env = Doors(Doors.Config())
    shuffled, source = recorded(env)
    requests = [wrong_request(env, index, seed=index) for index in range(20)]
    answers = shuffled.feedback(requests)
    doors = [other.task.privileged["door"] for other in source.asked[0]]
    assert [answer.error for answer in answers] == ["no connection" if door % 2 == 0 else None for door in doors]
    assert 0 < sum(answer.error is None for answer in answers) < 20


def test_shuffled_without_other_task_is_an_error():
    env = Doors(Doors.Config(doors=1, colours=1))
    request = FeedbackRequest(
        env.task("test", 0), (Turn(index=0, attempt="?", verdict=env.verify(env.task("test", 0), "?")),), 0
    )
    (feedback,) = teacher("shuffled", env).feedback([request])
    assert feedback.error is not None and "doors/test/0" in feedback.error and feedback.source_task is None


def test_shuffled_source_cannot_be_shuffled():
    env = Doors(Doors.Config())
    assert isinstance(ShuffledTeacher(ShuffledTeacher.Config(), env).source, ScriptedTeacher)
    assert isinstance(ShuffledTeacher(ShuffledTeacher.Config(source="misleading"), env).source, MisleadingTeacher)
    own_words = teacher("shuffled", env, source={"type": "contentless", "text": "Hm."})
    assert own_words.feedback([wrong_request(env, 1)])[0].text == "Hm."
    for source in ("shuffled", {"type": "shuffled"}, ShuffledTeacher.Config(), "nobody"):
        with pytest.raises(ValidationError):
            ShuffledTeacher.Config(source=source)


def test_shuffled_schema_lists_other_teachers():
    source = ShuffledTeacher.Config.model_json_schema()["properties"]["source"]
    offered = {option["properties"]["type"]["const"] for option in source["oneOf"]}
    assert {"scripted", "contentless", "misleading"} <= offered and "shuffled" not in offered


def test_config_round_trip():
    config = ShuffledTeacher.Config(source={"type": "contentless", "text": "Hm."}, hint_follow_rate=0.25)
    assert ShuffledTeacher.Config.model_validate(config.model_dump(mode="json")) == config
