"""Playing forks: turns × arms × samples under each checkpoint, in batches that are commits.

A dialogue goes on from the tokens that were sampled then.  Sample j of every arm and checkpoint has the same seed,
which follows from (run seed, dialogue, turn, j) alone, so differences are paired; it is never the dialogue's own seed,
so what happened then is not counted as chance.  What was played is read back from the run's own events, so a resumed
run plays nothing twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from rl2f_core.backends.base import Backend
from rl2f_core.config import write_atomically
from rl2f_core.counterfactual.arms import BASELINE, TRUE, Arm, arm_hints, arm_teacher
from rl2f_core.counterfactual.config import CounterfactualRun
from rl2f_core.counterfactual.estimate import Outcome
from rl2f_core.counterfactual.report import CounterfactualReport, build_report, chart
from rl2f_core.counterfactual.source import Origin
from rl2f_core.errors import DataError
from rl2f_core.evaluation.metrics import Revision, answer_of
from rl2f_core.events import DialogueEvent, HintValueEvent, LogEvent, read_events
from rl2f_core.rollout.build import build_backend, build_control, build_engine
from rl2f_core.rollout.engine import Request, RolloutEngine, derive_seed
from rl2f_core.run import Journal, Progress, RunDir, Stop
from rl2f_core.teachers.base import Teacher
from rl2f_core.types import Dialogue, Hint, StopReason

STAGE = "fork"
FOLDER = "counterfactual"
"""In the run's folder: hints.json, report.json, report.md, solved.png."""
SAID = "hints.json"
_SAID = TypeAdapter(list[tuple[str, str, int, dict[str, Hint]]])
"""By checkpoint, dialogue event and turn: what the student read in each arm."""


@dataclasses.dataclass(frozen=True, slots=True)
class Branch:
    """One dialogue to be played."""

    checkpoint: str
    origin: Origin
    arm: str
    sample: int
    request: Request

    @property
    def event(self) -> str:
        """Id of its event."""
        return f"dialogue:fork:{self.checkpoint}:{self.arm}:{self.request.id}"

    def outcome(self, dialogue: Dialogue) -> Outcome | None:
        """What it came to; None where it failed."""
        if dialogue.stop is StopReason.FAILED:
            return None
        at = self.origin.turn
        after = dialogue.turns[at + 1] if len(dialogue.turns) > at + 1 else None
        kept, parts = 0, 0
        if after is not None:
            before = dialogue.turns[at]
            kept, parts = Revision(dialogue.task_id, before, after, frozenset({answer_of(before)})).kept
        return Outcome((self.origin.event, at), dialogue.task_id, self.arm, self.sample, dialogue.solved,
                       None if after is None else after.verdict.score, kept, parts)  # fmt: skip


def branches(
    origins: Sequence[Origin],
    arms: Mapping[str, Sequence[Hint]],
    samples: int,
    *,
    checkpoint: str,
    seed: int,
    budget: int,
    turns: int | None,
) -> list[Branch]:
    """Every arm of every sample after every turn, in this order inverted, so that a batch holds whole pairs.

    Args:
        origins: Turns to go on from.
        arms: By name, the hint after each origin; one with an error is not played.
        samples: Dialogues of each arm and origin.
        checkpoint: Who speaks.
        seed: Of the run.
        budget: Turns of a whole dialogue.
        turns: Attempts after the fork; None is what is left of `budget`, at least one.
    """
    made = []
    for i, origin in enumerate(origins):
        played = origin.turn + 1
        limit = played + (turns or max(1, budget - played))
        for sample in range(samples):
            own = sample_seed(seed, origin, sample)
            for arm, hints in arms.items():
                if hints[i].error is not None:
                    continue
                request = Request(
                    origin.task, f"{origin.dialogue.id}/turn {played}/{arm}/{sample}", f"{origin.event}:{origin.turn}",
                    sample, own, origin.prefix(hints[i]), limit,
                )  # fmt: skip
                made.append(Branch(checkpoint, origin, arm, sample, request))
    return made


def sample_seed(seed: int, origin: Origin, sample: int) -> int:
    """The seed of sample j after a turn, in every arm and under every checkpoint."""
    return derive_seed(seed, "fork", origin.event, origin.turn, sample)


def play_from(
    kind: Literal["fork", "hint_value"], config: CounterfactualRun, source: RunDir,
    origins: Mapping[str, Sequence[Origin]], run_dir: RunDir, journal: Journal, stop: Stop, progress: Progress,
) -> bool:  # fmt: skip
    """Load the model, play turns of a run again and report; False where `stop` ended it early. See `Session`."""
    progress.say(f"Loading {config.model.name} …")
    backend = build_backend(config, run_dir, progress)
    session = Session(kind, config, run_dir, journal, backend, origins, source.config().name)
    return session.play(stop, progress)


