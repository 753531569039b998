"""Playing an evaluation: checkpoints × controls on the same tasks, with the same seeds and the same budget.

A dialogue's seed follows from (evaluation seed, task, sample) alone, so all checkpoints and controls meet the same
tasks with the same chance, and every difference is paired.  Controls (methods.md §8): `hints` is the run's teacher,
`contentless`, `shuffled` and `misleading` are teachers, `resample` is T independent first answers; `no_oracle` is the
run's teacher without the verifier's stop (§5).  Where a model teaches, `shuffled` shuffles its own hints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rl2f_core.backends.base import Backend
from rl2f_core.backends.pool import Models
from rl2f_core.config import BaseRun, EvaluationConfig, write_atomically
from rl2f_core.device import give_back
from rl2f_core.environments.base import Environment
from rl2f_core.errors import DataError
from rl2f_core.evaluation.costs import add_costs, costs_text, teacher_costs
from rl2f_core.evaluation.figures import write_figures
from rl2f_core.evaluation.floors import BestConstant, standing_words
from rl2f_core.evaluation.report import EvaluationReport, build_report, floor_findings, interval_text, number
from rl2f_core.evaluation.statistics import t_interval
from rl2f_core.events import DialogueEvent, LogEvent, MetricEvent, read_events
from rl2f_core.ranks import here
from rl2f_core.rollout.build import build_control, build_engine
from rl2f_core.rollout.engine import Request, RolloutEngine, Student, derive_seed
from rl2f_core.run import Journal, Progress, RunDir, Stop
from rl2f_core.training.stored import DATASETS, manifest_of
from rl2f_core.types import Dialogue, StopReason, Task, Turn

STAGE = "evaluation"
NEWEST_STEPS = 10
"""Training steps that the newest first attempts are those of."""


def evaluate_run(
    config: BaseRun,
    run_dir: RunDir,
    journal: Journal,
    backend: Backend,
    sources: Mapping[str, Path | None],
    stop: Stop,
    progress: Progress,
    models: Models | None = None,
) -> bool:
    """Play every checkpoint under every control, then write report and figures; False where `stop` ended it early.

    Args:
        config: `evaluation` says what is played.
        run_dir: Gets `evaluation/`.
        journal: Each control of the checkpoints that play together is a commit, so a resumed run plays nothing twice.
        backend: With the base model loaded.
        sources: The adapter folder of each checkpoint by name; None is the base.
        stop: Asked between commits.
        progress: Hears how far it is.
        models: Those that were loaded in training; None loads what is needed.
    """
    position = dict(journal.position or {})
    finished: list[str] = list(position.get("evaluated", []))
    settings = config.evaluation
    pairs = [(name, control) for name in sources for control in settings.controls]
    player, ranks = Player(config, backend, models), here()
    for name, folder in sources.items():
        if folder is not None:
            backend.load_adapter(name, folder)
    for wave, control in ((wave, control) for wave in waves(list(sources), player) for control in settings.controls):
        names = [name for name in wave if _key(name, control) not in finished]
        if not names:
            continue
        if stop():
            return False
        progress.update("evaluation", len(finished), len(pairs), f"{', '.join(names)} under {control}")
        played = player.play({name: None if sources[name] is None else name for name in names}, control)
        give_back()
        for name, dialogues in played.items():
            if ranks.main:
                write_dialogues(run_dir, name, control, dialogues)
            journal.emit(
                DialogueEvent.of("evaluation", STAGE, 0, task, dialogue, checkpoint=name, control=control)
                for task, dialogue in zip(player.tasks_of(dialogues), dialogues, strict=True)
            )
            finished.append(_key(name, control))
        position |= {"evaluated": finished}
        journal.commit(position)
        run_dir.heartbeat(status="running", stage=STAGE, step=len(finished), steps=len(pairs))
    progress.update("evaluation", len(pairs), len(pairs))
    ranks.alone(lambda: _report(config, run_dir, journal, player, list(sources)))
    journal.position = position
    return True


def _report(config: BaseRun, run_dir: RunDir, journal: Journal, player: Player, names: Sequence[str]) -> None:
    """Measure what was played, write report and figures, and emit the numbers."""
    report = report_of(config, run_dir, player, names)
    write_report(report, run_dir)
    for row in report.rows:
        stage = f"{STAGE}:{row.checkpoint}:{row.control}"
        spent = teacher_costs(read_dialogues(run_dir, row.checkpoint, row.control))
        journal.emit([MetricEvent(id=f"metric:{stage}", stage=stage, step=0, values=row.metrics.flat() | spent)])
    journal.emit([LogEvent(id="evaluation:report", text=report.to_markdown())])
    low = floor_findings(report)[1:]
    if low:
        journal.emit([LogEvent(id="evaluation:floor", level="warning", text="\n".join(low))])


class Player:
    """Plays the controls of one evaluation."""

    def __init__(self, config: BaseRun, backend: Backend, models: Models | None = None) -> None:
        self.settings = config.evaluation
        self.engine = build_engine(config, backend, models=models)
        self.turns = self.settings.max_turns or config.rollout.max_turns
        self.tasks = [self.engine.environment.task(self.settings.split, i) for i in range(self.settings.tasks)]
        self._by_id = {task.id: task for task in self.tasks}
        self._firsts: dict[str, list[Dialogue]] = {}

    def tasks_of(self, dialogues: Sequence[Dialogue]) -> list[Task]:
        """The task of each dialogue."""
        return [self._by_id[d.task_id] for d in dialogues]

    def play(self, checkpoints: Mapping[str, str | None], control: str) -> dict[str, list[Dialogue]]:
        """All dialogues of some checkpoints under one control, by task and sample; they are played side by side.

        The first attempts are the same under every control, so they are sampled once a checkpoint and gone on from.

        Args:
            checkpoints: The adapter of each by name; None is the base.
            control: Of the evaluation.
        """
        students = [Student(adapter, name) for name, adapter in checkpoints.items()]
        fresh = [student for student in students if student.policy not in self._firsts]
        if fresh:
            self._firsts = {name: firsts for name, firsts in self._firsts.items() if name in checkpoints}
            self._firsts |= self._play(self.engine, {student: self._requests() for student in fresh}, 1)
        if control == "resample":
            return self._resample(students)
        engine = self._engine(control)
        places = {
            s: [i for i, first in enumerate(self._firsts[s.policy]) if self.turns > 1 and _goes_on(first, engine)]
            for s in students
        }
        wanted = self._requests()
        asked = {
            s: [dataclasses.replace(wanted[i], turns=self._firsts[s.policy][i].turns) for i in own]
            for s, own in places.items()
        }
        further = self._play(engine, asked, self.turns)
        played = {student.policy: list(self._firsts[student.policy]) for student in students}
        for student, own in places.items():
            for i, dialogue in zip(own, further[student.policy], strict=True):
                played[student.policy][i] = dialogue
        return played

    def _play(
        self, engine: RolloutEngine, asked: Mapping[Student, Sequence[Request]], turns: int
    ) -> dict[str, list[Dialogue]]:
        """The dialogues of each student, by the name of its checkpoint."""
        requests = [dataclasses.replace(one, student=student) for student, own in asked.items() for one in own]
        rollouts = iter(engine.play(requests, max_turns=turns, temperature=self.settings.temperature))
        return {student.policy: [next(rollouts).dialogue for _ in own] for student, own in asked.items()}

    def _engine(self, control: str) -> RolloutEngine:
        if control == "hints":
            return self.engine
        if control == "no_oracle":
            return dataclasses.replace(self.engine, oracle_stop=False)
        return dataclasses.replace(self.engine, teacher=build_control(control, self.engine))

    def _requests(self, draw: int = 0) -> list[Request]:
        """One request for each task and sample; draws beyond the first have seeds of their own."""
        requests = []
        for i, task in enumerate(self.tasks):
            for j in range(self.settings.samples):
                seed = derive_seed(self.settings.seed, i, j, *([draw] if draw else []))
                name = f"{task.id}/{j}" + (f".{draw}" if draw else "")
                requests.append(Request(task, name, task.id, j, seed))
        return requests

    def _resample(self, students: Sequence[Student]) -> dict[str, list[Dialogue]]:
        """T first answers in place of a dialogue: what the same budget of attempts gets without any dialogue."""
        asked = [request for draw in range(1, self.turns) for request in self._requests(draw)]
        others = self._play(self.engine, dict.fromkeys(students, asked), 1)
        played = {}
        for name, further in others.items():
            firsts = self._firsts[name]
            played[name] = [_joined([first, *further[i :: len(firsts)]]) for i, first in enumerate(firsts)]
        return played


def waves(names: Sequence[str], player: Player) -> list[list[str]]:
    """Checkpoints that play side by side: as many as fill the backend with what they have to play, at least one."""
    engine, own = player.engine, len(player.tasks) * player.settings.samples
    size = max(1, min(engine.backend.wide, engine.config.batch_size) // max(1, own))
    return [list(names[i : i + size]) for i in range(0, len(names), size)]


def _goes_on(first: Dialogue, engine: RolloutEngine) -> bool:
    """Whether a dialogue of one attempt has another where more are allowed."""
    return first.stop is StopReason.EXHAUSTED or (first.stop is StopReason.SOLVED and not engine.oracle_stop)


def _joined(firsts: Sequence[Dialogue]) -> Dialogue:
    """Independent first answers as one dialogue that ends at the first right one (or the first that broke)."""
    turns: list[Turn] = []
    last = firsts[0]
    for last in firsts:
        turns += [turn.model_copy(update={"index": len(turns)}) for turn in last.turns]
        if last.stop is not StopReason.EXHAUSTED:
            break
    return firsts[0].model_copy(update={"turns": tuple(turns), "stop": last.stop, "error": last.error})


def _key(checkpoint: str, control: str) -> str:
    return f"{checkpoint}/{control}"


def _path(run_dir: RunDir, checkpoint: str, control: str) -> Path:
    return run_dir.evaluation / "dialogues" / quote(checkpoint, safe="@: ") / f"{control}.jsonl"


def write_dialogues(run_dir: RunDir, checkpoint: str, control: str, dialogues: Sequence[Dialogue]) -> None:
    """Keep what one checkpoint played under one control, for `read_dialogues`."""
    lines = "".join(d.model_dump_json() + "\n" for d in dialogues)
    write_atomically(_path(run_dir, checkpoint, control), lines)


def read_dialogues(run_dir: RunDir, checkpoint: str, control: str) -> list[Dialogue]:
    """The dialogues that an evaluation played."""
    path = _path(run_dir, checkpoint, control)
    try:  # a model may write line separators of its own, so lines end at \n alone
        return [Dialogue.model_validate_json(line) for line in path.read_bytes().split(b"\n") if line]
    except (OSError, ValueError) as error:
        raise DataError("The dialogues of an evaluation cannot be read.", value=str(path),
                        fix="Evaluate again in a new folder.") from error  # fmt: skip


def levels_of(tasks: Sequence[Task]) -> str:
    """The levels of some tasks in one line, sorted; of more than three the first, the last and how many there are."""
    names = sorted({task.level for task in tasks})
    return "; ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]} ({len(names)} levels)"


def report_of(config: BaseRun, run_dir: RunDir, player: Player, names: Sequence[str]) -> EvaluationReport:
    """Measure what was played."""
    settings: EvaluationConfig = config.evaluation
    played: dict[str, dict[str, Sequence[Dialogue]]] = {
        name: {c: read_dialogues(run_dir, name, c) for c in settings.controls} for name in names
    }
    environment = player.engine.environment

    def measured(of: Environment, tasks: Sequence[Task], name: str = "", **more: Any) -> EvaluationReport:
        wanted = {task.id for task in tasks}
        own = {
            checkpoint: {c: [d for d in dialogues if d.task_id in wanted] for c, dialogues in by_control.items()}
            for checkpoint, by_control in played.items()
        }
        made = build_report(
            of,
            own,
            player.turns,
            level="" if of.parts else levels_of(tasks),
            split=settings.split,
            tasks=len(tasks),
            samples=settings.samples,
            seed=config.seed,
            resamples=settings.bootstrap,
            bootstrap_seed=settings.seed,
            **more,
        )
        return made.model_copy(update={"environment": name}) if name else made

    parts = []
    for name, part in environment.parts.items():
        own_tasks = [task for task in player.tasks if environment.part_of(task) == name]
        if own_tasks:
            parts.append(measured(part, own_tasks, name))
    notes = [*training_notes(run_dir), *_teacher_notes(played)]
    return measured(environment, player.tasks, notes=notes, parts=parts)


def training_notes(run_dir: RunDir) -> list[str]:
    """What each stage of this run cost (the tokens that its student sampled, or imitated), and how its newest first
    attempts stand beside the best constant answer."""
    totals: dict[str, tuple[int, float, float]] = {}
    rows = _metric_rows(run_dir)
    spent = add_costs(row.values for row in rows)
    for row in rows:
        steps, sampled, shown = totals.get(row.stage, (0, 0.0, 0.0))
        sampled += row.values.get("tokens/student", 0.0)
        totals[row.stage] = steps + 1, sampled, shown + row.values.get("tokens/demonstrated", 0.0)
    made = {path.parent.name: manifest_of(path.parent) for path in (run_dir.path / DATASETS).glob("*/dataset.json")}
    return [
        f"Stage {name} made a data set: {made[name]['summary']}."
        if name in made
        else f"Stage {name}: {f'{sampled:,.0f} sampled' if sampled else f'{shown:,.0f} demonstrated'} student tokens "
        f"in {steps} steps." + _newest_first_attempts([row for row in rows if row.stage == name])
        for name, (steps, sampled, shown) in totals.items()
    ] + ([f"The teacher in training: {costs_text(spent)}."] if spent else [])


def _newest_first_attempts(rows: Sequence[MetricEvent]) -> str:
    """The share right at the first attempt in a stage's last steps against its floor; empty where there is none."""
    held = [(row.values["cum_acc/1"], row.values["floor"]) for row in rows if {"cum_acc/1", "floor"} <= set(row.values)]
    if not held:
        return ""
    shares, floors = zip(*held[-NEWEST_STEPS:], strict=True)
    floor = BestConstant(answer="the same", score=sum(floors) / len(floors))
    found = t_interval(shares, support=(0.0, 1.0))
    solves = f"the best constant answer solves {number(floor.score)}"
    if len(shares) == 1:
        return f" In its only step {number(found.value)} of the first attempts were right; {solves}."
    return (
        f" In its last {len(shares)} steps {interval_text(found)} of the first attempts were right (t interval over "
        f"steps); {solves}: {standing_words(found, floor)}."
    )


def _teacher_notes(played: Mapping[str, Mapping[str, Sequence[Dialogue]]]) -> list[str]:
    """What a model teacher cost in the evaluation, and how often it had no hint."""
    costs = teacher_costs([d for by_control in played.values() for dialogues in by_control.values() for d in dialogues])
    return [f"The teacher in this evaluation: {costs_text(costs)}."] if costs else []


def _metric_rows(run_dir: RunDir) -> list[MetricEvent]:
    """The metrics of training steps."""
    if not run_dir.events_path.exists():
        return []
    events = read_events(run_dir.events_path)
    return [e for e in events if isinstance(e, MetricEvent) and not e.stage.startswith(STAGE)]


def write_report(report: EvaluationReport, run_dir: RunDir) -> None:
    """report.json, report.md, report.html and PNG figures."""
    folder = run_dir.evaluation
    write_atomically(folder / "report.json", report.model_dump_json(indent=2))
    write_atomically(folder / "report.md", report.to_markdown())
    training: dict[str, list[dict[str, Any]]] = {}
    for row in _metric_rows(run_dir):
        training.setdefault(row.stage, []).append({"step": row.step, **row.values})
    write_figures(report, folder, training)
