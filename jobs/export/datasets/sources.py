"""Sources of records: the workspace's database with human labels, or a run directory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import yaml

from jobs.export.datasets.export_records import ExportRecord, TaskRenderer, from_event
from jobs.export.datasets.rescoring import Rescoring, newest_rescoring
from jobs.export.datasets.settings import Exclusion, ExportFilter
from jobs.export.private_paths import without_folders
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.config.leaks import describe_detector
from rl2f_core.config.loading import parse_recorded
from rl2f_core.errors import RL2FError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, read_dialogues
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.db.models import Run
    from jobs.workspace import Workspace

BATCH = 200
"""Number of dialogues in memory."""


class Source(ABC):
    """The dialogues of one run.

    Args:
        run: The run's id, or the directory's name without a database.
        name: The run's name, if it has no configuration.
        run_dir: The run directory.
        config: The run's configuration of any kind; None if it is invalid.
    """

    has_human_labels: ClassVar[bool]

    def __init__(self, run: str, name: str, run_dir: RunDir, config: Any) -> None:
        self.name, self.run_dir, self.config = run, run_dir, config
        self._run_name = name

    @property
    def is_imported(self) -> bool:
        """Whether another program recorded the dialogues."""
        return getattr(self.config, "kind", None) == "imported"

    @cached_property
    def rescoring(self) -> Rescoring | None:
        """The newest rescoring of the run beside it."""
        return newest_rescoring(self.run_dir, [self.run_dir.path.resolve().parent])

    @cached_property
    def untrained(self) -> frozenset[str]:
        """Policies that are the run's base model: `base`, and the weights before the first training step."""
        if self.is_imported:
            return frozenset()  # the names are those of another program
        adapters = {**getattr(self.config, "adapters", {}), **getattr(self.config, "checkpoints", {})}
        names = {"base", *(name for name, folder in adapters.items() if folder is None)}
        is_trained = False
        for number, stage in enumerate(getattr(self.config, "stages", ())):
            initial = self.config.lora_of(stage).init_adapter
            if stage.init_from == "base" or (number == 0 and initial is None):
                is_trained = False
            elif stage.init_from is not None or initial is not None:
                is_trained = True
            names |= set() if is_trained else {f"{stage.name}@0"}
            is_trained |= stage.updates_weights
        return frozenset(names)

    def tally(self, filter: ExportFilter) -> Counter[Exclusion | None]:
        """Count the dialogues of a filter by the field that would include them; None for those that are included."""
        counts = self._tally(filter)
        if not filter.include_controls:
            every = self._tally(filter.model_copy(update={"include_controls": True}))
            counts["include_controls"] = every.total() - counts.total()
        return counts

    def _tally(self, filter: ExportFilter) -> Counter[Exclusion | None]:
        """Count the dialogues of a filter without regard to controls."""
        counts: Counter[Exclusion | None] = Counter()
        for (split, policy), number in self.count_policies(filter).items():
            counts[filter.exclusion(split, policy, self.untrained)] += number
        return counts

    def count(self, filter: ExportFilter) -> int:
        """Count the dialogues that a filter includes."""
        return self.tally(filter)[None]

    def about(self) -> JsonObject:
        """Return the manifest's description of the run, without paths."""
        model, environment, teacher, detection = (
            getattr(self.config, name, None) for name in ("model", "environment", "teacher", "leak_detection")
        )
        used = () if detection is None or self.is_imported else detection.detectors
        detectors = [describe_detector(detector.model_dump(mode="json")) for detector in used]
        meta, rescoring = self.run_dir.meta(), self.rescoring
        return {
            "run": self.name,
            "name": getattr(self.config, "name", self._run_name),
            "kind": getattr(self.config, "kind", None),
            "seed": getattr(self.config, "seed", None),
            "model": Path(model.name).name if model else None,
            "environment": None if environment is None else without_folders(environment.model_dump(mode="json")),
            "teacher": None if self.is_imported else getattr(teacher, "type", None),
            "detectors": detectors if rescoring is None else list(rescoring.detectors),
            "rescoring": None if rescoring is None else rescoring.name,
            "git": meta.get("git"),
            "packages": meta.get("packages", {}),
        }

    def batches(self, filter: ExportFilter, size: int = BATCH) -> Iterator[list[ExportRecord]]:
        """Yield the dialogues that a filter includes, in a fixed order."""
        for batch in self.read(filter, size):
            included = [
                record
                for record in batch
                if filter.exclusion(record.event.task.split, record.event.dialogue.policy, self.untrained) is None
            ]
            yield included if self.rescoring is None else [self.rescoring.apply(record) for record in included]

    @abstractmethod
    def count_policies(self, filter: ExportFilter) -> Mapping[tuple[str, str], int]:
        """Count the dialogues of a filter, with excluded ones, by split and policy."""

    @abstractmethod
    def read(self, filter: ExportFilter, size: int) -> Iterator[list[ExportRecord]]:
        """Yield the dialogues of a filter in a fixed order; excluded ones may be among them."""


