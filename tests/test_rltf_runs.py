"""The RLTF family trains end to end, and so does a made-up method of a few lines: the seams hold what is new."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from test_resume import config_of, speaker  # noqa: F401

from rl2f_core import registry
from rl2f_core.config import RunConfig, load_config
from rl2f_core.events import DialogueEvent, JsonlSink, MetricEvent, read_events
from rl2f_core.methods.coefficient import TermConfig
from rl2f_core.methods.rltf_grpo import RLTFGRPO, FreshGradientConfig
from rl2f_core.methods.rows import told_row
from rl2f_core.run import RunDir, execute
from rl2f_core.types import Group, Sample

CONFIGS = Path(__file__).resolve().parent.parent / "data" / "configs"
FAMILY = ("rltf_grpo", "rltf_sd", "rltf_fm", "sft_correct", "rl2f_self")


class Borrowed(RLTFGRPO):
    """Beside `rltf_grpo`: a dialogue that ended wrong learns the right answer that another of its group found."""

    class Config(FreshGradientConfig, TermConfig):
        """Reinforcement, and right answers borrowed within the group."""

        type: Literal["borrowed"] = "borrowed"
        ce_coef: float = 0.2
        """Weight of what is borrowed."""

    def further(self, group: Group) -> list[Sample]:
        right = [r.dialogue.turns[-1].token_ids for r in group.trainable if r.dialogue.solved]
        if not right or not self.loss_options()["ce_coef"]:
            return []
        rows = []
        for number, rollout in enumerate(r for r in group.trainable if not r.dialogue.solved):
            asked = rollout.streams[-1]
            context = asked.token_ids[: asked.student.index(True)]
            rows.append(told_row(context, right[number % len(right)], rollout.dialogue.id))
        return rows

    def loss_options(self) -> dict[str, float]:
        config, scene = self.config, self.scene
        return {**super().loss_options(), "ce_coef": config.weight(config.ce_coef, scene.step, scene.steps)}


def run(config: Any, folder: Path) -> tuple[dict[tuple[str, int], dict[str, float]], list[DialogueEvent]]:
    """Metrics by stage and step, and the dialogues, of a run played to its end."""
    run_dir = RunDir.create(folder, config)
    assert execute(config, run_dir, JsonlSink(run_dir.events_path), bool).status == "succeeded"
    events = list(read_events(run_dir.events_path, strict=True))
    metrics = {(e.stage, e.step): e.values for e in events if isinstance(e, MetricEvent)}
    return metrics, [e for e in events if isinstance(e, DialogueEvent)]


def test_each_method_and_a_made_up_one_train_to_the_end_of_a_run(
    speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,  # noqa: F811
):  # fmt: skip
    registry.discover()
    monkeypatch.setitem(registry._components["method"], "borrowed", Borrowed)
    methods: list[Any] = [*FAMILY, {"type": "borrowed", "coef_schedule": "linear"}]
    shared = {"tasks_per_step": 3, "group_size": 4, "learning_rate": 1e-4, "minibatches": 2, "start_from": "base"}
    steps = [1] * len(FAMILY) + [3]
    stages = [
        {"name": f"s{i}", "method": m, "steps": n, **shared}
        for i, (m, n) in enumerate(zip(methods, steps, strict=True))
    ]
    data = config_of(speaker).model_dump(mode="json")
    data["rollout"] |= {"history": "fresh"}
    config = RunConfig.model_validate(
        {**data, "stages": stages, "preflight": {"tasks": 1, "samples": 2, "override": True}}
    )
    metrics, dialogues = run(config, tmp_path / "run")
    assert all(values["grad_norm"] > 0 for values in metrics.values()) and len(metrics) == sum(steps)
    by_method = {stage.method.type: [metrics[stage.name, k + 1] for k in range(stage.steps)] for stage in config.stages}
    assert all("loss/rl" in values for held in by_method.values() for values in held)
    assert any("off_context/ratio" in values for values in by_method["rltf_sd"])
    assert all("loss/ce" in values for name in ("rltf_fm", "rl2f_self") for values in by_method[name])
    assert not any("loss/ce" in values or "off_context/ratio" in values for values in by_method["rltf_grpo"])
    stage = config.stages[-1].name  # its coefficient grows from 0, and there must be something to borrow
    for step, values in enumerate(by_method["borrowed"], start=1):
        ends: dict[str, set[bool]] = {}
        for event in dialogues:
            if (event.phase, event.stage, event.step) == ("train", stage, step):
                ends.setdefault(event.dialogue.group, set()).add(event.dialogue.solved)
        assert ("loss/ce" in values) == (step > 1 and {True, False} in ends.values())
    later = [turn for event in dialogues for turn in event.dialogue.turns if turn.index]
    assert later and all(turn.prompt is not None and turn.prompt.startswith("revise@") for turn in later)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rltf_sd", "rltf_fm", "rl2f_self"])
def test_the_shipped_configurations_train_the_real_model(name: str, smollm2: Path, tmp_path: Path):
    overrides = [
        f"model.name={smollm2}", "evaluation.checkpoints=[]", "preflight.tasks=2", "preflight.samples=4",
        "preflight.override=true", "stages.0.steps=20", "stages.1.steps=2",
    ]  # fmt: skip
    metrics, _ = run(load_config(CONFIGS / f"{name}.yaml", overrides), tmp_path / "run")
    values = metrics[name, 2]
    assert values["grad_norm"] > 0
    assert ("loss/ce" in values) == (name != "rltf_sd")
