"""Forks: what a dialogue can continue with, start a fork, its progress and report.

Runs, dialogues and checkpoints are identified by their names in the workspace, never by paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field, ValidationError

from app.endpoints.dialogues import EventId, TurnIndex
from app.endpoints.endpoint import Endpoints, Flat, endpoint
from app.endpoints.leaks.labels import Source
from app.endpoints.leaks.redacted_reruns import RedactedRerun, rerun_result
from app.endpoints.types import QueuedRun, RunId, from_row
from app.forms.allowlist import refusal
from jobs.db.dialogue_models import DialogueRow
from jobs.db.errors import NotFoundError
from jobs.db.models import Run, RunSummary
from jobs.db.queries import dialogues, hint_values, runs
from jobs.labels.hint_counts import RUN
from rl2f_core import registry
from rl2f_core.config.loading import dump_yaml, validate_config
from rl2f_core.errors import RL2FError, RunError
from rl2f_core.evaluation.counterfactual.arms import HINTS, ORIGINAL_ARM, Arm, ArmHint, ArmName
from rl2f_core.evaluation.counterfactual.config import CounterfactualRun, known_checkpoints, nearest_checkpoint
from rl2f_core.evaluation.counterfactual.fork_points import fork_point_at
from rl2f_core.evaluation.counterfactual.report import CounterfactualReport
from rl2f_core.evaluation.formatting import verdict_text
from rl2f_core.models.store.conversion import conversion_name
from rl2f_core.models.store.store import is_loadable
from rl2f_core.run.events import Text
from rl2f_core.types import FrozenModel, JsonObject

if TYPE_CHECKING:
    from rl2f_core.run.kinds.fork import ForkRun

HintText = Annotated[str, Field(max_length=4000)]
Samples = Annotated[int, Field(ge=1, le=500)]
MAX_TRAINED_RUNS = 100
"""Number of newest training runs whose checkpoints can continue a dialogue."""


class ArmSettings(FrozenModel):
    """An alternative hint."""

    hint: ArmHint
    """Source of the hint."""
    text: HintText = ""
    """Message of an `edited` arm."""
    teacher: Text | None = None
    """Registered name of the teacher of a `teacher` arm."""
    name: ArmName = ""
    """Name in tables; by default the kind of hint."""


class ForkSettings(FrozenModel):
    """What a dialogue continues with."""

    checkpoints: list[Text] = Field(min_length=1, max_length=8)
    """`base`, or labels of `fork_choices` such as `17:rl2f@24`."""
    arms: list[ArmSettings] = Field(min_length=1, max_length=12)
    """The hints, e.g. `[{"hint": "original"}, {"hint": "edited", "text": "Look again."}]`."""
    samples: Samples = 16
    attempts: int | None = Field(None, ge=1, le=64)
    """Attempts after the fork; None for the dialogue's remaining turns."""
    later_hints: Literal["run", "arm", "contentless"] = "run"
    """Teacher of later turns: that of the run, that of the arm, or contentless."""
    seed: int = Field(0, ge=0, lt=2**31)


class CheckpointChoice(FrozenModel):
    """A checkpoint that can continue a dialogue."""

    label: str
    """`base`, or e.g. `17:rl2f@24`."""
    note: str
    """The model, or the run of the checkpoint."""


class EarlierFork(FrozenModel):
    """A fork of the dialogue."""

    run: RunId
    status: str
    created: float
    turn: TurnIndex
    checkpoints: list[str]
    """Names of the checkpoints."""
    arms: list[str]
    """Names of the arms."""
    samples: int


class ForkChoices(FrozenModel):
    """What a dialogue can continue with."""

    checkpoints: list[CheckpointChoice]
    """Checkpoints of the same base model."""
    default_checkpoint: str
    """The checkpoint that sampled the dialogue, or the closest one."""
    hints: list[str]
    """Values of `hint` of an arm."""
    teachers: list[str]
    """Values of `teacher` of an arm."""
    forks: list[EarlierFork]
    """Earlier forks of the dialogue, newest first."""


