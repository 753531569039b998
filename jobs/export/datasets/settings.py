"""Settings of an export, for the run kind `export` and the command line."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from jobs.export.datasets.controls import is_control
from jobs.export.datasets.dataset_types import FormatName
from jobs.export.datasets.formats import FileType
from jobs.export.datasets.pairs import Match
from rl2f_core.config.fields import BaseConfig
from rl2f_core.errors import FieldValueError
from rl2f_core.run.events import DialogueEvent, Number, Text
from rl2f_core.types import is_sampled

if TYPE_CHECKING:
    from jobs.db.queries.dialogues import DialogueFilter


Exclusion = Literal["include_test", "include_demonstrations", "include_base", "include_controls"]
EXCLUSIONS: dict[Exclusion, str] = {
    "include_test": "of validation or test tasks",
    "include_demonstrations": "written by the environment or a person",
    "include_base": "of the untrained base",
    "include_controls": "of controls",
}
"""Field of `ExportFilter` → the dialogues that it includes."""


class ExportFilter(BaseConfig):
    """Conditions on dialogues; an empty field matches all."""

    phase: Literal["", "train", "preflight", "evaluation", "chat", "fork", "distill"] = ""
    """Only dialogues of this phase."""
    stage: Text = ""
    """Only this stage."""
    step_from: Number | None = None
    """First training step."""
    step_to: Number | None = None
    """Last training step."""
    checkpoint: Text = ""
    """Only this checkpoint of an evaluation, e.g. `rl2f@20`."""
    condition: Text = ""
    """Only this condition of an evaluation, e.g. `hints`; in a distillation, `kept` are the dataset's samples."""
    include_controls: bool = False
    """Include controls, i.e. conditions other than `hints`, forks, and the teachers contentless,
    neutral_text, shuffled and misleading. Their hints are leak-free, but empty, of another problem or false."""
    include_test: bool = False
    """Include tasks of the validation and test splits, e.g. evaluations. A model that is trained on them cannot be
    evaluated on them."""
    include_demonstrations: bool = False
    """Include dialogues with attempts that the environment or a person wrote."""
    include_base: bool = False
    """Include attempts of the untrained base at training tasks."""
    labeled_only: bool = False
    """Only dialogues with a human label."""

    def exclusion(self, split: str, policy: str, untrained: Collection[str]) -> Exclusion | None:
        """Return the field that would include dialogues; None if they are included.

        Args:
            split: Split of their tasks.
            policy: Policy that sampled their attempts.
            untrained: Policies that are the untrained base.
        """
        if split != "train" and not self.include_test:
            return "include_test"
        if not is_sampled(policy):
            return None if self.include_demonstrations else "include_demonstrations"
        is_excluded = split == "train" and policy in untrained and not self.include_base
        return "include_base" if is_excluded else None

    def matches(self, event: DialogueEvent) -> bool:
        """Whether a dialogue event matches, apart from `exclusion`. Event files contain no human labels."""
        return not self.labeled_only and (
            (not self.phase or event.phase == self.phase)
            and (not self.stage or event.stage == self.stage)
            and (self.step_from is None or event.step >= self.step_from)
            and (self.step_to is None or event.step <= self.step_to)
            and (not self.checkpoint or event.checkpoint == self.checkpoint)
            and (not self.condition or event.setting == self.condition)
            and (self.include_controls or not is_control(event))
        )

    def dialogue_filter(self, run: int) -> DialogueFilter:
        """Return the database filter of a run's dialogues, apart from `exclusion`."""
        from jobs.db.queries.dialogues import DialogueFilter

        fields = self.model_dump(exclude={"labeled_only", *EXCLUSIONS})
        return DialogueFilter(
            run=run,
            labeled=self.labeled_only or None,
            without_controls=not self.include_controls,
            without_control_hints=not self.include_controls,
            demonstrations=True,
            **fields,
        )

    def conditions(self) -> dict[str, object]:
        """Return the fields that are not empty."""
        return {k: v for k, v in self.model_dump().items() if v not in ("", None, False)}


class ExportSettings(BaseConfig):
    """Dialogues and dataset types of an export."""

    seed: int = Field(0, ge=0, lt=2**31)
    """Chooses among equally good preference pairs; equal seeds give equal files."""
    formats: tuple[FormatName, ...] = ("unpaired_preference", "preference", "messages")
    """Dataset types of TRL."""
    files: tuple[FileType, ...] = ("jsonl", "parquet")
    """File types: JSONL, Parquet, or both."""
    labels: Literal["both", "human", "detector"] = "both"
    """Label source: human labels, detector findings, or findings only where no annotator decided (both)."""
    annotator: Text = ""
    """Only this annotator's labels; empty for the majority of all."""
    filter: ExportFilter = Field(default_factory=ExportFilter)
    """The dialogues to export."""
    pairs_per_leak: int = Field(1, ge=1, le=64)
    """Maximum number of preference pairs per leaking hint."""
    match: Match = "task"
    """What the two hints of a pair must share at least: history, attempt or task."""
    privileged: bool = False
    """Include the answer in prompts, for teachers and judges: a student trained on it learns to read answers."""

    @field_validator("formats", "files")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("needs at least one")
        return tuple(dict.fromkeys(names))

    @model_validator(mode="after")
    def _check_combination(self) -> ExportSettings:
        if self.labels == "detector" and self.annotator:
            raise FieldValueError("annotator has no meaning with labels: detector; choose human or both", "annotator")
        first, last = self.filter.step_from, self.filter.step_to
        if first is not None and last is not None and first > last:
            raise FieldValueError(f"filter.step_from {first} is after filter.step_to {last}", "filter", "step_from")
        return self
