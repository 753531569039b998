"""A dry run: everything that a configuration names is built and played once, in seconds, on a tiny random model.

It shows that an experiment made for another machine can run at all: environments, teachers, detectors, templates,
methods, losses, schedules, levels, controls.  Training is the real one with small numbers, so nothing is left out that
it would do; what it learns and scores means nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl2f_core import registry
from rl2f_core.config import BaseRun, RunConfig, parse_config
from rl2f_core.errors import ConfigError
from rl2f_core.evaluation.evaluate import Player
from rl2f_core.evaluation.report import build_report
from rl2f_core.events import DialogueEvent, JsonlSink, MetricEvent, read_events
from rl2f_core.rollout.build import build_backend, build_environment
from rl2f_core.run import Progress, RunDir, execute
from rl2f_core.types import Dialogue

MODEL = "tiny-random"
SMALLER: dict[str, int] = {"max_new_tokens": 12, "max_turns": 3, "context_tokens": 4096, "bootstrap": 100,
                           "save_every": 1, "commit_every": 1, "rank": 4, "window": 1, "actors": 0}  # fmt: skip
"""Numbers that hold a run up, wherever they stand; smaller ones stay as they are."""
STAGE = {"steps": 1, "tasks_per_step": 2, "group_size": 2, "minibatches": 1, "max_resamples": 0}
"""What is made smaller in a stage; a group size of 1 stays."""


ROW = 3_000
"""Tokens of a worked solution; the tiny model has one for each byte."""


def shrunk(config: RunConfig) -> RunConfig:
    """The same experiment in small: the tiny model, one step of two tasks a stage, one task to evaluate on.

    A teacher or judge behind an endpoint becomes the tiny model. As that answers nothing right, the source of a
    `distill` stage becomes the environment's worked solutions, where it has them.
    """
    data = _smaller(config.model_dump(mode="json"))
    data["model"] = {"name": MODEL, "device": "cpu", "dtype": "float32"}
    data["backend"] = {"type": "hf"}
    data["lora"] |= {"start": None, "targets": "all-linear"}
    data["rollout"] |= {"batch_size": 8, "context_length": max(4096, data["rollout"]["context_length"])}
    data["evaluation"] |= {"tasks": 1, "samples": 1, "max_turns": None, "checkpoints": []}
    data["preflight"] |= {"tasks": 1, "samples": 2, "override": True}
    kind: Any = registry.get("environment", config.environment.type)  # type: ignore[attr-defined]
    solved = not kind.unsolved_in(config.environment)
    data["stages"] = [_stage(stage, solved) for stage in data["stages"]]
    small = parse_config(data)
    assert isinstance(small, RunConfig)
    return small


def _stage(stage: dict[str, Any], solved: bool) -> dict[str, Any]:
    small = {**stage, **STAGE, **({"group_size": 1} if stage["group_size"] == 1 else {})}
    if stage["method"]["type"] == "distill" and solved:
        chosen = {key: stage["method"][key] for key in ("type", "keep", "unique")}
        small |= {"method": {**chosen, "source": "solution", "max_kept_tokens": ROW}, "group_size": 1}
    return small


def _smaller(node: Any) -> Any:
    if isinstance(node, list):
        return [_smaller(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") == "openai_api":
        return {"type": "local"}
    return {
        key: min(value, SMALLER[key]) if key in SMALLER and isinstance(value, int) and not isinstance(value, bool)
        else _smaller(value)
        for key, value in node.items()
    }  # fmt: skip


def dry_run(config: BaseRun, folder: Path, progress: Progress | None = None) -> str:
    """Train the small version in `folder`, play the base once under each control, and say what was done.

    Args:
        config: Of a training run.
        folder: Of the run, not there yet.
        progress: Hears how far it is.

    Raises `ConfigError` where it is no training run, and whatever the run raises.
    """
    if not isinstance(config, RunConfig):
        raise ConfigError("Only a training run can be played dry.", value=getattr(config, "kind", None))
    small = shrunk(config)
    run_dir = RunDir.create(folder, small)
    execute(small, run_dir, JsonlSink(run_dir.events_path), lambda: False, progress)
    events = list(read_events(run_dir.events_path, strict=True))
    lines = _problem(config)
    for event in events:
        if isinstance(event, MetricEvent):
            trained = int(event.values.get("tokens/trained", 0))
            count = sum(isinstance(e, DialogueEvent) and (e.phase, e.stage) == ("train", event.stage) for e in events)
            lines.append(f"  stage {event.stage}: {count} dialogues, {trained} tokens trained on")
    played = _evaluated(small)
    lines.append(f"  evaluation: {', '.join(played)}")
    dialogues = [e.dialogue for e in events if isinstance(e, DialogueEvent)]
    broken = [d.error for d in (*dialogues, *(d for held in played.values() for d in held)) if d.error]
    lines += [f"  {len(broken)} dialogues had errors, e.g. {broken[0]}"] if broken else []
    return "\n".join([*lines, "Everything was built and played once."])


def _problem(config: BaseRun) -> list[str]:
    """The first problem as the experiment's own student would read it."""
    environment = build_environment(config.environment)
    task = environment.task("train", 0)
    text = f"{environment.system()}\n\n{environment.prompt(task.public)}\n\n(answer: {environment.answer(task)})"
    return ["The first problem, as the student reads it:", "", *(f"  {line}" for line in text.splitlines()), ""]


def _evaluated(config: BaseRun) -> dict[str, list[Dialogue]]:
    """The base's dialogues by control; a report is made of them, without figures, and thrown away."""
    player = Player(config, build_backend(config))
    played: dict[str, list[Dialogue]] = {
        control: player.play({"base": None}, control)["base"] for control in config.evaluation.controls
    }
    build_report(player.engine.environment, {"base": played}, player.turns, tasks=1, samples=1, resamples=100)
    return played
