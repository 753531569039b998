"""The form of a run and its YAML, converted both ways from the configuration classes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from pydantic import Field, SkipValidation, ValidationError, computed_field

from app.forms import yaml_text
from app.forms.allowlist import source_errors
from app.forms.errors import MAX_ERRORS, FieldError, field_errors
from app.forms.schema import complete, config_class, options, run_node
from app.forms.yaml_text import YamlProblem, for_browser
from jobs.db.errors import NotFoundError
from jobs.workspace import Workspace
from rl2f_core import registry
from rl2f_core.config import presets as core
from rl2f_core.config.loading import dump_yaml, parse_config
from rl2f_core.config.matrix import is_matrix
from rl2f_core.config.presets import Preset, studies
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError, RL2FError, nearest_names
from rl2f_core.evaluation.study.spec import Study, parse_study
from rl2f_core.models.store.store import built_in
from rl2f_core.types import FrozenModel, JsonObject

DEFAULT_PRESET, FIRST_PRESET = "quickstart", "first_look"
"""Preset of the form, and the one that a new user starts."""
STUDY = "study"
"""`kind` of the check of a study."""


class YamlError(FrozenModel):
    """A text that is not the YAML of a mapping."""

    message: str
    line: int | None = None
    """1-based line."""
    column: int | None = None
    """1-based column."""


class ConfigCheck(FrozenModel):
    """Result of the validation of a configuration."""

    kind: str
    """Run kind; `train` if the data names no registered one."""
    config: SkipValidation[BaseRun | None] = Field(None, exclude=True)
    """The configuration if it is valid."""
    errors: tuple[FieldError, ...] = ()
    """Invalid fields."""
    yaml_error: YamlError | None = None
    """If it is not None, there are no field errors."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ok(self) -> bool:
        """The configuration is valid."""
        return self.config is not None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def resolved(self) -> str | None:
        """YAML with all defaults; None if the configuration is invalid."""
        return None if self.config is None else dump_yaml(self.config)


