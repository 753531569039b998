"""Ray rollout workers: sharding, the engines of a worker, and the backend of the training process."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.rollout.build import build_backend, build_control, build_engine
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest, StudentPolicy, derive_seed
from rl2f_core.dialogue.rollout.ray_workers import (
    EngineSpec,
    RayBackend,
    RayRolloutEngine,
    RolloutWorker,
    shard_requests,
)
from rl2f_core.dialogue.teachers.scripted import ScriptedTeacher
from rl2f_core.environments.puzzles.numbers.guess_number import GuessNumber
from rl2f_core.errors import RunError
from rl2f_core.models.backends.fake import FakeBackend

TASK = GuessNumber(GuessNumber.Config()).task("train", 0)


def asked(*groups: int) -> list[RolloutRequest]:
    """Requests of groups of these sizes."""
    return [
        RolloutRequest(TASK, f"{g}/{j}", str(g), j, derive_seed(g, j))
        for g, size in enumerate(groups)
        for j in range(size)
    ]


def as_pairs(shards: list[range]) -> list[tuple[int, int]]:
    return [(shard.start, shard.stop) for shard in shards]


@pytest.mark.parametrize(
    ("groups", "count", "ranges"),
    [
        ((4, 4, 4, 4), 2, [(0, 8), (8, 16)]),
        ((2, 2, 2), 2, [(0, 2), (2, 6)]),  # a cut at 3 would split the second group
        ((8,), 3, [(0, 3), (3, 5), (5, 8)]),  # fewer groups than shards: the group is split
        ((1, 9), 2, [(0, 1), (1, 10)]),
        ((1,), 4, [(0, 1)]),
        ((1, 1, 1), 3, [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_shards_are_contiguous_nearly_equal_and_keep_groups_together(
    groups: tuple[int, ...], count: int, ranges: list[tuple[int, int]]
) -> None:
    assert as_pairs(shard_requests(asked(*groups), count)) == ranges


@pytest.mark.parametrize("case", range(100))
def test_every_request_is_in_one_shard_and_no_shard_is_empty(case: int) -> None:
    rng = random.Random(case)
    groups = [rng.randint(1, 6) for _ in range(rng.randint(1, 12))]
    count = rng.randint(1, 9)
    requests = asked(*groups)
    shards = shard_requests(requests, count)
    assert [i for shard in shards for i in shard] == list(range(len(requests)))
    assert all(len(shard) for shard in shards) and len(shards) == min(count, len(requests))
    if len(groups) >= count:
        starts = {i for i, r in enumerate(requests) if i == 0 or r.group != requests[i - 1].group}
        assert all(shard.start in starts for shard in shards)


CONFIG: dict[str, Any] = {
    "environment": {"type": "guess_number", "size": 4, "low": 1},
    "backend": {"type": "fake", "replies": ["<answer>1</answer>", "<answer>2</answer>", "<answer>3</answer>"]},
    "rollout": {"max_turns": 3},
    "resources": {"rollout_workers": 2},
    "stages": [{"name": "s", "method": "rl2f", "steps": 1}],
}


def an_engine(**changes: Any) -> tuple[Any, RolloutEngine]:
    config: Any = parse_config({**CONFIG, **changes})
    return config, build_engine(config, FakeBackend(config.backend))


def test_a_worker_gives_the_rollouts_of_the_engine() -> None:
    config, engine = an_engine()
    worker = RolloutWorker({}, config.model_dump(mode="json"), build_backend, build_engine)
    tasks = [engine.environment.task("train", i) for i in range(6)]
    requests = [RolloutRequest(task, str(i), str(i), 0, i) for i, task in enumerate(tasks)]
    options = {"policy": "s@3", "max_turns": 2, "temperature": 0.5, "adapter": None}
    assert worker.run(EngineSpec.of(engine), requests, options, 0, {}) == engine.run(requests, **options)
    for other in (
        dataclasses.replace(engine, teacher=build_control("contentless", engine)),
        dataclasses.replace(engine, stop_on_correct=False, teacher=build_control("contentless", engine)),
    ):
        assert worker.run(EngineSpec.of(other), requests, options, 0, {}) == other.run(requests, **options)
    assert len(worker.engines) == 3  # one per spec
    worker.run(EngineSpec.of(engine), requests[:1], options, 0, {})
    assert len(worker.engines) == 3


def test_a_worker_loads_each_adapter_version_once(tmp_path: Path) -> None:
    config, engine = an_engine()
    worker, loaded = RolloutWorker({}, config.model_dump(mode="json"), build_backend, build_engine), []
    worker.backend.load_adapter = lambda name, folder: loaded.append(  # type: ignore[method-assign]
        (name, {p.name: p.read_bytes() for p in Path(folder).iterdir()})
    )
    request = [RolloutRequest(engine.environment.task("train", 0), "0", "0", 0, 0)]
    for version, weights in ((1, b"one"), (1, b"one"), (2, b"two")):
        worker.run(
            EngineSpec.of(engine), request, {"adapter": "policy"}, version, {"adapter_model.safetensors": weights}
        )
    assert loaded == [
        ("policy", {"adapter_model.safetensors": b"one"}),
        ("policy", {"adapter_model.safetensors": b"two"}),
    ]


def test_a_teacher_without_a_configuration_cannot_be_sent_to_workers() -> None:
    class Mine(ScriptedTeacher):
        """Not registered under its name."""

    _, engine = an_engine()
    own = dataclasses.replace(engine, teacher=Mine(ScriptedTeacher.Config(), engine.environment))
    with pytest.raises(RunError, match=r"cannot build this teacher.*resources.rollout_workers to 0"):
        EngineSpec.of(own)


class RecordingWorkers:
    """Records calls instead of running them."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def load_adapter(self, name: str, folder: Path) -> None:
        self.calls.append(name)

    def run(self, spec: EngineSpec, requests: Any, on_progress: Any = None, **options: Any) -> list[Any]:
        self.calls.append((getattr(spec.teacher, "type", ""), spec.stop_on_correct, len(requests), options["policy"]))
        if on_progress is not None:
            on_progress(len(requests), len(requests))
        return [(options["adapter"], request.id) for request in requests]


