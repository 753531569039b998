"""Evaluation: checkpoints × conditions on the same tasks, with the same seeds and budget.

The tasks are distinct problems. A dialogue's seed depends only on (evaluation seed, seed of the run, task, sample). All
checkpoints and conditions of a run therefore share tasks and randomness, and every difference is paired; runs with
other seeds share the tasks. The README of this package describes the conditions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from rl2f_core import registry
from rl2f_core.common.file_io import write_atomically
from rl2f_core.common.stats.intervals import t_interval
from rl2f_core.config.run import BaseRun
from rl2f_core.dialogue.dataset_store import DATASETS, manifest_of
from rl2f_core.dialogue.metrics.constant_baseline import describe_comparison
from rl2f_core.dialogue.metrics.dialogues import REFLECTION_CONDITIONS, Metrics
from rl2f_core.dialogue.metrics.teacher_costs import add_costs, costs_text, teacher_costs
from rl2f_core.dialogue.rollout.build import build_control, build_engine, load_reflector
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest, StudentPolicy, derive_seed
from rl2f_core.dialogue.teachers.shuffled import RecordedHints
from rl2f_core.environments.base import Environment, distinct_tasks, problem_key
from rl2f_core.environments.capabilities import members, missing_part
from rl2f_core.environments.stateful import OracleEnvironment, StatefulEnvironment
from rl2f_core.errors import DataError
from rl2f_core.evaluation.figure_files import write_figures
from rl2f_core.evaluation.formatting import interval_beside, missing_text, number
from rl2f_core.evaluation.reference_policies import random_policy
from rl2f_core.evaluation.report import EvaluatedTasks, EvaluationReport, baseline_findings, build_report
from rl2f_core.models.backends.base import Backend
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.models.device import trim_memory
from rl2f_core.models.process_group import current_group
from rl2f_core.run.context import RunContext
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, LogEvent, MetricEvent, read_events
from rl2f_core.types import ConstantBaseline, Dialogue, JsonObject, StopReason, Task, Turn

STAGE = "evaluation"
SHUFFLED = ("shuffled", "reflection_shuffled")
NEWEST_STEPS = 10
"""Training steps over which the note on first attempts averages."""


def evaluate_run(
    config: BaseRun,
    context: RunContext,
    backend: Backend,
    sources: Mapping[str, Path | None],
    models: ModelPool | None = None,
    adopted: Sequence[str] = (),
) -> bool:
    """Evaluate every checkpoint under every condition and write the report; False if `context.stop` ended it early.

    Args:
        config: Its `evaluation` section applies.
        context: Each condition of a checkpoint batch is a commit, so a resumed run repeats nothing.
        backend: With the base model loaded.
        sources: Adapter directory of each checkpoint by name; None is the base model.
        models: Models loaded by training; None loads the required ones.
        adopted: `CHECKPOINT/CONDITION` of evaluations that the run took over from another one.
    """
    position = dict(context.journal.resume_state or {})
    finished: list[str] = list(position.get("evaluated", adopted))
    conditions = supported_conditions(config)
    total = len(sources) * len(conditions)
    begun = "evaluated" in position
    if not begun:
        context.log("evaluation:skipped", "\n".join(skipped_conditions(config).values()))
    runner = EvaluationRunner(config, backend, models)
    settings = config.evaluation
    if not begun and len(runner.tasks) < settings.num_tasks:
        context.log("evaluation:problems", missing_text(len(runner.tasks), settings.num_tasks, settings.split))
    load_reflector(config, backend, context.run_dir)
    for name, adapter_dir in sources.items():
        if adapter_dir is not None:
            backend.load_adapter(name, adapter_dir)
    ordered = sorted(conditions, key=SHUFFLED.__contains__)  # they take texts from the dialogues under hints
    batches = [(batch, c) for batch in checkpoint_batches(list(sources), runner) for c in ordered]
    for batch, condition in batches:
        names = [name for name in batch if f"{name}/{condition}" not in finished]
        if not names:
            continue
        if context.stop():
            return False
        context.progress.update("evaluation", len(finished), total, f"{', '.join(names)} under {condition}")
        recorded = recorded_dialogues(context.run_dir, names) if condition in SHUFFLED else {}
        students = {name: None if sources[name] is None else name for name in names}
        results = runner.evaluate(students, condition, recorded)
        trim_memory()
        for name, dialogues in results.items():
            store_dialogues(context, name, condition, runner.tasks_for(dialogues), dialogues)
            finished.append(f"{name}/{condition}")
        position |= {"evaluated": finished}
        context.journal.commit(position)
        context.run_dir.heartbeat(status="running", stage=STAGE, step=len(finished), steps=total)
    context.progress.update("evaluation", total, total)
    current_group().run_on_main(lambda: _report(config, context, runner, list(sources)))
    context.journal.resume_state = position
    return True


def store_dialogues(
    context: RunContext, checkpoint: str, condition: str, tasks: Sequence[Task], dialogues: Sequence[Dialogue]
) -> None:
    """Write the dialogues of one checkpoint under one condition, and emit them as events."""
    if current_group().is_main_process:
        write_dialogues(context.run_dir, checkpoint, condition, dialogues)
    context.journal.emit(
        DialogueEvent.of("evaluation", STAGE, 0, task, dialogue, checkpoint=checkpoint, condition=condition)
        for task, dialogue in zip(tasks, dialogues, strict=True)
    )


def emit_metrics(context: RunContext, checkpoint: str, condition: str, metrics: Metrics) -> None:
    """Emit the metrics of one checkpoint under one condition, with the costs of its teacher."""
    stage = f"{STAGE}:{checkpoint}:{condition}"
    costs = teacher_costs(read_dialogues(context.run_dir, checkpoint, condition))
    context.journal.emit([MetricEvent(id=f"metric:{stage}", stage=stage, step=0, values=metrics.flat() | costs)])


def _report(config: BaseRun, context: RunContext, runner: EvaluationRunner, names: Sequence[str]) -> None:
    """Write report and figures, and emit the metrics."""
    report = compute_report(config, context.run_dir, runner, names)
    write_report(report, context.run_dir)
    for row in report.rows:
        emit_metrics(context, row.checkpoint, row.condition, row.metrics)
    context.journal.emit([LogEvent(id="evaluation:report", text=report.to_markdown())])
    warnings = baseline_findings(report)[1:]
    if warnings:
        context.journal.emit([LogEvent(id="evaluation:baseline", level="warning", text="\n".join(warnings))])


def skipped_conditions(config: BaseRun) -> dict[str, str]:
    """Return the conditions that the environment does not support, each with a message."""
    teachers = [name for name in config.evaluation.conditions if name in registry.names("teacher")]
    missing = {name: missing_part(config.environment, registry.get("teacher", name).requires) for name in teachers}
    skipped: dict[str, str] = {
        name: f"Condition {name} skipped: the environment has no {part}." for name, part in missing.items() if part
    }
    if any(kind.stateful for kind, _ in members(config.environment)):
        reason = "attempts in a stateful environment depend on each other"
        independent = [name for name in config.evaluation.conditions if name in ("resample", "no_oracle")]
        skipped |= {name: f"Condition {name} skipped: {reason}." for name in independent}
    if config.rollout.reflector is None:
        replaced = [name for name in config.evaluation.conditions if name in REFLECTION_CONDITIONS]
        skipped |= {name: f"Condition {name} skipped: the run has no reflector." for name in replaced}
    elif "reflection_corrupted" in config.evaluation.conditions and not all(
        issubclass(kind, OracleEnvironment) for kind, _ in members(config.environment)
    ):
        skipped["reflection_corrupted"] = "Condition reflection_corrupted skipped: the environment has no oracle."
    return skipped


def supported_conditions(config: BaseRun) -> list[str]:
    """Return the configured conditions that the environment supports."""
    skipped = skipped_conditions(config)
    return [name for name in config.evaluation.conditions if name not in skipped]


class EvaluationRunner:
    """Generates the dialogues of one evaluation."""

    def __init__(self, config: BaseRun, backend: Backend, models: ModelPool | None = None) -> None:
        self.settings = config.evaluation
        self.engine = build_engine(config, backend, models=models)
        self.turns = self.settings.max_turns or config.rollout.max_turns
        self.seed = config.seed
        self.tasks = distinct_tasks(self.engine.environment, self.settings.split, self.settings.num_tasks)
        self._by_id = {task.id: task for task in self.tasks}
        self._first_attempts: dict[str, list[Dialogue]] = {}

    def tasks_for(self, dialogues: Sequence[Dialogue]) -> list[Task]:
        """Return the task of each dialogue."""
        return [self._by_id[d.task_id] for d in dialogues]

    def evaluate(
        self,
        checkpoints: Mapping[str, str | None],
        condition: str,
        recorded: Mapping[str, Sequence[Dialogue]] | None = None,
    ) -> dict[str, list[Dialogue]]:
        """Return all dialogues of some checkpoints under one condition, by task and sample.

        First attempts are the same under every condition, so they are sampled once per checkpoint and continued.

        Args:
            checkpoints: Adapter of each checkpoint by name; None is the base model.
            condition: `hints` or a control.
            recorded: Dialogues of each checkpoint under `hints`, the source of the hints of `shuffled`.
        """
        students = [StudentPolicy(adapter, name) for name, adapter in checkpoints.items()]
        new = [student for student in students if student.policy not in self._first_attempts]
        if new:
            self._first_attempts = {name: ds for name, ds in self._first_attempts.items() if name in checkpoints}
            self._first_attempts |= self._run(self.engine, {student: self._requests() for student in new}, 1)
        if condition == "resample":
            return self._resample(students)
        if condition in REFLECTION_CONDITIONS:
            replaced = {s: self._replaced_reflections(condition, (recorded or {}).get(s.policy, ())) for s in students}
            return self._run(self.engine, replaced, self.turns)
        engine = self._engine(condition)
        firsts = {student: self._first_attempts[student.policy] for student in students}

        def continues(first: Dialogue) -> bool:
            done = bool(first.turns) and first.turns[-1].verdict.done
            solved = first.stop_reason is StopReason.SOLVED and not engine.stop_on_correct and not done
            return self.turns > 1 and (solved or first.stop_reason is StopReason.EXHAUSTED)

        teacher = self.engine.teacher.name
        hints = {
            name: RecordedHints(engine.environment, list(zip(self.tasks_for(group), group, strict=True)), teacher)
            for name, group in (recorded or {}).items()
        }

        def continuation(request: RolloutRequest, first: Dialogue, policy: str) -> RolloutRequest:
            matched = hints[policy].match(request.task, request.seed) if policy in hints else ()
            return dataclasses.replace(request, turns=first.turns, recorded_hints=matched)

        requests = {
            student: [
                continuation(request, first, student.policy)
                for request, first in zip(self._requests(), group, strict=True)
                if continues(first)
            ]
            for student, group in firsts.items()
        }
        continued = {name: iter(group) for name, group in self._run(engine, requests, self.turns).items()}
        return {
            student.policy: [next(continued[student.policy]) if continues(first) else first for first in group]
            for student, group in firsts.items()
        }

    def _run(
        self, engine: RolloutEngine, requests: Mapping[StudentPolicy, Sequence[RolloutRequest]], turns: int
    ) -> dict[str, list[Dialogue]]:
        """Return the dialogues of each student by checkpoint name, all generated in one call."""
        merged = [dataclasses.replace(r, student=student) for student, group in requests.items() for r in group]
        rollouts = iter(engine.run(merged, max_turns=turns, temperature=self.settings.temperature))
        return {student.policy: [next(rollouts).dialogue for _ in group] for student, group in requests.items()}

    def _engine(self, condition: str) -> RolloutEngine:
        if condition == "hints":
            return self.engine
        if condition == "no_oracle":
            return dataclasses.replace(self.engine, stop_on_correct=False)
        guard = self.engine.guard.flagging() if condition == "leaking" else self.engine.guard
        return dataclasses.replace(self.engine, teacher=build_control(condition, self.engine), guard=guard)

    def _requests(self, draw: int = 0) -> list[RolloutRequest]:
        """Return one request per task and sample; later draws have other seeds."""
        requests = []
        for i, task in enumerate(self.tasks):
            for j in range(self.settings.samples_per_task):
                seed = derive_seed(self.settings.seed, self.seed, i, j, *([draw] if draw else []))
                name = f"{task.id}/{j}" + (f".{draw}" if draw else "")
                requests.append(RolloutRequest(task, name, task.id, j, seed))
        return requests

    def _replaced_reflections(self, condition: str, recorded: Sequence[Dialogue]) -> list[RolloutRequest]:
        """Return the requests with dropped or corrupted reflections, or with those recorded on the next problem."""
        requests, shift = self._requests(), self.settings.samples_per_task
        if condition == "reflection_dropped":
            return [dataclasses.replace(request, reflections=("",)) for request in requests]
        if condition == "reflection_corrupted":
            return [dataclasses.replace(request, corrupt_reflections=True) for request in requests]
        others = [*recorded[shift:], *recorded[:shift]]
        texts = [tuple(turn.reflection or "" for turn in other.turns) or ("",) for other in others]
        return [dataclasses.replace(r, reflections=text) for r, text in zip(requests, texts, strict=True)]

    def _resample(self, students: Sequence[StudentPolicy]) -> dict[str, list[Dialogue]]:
        """Return T independent first attempts per dialogue: the same budget of attempts without dialogue."""
        requests = [request for draw in range(1, self.turns) for request in self._requests(draw)]
        results = {}
        for name, others in self._run(self.engine, dict.fromkeys(students, requests), 1).items():
            firsts = self._first_attempts[name]
            results[name] = [_join([first, *others[i :: len(firsts)]]) for i, first in enumerate(firsts)]
        return results


def checkpoint_batches(names: Sequence[str], runner: EvaluationRunner) -> list[list[str]]:
    """Group checkpoints that generate together: as many as fill the backend's batch, at least one."""
    engine, dialogues = runner.engine, len(runner.tasks) * runner.settings.samples_per_task
    size = max(1, min(engine.backend.preferred_batch_size, engine.config.max_concurrent) // max(1, dialogues))
    return [list(names[i : i + size]) for i in range(0, len(names), size)]


def _join(firsts: Sequence[Dialogue]) -> Dialogue:
    """Join independent first attempts into one dialogue that ends at the first correct or failed one."""
    turns: list[Turn] = []
    last = firsts[0]
    for last in firsts:
        turns += [turn.model_copy(update={"index": len(turns)}) for turn in last.turns]
        if last.stop_reason is not StopReason.EXHAUSTED:
            break
    return firsts[0].model_copy(update={"turns": tuple(turns), "stop_reason": last.stop_reason, "error": last.error})


def dialogues_path(run_dir: RunDir, checkpoint: str, condition: str) -> Path:
    """Return the file of the dialogues of one checkpoint under one condition."""
    return run_dir.evaluated_dialogues(checkpoint) / f"{condition}.jsonl"


def write_dialogues(run_dir: RunDir, checkpoint: str, condition: str, dialogues: Sequence[Dialogue]) -> None:
    """Store the dialogues of one checkpoint under one condition."""
    lines = "".join(d.model_dump_json() + "\n" for d in dialogues)
    write_atomically(dialogues_path(run_dir, checkpoint, condition), lines)


def read_dialogues(run_dir: RunDir, checkpoint: str, condition: str) -> list[Dialogue]:
    """Return the dialogues stored by `write_dialogues`."""
    path = dialogues_path(run_dir, checkpoint, condition)
    try:  # texts may contain Unicode line separators, so only \n ends a line
        return [Dialogue.model_validate_json(line) for line in path.read_bytes().split(b"\n") if line]
    except (OSError, ValueError) as error:
        raise DataError(
            "Cannot read the dialogues of the evaluation.",
            value=str(path),
            fix="Evaluate again in a new run directory.",
        ) from error


def recorded_dialogues(run_dir: RunDir, checkpoints: Sequence[str]) -> dict[str, list[Dialogue]]:
    """Return the stored dialogues under `hints` of each checkpoint, the same in all processes."""
    return current_group().broadcast_from_main(
        lambda: {name: read_dialogues(run_dir, name, "hints") for name in checkpoints}
    )


def describe_levels(tasks: Sequence[Task]) -> str:
    """Return the sorted levels of tasks in one line; of more than three, the first, the last and their number."""
    names = sorted({task.level for task in tasks})
    return "; ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]} ({len(names)} levels)"


def compute_report(
    config: BaseRun, run_dir: RunDir, runner: EvaluationRunner, names: Sequence[str]
) -> EvaluationReport:
    """Compute the report of stored dialogues; for a mixture, also one per sub-environment."""
    settings, environment = config.evaluation, runner.engine.environment
    dialogues: dict[str, dict[str, Sequence[Dialogue]]] = {
        name: {c: read_dialogues(run_dir, name, c) for c in supported_conditions(config)} for name in names
    }

    def build(
        part: Environment, tasks: Sequence[Task], notes: Sequence[str] = (), parts: Sequence[EvaluationReport] = ()
    ) -> EvaluationReport:
        ids = {task.id for task in tasks}
        selected = {
            checkpoint: {c: [d for d in group if d.task_id in ids] for c, group in by_condition.items()}
            for checkpoint, by_condition in dialogues.items()
        }
        level = "" if part.sub_environments else describe_levels(tasks)
        evaluated = EvaluatedTasks(
            len(tasks), settings.samples_per_task, level, settings.split, config.seed,
            requested=settings.num_tasks if part is environment else 0,
            keys={task.id: problem_key(environment, task) for task in tasks},
        )  # fmt: skip
        report = build_report(part, selected, runner.turns, evaluated, notes, parts)
        if not isinstance(part, StatefulEnvironment):
            return report
        return report.model_copy(update={"random_policy": random_policy(part, tasks, runner.turns)})

    parts = []
    for name, part in environment.sub_environments.items():
        tasks = [task for task in runner.tasks if environment.sub_environment_of(task) == name]
        if tasks:
            parts.append(build(part, tasks).model_copy(update={"environment": name}))
    costs = teacher_costs([d for by_condition in dialogues.values() for group in by_condition.values() for d in group])
    notes = [*training_notes(run_dir), *([f"Teacher in this evaluation: {costs_text(costs)}."] if costs else [])]
    return build(environment, runner.tasks, notes, parts)


def training_notes(run_dir: RunDir) -> list[str]:
    """Return each stage's tokens (sampled or demonstrated), its newest first attempts, and the teacher's costs."""
    rows = _training_metrics(run_dir)
    manifests = {
        path.parent.name: manifest_of(path.parent) for path in (run_dir.path / DATASETS).glob("*/dataset.json")
    }
    notes = []
    for name in dict.fromkeys(row.stage for row in rows):
        stage = [row for row in rows if row.stage == name]
        if name in manifests:
            notes.append(f"Stage {name} created a dataset: {manifests[name]['summary']}.")
            continue
        sampled, demonstrated = (
            sum(row.values.get(f"tokens/{kind}", 0.0) for row in stage) for kind in ("sampled", "demonstrated")
        )
        tokens = f"{sampled:,.0f} sampled" if sampled else f"{demonstrated:,.0f} demonstrated"
        notes.append(f"Stage {name}: {tokens} student tokens in {len(stage)} steps.{_newest_first_attempts(stage)}")
    costs = add_costs(row.values for row in rows)
    return [*notes, *([f"Teacher in training: {costs_text(costs)}."] if costs else [])]


def _newest_first_attempts(rows: Sequence[MetricEvent]) -> str:
    """Compare a stage's newest first attempts with the constant baseline; empty without these metrics."""
    names = ("cum_acc/1", "constant_baseline")
    points = [tuple(row.values[name] for name in names) for row in rows if row.values.keys() >= set(names)]
    if not points:
        return ""
    rates, baselines = zip(*points[-NEWEST_STEPS:], strict=True)
    baseline = ConstantBaseline("the same", sum(baselines) / len(baselines))
    interval = t_interval(rates, support=(0.0, 1.0))
    text, constant = interval_beside(interval, baseline.score)
    solves = f"the best constant answer solves {constant}"
    if len(rates) == 1:
        return f" In its only step {number(interval.value)} of the first attempts were correct; {solves}."
    return (
        f" In its last {len(rates)} steps {text} of the first attempts were correct (t interval "
        f"over steps); {solves}: {describe_comparison(interval, baseline)}."
    )


def training_rows(run_dir: RunDir) -> dict[str, list[JsonObject]]:
    """Return step and metrics of each training step, by stage."""
    training: dict[str, list[JsonObject]] = {}
    for row in _training_metrics(run_dir):
        training.setdefault(row.stage, []).append({"step": row.step, **row.values})
    return training


def _training_metrics(run_dir: RunDir) -> list[MetricEvent]:
    """Return the metric events of training steps."""
    if not run_dir.events_path.exists():
        return []
    events = read_events(run_dir.events_path)
    return [e for e in events if isinstance(e, MetricEvent) and not e.is_evaluation]


def write_report(report: EvaluationReport, run_dir: RunDir) -> None:
    """Write report.json, report.md, report.html and PNG figures."""
    write_atomically(run_dir.evaluation / "report.json", report.to_json())
    write_atomically(run_dir.evaluation / "report.md", report.to_markdown())
    write_figures(report, run_dir.evaluation, training_rows(run_dir))
