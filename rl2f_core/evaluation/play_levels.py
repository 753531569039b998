"""Playing checkpoints over levels of an environment and on perturbed copies of its tasks.

Sample j of a task and of its copies has the same seed at every level, so differences are paired; only `again`, the same
text once more, has another.  Each (checkpoint, level) is a commit, so a resumed run plays none twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rl2f_core.backends.base import Backend
from rl2f_core.backends.pool import Models
from rl2f_core.config import BaseConfig, write_atomically
from rl2f_core.errors import DataError
from rl2f_core.evaluation.costs import teacher_costs
from rl2f_core.evaluation.evaluate import STAGE, read_dialogues, write_dialogues
from rl2f_core.evaluation.figures import to_png
from rl2f_core.evaluation.floors import BestConstant
from rl2f_core.evaluation.levels import (
    AGAIN,
    ORIGINAL,
    LevelInfo,
    LevelsReport,
    build_levels,
    control_name,
    level_warnings,
    levels_chart,
)
from rl2f_core.events import DialogueEvent, LogEvent, MetricEvent
from rl2f_core.rollout.build import build_engine, build_environment
from rl2f_core.rollout.engine import Request, derive_seed
from rl2f_core.run import Journal, Progress, RunDir, Stop
from rl2f_core.types import Dialogue, Task

if TYPE_CHECKING:
    from rl2f_core.kinds.levels import LevelsRun

REPORT = "levels.json"
"""In the run's `evaluation/`, beside report.md and accuracy_by_level.png."""


def play_levels(
    config: LevelsRun, run_dir: RunDir, journal: Journal, backend: Backend, stop: Stop, progress: Progress
) -> bool:
    """Play every checkpoint on every level, then write the report; False where `stop` ended it early."""
    position = dict(journal.position or {})
    finished: list[str] = list(position.get("evaluated", []))
    models = Models(backend, config.backend)
    levels = config.levels()
    pairs = [(checkpoint, level) for checkpoint in config.adapters for level in levels]
    for name, folder in config.adapters.items():
        if folder is not None:
            backend.load_adapter(name, Path(folder))
    for done, (checkpoint, level) in enumerate(pairs):
        if f"{checkpoint}/{level}" in finished:
            continue
        if stop():
            return False
        progress.update("levels", done, len(pairs), f"{checkpoint} at {level}")
        adapter = None if config.adapters[checkpoint] is None else checkpoint
        found = _play(config, backend, models, level, levels[level], checkpoint, adapter)
        for name, (tasks, dialogues) in found.items():
            control = control_name(level, name)
            write_dialogues(run_dir, checkpoint, control, dialogues)
            journal.emit(
                DialogueEvent.of("evaluation", STAGE, 0, task, dialogue, checkpoint=checkpoint, control=control)
                for task, dialogue in zip(tasks, dialogues, strict=True)
            )
        finished.append(f"{checkpoint}/{level}")
        position |= {"evaluated": finished}
        journal.commit(position)
        run_dir.heartbeat(status="running", stage=STAGE, step=done + 1, steps=len(pairs))
    progress.update("levels", len(pairs), len(pairs))
    report = report_of(config, run_dir)
    write_atomically(run_dir.evaluation / REPORT, report.model_dump_json(indent=2))
    write_atomically(run_dir.evaluation / "report.md", report.to_markdown())
    chart = levels_chart(report)
    write_atomically(run_dir.evaluation / f"{chart.name}.png", to_png(chart))
    for cell in report.cells:
        if cell.metrics is not None:
            stage = f"{STAGE}:{cell.checkpoint}:{cell.control}"
            spent = teacher_costs(read_dialogues(run_dir, cell.checkpoint, cell.control))
            values = cell.metrics.flat() | spent
            journal.emit([MetricEvent(id=f"metric:{stage}", stage=stage, step=0, values=values)])
    low = level_warnings(report)
    if low:
        journal.emit([LogEvent(id="evaluation:floor", level="warning", text="\n".join(low))])
    journal.emit([LogEvent(id="evaluation:report", text=report.to_markdown())])
    journal.position = position
    return True


def _play(
    config: LevelsRun, backend: Backend, models: Models, level: str, environment: BaseConfig, checkpoint: str,
    adapter: str | None,
) -> dict[str, tuple[list[Task], list[Dialogue]]]:  # fmt: skip
    """Tasks and dialogues of one level by kind of copy, all played in one call."""
    engine = build_engine(config.model_copy(update={"environment": environment}), backend, models=models)
    asked: list[tuple[str, Task, Request]] = []
    for i in range(config.tasks):
        drawn = engine.environment.task(config.split, i)
        task = drawn.model_copy(update={"id": f"{drawn.id}/{level}"})  # tasks of two levels must not share a name
        copies = engine.environment.perturbations(task)
        versions = {ORIGINAL: task, AGAIN: task, **{n: copies[n] for n in config.copies() if n in copies}}
        for j in range(config.samples):
            for name, version in versions.items():
                seed = derive_seed(config.evaluation.seed, i, j, *([AGAIN] if name == AGAIN else []))
                turns = config.turns if name == ORIGINAL else 1
                own = f"{version.id}/{AGAIN}/{j}" if name == AGAIN else f"{version.id}/{j}"
                asked.append((name, version, Request(version, own, task.id, j, seed, max_turns=turns)))
    rollouts = engine.play([request for *_, request in asked], adapter=adapter, policy=checkpoint,
                           max_turns=config.turns, temperature=config.evaluation.temperature)  # fmt: skip
    found: dict[str, tuple[list[Task], list[Dialogue]]] = {n: ([], []) for n in (ORIGINAL, AGAIN, *config.copies())}
    for (name, version, _), rollout in zip(asked, rollouts, strict=True):
        found[name][0].append(version)
        found[name][1].append(rollout.dialogue)
    return {name: held for name, held in found.items() if held[0]}


def report_of(config: LevelsRun, run_dir: RunDir) -> LevelsReport:
    """Measure what was played."""
    played: dict[str, Mapping[str, Mapping[str, list[Dialogue]]]] = {}
    levels = config.levels()
    for checkpoint in config.adapters:
        played[checkpoint] = {level: _read(run_dir, checkpoint, level, config) for level in levels}
    infos = [
        LevelInfo(name=level, value=config.value_of(level), floor=BestConstant.of(build_environment(environment)))
        for level, environment in levels.items()
    ]
    return build_levels(
        played, infos, environment=config.environment.type, field=config.swept(), split=config.split,
        tasks=config.tasks, samples=config.samples, turns=config.turns, resamples=config.evaluation.bootstrap,
        seed=config.evaluation.seed,
    )  # fmt: skip


def _read(run_dir: RunDir, checkpoint: str, level: str, config: LevelsRun) -> dict[str, list[Dialogue]]:
    found = {ORIGINAL: read_dialogues(run_dir, checkpoint, control_name(level, ORIGINAL))}
    for name in (AGAIN, *config.copies()):
        try:
            found[name] = read_dialogues(run_dir, checkpoint, control_name(level, name))
        except DataError as error:
            if not isinstance(error.__cause__, FileNotFoundError):  # no task of this level has such a copy
                raise
    return found