class ForkPreview(FrozenModel):
    """A fork that was not started."""

    arms: list[str]
    """Names of the arms."""
    checkpoints: list[str]
    """Names of the checkpoints."""
    dialogues: int
    """Number of dialogues that it samples."""
    config: str


class HintScreening(FrozenModel):
    """Leak report on a hint that no student read."""

    detectors: list[str]
    """Detectors that checked it; those that need a model are omitted."""
    leaked: bool
    """The hint reveals the answer."""
    detector: str | None
    """The detector that flagged it."""
    leak_type: str | None
    """How it reveals the answer: `exact`, `equivalent`, `derivation` or `partial`."""
    start: int | None
    """First character of the flagged span."""
    end: int | None
    """End of the flagged span, exclusive."""
    evidence: str
    """What reveals the answer."""
    answer_fraction: float
    """Fraction of the answer that the hint reveals."""


class ForkResult(FrozenModel):
    """A fork and its report."""

    job: RunSummary
    """The fork's run."""
    run: int | None
    """Run of the dialogue; None if it was deleted."""
    event_id: EventId
    turn: TurnIndex
    samples: int
    report: JsonObject | None
    """The report, each result with `findings`: the verdict on each difference; None before the first result."""


class _Checkpoint(NamedTuple):
    name: str
    """Name in the report."""
    folder: str | None
    note: str


