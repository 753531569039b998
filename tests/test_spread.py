"""Dialogues spread over actors: who plays what, what an actor builds, and what the learner's end passes on."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from rl2f_core.backends.fake import FakeBackend
from rl2f_core.config import parse_config
from rl2f_core.environments.guess_number import GuessNumber
from rl2f_core.errors import RunError
from rl2f_core.rollout.build import build_control, build_engine
from rl2f_core.rollout.engine import Request, RolloutEngine, Student, derive_seed
from rl2f_core.rollout.spread import Plan, Player, SpreadBackend, SpreadEngine, shares
from rl2f_core.teachers.scripted import ScriptedTeacher

TASK = GuessNumber(GuessNumber.Config()).task("train", 0)


def asked(*groups: int) -> list[Request]:
    """Requests of groups of these sizes."""
    return [
        Request(TASK, f"{g}/{j}", str(g), j, derive_seed(g, j)) for g, size in enumerate(groups) for j in range(size)
    ]


def as_pairs(found: list[range]) -> list[tuple[int, int]]:
    return [(share.start, share.stop) for share in found]


@pytest.mark.parametrize(
    ("groups", "count", "ranges"),
    [
        ((4, 4, 4, 4), 2, [(0, 8), (8, 16)]),
        ((2, 2, 2), 2, [(0, 2), (2, 6)]),  # three groups by two: the cut at 3 falls inside the second
        ((8,), 3, [(0, 3), (3, 5), (5, 8)]),  # fewer groups than shares: the group is cut
        ((1, 9), 2, [(0, 1), (1, 10)]),
        ((1,), 4, [(0, 1)]),
        ((1, 1, 1), 3, [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_shares_are_in_order_and_nearly_equal_and_keep_groups_together(
    groups: tuple[int, ...], count: int, ranges: list[tuple[int, int]]
) -> None:
    assert as_pairs(shares(asked(*groups), count)) == ranges


@pytest.mark.parametrize("case", range(100))
def test_every_request_is_in_one_share_and_no_share_is_empty(case: int) -> None:
    rng = random.Random(case)
    groups = [rng.randint(1, 6) for _ in range(rng.randint(1, 12))]
    count = rng.randint(1, 9)
    requests = asked(*groups)
    found = shares(requests, count)
    assert [i for share in found for i in share] == list(range(len(requests)))
    assert all(len(share) for share in found) and len(found) == min(count, len(requests))
    if len(groups) >= count:
        starts = {i for i, r in enumerate(requests) if i == 0 or r.group != requests[i - 1].group}
        assert all(share.start in starts for share in found)


CONFIG: dict[str, Any] = {
    "environment": {"type": "guess_number", "size": 4, "low": 1},
    "backend": {"type": "fake", "replies": ["<answer>1</answer>", "<answer>2</answer>", "<answer>3</answer>"]},
    "rollout": {"max_turns": 3},
    "resources": {"actors": 2},
    "stages": [{"name": "s", "method": "rl2f", "steps": 1}],
}


def an_engine(**changes: Any) -> tuple[Any, RolloutEngine]:
    config: Any = parse_config({**CONFIG, **changes})
    return config, build_engine(config, FakeBackend(config.backend))


def test_an_actor_plays_what_the_engine_would_have_played() -> None:
    config, engine = an_engine()
    player = Player({}, config.model_dump(mode="json"))
    tasks = [engine.environment.task("train", i) for i in range(6)]
    requests = [Request(task, str(i), str(i), 0, i) for i, task in enumerate(tasks)]
    options = {"policy": "s@3", "max_turns": 2, "temperature": 0.5, "adapter": None}
    assert player.play(Plan.of(engine), requests, options, 0, {}) == engine.play(requests, **options)
    for other in (
        dataclasses.replace(engine, teacher=build_control("contentless", engine)),
        dataclasses.replace(engine, oracle_stop=False, teacher=build_control("contentless", engine)),
    ):
        assert player.play(Plan.of(other), requests, options, 0, {}) == other.play(requests, **options)
    assert len(player.engines) == 3  # one a plan
    player.play(Plan.of(engine), requests[:1], options, 0, {})
    assert len(player.engines) == 3


def test_an_actor_reads_an_adapter_once_a_version(tmp_path: Path) -> None:
    config, engine = an_engine()
    player, read = Player({}, config.model_dump(mode="json")), []
    player.backend.load_adapter = lambda name, folder: read.append(  # type: ignore[method-assign]
        (name, {p.name: p.read_bytes() for p in Path(folder).iterdir()})
    )
    request = [Request(engine.environment.task("train", 0), "0", "0", 0, 0)]
    for version, weights in ((1, b"one"), (1, b"one"), (2, b"two")):
        player.play(Plan.of(engine), request, {"adapter": "policy"}, version, {"adapter_model.safetensors": weights})
    assert read == [
        ("policy", {"adapter_model.safetensors": b"one"}),
        ("policy", {"adapter_model.safetensors": b"two"}),
    ]


def test_a_teacher_that_no_configuration_names_does_not_travel() -> None:
    class Mine(ScriptedTeacher):
        """Not registered under its name."""

    _, engine = an_engine()
    own = dataclasses.replace(engine, teacher=Mine(ScriptedTeacher.Config(), engine.environment))
    with pytest.raises(RunError, match=r"cannot play elsewhere.*resources.actors to 0"):
        Plan.of(own)


def test_the_learners_end_is_its_backend_and_passes_adapters_and_plays_on(tmp_path: Path) -> None:
    config, _ = an_engine()

    class Noting:
        def __init__(self) -> None:
            self.heard: list[Any] = []

        def load_adapter(self, name: str, folder: Path) -> None:
            self.heard.append(name)

        def play(self, plan: Plan, requests: Any, advanced: Any = None, **options: Any) -> list[Any]:
            self.heard.append((plan.teacher["type"], plan.oracle_stop, len(requests), options["policy"]))
            if advanced is not None:
                advanced(len(requests), len(requests))
            return [(options["adapter"], request.id) for request in requests]

    crew, inner = Noting(), FakeBackend(config.backend)
    backend: Any = SpreadBackend(inner, crew)  # type: ignore[arg-type]
    engine = build_engine(config, backend)
    assert isinstance(engine, SpreadEngine) and backend.tokenizer is inner.tokenizer and backend.context_limit == 4096
    backend.load_adapter("policy", tmp_path)
    engine.play(asked(2), policy="s@0")
    control = dataclasses.replace(engine, teacher=build_control("misleading", engine), oracle_stop=False)
    control.play(asked(1))
    assert crew.heard == ["policy", ("scripted", True, 2, "s@0"), ("misleading", False, 1, "base")]
    crew.heard.clear()
    a, b = Student("a", "rl@1"), Student(None, "base")
    requests, told = asked(3), list[tuple[int, int]]()
    mixed = [dataclasses.replace(request, student=who) for request, who in zip(requests, (a, b, a), strict=True)]
    played: Any = engine.play(mixed, advanced=lambda *counts: told.append(counts))
    ids = [request.id for request in requests]
    assert played == [("a", ids[0]), (None, ids[1]), ("a", ids[2])] and told == [(2, 3), (3, 3)]
    assert crew.heard == [("scripted", True, 2, "rl@1"), ("scripted", True, 1, "base")]  # one after another
    assert not hasattr(backend, "folder")  # as the backend behind it, it has nothing to train
