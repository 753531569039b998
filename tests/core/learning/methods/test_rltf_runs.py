"""The RLTF family trains end to end, and so does a made-up method of a few lines: the seams hold what is new."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from run_helpers import config_of

from rl2f_core import registry
from rl2f_core.config.loading import load_config
from rl2f_core.config.run import RunConfig
from rl2f_core.learning.methods.aux_loss import AuxLossConfig
from rl2f_core.learning.methods.loss_spec import LossConfig
from rl2f_core.learning.methods.rltf import RLTFGRPO, RepromptGradientConfig
from rl2f_core.learning.methods.samples import sft_sample
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, MetricEvent, read_events
from rl2f_core.run.execute import execute
from rl2f_core.types import Group, TrainingSample

CONFIGS = Path(__file__).resolve().parents[4] / "data" / "configs"
FAMILY: tuple[Any, ...] = (
    *({"type": "rltf_grpo", "branches": 2}, "rltf_sd", "rltf_fm"),
    *({"type": "sft_correct", "dual_critique": {"max_new_tokens": 4}}, "rl2f_self"),
)


class Borrowed(RLTFGRPO):
    """Beside `rltf_grpo`: a dialogue that ended wrong learns the right answer that another of its group found."""

    class Config(RepromptGradientConfig, AuxLossConfig):
        """Reinforcement, and right answers borrowed within the group."""

        type: Literal["borrowed"] = "borrowed"
        ce_coef: float = 0.2
        """Weight of what is borrowed."""

    def extra_samples(self, group: Group) -> list[TrainingSample]:
        right = [r.dialogue.turns[-1].token_ids for r in group.trainable if r.dialogue.solved]
        if not right or not self.loss_options().ce_coef:
            return []
        rows = []
        for number, rollout in enumerate(r for r in group.trainable if not r.dialogue.solved):
            asked = rollout.sequences[-1]
            context = asked.token_ids[: asked.student_mask.index(True)]
            rows.append(sft_sample(context, right[number % len(right)], rollout.dialogue.id))
        return rows

    def loss_options(self) -> LossConfig:
        config, scene = self.config, self.context
        return replace(super().loss_options(), ce_coef=config.weight(config.ce_coef, scene.step, scene.steps))


def run(config: Any, folder: Path) -> tuple[dict[tuple[str, int], dict[str, float]], list[DialogueEvent]]:
    """Metrics by stage and step, and the dialogues, of a run played to its end."""
    run_dir = RunDir.create(folder, config)
    assert execute(config, run_dir, JsonlSink(run_dir.events_path), bool).status == "succeeded"
    events = list(read_events(run_dir.events_path, strict=True))
    metrics = {(e.stage, e.step): e.values for e in events if isinstance(e, MetricEvent)}
    return metrics, [e for e in events if isinstance(e, DialogueEvent)]


@pytest.mark.slow
def test_each_method_and_a_made_up_one_train_to_the_end_of_a_run(
    speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    registry.discover()
    monkeypatch.setitem(registry._components["method"], "borrowed", Borrowed)
    methods: list[Any] = [*FAMILY, {"type": "borrowed", "coef_ramp": "linear"}]
    shared = {"tasks_per_step": 3, "group_size": 4, "learning_rate": 1e-4, "minibatches": 2, "init_from": "base"}
    steps = [1] * len(FAMILY) + [3]
    stages = [
        {"name": f"s{i}", "method": m, "steps": n, **shared}
        for i, (m, n) in enumerate(zip(methods, steps, strict=True))
    ]
    data = config_of(speaker).model_dump(mode="json")
    data["rollout"] |= {"prompting": "reprompt"}
    config = RunConfig.model_validate(
        {**data, "stages": stages, "preflight": {"num_tasks": 1, "samples_per_task": 2, "ignore_failure": True}}
    )
    metrics, dialogues = run(config, tmp_path / "run")
    assert all(values["grad_norm"] > 0 for values in metrics.values()) and len(metrics) == sum(steps)
    by_method = {stage.method.type: [metrics[stage.name, k + 1] for k in range(stage.steps)] for stage in config.stages}
    assert all("loss/rl" in values for held in by_method.values() for values in held)
    assert any("off_context/ratio/mean" in values for values in by_method["rltf_sd"])
    dual = [event.dialogue.turns[0].hint for event in dialogues if (event.phase, event.stage) == ("train", "s3")]
    assert {hint.teacher for hint in dual if hint} == {"scripted", "self_critique"}
    assert all("loss/ce" in values for name in ("rltf_fm", "rl2f_self") for values in by_method[name])
    assert not any("loss/ce" in values or "off_context/ratio/mean" in values for values in by_method["rltf_grpo"])
    stage = config.stages[-1].name  # its coefficient grows from 0, and there must be something to borrow
    for step, values in enumerate(by_method["borrowed"], start=1):
        ends: dict[str, set[bool]] = {}
        for event in dialogues:
            if (event.phase, event.stage, event.step) == ("train", stage, step):
                ends.setdefault(event.dialogue.group, set()).add(event.dialogue.solved)
        assert ("loss/ce" in values) == (step > 1 and {True, False} in ends.values())
    later = [turn for event in dialogues for turn in event.dialogue.turns if turn.index]
    assert later and all(
        turn.prompt_template is not None and turn.prompt_template.startswith("revise@") for turn in later
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rltf_sd", "rltf_fm", "rl2f_self"])
def test_the_shipped_configurations_train_the_real_model(name: str, smollm2: Path, tmp_path: Path):
    overrides = [
        f"model.name={smollm2}", "evaluation.checkpoints=[]", "preflight.num_tasks=2", "preflight.samples_per_task=4",
        "preflight.ignore_failure=true", "stages.0.steps=20", "stages.1.steps=2",
    ]  # fmt: skip
    metrics, _ = run(load_config(CONFIGS / "methods" / f"{name}.yaml", overrides), tmp_path / "run")
    values = metrics[name, 2]
    assert values["grad_norm"] > 0
    assert ("loss/ce" in values) == (name != "rltf_sd")