def test_the_ray_backend_sends_adapters_and_its_engine_sends_requests_per_student(tmp_path: Path) -> None:
    config, _ = an_engine()
    workers, inner = RecordingWorkers(), FakeBackend(config.backend)
    backend: Any = RayBackend(inner, workers)  # type: ignore[arg-type]
    engine = build_engine(config, backend)
    assert (
        isinstance(engine, RayRolloutEngine) and backend.tokenizer is inner.tokenizer and backend.max_model_len == 4096
    )
    backend.load_adapter("policy", tmp_path)
    engine.run(asked(2), policy="s@0")
    control = dataclasses.replace(engine, teacher=build_control("misleading", engine), stop_on_correct=False)
    control.run(asked(1))
    assert workers.calls == ["policy", ("scripted", True, 2, "s@0"), ("misleading", False, 1, "base")]
    workers.calls.clear()
    a, b = StudentPolicy("a", "rl@1"), StudentPolicy(None, "base")
    requests, progress = asked(3), list[tuple[int, int]]()
    mixed = [dataclasses.replace(request, student=s) for request, s in zip(requests, (a, b, a), strict=True)]
    results: Any = engine.run(mixed, on_progress=lambda *counts: progress.append(counts))
    ids = [request.id for request in requests]
    assert results == [("a", ids[0]), (None, ids[1]), ("a", ids[2])] and progress == [(2, 3), (3, 3)]
    assert workers.calls == [("scripted", True, 2, "rl@1"), ("scripted", True, 1, "base")]
    assert backend.folder is None  # as in the inner backend