class ForkEndpoints(Endpoints):
    """Endpoints of the page *Fork*."""

    @endpoint("read")
    def fork_choices(self, run: RunId, event_id: EventId) -> ForkChoices:
        """List what a dialogue can continue with, and its earlier forks."""
        db = self._context.db
        row, owner = dialogues.get(db, run, event_id).row, runs.get(db, run)
        known = self._checkpoints(owner)
        return ForkChoices(
            checkpoints=[CheckpointChoice(label=label, note=checkpoint.note) for label, checkpoint in known.items()],
            default_checkpoint=self._default_checkpoint(owner, row, known),
            hints=list(HINTS),
            teachers=_teachers(),
            forks=self._forks(owner, event_id),
        )

    @endpoint("read")
    def preview_fork(self, run: RunId, event_id: EventId, turn: TurnIndex, settings: Flat[ForkSettings]) -> ForkPreview:
        """Check a fork and return its configuration without starting it; arguments as in `start_fork`."""
        config = self._config_of(run, event_id, turn, settings)
        labels = list(config.labeled_arms())
        return ForkPreview(
            arms=labels,
            checkpoints=list(config.checkpoints),
            dialogues=len(labels) * len(config.checkpoints) * (config.samples + config.repeats_seed),
            config=dump_yaml(config),
        )

    @endpoint("read")
    def screen_hint(self, run: RunId, event_id: EventId, turn: TurnIndex, text: HintText) -> HintScreening:
        """Check a hint for leaks with the run's detectors that need no model; nothing is stored.

        Args:
            text: The hint.
        """
        from rl2f_core.dialogue.rollout.build import build_environment
        from rl2f_core.leaks.base import LeakQuery, make_detectors, run_cascade

        config = self._config(run, event_id, turn, ["base"], [Arm(hint="empty")])
        origin = fork_point_at(dialogues.get(self._context.db, run, event_id).event, turn)
        configured = config.leak_detection.detectors
        usable = [
            detector for detector in configured if not registry.get("leak_detector", detector.type).requires_model
        ]
        detectors = make_detectors(usable, build_environment(config.environment))
        turns = origin.prefix(None)
        hints = tuple(earlier.reply for earlier in turns if earlier.hint is not None)
        report = run_cascade(
            detectors, [LeakQuery(origin.task, text, tuple(earlier.attempt for earlier in turns), hints)]
        )[0]
        start, end = report.span or (None, None)
        return from_row(
            HintScreening, report, detectors=[detector.name for detector in detectors], start=start, end=end
        )

    @endpoint("run")
    def start_fork(self, run: RunId, event_id: EventId, turn: TurnIndex, settings: Flat[ForkSettings]) -> QueuedRun:
        """Queue a fork: continue a dialogue from one turn under other hints.

        Args:
            turn: 0-based attempt after which the hint changes.
            settings: What the dialogue continues with.
        """
        return self._queue(self._config_of(run, event_id, turn, settings), run)

    @endpoint("run")
    def rerun_redacted(
        self, run: RunId, event_id: EventId, turn: TurnIndex, source: Source = RUN, samples: Samples = 8
    ) -> QueuedRun:
        """Queue a fork that samples the attempt after a flagged hint again: with the hint, and with its span masked.

        Both are sampled under the dialogue's own seed, and under other shared seeds. `redacted_reruns` has the results.

        Args:
            turn: 0-based attempt that the hint follows.
            samples: Number of other seeds.
        """
        view, owner = dialogues.get(self._context.db, run, event_id), runs.get(self._context.db, run)
        finding = view.findings.get(turn, {}).get(source)
        if finding is None:
            known = [f"turn {index}, source {name}" for index, found in sorted(view.findings.items()) for name in found]
            raise NotFoundError("No detector flagged this hint.", value=f"turn {turn}, source {source}", known=known)
        span = None
        if source != RUN:  # the event of the dialogue has no report of a rescore
            hint = view.turns[turn].hint
            span = finding.span or (0, len(hint.text) if hint else 0)
        arms = [Arm(hint=ORIGINAL_ARM), Arm(hint="redacted", span=span)]
        checkpoint = self._default_checkpoint(owner, view.row, self._checkpoints(owner))
        return self._queue(self._config(run, event_id, turn, [checkpoint], arms, samples=samples, turns=1), run)

    @endpoint("read")
    def redacted_reruns(self, run: RunId, event_id: EventId) -> list[RedactedRerun]:
        """List the results of `rerun_redacted` on a dialogue, newest first."""
        view = dialogues.get(self._context.db, run, event_id)
        forks = self._fork_configs(runs.get(self._context.db, run), event_id)
        return [rerun_result(row, config, view, self._open(row)) for row, config in forks if config.repeats_seed]

    @endpoint("read")
    def fork_result(self, run: RunId) -> ForkResult:
        """Return the progress and the report of a fork.

        Args:
            run: The fork's run.
        """
        from rl2f_core.evaluation.counterfactual.runner import read_report
        from rl2f_core.run.kinds.fork import ForkRun

        row = runs.get(self._context.db, run)
        if row.kind != "fork":
            raise NotFoundError("The run is not a fork.", value=run, fix="Open a dialogue and fork it.")
        config = self._open(row).config()
        assert isinstance(config, ForkRun)
        report = read_report(self._context.workspace.folder(row.folder))
        source = runs.find(self._context.db, folder=config.source)
        return ForkResult(
            job=row,
            run=None if source is None else source.id,
            event_id=config.dialogue,
            turn=config.turn,
            samples=config.samples,
            report=None if report is None else _with_findings(report),
        )

    def _config_of(self, run: int, event_id: str, turn: int, settings: ForkSettings) -> CounterfactualRun:
        changes = {"turns": settings.attempts, **settings.model_dump(include={"samples", "later_hints", "seed"})}
        return self._config(run, event_id, turn, settings.checkpoints, map(_arm, settings.arms), **changes)

    def _config(
        self, run: int, event_id: str, turn: int, checkpoints: list[str], arms: Iterable[Arm], **changes: object
    ) -> CounterfactualRun:
        from rl2f_core.run.kinds.fork import fork_config

        owner = runs.get(self._context.db, run)
        dialogues.get(self._context.db, run, event_id).turn(turn)
        known = self._checkpoints(owner)
        unknown = [label for label in checkpoints if label not in known]
        if unknown:
            raise NotFoundError("Unknown checkpoint.", value=unknown[0], known=known)
        chosen = {known[label].name: known[label].folder for label in checkpoints}
        return fork_config(self._open(owner), owner.folder, event_id, turn, chosen, list(arms), **changes)

    def _base(self, run: Run) -> str:
        """Return the base model in the conversion that a run recorded."""
        return conversion_name(run.model, self._folder(run).conversion)

    def _forks(self, owner: Run, event_id: str) -> list[EarlierFork]:
        """Return the forks of a dialogue, newest first."""
        return [
            from_row(
                EarlierFork,
                child,
                run=child.id,
                turn=config.turn,
                checkpoints=list(config.checkpoints),
                arms=list(config.labeled_arms()),
                samples=config.samples,
            )
            for child, config in self._fork_configs(owner, event_id)
        ]

    def _fork_configs(self, owner: Run, event_id: str) -> Iterator[tuple[Run, ForkRun]]:
        """Yield the forks of a dialogue with their configurations, newest first."""
        from rl2f_core.run.kinds.fork import ForkRun

        for child in hint_values.forks(self._context.db, owner):
            try:
                config = self._open(child).config()
            except RL2FError:  # it names a component that is not installed
                continue
            if isinstance(config, ForkRun) and config.dialogue == event_id:
                yield child, config

    def _checkpoints(self, owner: Run) -> dict[str, _Checkpoint]:
        """Return the checkpoints of a run's base model by label, the run's own ones first.

        Raises `RunError` if the base model is not known, as that of an imported run.
        """
        if not is_loadable(owner.model):
            raise RunError(
                f"The dialogues of run {owner.id} cannot be continued, because its base model is not known here.",
                value=owner.model,
                fix="Fork a dialogue of a training run.",
            )
        db, workspace = self._context.db, self._context.workspace
        found = {"base": _Checkpoint("base", None, owner.model)}
        trained = runs.page(db, runs.RunFilter(kind="train"), limit=MAX_TRAINED_RUNS).rows
        others = [run for run in trained if self._base(run) == self._base(owner) and run.id != owner.id]
        for run in [owner, *others]:
            if not (workspace.folder(run.folder) / "checkpoints").is_dir():
                continue
            for row in reversed(runs.checkpoints(db, run.id)):
                folder = str((workspace.folder(run.folder) / row.path).resolve())
                if refusal("checkpoints", folder, workspace) is None:
                    label = f"{run.id}:{row.name}"
                    name, note = (row.name, run.name) if run is owner else (label, f"{run.name}, {run.environment}")
                    found[label] = _Checkpoint(name, folder, note)
        return found

    def _default_checkpoint(self, owner: Run, row: DialogueRow, known: dict[str, _Checkpoint]) -> str:
        """Return the label of the checkpoint that sampled a dialogue, or of the closest one."""
        try:
            saved = known_checkpoints(self._open(owner))
        except RL2FError:
            return "base"
        folder = saved[nearest_checkpoint(list(saved), row.checkpoint or row.policy)]
        return next((label for label, checkpoint in known.items() if checkpoint.folder == folder), "base")


def _teachers() -> list[str]:
    """Return the teachers of runs that need no settings."""
    found = []
    for name in registry.names("teacher"):
        teacher = registry.get("teacher", name)
        try:
            teacher.Config()
        except ValidationError:
            continue
        if not teacher.unavailable_reason:
            found.append(name)
    return found


def _arm(settings: ArmSettings) -> Arm:
    fix = "Correct this arm; `fork_choices` lists hints and teachers."
    return validate_config(Arm, settings.model_dump(exclude_unset=True), fix)


def _with_findings(report: CounterfactualReport) -> JsonObject:
    """Return the fields of a report with the verdict on each difference."""
    fields = report.model_dump(mode="json")
    for row, result in zip(fields["results"], report.results, strict=True):
        differences = {"difference": result.difference, "score_difference": result.score_difference}
        row["findings"] = {n: verdict_text(d, "higher", "lower") for n, d in differences.items() if d is not None}
    return fields
