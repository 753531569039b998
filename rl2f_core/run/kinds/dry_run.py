"""Dry run: run a whole experiment in small, with a tiny random model, in seconds.

A dry run checks that everything in a configuration can be built and run: environments, teachers, detectors,
templates, methods, losses, schedules, levels and conditions. Training is real, with small numbers. The results have no
meaning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import BaseRun, RunConfig
from rl2f_core.dialogue.rollout.build import build_backend, build_environment, load_reflector
from rl2f_core.environments.capabilities import without_worked_solution
from rl2f_core.errors import ConfigError
from rl2f_core.evaluation.evaluate import EvaluationRunner, supported_conditions
from rl2f_core.evaluation.report import EvaluatedTasks, build_report
from rl2f_core.run.context import Progress
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, MetricEvent, read_events
from rl2f_core.run.execute import execute, removed_if_not_started
from rl2f_core.types import Dialogue, JsonObject

MODEL = "tiny-random"
SIZE_LIMITS: dict[str, int] = {
    "max_new_tokens": 12,
    "max_turns": 3,
    "max_reprompt_len": 4096,
    "save_steps": 1,
    "commit_steps": 1,
    "rank": 4,
    "window_steps": 1,
    "rollout_workers": 0,
    "start_step": 0,
}
"""Upper limits of keys that determine the run time, at any depth."""
STAGE_SIZES = {"steps": 1, "tasks_per_step": 2, "group_size": 2, "minibatches": 1, "max_group_resamples": 0}
"""Sizes of a stage; a group size of 1 stays 1."""
MAX_SOLUTION_TOKENS = 3_000
"""Token limit of a worked solution; the tiny model has one token per byte."""


def shrink_config(config: RunConfig) -> RunConfig:
    """Return the experiment in small: tiny model, one step with two tasks per stage, one evaluation task.

    The tiny model replaces teachers and judges behind an endpoint. It solves nothing, so the worked solutions replace
    the source of a `distill` stage, if the environment has them.
    """
    data = _limit_sizes(config.model_dump(mode="json"))
    data["model"] = {"name": MODEL, "device": "cpu", "dtype": "float32"}
    data["backend"] = {"type": "hf"}
    data["lora"] = _shrink_lora(data["lora"])
    data["rollout"] |= {"max_concurrent": 8, "max_seq_len": max(4096, data["rollout"]["max_seq_len"])}
    data["evaluation"] |= {"num_tasks": 1, "samples_per_task": 1, "max_turns": None, "checkpoints": []}
    data |= {"tracking": None, "alerts": {}, "start_from": None}
    data["preflight"] |= {"num_tasks": 1, "samples_per_task": 2, "ignore_failure": True}
    has_solutions = not without_worked_solution(config.environment)
    data["stages"] = [_shrink_stage(stage, has_solutions) for stage in data["stages"]]
    small = parse_config(data)
    assert isinstance(small, RunConfig)
    return small


def _shrink_stage(stage: JsonObject, has_solutions: bool) -> JsonObject:
    small = {**stage, **STAGE_SIZES, **({"group_size": 1} if stage["group_size"] == 1 else {})}
    if stage["lora"] is not None:
        small["lora"] = _shrink_lora(stage["lora"])
    if stage["method"]["type"] == "distill" and has_solutions:
        method = {key: stage["method"][key] for key in ("type", "keep", "dedup_by")}
        method |= {"source": "solution", "max_kept_tokens": MAX_SOLUTION_TOKENS}
        small |= {"method": method, "group_size": 1}
    return small


def _shrink_lora(lora: JsonObject) -> JsonObject:
    if lora["full_finetuning"]:
        return {"full_finetuning": True}
    return {**lora, "init_adapter": None, "target_modules": "all-linear"}


def _limit_sizes(node: object) -> Any:
    if isinstance(node, list):
        return [_limit_sizes(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") == "openai_api":
        return {"type": "local"}
    return {
        key: min(value, SIZE_LIMITS[key])
        if key in SIZE_LIMITS and isinstance(value, int) and not isinstance(value, bool)
        else _limit_sizes(value)
        for key, value in node.items()
    }


def dry_run(config: BaseRun, run_path: Path, progress: Progress | None = None) -> str:
    """Train the small version in a new run directory, run the base model under each condition, and return a summary.

    Raises `ConfigError` if the config is not that of a training run.
    """
    if not isinstance(config, RunConfig):
        raise ConfigError("A dry run needs a training run.", value=getattr(config, "kind", None))
    small = shrink_config(config)
    run_dir = RunDir.create(run_path, small)
    with removed_if_not_started(run_dir):
        execute(small, run_dir, JsonlSink(run_dir.events_path), lambda: False, progress)
    events = list(read_events(run_dir.events_path, strict=True))
    lines = _first_prompt(config)
    for event in events:
        if isinstance(event, MetricEvent):
            trained = int(event.values.get("tokens/trained", 0))
            count = sum(isinstance(e, DialogueEvent) and (e.phase, e.stage) == ("train", event.stage) for e in events)
            lines.append(f"  stage {event.stage}: {count} dialogues, {trained} trained tokens")
    evaluated = _evaluate(small, run_dir)
    lines.append(f"  evaluation: {', '.join(evaluated)}")
    dialogues = [e.dialogue for e in events if isinstance(e, DialogueEvent)]
    errors = [d.error for d in (*dialogues, *(d for group in evaluated.values() for d in group)) if d.error]
    lines += [f"  {len(errors)} dialogues had errors, e.g. {errors[0]}"] if errors else []
    return "\n".join([*lines, "Everything was built and ran once."])


def _first_prompt(config: BaseRun) -> list[str]:
    """Return the first task as the student reads it."""
    environment = build_environment(config.environment)
    task = environment.task("train", 0)
    answer = environment.gold_answer(task)
    text = f"{environment.system_prompt()}\n\n{environment.prompt(task.public)}\n\n(gold answer: {answer})"
    return ["The first task, as the student reads it:", "", *(f"  {line}" for line in text.splitlines()), ""]


def _evaluate(config: BaseRun, run_dir: RunDir) -> dict[str, list[Dialogue]]:
    """Return the base model's dialogues by condition, and build a report from them; the reflector is the run's."""
    backend = build_backend(config)
    load_reflector(config, backend, run_dir)
    runner = EvaluationRunner(config, backend)
    dialogues: dict[str, list[Dialogue]] = {}
    for condition in supported_conditions(config):
        recorded = {"base": dialogues.get("hints", [])}
        dialogues[condition] = runner.evaluate({"base": None}, condition, recorded)["base"]
    build_report(runner.engine.environment, {"base": dialogues}, runner.turns, EvaluatedTasks(1, 1))
    return dialogues