class FolderSource(Source):
    """A run directory without a database: only findings at run time."""

    has_human_labels = False

    def __init__(self, path: str | Path) -> None:
        run_dir = RunDir.open(path, needs_config=False)
        try:
            config = run_dir.config()
        except RL2FError:  # e.g. a missing plugin; the events are readable nevertheless
            config = None
        name = run_dir.path.resolve().name
        super().__init__(name, name, run_dir, config)

    @cached_property
    def rescoring(self) -> Rescoring | None:
        """The newest rescoring of the run, beside it or in `runs`, where `rl2f leaks FOLDER` writes it."""
        return newest_rescoring(self.run_dir, [self.run_dir.path.resolve().parent, Path("runs")])

    def count_policies(self, filter: ExportFilter) -> Mapping[tuple[str, str], int]:
        """Count the dialogues of a filter by split and policy; reads the whole file."""
        return Counter((event.task.split, event.dialogue.policy) for event in self._distinct_events(filter))

    def read(self, filter: ExportFilter, size: int) -> Iterator[list[ExportRecord]]:
        """Yield the dialogues in the order of the event file, each event id once."""
        renderer = TaskRenderer.of(self.config)
        run_name = getattr(self.config, "name", self.name)
        events = self._distinct_events(filter)
        while batch := list(islice(events, size)):
            yield [from_event(event, self.name, run_name, renderer) for event in batch]

    def _distinct_events(self, filter: ExportFilter) -> Iterator[DialogueEvent]:
        ids: set[str] = set()
        for event in self._events(filter):
            if event.id not in ids:
                ids.add(event.id)
                yield event

    def _events(self, filter: ExportFilter) -> Iterator[DialogueEvent]:
        if not self.run_dir.events_path.exists():
            return
        yield from (event for event in read_dialogues(self.run_dir.events_path) if filter.matches(event))


class WorkspaceSource(Source):
    """A run in the workspace's database, with human labels."""

    has_human_labels = True

    def __init__(self, db: Database, workspace: Workspace, run: Run) -> None:
        self.db, self.run = db, run
        try:
            config = parse_recorded(load_yaml(run.config))
        except (RL2FError, yaml.YAMLError):
            config = None
        super().__init__(str(run.id), run.name, RunDir(workspace.folder(run.folder)), config)

    def count_policies(self, filter: ExportFilter) -> Mapping[tuple[str, str], int]:
        """Count the dialogues of a filter by split and policy."""
        from jobs.db.queries import dialogues

        return dialogues.count_policies(self.db, filter.dialogue_filter(self.run.id or 0))

    def read(self, filter: ExportFilter, size: int) -> Iterator[list[ExportRecord]]:
        """Yield the dialogues in the order of ingestion, each batch from its own transaction."""
        from jobs.db.queries import dialogues

        renderer = TaskRenderer.of(self.config)
        rows = filter.dialogue_filter(self.run.id or 0).but(split="" if filter.include_test else "train")
        after = 0
        while views := dialogues.next_views(self.db, rows, after=after, limit=size):
            after = views[-1].row.id or 0
            yield [from_event(view.event, self.name, self.run.name, renderer, view.labels) for view in views]
