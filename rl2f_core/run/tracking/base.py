"""Interface of an experiment tracker, which mirrors metrics, evaluation tables and sampled dialogues of a run.

A tracker is an observer: it works in a thread of its own, and its errors never end the run. A resumed run continues the
tracker's run, whose id is in `tracking.json` of the run directory.
"""

from __future__ import annotations

import importlib.util
import json
import uuid
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from rl2f_core import registry
from rl2f_core.common.file_io import write_atomically
from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.config.run import BaseRun, RunConfig
from rl2f_core.environments.base import Environment
from rl2f_core.errors import ConfigError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, Event, MetricEvent, StatusEvent
from rl2f_core.run.observers import Observer
from rl2f_core.types import DEMONSTRATION, Dialogue, JsonObject

STATE = "tracking.json"
"""File of a run directory with the id of the tracker's run."""
Messages = list[dict[str, str]]
"""A dialogue as a list of `{role, content}`, as the student reads and writes it."""


class TrackerConfig(ComponentConfig):
    """Base of the configuration of trackers."""

    dialogues: int = Field(2, ge=0)
    """Mirrored dialogues of each step, and of each checkpoint and condition of an evaluation: the first of as many
    groups."""


class ProjectTrackerConfig(TrackerConfig):
    """Base of the configuration of trackers that group runs."""

    project: str = Field("rl2f", min_length=1, max_length=100, json_schema_extra=BASIC_FIELD)
    """Project, or experiment in MLflow."""


class Tracker(Observer):
    """Mirrors a run in an experiment tracker.

    Args:
        settings: Settings of the tracker.
        config: Configuration of the run.
        run_dir: Directory of the run.

    Raises `ConfigError` if a package of the tracker is missing.
    """

    Config: ClassVar[type[TrackerConfig]]
    packages: ClassVar[tuple[str, ...]]
    """Packages that the tracker imports."""

    settings: TrackerConfig

    def __init__(self, settings: ComponentConfig, config: BaseRun, run_dir: RunDir) -> None:
        assert isinstance(settings, self.Config)
        self.settings, self.config, self.run_dir = settings, config, run_dir
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"The tracker needs packages that are not installed: {', '.join(missing)}.",
                value=settings.type,
                fix=f"pip install {' '.join(missing)}, or remove `tracking`.",
            )
        self.status = "running"
        self._offsets = _step_offsets(config)
        self._sampled: Counter[tuple[str | int | None, ...]] = Counter()
        self._environment: Environment | None = None

    # -- an implementation defines these -------------------------------------------------------------------------------
    @abstractmethod
    def start(self, id: str | None) -> str:
        """Start the tracker's run, or continue the one with this id; return its id."""

    @abstractmethod
    def log_metrics(self, values: dict[str, float], step: int, time: float) -> None:
        """Log metrics of a step; `step` counts over all stages, `time` is in seconds since 1970."""

    @abstractmethod
    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], step: int) -> None:
        """Log a table."""

    @abstractmethod
    def log_dialogue(self, name: str, messages: Messages, facts: JsonObject, step: int) -> None:
        """Log a dialogue, with facts such as task and checkpoint."""

    # -- events --------------------------------------------------------------------------------------------------------
    def handles(self, event: Event) -> bool:
        """Return whether the event is mirrored."""
        if not isinstance(event, DialogueEvent):
            return isinstance(event, MetricEvent | StatusEvent)
        if event.dialogue.index > 0 or event.dialogue.policy == DEMONSTRATION:
            return False
        key = (event.phase, event.stage, event.step, event.checkpoint, event.setting)
        self._sampled[key] += 1
        return self._sampled[key] <= self.settings.dialogues

    def open(self) -> None:
        """Start or continue the tracker's run, and store its id."""
        path = self.run_dir.path / STATE
        stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        known = stored.get("id") if stored.get("type") == self.settings.type else None
        id = self.start(known)
        if id != known:
            write_atomically(path, json.dumps({"type": self.settings.type, "id": id}))

    def observe(self, event: Event) -> None:
        """Mirror an event."""
        if isinstance(event, MetricEvent):
            prefix = f"{event.stage.replace(':', '/')}/" if event.is_evaluation else ""
            values = {f"{prefix}{name}": value for name, value in event.values.items()}
            self.log_metrics(values, self._position(event), event.time)
        elif isinstance(event, DialogueEvent):
            name = "/".join(filter(None, (event.phase, event.checkpoint, event.setting)))
            dialogue = event.dialogue
            facts = {"task": event.task.id, "stage": event.stage, "step": event.step, "policy": dialogue.policy,
                     "solved": dialogue.solved, "turns": len(dialogue.turns),
                     "reward": sum(turn.reward for turn in dialogue.turns),
                     "leak": any(turn.hint is not None and turn.hint.read_leak for turn in dialogue.turns)}  # fmt: skip
            self.log_dialogue(name, self._messages(event), facts, self._position(event))
        elif isinstance(event, StatusEvent) and event.status != "running":
            self.status = event.status
            if event.status == "succeeded":
                self._log_report()

    def new_id(self) -> str:
        """Return an unused id of a tracker's run."""
        return f"{self.config.name.replace(' ', '-')[:50]}-{uuid.uuid4().hex[:8]}"

    def public_config(self) -> JsonObject:
        """Return the configuration of the run without its alerts, which may contain secrets."""
        return self.config.model_dump(mode="json", exclude={"alerts"})

    def _position(self, event: MetricEvent | DialogueEvent) -> int:
        """Return the step of an event, counted over all stages; an evaluation follows the last one."""
        return self._offsets.get(event.stage, self._offsets[""]) + event.step

    def _messages(self, event: DialogueEvent) -> Messages:
        if self._environment is None:
            self._environment = registry.get("environment", self.config.environment.type)(self.config.environment)
        system = self._environment.system_prompt()
        first = [{"role": "system", "content": system}] if system else []
        return first + as_messages(self._environment.prompt(event.task.public), event.dialogue)

    def _log_report(self) -> None:
        from rl2f_core.evaluation.report import tables
        from rl2f_core.evaluation.report_file import read_report

        report = read_report(self.run_dir.path)
        for name, columns, rows in tables(report) if report is not None else ():
            self.log_table(name, columns, rows, self._offsets[""])


def as_messages(prompt: str, dialogue: Dialogue) -> Messages:
    """Return prompt, attempts, observations and hints as messages."""
    messages = [{"role": "user", "content": prompt}]
    for turn in dialogue.turns:
        messages.append({"role": "assistant", "content": turn.attempt})
        if turn.hint is not None or turn.verdict.observation is not None:
            messages.append({"role": "user", "content": turn.reply})
    return messages


def _step_offsets(config: BaseRun) -> dict[str, int]:
    """Return the number of steps before each stage, and before the evaluation (key "")."""
    offsets, total = {}, 0
    for stage in config.stages if isinstance(config, RunConfig) else ():
        offsets[stage.name] = total
        total += stage.steps
    return {**offsets, "": total}
