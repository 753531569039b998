"""A run with schedules and a curriculum on the tiny model: what it says of itself, and that a stop changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_helpers import EvenLength, content

from rl2f_core import registry
from rl2f_core.common.file_io import sha256
from rl2f_core.config.run import RunConfig
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, Event, JsonlSink, LogEvent, MetricEvent, StatusEvent, read_events
from rl2f_core.run.execute import execute

CLOCK = ("time/", "tokens_per_second/", "system/")
LEVELS = {"levels": [{"settings": {"letters": 2}, "steps": 2}, {"settings": {"letters": 3}}], "replay_fraction": 0.3}
LONG = {"tasks_per_step": 2, "steps": 4, "learning_rate": [{"step": 0, "value": 0.01}, {"step": 3, "value": 0.002}]}


def config(model: Path) -> RunConfig:
    group_size = [{"step": 0, "value": 2}, {"step": 2, "value": 3}]
    temperature = {"points": [{"step": 0, "value": 1.0}, {"step": 4, "value": 2.0}], "interpolation": "linear"}
    return RunConfig.model_validate(
        {
            "seed": 5,
            "model": {"name": str(model), "device": "cpu", "dtype": "float32"},
            "environment": {"type": "even_length", "length": 2, "pool": 3, "letters": 3},
            "rollout": {"max_turns": 2, "max_new_tokens": 8, "max_seq_len": 256},
            "reward": {"preset": "format", "progress_weight": 0.5},
            "lora": {"rank": 4, "alpha": 8},
            "evaluation": {"checkpoints": []},
            "preflight": {"num_tasks": 2, "samples_per_task": 2, "ignore_failure": True},
            "stages": [
                {"name": "warm", "method": "sft", "curriculum": LEVELS, "group_size": 1, **LONG},
                {"name": "rl", "method": {"type": "rl2f", "kl_coef": 0.1}, "group_size": group_size,
                 "temperature": temperature, "curriculum": {**LEVELS, "solve_rate_threshold": 0.5}, **LONG},
            ],
        }
    )  # fmt: skip


def played(folder: Path) -> list[Event]:
    return [e for e in read_events(folder / "events.jsonl", strict=True) if not isinstance(e, StatusEvent)]


@pytest.mark.slow
def test_a_run_that_was_stopped_plays_the_same_schedules_and_levels(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.discover()
    monkeypatch.setitem(registry._components["environment"], "even_length", EvenLength)
    whole, torn = (RunDir.create(tmp_path / name, config(tiny)) for name in ("whole", "torn"))
    execute(config(tiny), whole, JsonlSink(whole.events_path), bool)
    stops = 0
    while True:
        asked = iter([False, True])
        stops += 1
        # one step at a time, so that every commit between two steps is gone on from
        ended = execute(config(tiny), torn, JsonlSink(torn.events_path), lambda asked=asked: next(asked, True))
        if ended.status == "succeeded":
            break
        assert stops < 12
    assert stops >= 8 and content(torn.path) == content(whole.path)
    for name in ("warm@4", "rl@4"):
        one, other = (r.path / "checkpoints" / name / "adapter_model.safetensors" for r in (whole, torn))
        assert sha256(one) == sha256(other)
    metrics = {(e.stage, e.step): e.values for e in played(whole.path) if isinstance(e, MetricEvent)}
    warm, rl = ([metrics[name, step] for step in range(1, 5)] for name in ("warm", "rl"))
    assert [v["group_size"] for v in rl] == [2, 2, 3, 3] and [v["group_size"] for v in warm] == [1] * 4
    assert [v["temperature"] for v in rl] == [1.0, 1.25, 1.5, 1.75] and "temperature" not in warm[0]
    assert [v["curriculum/level"] for v in (*warm, *rl)] == [1, 1, 2, 2] * 2
    assert [v["learning_rate"] for v in warm] == [0.01, 0.01, 0.01, 0.002]
    # the sampler's log-probabilities are the learner's at the step's temperature: any other would show as a mismatch
    mismatch = [abs(v["approx_kl"]) for v in rl if "approx_kl" in v]
    assert len(mismatch) >= 3 and max(mismatch) < 1e-5
    groups = [e for e in played(whole.path) if isinstance(e, DialogueEvent) and e.phase == "train"]
    sizes = {step: sum(e.stage == "rl" and e.step == step for e in groups) for step in range(1, 5)}
    assert sizes == {1: 4, 2: 4, 3: 6, 4: 6} and all("~" in e.task.id for e in groups)
    said = [e.text for e in played(whole.path) if isinstance(e, LogEvent) and e.id.startswith("curriculum:")]
    assert [text.partition(":")[0] for text in said] == ["Stage warm, after step 2", "Stage rl, after step 2"]