class FormState(ConfigCheck):
    """Values of the form and the same configuration as YAML, and the command that starts it on the command line."""

    data: JsonObject | None
    """Values with all defaults; None if the text is not the YAML of a mapping. Those of a study have no defaults."""
    study: SkipValidation[Study | None] = Field(None, exclude=True)
    """The study that the text describes, if it is valid; its `kind` is `study`."""
    yaml: str
    """The data as YAML, with the comments and order of the original text; an unreadable text itself."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ok(self) -> bool:
        """The configuration or the study is valid."""
        return self.config is not None or self.study is not None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def file(self) -> str:
        """Name of the file that contains `yaml`."""
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", str((self.data or {}).get("name") or "run")).strip("-.")[:100]
        return f"{slug or 'run'}.yaml"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def command(self) -> str:
        """The command that starts the configuration on the command line."""
        return f"rl2f {'study' if is_matrix(self.data) else 'train'} {self.file}"


def spec(kind: str) -> JsonObject:
    """Return the form of a run kind: its `root` node and the registered `components`; raises `UnknownNameError`."""
    parts = [part for part in registry.PACKAGES if part != "run_kind"]
    return {"root": run_node(kind), "components": {part: options(part) for part in parts}}


def kinds() -> list[str]:
    """Return the registered run kinds that a user can start."""
    return [name for name in registry.names("run_kind") if name != "imported"]


def check_yaml(text: str, workspace: Workspace) -> FormState:
    """Validate a YAML text."""
    try:
        document = yaml_text.read(text)
    except YamlProblem as problem:
        return FormState(kind="train", data=None, yaml=text, yaml_error=_yaml_error(problem))
    if not isinstance(document.value, Mapping):
        what = "is empty" if document.value is None else "has no keys and values"
        error = YamlError(message=f"The text {what}.", line=1)
        return FormState(kind="train", data=None, yaml=text, yaml_error=error)
    return _with_lines(_check(dict(document.value), workspace, text), document.lines)


def check_data(data: Mapping[str, object], workspace: Workspace, text: str | None = None) -> FormState:
    """Validate the values of a form; comments of its earlier YAML `text` are kept."""
    checked = _check(dict(data), workspace, text)
    if checked.ok:
        return checked
    try:
        return _with_lines(checked, yaml_text.read(checked.yaml).lines)
    except YamlProblem as problem:  # more values or deeper than a configuration can be
        return checked.model_copy(update={"config": None, "yaml_error": _yaml_error(problem)})


def _with_lines(checked: FormState, lines: Mapping[yaml_text.Path, int]) -> FormState:
    errors = tuple(replace(error, line=yaml_text.line_of(lines, error.path)) for error in checked.errors)
    return checked.model_copy(update={"errors": errors})


def _yaml_error(problem: YamlProblem) -> YamlError:
    return YamlError(message=problem.message, line=problem.line, column=problem.column)


def _check_study(data: JsonObject, workspace: Workspace, text: str | None) -> FormState:
    yaml, study, errors = yaml_text.update(text, data), None, []
    try:
        study = parse_study(yaml)
        for arm, config in study.arms.items():
            checked = _check(config.model_dump(mode="json"), workspace, None)
            errors += [FieldError((), f"of arm {arm}: {error.field} {error.message}") for error in checked.errors]
    except RL2FError as error:
        errors = [FieldError((), str(error))]
    except RecursionError:
        errors = [FieldError((), "is nested too deeply")]
    found, valid = tuple(errors[:MAX_ERRORS]), None if errors else study
    return FormState(kind=STUDY, data=for_browser(data), yaml=yaml, errors=found, study=valid)


def _check(data: JsonObject, workspace: Workspace, text: str | None) -> FormState:
    if is_matrix(data):
        return _check_study(data, workspace, text)
    kind = data.get("kind", "train")
    if not isinstance(kind, str) or kind not in kinds():
        error = FieldError(("kind",), f"is not a run kind; known: {', '.join(kinds())}")
        return FormState(kind="train", data=for_browser(data), yaml=yaml_text.update(text, data), errors=(error,))
    node = run_node(kind)
    config, errors = None, []
    try:
        config = parse_config(data)
    except RecursionError:
        errors = [FieldError((), "is nested too deeply")]
    except ConfigError as error:
        cause = error.__cause__
        if isinstance(cause, ValidationError):
            errors = field_errors(cause.errors(), node, data)
        else:
            errors = [FieldError((), str(error))]
    full = config.model_dump(mode="json") if config is not None else complete(config_class(kind), data)
    found = {error.path for error in errors}
    errors += [error for error in source_errors(node, full, workspace) if error.path not in found]
    valid, yaml = None if errors else config, yaml_text.update(text, full)
    return FormState(kind=kind, config=valid, data=for_browser(full), yaml=yaml, errors=tuple(errors))


def change_kind(data: Mapping[str, object], kind: str) -> JsonObject:
    """Return the data for another run kind with the fields of both kinds; raises `UnknownNameError`."""
    shared = {field["key"] for field in run_node(kind)["fields"]}
    return {**{key: value for key, value in data.items() if key in shared}, "kind": kind}


# -- where a form starts ---------------------------------------------------------------------------------------------
def presets() -> list[Preset]:
    """Return all presets, the first look and the default first, then by name."""
    first = {FIRST_PRESET: 0, DEFAULT_PRESET: 1}
    return sorted(core.presets(), key=lambda preset: first.get(preset.name, len(first)))


@lru_cache(maxsize=256)
def preset_config(preset: Preset) -> BaseRun:
    """Return the configuration of a preset."""
    return preset.config()


@lru_cache(maxsize=256)
def runs_on_cpu(preset: Preset) -> bool:
    """Return whether a preset trains a built-in model, which needs no GPU."""
    return is_for_cpu(preset_config(preset))


def is_for_cpu(config: BaseRun) -> bool:
    """Return whether a configuration trains a built-in model."""
    model = getattr(config, "model", None)
    return model is None or model.name in built_in()


def preset_yaml(name: str) -> str:
    """Return the YAML of a preset; raises `NotFoundError` with the known names."""
    found = {preset.name: preset for preset in [*presets(), *studies()]}
    if name not in found:
        nearest = nearest_names(name, found)
        fix = f"Choose another of the {len(found)} presets, e.g. {nearest[0]}." if nearest else None
        raise NotFoundError("Preset not found.", value=name, known=nearest, fix=fix)
    return found[name].text
