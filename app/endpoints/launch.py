"""New runs: presets, the form and its YAML, preflight, start, schedule, clone."""

from __future__ import annotations

import functools
import zoneinfo
from collections.abc import Sequence
from typing import Annotated, Literal, NoReturn

from pydantic import Field

from app.common.urls import page_url
from app.endpoints.endpoint import Endpoints, Flat, endpoint, queued_run
from app.endpoints.types import QueuedRun, RunId, ShortText
from app.forms import preflight, run_form, yaml_text
from app.forms.allowlist import Option, list_options
from app.forms.estimate import Estimate, Pace, estimate, estimate_study, pace
from app.forms.preflight import PreflightState
from app.forms.run_form import ConfigCheck, FormState
from app.forms.schedule import next_times
from app.forms.yaml_text import MAX_CHARACTERS, for_browser
from jobs import studies
from jobs.db.errors import NotFoundError
from jobs.db.models import Run, RunSummary
from jobs.db.queries import runs, scheduled_runs
from rl2f_core.config.overrides import set_nested
from rl2f_core.config.presets import studies as shipped_studies
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError
from rl2f_core.evaluation.study.spec import Study, parse_study
from rl2f_core.run.kinds.preflight import preflight_config
from rl2f_core.types import FrozenModel, JsonObject

ConfigText = Annotated[str, Field(max_length=2 * MAX_CHARACTERS)]
"""YAML; texts above `MAX_CHARACTERS` are reported by the check."""
Trigger = Annotated[Literal["date", "cron"], Field(description="`date` (once) or `cron` (repeated).")]
When = Annotated[
    str,
    Field(
        max_length=300,
        description="ISO time such as `2030-01-31T22:30`, or five cron fields such as `30 2 * * *`.",
    ),
]
TimeZone = Annotated[str, Field(max_length=300, description="Time zone of `when`, e.g. `Europe/Berlin`.")]


class ConfigSource(FrozenModel):
    """A configuration: YAML or a preset, with changes."""

    yaml: ConfigText | None = None
    preset: ShortText | None = None
    """Name of a preset, instead of `yaml`."""
    overrides: dict[ShortText, object] | None = None
    """Dotted paths and their values, e.g. `{"stages.0.steps": 5}`."""


class PresetInfo(FrozenModel):
    """A shipped configuration."""

    name: str
    description: str
    """What it shows."""
    runs_on_cpu: bool
    """It trains a built-in model."""
    model: str
    """Its model."""
    estimate: Estimate | None
    """Its size, with the duration if the model was trained here; None for other kinds than training."""
    is_study: bool = False
    """It is a study of several runs."""


class RunForm(FrozenModel):
    """The form of a run kind."""

    kind: str
    """The run kind."""
    kinds: list[str]
    """All run kinds that can be started."""
    root: JsonObject
    """Node of the whole form: its fields with type, limits, default, help and choices."""
    components: dict[str, JsonObject]
    """Component → type → section of its fields."""
    max_characters: int
    """Maximum length of a YAML text."""


class SchedulePreview(FrozenModel):
    """The next times of a schedule, or the error."""

    times: Sequence[str] = ()
    """ISO times with the offset of the time zone."""
    error: str | None = None
    fix: str | None = None
    """How to correct it."""


class NewSchedule(FrozenModel):
    """A stored schedule."""

    schedule: int
    """Number of the schedule."""
    name: str
    times: list[str]
    """ISO times of its next runs."""
    url: str
    """Address of the list of runs and schedules."""


