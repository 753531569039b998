"""What an export takes and makes, the same for the run kind `export` and for the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from jobs.export.formats import FileType, FormatName
from jobs.export.pairs import Match
from rl2f_core.config.fields import BaseConfig
from rl2f_core.errors import FieldValueError
from rl2f_core.run.events import DialogueEvent

if TYPE_CHECKING:
    from jobs.db.queries.dialogues import DialogueFilter


class ExportFilter(BaseConfig):
    """Which dialogues are taken; an empty field takes all."""

    phase: Literal["", "train", "preflight", "evaluation", "chat", "fork", "distill"] = ""
    """Only dialogues of this phase."""
    stage: str = ""
    """Only this stage."""
    step_from: int | None = Field(None, ge=0)
    """From this training step."""
    step_to: int | None = Field(None, ge=0)
    """Up to and with this training step."""
    checkpoint: str = ""
    """Only this checkpoint of an evaluation, e.g. `rl2f@20`."""
    condition: str = ""
    """Only this control of an evaluation, e.g. `hints`; of a distillation `kept`, what its data set holds."""
    without_controls: bool = False
    """Leave out controls other than `hints`: their hints are contentless, foreign or misleading, though leak-free."""
    labeled_only: bool = False
    """Only dialogues in which a person labeled a hint."""

    def matches(self, event: DialogueEvent) -> bool:
        """Whether a dialogue of an event file is taken. No event file holds people's labels."""
        return not self.labeled_only and (
            (not self.phase or event.phase == self.phase)
            and (not self.stage or event.stage == self.stage)
            and (self.step_from is None or event.step >= self.step_from)
            and (self.step_to is None or event.step <= self.step_to)
            and (not self.checkpoint or event.checkpoint == self.checkpoint)
            and (not self.condition or event.setting == self.condition)
            and not (self.without_controls and event.setting not in (None, "", "hints", "kept"))
        )

    def dialogue_filter(self, run: int) -> DialogueFilter:
        """Return the database filter of a run's dialogues."""
        from jobs.db.queries.dialogues import DialogueFilter

        return DialogueFilter(run=run, labeled=self.labeled_only or None, **self.model_dump(exclude={"labeled_only"}))

    def words(self) -> dict[str, object]:
        """The fields that narrow anything."""
        return {k: v for k, v in self.model_dump().items() if v not in ("", None, False)}


class ExportSettings(BaseConfig):
    """What is made of the dialogues."""

    seed: int = Field(0, ge=0, lt=2**31)
    """Chooses among equally good preference pairs; the same seed gives the same files."""
    formats: tuple[FormatName, ...] = ("stepwise_supervision", "unpaired_preference", "preference", "messages")
    """Data set types, in TRL's words."""
    files: tuple[FileType, ...] = ("jsonl", "parquet")
    """Each type as JSONL, as Parquet, or both."""
    labels: Literal["both", "human", "detector"] = "both"
    """Whose label counts: people's, the detectors', or (both) people's and the detectors' where no person decided."""
    annotator: str = ""
    """Only this person's labels; empty for the majority of all."""
    filter: ExportFilter = Field(default_factory=ExportFilter)
    """Which dialogues."""
    pairs_per_leak: int = Field(1, ge=1, le=64)
    """Preference pairs made for one leaking hint, at most."""
    match: Match = "task"
    """What the two hints of a pair must share at least: history, attempt or task."""
    privileged: bool = False
    """Show the answer in the prompts. Only for teachers and judges: a student trained on it learns to read answers."""

    @field_validator("formats", "files")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("needs at least one")
        return tuple(dict.fromkeys(names))

    @model_validator(mode="after")
    def _makes_sense(self) -> ExportSettings:
        if self.labels == "detector" and self.annotator:
            raise FieldValueError("annotator has no meaning with labels: detector; choose human or both", "annotator")
        steps = self.filter.step_from, self.filter.step_to
        if None not in steps and steps[0] > steps[1]:  # type: ignore[operator]
            raise FieldValueError(
                f"filter.step_from {steps[0]} is after filter.step_to {steps[1]}", "filter", "step_from"
            )
        return self
