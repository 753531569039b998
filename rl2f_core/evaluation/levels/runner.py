"""Evaluation of checkpoints over levels of an environment and on perturbed variants of its tasks.

Sample j of a task and of its variants has the same seed at every level, so differences are paired. Only `again`, the
same text once more, has another seed. Each (checkpoint, level) is a commit, so a resumed run repeats none.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rl2f_core.common.file_io import write_atomically
from rl2f_core.config.fields import BaseConfig
from rl2f_core.dialogue.metrics.constant_baseline import constant_baseline
from rl2f_core.dialogue.rollout.build import build_engine, build_environment, load_reflector
from rl2f_core.dialogue.rollout.engine import RolloutRequest, derive_seed
from rl2f_core.environments.base import distinct_tasks
from rl2f_core.environments.capabilities import Perturbations
from rl2f_core.errors import DataError
from rl2f_core.evaluation.evaluate import STAGE, emit_metrics, read_dialogues, store_dialogues
from rl2f_core.evaluation.figure_files import to_png
from rl2f_core.evaluation.levels.report import (
    ORIGINAL,
    RESAMPLED,
    LevelInfo,
    LevelsReport,
    build_levels,
    condition_name,
    level_warnings,
    levels_chart,
)
from rl2f_core.evaluation.report import EvaluatedTasks
from rl2f_core.models.backends.base import Backend
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.run.context import RunContext
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import LogEvent
from rl2f_core.types import Dialogue, Task

if TYPE_CHECKING:
    from rl2f_core.evaluation.levels.config import LevelsRun

REPORT = "levels.json"
"""File in the run's `evaluation/`, next to report.md and accuracy_by_level.png."""


def evaluate_levels(config: LevelsRun, context: RunContext, backend: Backend) -> bool:
    """Evaluate every checkpoint on every level and write the report; False if `context.stop` ended it early."""
    position = dict(context.journal.resume_state or {})
    finished: list[str] = list(position.get("evaluated", []))
    models = ModelPool(backend, config.backend)
    levels = config.levels()
    pairs = [(checkpoint, level) for checkpoint in config.adapters for level in levels]
    load_reflector(config, backend, context.run_dir)
    for name, adapter_dir in config.adapters.items():
        if adapter_dir is not None:
            backend.load_adapter(name, Path(adapter_dir))
    for done, (checkpoint, level) in enumerate(pairs):
        if f"{checkpoint}/{level}" in finished:
            continue
        if context.stop():
            return False
        context.progress.update("levels", done, len(pairs), f"{checkpoint} at {level}")
        results = _run_level(config, backend, models, level, levels[level], checkpoint)
        for variant, (tasks, dialogues) in results.items():
            store_dialogues(context, checkpoint, condition_name(level, variant), tasks, dialogues)
        finished.append(f"{checkpoint}/{level}")
        position |= {"evaluated": finished}
        context.journal.commit(position)
        context.run_dir.heartbeat(status="running", stage=STAGE, step=done + 1, steps=len(pairs))
    context.progress.update("levels", len(pairs), len(pairs))
    _write_report(compute_report(config, context.run_dir), context)
    context.journal.resume_state = position
    return True


def _write_report(report: LevelsReport, context: RunContext) -> None:
    """Write the report files and emit metrics, warnings and report."""
    folder, journal, chart = context.run_dir.evaluation, context.journal, levels_chart(report)
    write_atomically(folder / REPORT, report.model_dump_json(indent=2))
    write_atomically(folder / "report.md", report.to_markdown())
    write_atomically(folder / f"{chart.name}.png", to_png(chart))
    for cell in report.cells:
        if cell.metrics is not None:
            emit_metrics(context, cell.checkpoint, cell.condition, cell.metrics)
    warnings = level_warnings(report)
    if warnings:
        journal.emit([LogEvent(id="evaluation:baseline", level="warning", text="\n".join(warnings))])
    journal.emit([LogEvent(id="evaluation:report", text=report.to_markdown())])


def _run_level(
    config: LevelsRun, backend: Backend, models: ModelPool, level: str, environment: BaseConfig, checkpoint: str
) -> dict[str, tuple[list[Task], list[Dialogue]]]:
    """Return tasks and dialogues of one level by variant, all generated in one call."""
    engine = build_engine(config.model_copy(update={"environment": environment}), backend, models=models)
    requests: list[tuple[str, Task, RolloutRequest]] = []
    for i, base_task in enumerate(distinct_tasks(engine.environment, config.split, config.tasks)):
        task = base_task.model_copy(update={"id": f"{base_task.id}/{level}"})  # unique over levels
        perturbed = engine.environment.perturbations(task) if isinstance(engine.environment, Perturbations) else {}
        variants = {ORIGINAL: task, RESAMPLED: task}
        variants |= {name: perturbed[name] for name in config.variants() if name in perturbed}
        for j in range(config.samples):
            for name, variant in variants.items():
                again = [RESAMPLED] if name == RESAMPLED else []
                seed = derive_seed(config.evaluation.seed, i, j, *again)
                turns = config.turns if name == ORIGINAL else 1
                dialogue_id = "/".join([variant.id, *again, str(j)])
                requests.append(
                    (name, variant, RolloutRequest(variant, dialogue_id, task.id, j, seed, max_turns=turns))
                )
    rollouts = engine.run([request for *_, request in requests], policy=checkpoint,
                          adapter=None if config.adapters[checkpoint] is None else checkpoint,
                          max_turns=config.turns, temperature=config.evaluation.temperature)  # fmt: skip
    results: dict[str, tuple[list[Task], list[Dialogue]]] = {
        name: ([], []) for name in (ORIGINAL, RESAMPLED, *config.variants())
    }
    for (name, variant, _), rollout in zip(requests, rollouts, strict=True):
        results[name][0].append(variant)
        results[name][1].append(rollout.dialogue)
    return {name: result for name, result in results.items() if result[0]}


def compute_report(config: LevelsRun, run_dir: RunDir) -> LevelsReport:
    """Compute the report of stored dialogues."""
    levels = config.levels()
    dialogues = {
        checkpoint: {level: _read_variants(run_dir, checkpoint, level, config) for level in levels}
        for checkpoint in config.adapters
    }
    infos = []
    for level, environment in levels.items():
        ids = {d.group for by_level in dialogues.values() for d in by_level[level][ORIGINAL]}
        baseline = constant_baseline(build_environment(environment).for_tasks(ids))
        infos.append(LevelInfo(name=level, value=config.value_of(level), tasks=len(ids), constant_baseline=baseline))
    return build_levels(
        dialogues, infos, environment=config.environment.type, field=config.sweep_field(), turns=config.turns,
        evaluated=EvaluatedTasks(config.tasks, config.samples, split=config.split),
    )  # fmt: skip


def _read_variants(run_dir: RunDir, checkpoint: str, level: str, config: LevelsRun) -> dict[str, list[Dialogue]]:
    result = {ORIGINAL: read_dialogues(run_dir, checkpoint, condition_name(level, ORIGINAL))}
    for name in (RESAMPLED, *config.variants()):
        try:
            result[name] = read_dialogues(run_dir, checkpoint, condition_name(level, name))
        except DataError as error:
            if not isinstance(error.__cause__, FileNotFoundError):  # otherwise no task of this level has this variant
                raise
    return result
