"""Dialogues on real Ray actors with the tiny model: the same as in one process, also when an actor dies among them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_helpers import RayCluster, ray_cluster

from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.rollout.build import build_backend, build_engine
from rl2f_core.dialogue.rollout.engine import RolloutRequest, derive_seed
from rl2f_core.dialogue.rollout.ray_workers import RolloutWorkerGroup
from rl2f_core.errors import RunError
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.types import Rollout

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as made:
        import ray  # after the check that it is installed

        os.environ["RAY_ADDRESS"] = made.address
        yield made
        ray.shutdown()


def of(rollouts: list[Rollout]) -> list[Any]:
    """Everything of dialogues but the log-probabilities, which may differ in the last bits."""
    return [
        (r.dialogue.id, r.dialogue.stop_reason, [(t.token_ids, t.attempt, t.hint, t.verdict) for t in r.dialogue.turns])
        for r in rollouts
    ]


def an_adapter(folder: Path, config: Any, seed: int) -> Path:
    """An adapter that changes what is said."""
    import torch

    from rl2f_core.learning.learner.learner import Learner

    backend = HFBackend(config.backend, config.model)
    learner = Learner(
        backend.folder,
        config.lora,
        dtype=backend.dtype,
        device=backend.device,
        banned=backend.tokenizer.banned_token_ids,
        pad=backend.tokenizer.eos_token_id,
        seed=seed,
    )
    torch.manual_seed(seed)
    weights = {name: torch.randn_like(value) * 0.3 for name, value in learner.snapshot().items()}
    learner.restore(weights)
    folder.mkdir()
    learner.save_adapter(folder)
    return folder


def test_dialogues_of_rollout_workers_are_those_of_one_process(cluster: RayCluster, tiny: Path, tmp_path: Path) -> None:
    config: Any = parse_config(
        {
            "model": {"name": str(tiny), "device": "cpu", "dtype": "float32"},
            "backend": "hf",
            "environment": {"type": "guess_number", "size": 4, "low": 1},
            "rollout": {"max_turns": 3, "max_new_tokens": 12, "max_seq_len": 512},
            "lora": {"rank": 2, "alpha": 4},
            "resources": {"rollout_workers": 2, "num_cpus": 0.5},
            "stages": [{"name": "s", "method": "rl2f", "steps": 1}],
        }
    )
    alone = build_engine(config, HFBackend(config.backend, config.model))
    handler = signal.getsignal(signal.SIGTERM)
    distributed = build_engine(config, build_backend(config))
    assert signal.getsignal(signal.SIGTERM) is handler  # a run is stopped by it, and Ray would end the process
    tasks = [alone.environment.task("train", i) for i in range(6)]
    requests = [
        RolloutRequest(task, f"{i}/{j}", str(i), j, derive_seed(0, i, j))
        for i, task in enumerate(tasks)
        for j in range(4)
    ]
    ticks: list[tuple[int, int]] = []
    for seed in (1, 2):  # an adapter, then its next version under the same name
        folder = an_adapter(tmp_path / str(seed), config, seed)
        for engine in (alone, distributed):
            engine.backend.load_adapter("policy", folder)
        options: Any = {"adapter": "policy", "policy": f"s@{seed}"}
        expected = alone.run(requests, **options)
        played = distributed.run(requests, **options, on_progress=lambda *so_far: ticks.append(so_far))
        assert of(played) == of(expected)
        for mine, its in zip(played, expected, strict=True):
            for a, b in zip(mine.dialogue.turns, its.dialogue.turns, strict=True):
                assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
    assert ticks == [(12, 24), (24, 24)] * 2
    assert of(distributed.run(requests)) == of(alone.run(requests)) != of(expected)  # the base speaks otherwise

    workers: RolloutWorkerGroup = distributed.backend.workers  # type: ignore[attr-defined]
    messages: list[str] = []
    workers.on_message = messages.append

    def one_dies(pid: int) -> None:
        time.sleep(0.3)
        os.kill(pid, signal.SIGKILL)

    death = threading.Thread(target=one_dies, args=(workers.pids[0],))
    death.start()
    began = time.monotonic()
    many = requests * 6  # long enough to die in
    assert of(distributed.run(many, **options)) == of(expected) * 6
    death.join()
    if not messages:  # the worker died after its last shard: the next run detects it
        assert of(distributed.run(requests, **options)) == of(expected)
    print(f"repeated after a death: {time.monotonic() - began:.1f} s")
    assert len(messages) == 1 and "workers left: 1" in messages[0] and len(workers.actors) == 1
    os.kill(workers.pids[1], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(RunError, match="All rollout workers have died"):
        distributed.run(requests, **options)
    assert time.monotonic() - began < 60
    large = config.resources.model_copy(update={"num_cpus": 900})
    with pytest.raises(RunError, match=r"lacks the resources for 2 rollout workers with .*'CPU': 900"):
        RolloutWorkerGroup(config.model_copy(update={"resources": large}))