class Session:
    """Plays what a configuration asks for and keeps its report up to date.

    Args:
        kind: Of the run.
        config: What is played.
        run_dir: Gets the report.
        journal: Each batch is a commit.
        backend: With the base model loaded.
        origins: By checkpoint, the turns that are taken up again.
        title: Name of the source run.
    """

    def __init__(
        self, kind: Literal["fork", "hint_value"], config: CounterfactualRun, run_dir: RunDir, journal: Journal,
        backend: Backend, origins: Mapping[str, Sequence[Origin]], title: str,
    ) -> None:  # fmt: skip
        self.kind, self.config, self.run_dir, self.journal, self.title = kind, config, run_dir, journal, title
        oracle = all(origin.oracle for held in origins.values() for origin in held)
        if not oracle and config.then == "arm":
            raise DataError("This dialogue went on after right answers; the arms' teachers speak of wrong ones.",
                            value=config.then, known=["run", "contentless"],
                            fix="Let another one hint later on.")  # fmt: skip
        self.engine = dataclasses.replace(build_engine(config, backend), oracle_stop=oracle)
        self.arms = config.labelled()
        self.origins = origins
        self.said = self._read_said()
        self.outcomes: dict[str, list[Outcome]] = {name: [] for name in origins}
        self.failed = 0
        for name, folder in config.checkpoints.items():
            if folder is not None:
                backend.load_adapter(name, Path(folder))
        self.plan = [branch for name in origins for branch in self._branches(name)]

    def _branches(self, checkpoint: str) -> list[Branch]:
        origins, config = self.origins[checkpoint], self.config
        missing = [o for o in origins if (checkpoint, o.event, o.turn) not in self.said]
        told = {
            label: arm_hints(arm, missing, self.engine, adapter=self._adapter(checkpoint),
                             apply_leak_action=config.apply_leak_action)
            for label, arm in self.arms.items() if missing
        }  # fmt: skip
        for i, origin in enumerate(missing):
            self.said[checkpoint, origin.event, origin.turn] = {label: hints[i] for label, hints in told.items()}
        if missing:
            self._write_said()
        hints = {label: [self.said[checkpoint, o.event, o.turn][label] for o in origins] for label in self.arms}
        return branches(origins, hints, config.samples, checkpoint=checkpoint, seed=config.seed,
                        budget=config.rollout.max_turns, turns=config.turns)  # fmt: skip

    def _write_said(self) -> None:
        """Keep what was said in the arms: a resumed run asks no teacher twice, who might say something else."""
        held = [(*where, said) for where, said in self.said.items()]
        write_atomically(self.run_dir.path / FOLDER / SAID, _SAID.dump_json(held, indent=1).decode())

    def _read_said(self) -> dict[tuple[str, str, int], dict[str, Hint]]:
        """What an earlier session was told. Raises `DataError` where it cannot be read."""
        path = self.run_dir.path / FOLDER / SAID
        try:
            return {(name, event, turn): said for name, event, turn, said in _SAID.validate_json(path.read_bytes())}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise DataError("The hints of the fork cannot be read.", value=str(path), fix="Start a new one.") from error

    def _adapter(self, checkpoint: str) -> str | None:
        """The backend's name for a checkpoint's weights."""
        return None if self.config.checkpoints[checkpoint] is None else checkpoint

    def play(self, stop: Stop, progress: Progress) -> bool:
        """Play what is left, a batch at a time; False where `stop` ended it early."""
        by_event = {branch.event: branch for branch in self.plan}
        played = self._played(by_event)
        total, size = len(self.plan), self.config.rollout.batch_size
        for name in self.origins:
            left = [b for b in self.plan if b.checkpoint == name and b.event not in played]
            for start in range(0, len(left), size):
                if stop():
                    return False
                batch, done = left[start : start + size], len(played)
                progress.update(self.kind, done, total, name)
                for branch, dialogue in zip(batch, self._rollouts(name, batch, done, progress), strict=True):
                    self._keep(branch, dialogue)
                    played.add(branch.event)
                self.journal.commit({"played": len(played)})
                self.write()
                self.run_dir.heartbeat(status="running", stage=STAGE, step=len(played), steps=total)
        progress.update(self.kind, total, total)
        self._finish()
        return True

    def _played(self, by_event: Mapping[str, Branch]) -> set[str]:
        """Events of dialogues that an earlier session played."""
        found: set[str] = set()
        if self.run_dir.events_path.exists():
            for event in read_events(self.run_dir.events_path):
                branch = by_event.get(event.id)
                if branch is not None and isinstance(event, DialogueEvent) and event.id not in found:
                    found.add(event.id)
                    self._note(branch, event.dialogue)
        return found

    def _rollouts(self, checkpoint: str, batch: Sequence[Branch], done: int, progress: Progress) -> list[Dialogue]:
        """A batch's dialogues, in order; one call of the engine unless later hints differ between arms."""
        adapter = self._adapter(checkpoint)
        together: dict[str, list[int]] = {}
        for i, branch in enumerate(batch):
            together.setdefault(branch.arm if self.config.then == "arm" else "", []).append(i)
        dialogues: dict[int, Dialogue] = {}
        for label, places in together.items():
            ended = done + len(dialogues)
            rollouts = self._speaking(self.arms.get(label)).play(
                [batch[i].request for i in places], adapter=adapter, policy=checkpoint,
                advanced=lambda now, _, ended=ended: progress.update(  # type: ignore[misc]
                    self.kind, ended + now, len(self.plan), checkpoint),
            )  # fmt: skip
            dialogues |= {i: rollout.dialogue for i, rollout in zip(places, rollouts, strict=True)}
        return [dialogues[i] for i in range(len(batch))]

    def _speaking(self, arm: Arm | None) -> RolloutEngine:
        """The engine with the teacher of later turns."""
        teacher: Teacher | None = None
        if self.config.then == "contentless":
            teacher = build_control(BASELINE, self.engine)
        elif arm is not None:
            teacher = arm_teacher(arm, self.engine)
        return self.engine if teacher is None else dataclasses.replace(self.engine, teacher=teacher)

    def _keep(self, branch: Branch, dialogue: Dialogue) -> None:
        event = DialogueEvent.of("fork", STAGE, 0, branch.origin.task, dialogue, checkpoint=branch.checkpoint,
                                 control=branch.arm)  # fmt: skip
        self.journal.emit([event])
        self._note(branch, dialogue)

    def _note(self, branch: Branch, dialogue: Dialogue) -> None:
        outcome = branch.outcome(dialogue)
        if outcome is None:
            self.failed += 1
        else:
            self.outcomes[branch.checkpoint].append(outcome)

    def report(self) -> CounterfactualReport:
        """What was played so far."""
        label: dict[str, str] = {arm.hint: name for name, arm in reversed(self.arms.items())}
        return build_report(
            self.outcomes, self.said, arms=list(self.arms), true=label.get(TRUE), baseline=label.get(BASELINE),
            seed=self.config.seed, kind=self.kind, title=self.title, source=Path(self.config.source).name,
            samples=self.config.samples, turns=self.config.turns, then=self.config.then, total=len(self.plan),
            failed=self.failed,
        )  # fmt: skip

    def write(self) -> CounterfactualReport:
        """Write report.json and report.md."""
        made, folder = self.report(), self.run_dir.path / FOLDER
        write_atomically(folder / "report.json", made.model_dump_json(indent=1))
        write_atomically(folder / "report.md", made.to_markdown())
        return made

    def _finish(self) -> None:
        from rl2f_core.evaluation.figures import to_png

        made = self.write()
        write_atomically(self.run_dir.path / FOLDER / "solved.png", to_png(chart(made)))
        self.journal.emit(_values(made))
        self.journal.emit([LogEvent(id="fork:report", text=made.to_markdown())])
        self.journal.commit({"played": made.done, "done": True})


def _values(report: CounterfactualReport) -> list[HintValueEvent]:
    """What every hint was worth, where it was measured."""
    found = []
    for held in report.hints:
        worth = held.worth
        if worth is None or worth.value is None or worth.low is None or worth.high is None:
            continue
        found.append(
            HintValueEvent(
                id=f"hint_value:{held.checkpoint}:{held.dialogue}:{held.turn}", source=report.source,
                dialogue=held.dialogue, turn=held.turn, checkpoint=held.checkpoint, value=worth.value, low=worth.low,
                high=worth.high, n=worth.n, turns=report.turns,
                arms={arm: share.value for arm, share in held.arms.items() if share.value is not None},
            )
        )  # fmt: skip
    return found


def read_report(folder: Path) -> CounterfactualReport | None:
    """The report in a run's folder, None where nothing was played yet. Raises `DataError` where it cannot be read."""
    path = folder / FOLDER / "report.json"
    try:
        return CounterfactualReport.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError("The report of the fork cannot be read.", value=path.name) from error
