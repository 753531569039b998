"""Distillation from the worked solutions of every environment that has them, in one mixture."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl2f_core import registry
from rl2f_core.config.run import RunConfig
from rl2f_core.dialogue.dataset_store import read_rows
from rl2f_core.dialogue.rollout.build import build_environment
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink, MetricEvent, read_events
from rl2f_core.run.execute import execute


def run_of(tiny: Path, environment: object) -> RunConfig:
    stages = [
        {
            "name": "data",
            "method": {"type": "distill", "source": "solution"},
            "steps": 1,
            "tasks_per_step": 16,
            "group_size": 1,
        },
        {
            "name": "learn",
            "method": {"type": "sft", "dataset": "data"},
            "steps": 1,
            "tasks_per_step": 2,
            "group_size": 1,
        },
    ]
    return RunConfig.model_validate({
        "seed": 5, "model": {"name": str(tiny), "device": "cpu", "dtype": "float32"}, "environment": environment,
        "rollout": {"max_turns": 1, "max_new_tokens": 1500, "max_seq_len": 4000}, "lora": {"rank": 2, "alpha": 4},
        "evaluation": {"checkpoints": [], "num_tasks": 4}, "stages": stages,
    })  # fmt: skip


SOLVED = [
    {"environment": {"type": "arithmetic", "digits": 2}},
    {"environment": {"type": "knights_knaves", "depth": 3}},
    {"environment": {"type": "binary_matrix"}},
    {"environment": {"type": "shortest_path"}},
    {"environment": {"type": "maze"}},
    {"environment": {"type": "math"}},
    {"environment": {"type": "gsm_symbolic"}},
    {"environment": {"type": "reasoning_gym", "name": "gsm_symbolic"}},
    {"environment": {"type": "code"}},
    {"environment": {"type": "dataset"}},
]


@pytest.mark.slow
def test_every_environment_gives_verified_rows_from_its_worked_solutions_or_says_that_it_has_none(
    tiny: Path, tmp_path: Path
):
    """All of them in one mixture, from the data set to a step of imitation."""
    names = {part["environment"]["type"] for part in SOLVED}
    for name in set(registry.names("environment")) - names - {"mixture", "gymnasium", "imported", "verifiers"}:
        with pytest.raises(ValueError, match=f"{name} has no worked solutions; use source student or llm"):
            run_of(tiny, {"type": name})
    with pytest.raises(ValueError, match="stage 'data': secret_code has no worked solutions"):
        run_of(tiny, {"type": "mixture", "environments": [*SOLVED, {"environment": "secret_code"}]})
    run_dir = RunDir.create(tmp_path / "run", run_of(tiny, {"type": "mixture", "environments": SOLVED}))
    assert execute(run_dir.config(), run_dir, JsonlSink(run_dir.events_path), bool).status == "succeeded"
    environment = build_environment(run_dir.config().environment)
    rows = read_rows(run_dir.path / "datasets" / "data" / "rows.jsonl", environment)
    assert len(rows) == 16 and {row.task.environment for row in rows} == names
    for row in rows:
        assert environment.verify(row.task, row.attempts[0]).correct and len(row.attempts[0]) > 30
    metrics = [e.values for e in read_events(run_dir.events_path) if isinstance(e, MetricEvent)]
    assert [values.get("distill/acceptance_rate") for values in metrics] == [1.0, None]
    assert metrics[1]["tokens/demonstrated"] > 0 and "reward" not in metrics[1]  # nothing measures the student