class LaunchEndpoints(Endpoints):
    """Endpoints of the page *New run*.

    Most take a configuration as `yaml` or as the name of a `preset`, with `overrides`. It may name only the models,
    files and URLs that `app.forms.allowlist` permits.
    """

    # -- the form --------------------------------------------------------------------------------------------------
    @endpoint("read")
    def list_presets(self) -> list[PresetInfo]:
        """List the shipped configurations, the default first."""
        pace_of = functools.cache(self.pace_of)
        return [
            PresetInfo(
                name=preset.name,
                description=preset.about,
                runs_on_cpu=run_form.runs_on_cpu(preset),
                model=str(getattr(getattr(config, "model", None), "name", "")),
                estimate=estimate(config, pace_of),
            )
            for preset in run_form.presets()
            for config in [run_form.preset_config(preset)]
        ]

    @endpoint("read")
    def list_study_presets(self) -> list[PresetInfo]:
        """List the shipped studies; `get_preset` returns the file that `launch_study` starts."""
        pace_of = functools.cache(self.pace_of)
        return [
            PresetInfo(
                name=preset.name,
                description=preset.about,
                runs_on_cpu=all(run_form.is_for_cpu(config) for config in arms),
                model=arms[0].model.name,
                estimate=estimate_study(arms, len(study.settings.seeds), pace_of),
                is_study=True,
            )
            for preset in shipped_studies()
            for study in [parse_study(preset.text)]
            for arms in [[*study.arms.values()]]
        ]

    @endpoint("read")
    def get_preset(self, name: ShortText = run_form.DEFAULT_PRESET) -> str:
        """Return the YAML of a preset or a study with its comments.

        Args:
            name: Name of the preset.
        """
        return run_form.preset_yaml(name)

    @endpoint("read")
    def clone_run(self, run: RunId) -> str:
        """Return the configuration of a run as YAML for a new one; pass `run` as `parent` to `launch_run`."""
        return self._context.queue.clone_yaml(run)

    @endpoint("read")
    def run_form(self, kind: ShortText = "train") -> RunForm:
        """Describe the form of a run kind: sections and fields with type, limits, default, help and choices.

        Args:
            kind: The run kind.
        """
        kinds = run_form.kinds()
        if kind not in kinds:
            raise NotFoundError("Run kind not found.", value=kind, known=kinds, fix="Choose a known kind.")
        spec = for_browser(run_form.spec(kind))
        return RunForm(kind=kind, kinds=kinds, max_characters=MAX_CHARACTERS, **spec)

    @endpoint("read")
    def form_choices(self) -> dict[str, list[Option]]:
        """List the models, checkpoints, datasets and other values that the form offers, by the fields' `known`."""
        return list_options(self._context.db, self._context.workspace)

    @endpoint("read")
    def form_of_yaml(self, yaml: ConfigText) -> FormState:
        """Convert YAML to values of the form, and validate them.

        Args:
            yaml: Configuration as YAML.
        """
        return run_form.check_yaml(yaml, self._context.workspace)

    @endpoint("read")
    def yaml_of_form(
        self, data: JsonObject, yaml: ConfigText | None = None, kind: ShortText | None = None
    ) -> FormState:
        """Convert values of the form to YAML, and validate them.

        Args:
            data: Values of the form.
            yaml: Earlier YAML; its comments and order are kept.
            kind: Run kind to change to; fields that both kinds have are kept.
        """
        if kind is not None and kind != data.get("kind", "train"):
            data = run_form.change_kind(data, kind)
        return self._check_data(data, yaml)

    @endpoint("read")
    def check_config(self, source: Flat[ConfigSource] = ConfigSource()) -> ConfigCheck:
        """Validate a configuration, and return its invalid fields or its YAML with all defaults."""
        return self._check(source)

    @endpoint("read")
    def estimate_run(self, source: Flat[ConfigSource] = ConfigSource()) -> Estimate | None:
        """Estimate dialogues, tokens, duration and memory of a training run; None for other kinds of runs.

        Duration and memory are those of the newest run of the model; the duration may be that of recorded runs.
        """
        return estimate(self._valid(source)[0], self.pace_of)

    def pace_of(self, model: str) -> Pace | None:
        """Return the pace of the newest finished run of a model, or else of recorded runs."""
        return pace(self._context.db, model)

    # -- start -----------------------------------------------------------------------------------------------------
    @endpoint("run")
    def launch_run(self, source: Flat[ConfigSource] = ConfigSource(), parent: RunId | None = None) -> QueuedRun:
        """Queue a run.

        Args:
            source: The configuration.
            parent: The cloned run.
        """
        return self._add(self._valid(source)[0], parent)

    @endpoint("run")
    def launch_study(self, yaml: ConfigText) -> list[QueuedRun]:
        """Queue all arms and seeds of a study, and resume the parts that ended without success.

        `study_report` returns its results.

        Args:
            yaml: File of a study: a configuration with `matrix`, `seeds` and `hypotheses`.
        """
        checked = self._check(ConfigSource(yaml=yaml))
        if not checked.ok:
            _refuse(checked)
        return self._launch(parse_study(yaml))

    @endpoint("run")
    def resume_study(self, name: ShortText) -> list[QueuedRun]:
        """Queue the parts of a study again that ended without success, and those that were deleted.

        Args:
            name: Name of the study.
        """
        return self._launch(studies.load(self._context.queue, name))

    @endpoint("run")
    def stop_study(self, name: ShortText) -> list[RunSummary]:
        """Stop all parts of a study: queued ones leave the queue, running ones save their state and end after the step.

        Args:
            name: Name of the study.
        """
        return [*studies.stop(self._context.queue, name).values()]

    @endpoint("run")
    def preflight_config(self, source: Flat[ConfigSource] = ConfigSource(), parent: RunId | None = None) -> QueuedRun:
        """Queue the preflight of a training run: it samples a few groups and judges whether training can succeed.

        `get_preflight` returns its progress and verdict.

        Args:
            source: The configuration.
            parent: The cloned run.
        """
        config, _ = self._valid(source)
        return self._add(preflight_config(config), parent)

    @endpoint("read")
    def get_preflight(self, run: RunId) -> PreflightState:
        """Return the progress of a preflight, or its verdict."""
        row = self._preflight(run)
        return preflight.view(row, self._context.workspace.folder(row.folder))

    @endpoint("run")
    def abort_preflight(self, run: RunId) -> None:
        """Abort a preflight."""
        self._preflight(run)
        self._context.queue.abort(run)

    # -- schedules -------------------------------------------------------------------------------------------------
    @endpoint("read")
    def list_timezones(self) -> list[str]:
        """List the names of all time zones."""
        return sorted(zoneinfo.available_timezones())

    @endpoint("read")
    def preview_schedule(self, trigger: Trigger, when: When, timezone: TimeZone = "UTC") -> SchedulePreview:
        """Return the next three times of a schedule, or what is wrong with it."""
        try:
            return SchedulePreview(times=next_times(trigger, when, timezone))
        except ConfigError as error:
            return SchedulePreview(error=error.what, fix=error.fix)

    @endpoint("run")
    def schedule_run(
        self,
        trigger: Trigger,
        when: When,
        source: Flat[ConfigSource] = ConfigSource(),
        timezone: TimeZone = "UTC",
        name: Annotated[str, Field(max_length=100)] = "",
    ) -> NewSchedule:
        """Schedule a run once or repeatedly.

        Args:
            source: The configuration.
            name: Name of the schedule; by default that of the run.
        """
        config, checked = self._valid(source)
        times = next_times(trigger, when, timezone)
        row = scheduled_runs.add(
            self._context.db,
            name=name.strip() or config.name,
            trigger=trigger,
            when=when,
            timezone=timezone,
            config=checked.yaml,
        )
        return NewSchedule(schedule=row.id, name=row.name, times=times, url=page_url(""))

    # -- internals -------------------------------------------------------------------------------------------------
    def _check(self, source: ConfigSource) -> FormState:
        yaml, preset, overrides = source.yaml, source.preset, source.overrides
        if (yaml is None) == (preset is None):
            raise ConfigError(
                "A configuration is given by exactly one of `yaml` and `preset`.",
                value="both" if preset is not None else "neither",
                fix="Pass one of them; `list_presets` lists the presets.",
            )
        text = run_form.preset_yaml(preset) if preset is not None else yaml or ""
        checked = run_form.check_yaml(text, self._context.workspace)
        if not overrides or checked.yaml_error is not None:
            return checked
        data = yaml_text.read(text).value
        for path, value in overrides.items():
            data = set_nested(data, path, value)
        return self._check_data(data, text)

    def _check_data(self, data: JsonObject, text: str | None) -> FormState:
        try:
            return run_form.check_data(data, self._context.workspace, text)
        except RecursionError as error:
            raise ConfigError("The configuration is nested too deeply.", fix="Remove levels of nesting.") from error

    def _valid(self, source: ConfigSource) -> tuple[BaseRun, FormState]:
        """Return a configuration with its check; raises `ConfigError` naming each invalid field."""
        checked = self._check(source)
        if checked.study is not None:
            raise ConfigError("The YAML is that of a study.", value=checked.study.name, fix="Call `launch_study`.")
        if checked.config is None:
            _refuse(checked)
        return checked.config, checked

    def _add(self, config: BaseRun, parent: int | None) -> QueuedRun:
        if parent is not None:
            runs.get(self._context.db, parent)
        return self._queue(config, parent)

    def _launch(self, study: Study) -> list[QueuedRun]:
        return [queued_run(run) for run in studies.launch(self._context.queue, study).values()]

    def _preflight(self, run: int) -> Run:
        row = runs.get(self._context.db, run)
        if row.kind != "preflight":
            raise NotFoundError("This run is not a preflight.", value=run, fix="Start one with `preflight_config`.")
        return row


def _refuse(checked: FormState) -> NoReturn:
    """Raise `ConfigError` naming what is wrong with a configuration."""
    if checked.yaml_error is not None:
        line = checked.yaml_error.line
        raise ConfigError(checked.yaml_error.message, value=f"line {line}" if line else None, fix="Fix the YAML.")
    fields = "; ".join(f"{e.field or 'configuration'}: {e.message}" for e in checked.errors)
    what = f"The configuration has {len(checked.errors)} error(s)."
    raise ConfigError(what, value=fields, fix="Correct these fields.")
