"""A dry run: everything that a configuration names is built and played once, in seconds, on a tiny random model.

It shows that an experiment made for another machine can run at all: environments, teachers, detectors, templates,
methods, losses, schedules, levels, evaluation.  The run is the real one with small numbers, so nothing is left out that
a run would do; what it learns and scores means nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl2f_core.config import BaseRun, parse_config
from rl2f_core.events import DialogueEvent, JsonlSink, LogEvent, MetricEvent, read_events
from rl2f_core.run import Progress, RunDir, execute

MODEL = "tiny-random"
SMALLER: dict[str, int] = {"max_new_tokens": 12, "max_turns": 3, "context_tokens": 4096, "bootstrap": 100,
                           "save_every": 1, "commit_every": 1, "rank": 4, "window": 1}  # fmt: skip
"""Numbers that hold a run up, wherever they stand; smaller ones stay as they are."""
STAGE = {"steps": 1, "tasks_per_step": 2, "group_size": 2, "minibatches": 1, "max_resamples": 0}
"""What is made smaller in a stage; a group size of 1 stays."""


def shrunk(config: BaseRun) -> BaseRun:
    """The same experiment in small: the tiny model, one step a stage, two tasks, an evaluation of the base on one task
    under all controls; a teacher or judge behind an endpoint becomes the tiny model."""
    data = _smaller(config.model_dump(mode="json"))
    data["model"] = {"name": MODEL, "device": "cpu", "dtype": "float32"}
    data["backend"] = {"type": "hf"}
    data["lora"] |= {"start": None, "targets": "all-linear"}
    data["rollout"] |= {"batch_size": 8, "context_length": max(4096, data["rollout"]["context_length"])}
    data["evaluation"] |= {"tasks": 1, "samples": 1, "max_turns": None, "checkpoints": ["base", "stages"]}
    if "stages" in data:
        data["preflight"] |= {"tasks": 1, "samples": 2, "override": True}
        data["stages"] = [_stage(stage) for stage in data["stages"]]
    return parse_config(data)


def _stage(stage: dict[str, Any]) -> dict[str, Any]:
    single = stage["group_size"] == 1
    return {**stage, **STAGE, **({"group_size": 1} if single else {})}


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
    """Run the small version in `folder` and say what it did; raises what a run raises.

    Args:
        config: Of any kind that can be executed; the words are of a training run.
        folder: Of the run, not there yet.
        progress: Hears how far it is.
    """
    small = shrunk(config)
    run_dir = RunDir.create(folder, small)
    execute(small, run_dir, JsonlSink(run_dir.events_path), lambda: False, progress)
    return told(config, run_dir)


def told(config: BaseRun, run_dir: RunDir) -> str:
    """What a dry run did, stage by stage, and the first problem as a student reads it."""
    from rl2f_core.rollout.build import build_environment

    events = list(read_events(run_dir.events_path))
    environment = build_environment(config.environment)
    task = environment.task("train", 0)
    lines = ["The first problem, as the student reads it:", "", *_indented(environment.system()), "",
             *_indented(environment.prompt(task.public)), "", f"  (the answer: {environment.answer(task)})", ""]  # fmt: skip
    for event in events:
        if isinstance(event, MetricEvent) and not event.stage.startswith("evaluation"):
            played = [
                e for e in events if isinstance(e, DialogueEvent) and (e.phase, e.stage) == ("train", event.stage)
            ]
            trained = int(event.values.get("tokens/trained", 0))
            lines.append(f"  stage {event.stage}: {len(played)} dialogues, {trained} tokens trained on")
    evaluated = dict.fromkeys((e.checkpoint, e.control) for e in events
                              if isinstance(e, DialogueEvent) and e.phase == "evaluation")  # fmt: skip
    lines.append(f"  evaluation: {len(evaluated)} checkpoints under controls")
    failed = [e.dialogue.error for e in events if isinstance(e, DialogueEvent) and e.dialogue.error]
    lines += [f"  {len(failed)} dialogues had errors, e.g. {json.dumps(failed[0])}"] if failed else []
    warned = [e.text.splitlines()[0] for e in events if isinstance(e, LogEvent) and e.level == "error"]
    return "\n".join([*lines, *warned, "Everything was built and played once."])


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
