"""Execution of forks: fork points × arms × samples under each checkpoint, in batches that are commits.

A branch continues from the stored tokens. Sample j of every arm and checkpoint has the same seed, which depends only on
(run seed, dialogue, turn, j), so differences are paired. It differs from the dialogue's own seed, so the stored
continuation is not a sample; the additional sample of `CounterfactualRun.repeats_seed` is in no estimate. A resumed run
reads finished branches from its own events and repeats none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from rl2f_core.common.file_io import checked_path, write_atomically
from rl2f_core.dialogue.metrics.dialogues import Revision, normalized_answer
from rl2f_core.dialogue.rollout.build import (
    build_backend,
    build_control,
    build_engine,
    build_environment,
    load_reflector,
)
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest, derive_seed
from rl2f_core.dialogue.teachers.base import Teacher
from rl2f_core.errors import DataError
from rl2f_core.evaluation.counterfactual.arms import BASELINE, ORIGINAL_ARM, Arm, arm_hints, arm_teacher
from rl2f_core.evaluation.counterfactual.config import CounterfactualRun
from rl2f_core.evaluation.counterfactual.estimates import Outcome
from rl2f_core.evaluation.counterfactual.fork_points import ForkPoint, match_recorded_hints
from rl2f_core.evaluation.counterfactual.report import CounterfactualReport, build_report, chart
from rl2f_core.models.backends.base import Backend
from rl2f_core.run.context import Progress, RunContext, ShouldStop
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, HintValueEvent, LogEvent, read_events
from rl2f_core.run.journal import Journal
from rl2f_core.types import Dialogue, Hint, StopReason

STAGE = "fork"
RESULTS_DIR = "counterfactual"
"""Directory in the run directory: hints.json, report.json, report.md, solved.png."""
HINTS_FILE = "hints.json"
_HINTS = TypeAdapter(list[tuple[str, str, int, dict[str, Hint]]])
"""Hint of each arm, by checkpoint, dialogue event and turn."""


@dataclasses.dataclass(frozen=True, slots=True)
class Branch:
    """One dialogue to generate."""

    checkpoint: str
    origin: ForkPoint
    arm: str
    sample: int
    request: RolloutRequest

    @property
    def event(self) -> str:
        """Event id."""
        return f"dialogue:fork:{self.checkpoint}:{self.arm}:{self.request.id}"

    def outcome(self, dialogue: Dialogue) -> Outcome | None:
        """Return the outcome; None if the dialogue failed."""
        if dialogue.stop_reason is StopReason.FAILED:
            return None
        turn = self.origin.turn
        after = dialogue.turns[turn + 1] if len(dialogue.turns) > turn + 1 else None
        kept, parts = 0, 0
        if after is not None:
            before = dialogue.turns[turn]
            kept, parts = Revision(dialogue.task_id, before, after, frozenset({normalized_answer(before)})).kept
        return Outcome((self.origin.event, turn), dialogue.task_id, self.arm, self.sample, bool(dialogue.solved),
                       None if after is None else after.verdict.score, kept, parts)  # fmt: skip


def branches(
    origins: Sequence[ForkPoint],
    arms: Mapping[str, Sequence[Hint]],
    samples: int,
    *,
    checkpoint: str,
    seed: int,
    budget: int,
    turns: int | None,
    repeats_seed: bool = False,
) -> list[Branch]:
    """Return the branches ordered by fork point, sample and arm, so that a batch contains whole pairs.

    Args:
        origins: Fork points.
        arms: Hint at each fork point by arm; hints with an error are skipped.
        samples: Branches per arm and fork point.
        checkpoint: The student.
        seed: Seed of the run.
        budget: Turns of a whole dialogue.
        turns: Attempts after the fork; None for the rest of `budget`, at least one.
        repeats_seed: Add a sample 0 with the dialogue's own seed.
    """
    result = []
    for i, origin in enumerate(origins):
        past = origin.turn + 1
        limit = past + (turns or max(1, budget - past))
        for sample in range(samples + repeats_seed):
            repeats = repeats_seed and sample == 0
            drawn = derive_seed(seed, "fork", origin.event, origin.turn, sample)  # for all arms and checkpoints
            branch_seed = origin.dialogue.seed if repeats else drawn
            for arm, hints in arms.items():
                if hints[i].error is not None:
                    continue
                request = RolloutRequest(
                    origin.task, f"{origin.dialogue.id}/turn {past}/{arm}/{sample}", f"{origin.event}:{origin.turn}",
                    sample, branch_seed, origin.prefix(hints[i]), limit, recorded_hints=origin.recorded_hints,
                )  # fmt: skip
                result.append(Branch(checkpoint, origin, arm, sample, request))
    return result


def run_forks(
    kind: Literal["fork", "hint_value"], config: CounterfactualRun, source: RunDir,
    origins: Mapping[str, Sequence[ForkPoint]], context: RunContext,
) -> bool:  # fmt: skip
    """Load the model, run the forks and report; False if `stop` ended it early. See `ForkRunner`."""
    context.progress.message(f"Loading {config.model.name} …")
    backend = build_backend(config, context.run_dir, context.progress)
    if any(arm.hint == "shuffled" for arm in config.arms):
        environment, teacher = build_environment(config.environment), config.teacher.type
        origins = {name: match_recorded_hints(o, source, environment, teacher) for name, o in origins.items()}
    runner = ForkRunner(kind, config, context.run_dir, context.journal, backend, origins, source.config().name)
    return runner.run(context.stop, context.progress)


class ForkRunner:
    """Runs the branches of a configuration and updates the report after each batch.

    Args:
        kind: Run kind.
        config: Configuration of the run.
        run_dir: Receives the report.
        journal: Receives events; each batch is a commit.
        backend: With the base model loaded.
        origins: Fork points by checkpoint.
        title: Name of the source run.
    """

    def __init__(
        self, kind: Literal["fork", "hint_value"], config: CounterfactualRun, run_dir: RunDir, journal: Journal,
        backend: Backend, origins: Mapping[str, Sequence[ForkPoint]], title: str,
    ) -> None:  # fmt: skip
        self.kind, self.config, self.run_dir, self.journal, self.title = kind, config, run_dir, journal, title
        oracle = all(origin.oracle for points in origins.values() for origin in points)
        self.engine = dataclasses.replace(build_engine(config, backend), stop_on_correct=oracle)
        self.arms = config.labeled_arms()
        self.origins = origins
        self.hints_by_arm = self._read_hints()
        self.outcomes: dict[str, list[Outcome]] = {name: [] for name in origins}
        self.failed = 0
        load_reflector(config, backend, run_dir)
        for name, folder in config.checkpoints.items():
            if folder is not None:
                backend.load_adapter(name, Path(folder))
        self.plan = [branch for name in origins for branch in self._branches(name)]

    def _branches(self, checkpoint: str) -> list[Branch]:
        origins, config = self.origins[checkpoint], self.config
        missing = [o for o in origins if (checkpoint, o.event, o.turn) not in self.hints_by_arm]
        hints_by_label = {
            label: arm_hints(arm, missing, self.engine, adapter=self._adapter(checkpoint),
                             apply_leak_action=config.apply_leak_action)
            for label, arm in self.arms.items() if missing
        }  # fmt: skip
        for i, origin in enumerate(missing):
            key = checkpoint, origin.event, origin.turn
            self.hints_by_arm[key] = {label: hints[i] for label, hints in hints_by_label.items()}
        if missing:
            self._write_hints()
        hints = {label: [self.hints_by_arm[checkpoint, o.event, o.turn][label] for o in origins] for label in self.arms}
        return branches(origins, hints, config.samples, checkpoint=checkpoint, seed=config.seed,
                        budget=config.rollout.max_turns, turns=config.turns,
                        repeats_seed=config.repeats_seed)  # fmt: skip

    def _write_hints(self) -> None:
        """Store the hints of all arms, because a teacher may generate another one after a resume."""
        rows = [(*key, hints) for key, hints in self.hints_by_arm.items()]
        write_atomically(self.run_dir.path / RESULTS_DIR / HINTS_FILE, _HINTS.dump_json(rows, indent=1).decode())

    def _read_hints(self) -> dict[tuple[str, str, int], dict[str, Hint]]:
        """Return the hints stored before a resume."""
        path = self.run_dir.path / RESULTS_DIR / HINTS_FILE
        try:
            return {(name, event, turn): hints for name, event, turn, hints in _HINTS.validate_json(path.read_bytes())}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise DataError("Cannot read the hints of the fork.", value=str(path), fix="Start a new fork.") from error

    def _adapter(self, checkpoint: str) -> str | None:
        """Return the backend's adapter name of a checkpoint."""
        return None if self.config.checkpoints[checkpoint] is None else checkpoint

    def run(self, stop: ShouldStop, progress: Progress) -> bool:
        """Run the remaining branches in batches; False if `stop` ended it early."""
        by_event = {branch.event: branch for branch in self.plan}
        finished = self._read_finished(by_event)
        total, size = len(self.plan), self.config.rollout.max_concurrent
        for name in self.origins:
            remaining = [b for b in self.plan if b.checkpoint == name and b.event not in finished]
            for start in range(0, len(remaining), size):
                if stop():
                    return False
                batch, done = remaining[start : start + size], len(finished)
                progress.update(self.kind, done, total, name)
                for branch, dialogue in zip(batch, self._rollouts(name, batch, done, progress), strict=True):
                    self._emit(branch, dialogue)
                    finished.add(branch.event)
                self.journal.commit({"played": len(finished)})
                self.write()
                self.run_dir.heartbeat(status="running", stage=STAGE, step=len(finished), steps=total)
        progress.update(self.kind, total, total)
        self._finish()
        return True

    def _read_finished(self, by_event: Mapping[str, Branch]) -> set[str]:
        """Record the branches finished before a resume, and return their event ids."""
        finished: set[str] = set()
        if self.run_dir.events_path.exists():
            for event in read_events(self.run_dir.events_path):
                branch = by_event.get(event.id)
                if branch is not None and isinstance(event, DialogueEvent) and event.id not in finished:
                    finished.add(event.id)
                    self._record(branch, event.dialogue)
        return finished

    def _rollouts(self, checkpoint: str, batch: Sequence[Branch], done: int, progress: Progress) -> list[Dialogue]:
        """Return a batch's dialogues in order, from one engine call per teacher of later hints."""
        adapter = self._adapter(checkpoint)
        by_teacher: dict[str, list[int]] = {}
        for i, branch in enumerate(batch):
            by_teacher.setdefault(branch.arm if self.config.later_hints == "arm" else "", []).append(i)
        dialogues: dict[int, Dialogue] = {}
        for label, indices in by_teacher.items():
            offset = done + len(dialogues)

            def on_progress(now: int, _: int, offset: int = offset) -> None:
                progress.update(self.kind, offset + now, len(self.plan), checkpoint)

            rollouts = self._engine_for(self.arms.get(label)).run(
                [batch[i].request for i in indices], adapter=adapter, policy=checkpoint, on_progress=on_progress
            )
            dialogues |= {i: rollout.dialogue for i, rollout in zip(indices, rollouts, strict=True)}
        return [dialogues[i] for i in range(len(batch))]

    def _engine_for(self, arm: Arm | None) -> RolloutEngine:
        """Return the engine with the teacher of later turns."""
        teacher: Teacher | None = None
        if self.config.later_hints == "contentless":
            teacher = build_control(BASELINE, self.engine)
        elif arm is not None:
            teacher = arm_teacher(arm, self.engine)
        return self.engine if teacher is None else dataclasses.replace(self.engine, teacher=teacher)

    def _emit(self, branch: Branch, dialogue: Dialogue) -> None:
        event = DialogueEvent.of("fork", STAGE, 0, branch.origin.task, dialogue, checkpoint=branch.checkpoint,
                                 arm=branch.arm)  # fmt: skip
        self.journal.emit([event])
        self._record(branch, dialogue)

    def _record(self, branch: Branch, dialogue: Dialogue) -> None:
        outcome = branch.outcome(dialogue)
        if outcome is None:
            self.failed += 1
        else:
            self.outcomes[branch.checkpoint].append(outcome)

    def report(self) -> CounterfactualReport:
        """Return the report of all finished branches."""
        label: dict[str, str] = {arm.hint: name for name, arm in reversed(self.arms.items())}
        return build_report(
            self.outcomes,
            self.hints_by_arm,
            arms=list(self.arms),
            true=label.get(ORIGINAL_ARM),
            baseline=label.get(BASELINE),
            seed=self.config.seed,
            repeats_seed=self.config.repeats_seed,
            kind=self.kind,
            title=self.title,
            source=Path(self.config.source).name,
            samples=self.config.samples,
            turns=self.config.turns,
            later_hints=self.config.later_hints,
            total=len(self.plan),
            failed=self.failed,
        )

    def write(self) -> CounterfactualReport:
        """Write and return the report."""
        report, folder = self.report(), self.run_dir.path / RESULTS_DIR
        write_atomically(folder / "report.json", report.model_dump_json(indent=1))
        write_atomically(folder / "report.md", report.to_markdown())
        return report

    def _finish(self) -> None:
        from rl2f_core.evaluation.figure_files import to_png

        report = self.write()
        write_atomically(self.run_dir.path / RESULTS_DIR / "solved.png", to_png(chart(report)))
        self.journal.emit(_hint_value_events(report))
        self.journal.emit([LogEvent(id="fork:report", text=report.to_markdown())])
        self.journal.commit({"played": report.done, "done": True})


def _hint_value_events(report: CounterfactualReport) -> list[HintValueEvent]:
    """Return one event per measured hint value."""
    events = []
    for hint in report.hints:
        value = hint.hint_value
        if value is None or value.value is None or value.low is None or value.high is None:
            continue
        events.append(
            HintValueEvent(
                id=f"hint_value:{hint.checkpoint}:{hint.dialogue}:{hint.turn}", source=report.source,
                dialogue=hint.dialogue, turn=hint.turn, checkpoint=hint.checkpoint, value=value.value, low=value.low,
                high=value.high, n=value.n, turns=report.turns,
                arms={arm: rate.value for arm, rate in hint.arms.items() if rate.value is not None},
            )
        )  # fmt: skip
    return events


def read_report(run_path: Path) -> CounterfactualReport | None:
    """Return the report in a run directory, or None. Raises `DataError` if it is damaged."""
    path = checked_path(run_path, f"{RESULTS_DIR}/report.json")
    try:
        return CounterfactualReport.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError("Cannot read the report of the fork.", value=path.name) from error
