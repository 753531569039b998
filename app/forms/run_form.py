"""The form of a run and its YAML, converted both ways from the configuration classes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from pydantic import ValidationError

from app.forms import yaml_text
from app.forms.allowlist import source_errors
from app.forms.errors import FieldError, field_errors
from app.forms.schema import complete, config_class, options, run_node
from app.forms.yaml_text import YamlProblem
from jobs.db.errors import NotFoundError
from jobs.workspace import Workspace
from rl2f_core import registry
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.config import presets as core
from rl2f_core.config.loading import parse_config
from rl2f_core.config.presets import Preset
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError
from rl2f_core.models.store.store import built_in
from rl2f_core.types import JsonObject

DEFAULT_PRESET = "quickstart"


@dataclass(frozen=True)
class FormResult:
    """The validated values of a form or of a YAML text."""

    kind: str
    """Run kind; `train` if the data names no registered one."""
    config: BaseRun | None
    """The configuration if it is valid."""
    data: JsonObject | None
    """Values with all defaults; None if the text is not the YAML of a mapping."""
    yaml: str
    """The data as YAML, with the comments and order of the original text; an unreadable text itself."""
    errors: tuple[FieldError, ...] = ()
    problem: YamlProblem | None = None
    """Why the text cannot be read; then there are no field errors."""

    @property
    def ok(self) -> bool:
        """Whether the configuration is valid."""
        return self.config is not None


def spec(kind: str) -> JsonObject:
    """Return the form of a run kind: its `root` node and the registered `components`; raises `UnknownNameError`."""
    parts = [part for part in registry.PACKAGES if part != "run_kind"]
    return {"root": run_node(kind), "components": {part: options(part) for part in parts}}


def kinds() -> list[str]:
    """Return the registered run kinds that a user can start."""
    return [name for name in registry.names("run_kind") if name != "imported"]


def check_yaml(text: str, workspace: Workspace) -> FormResult:
    """Validate a YAML text."""
    try:
        document = yaml_text.read(text)
    except YamlProblem as problem:
        return FormResult("train", None, None, text, problem=problem)
    if not isinstance(document.value, Mapping):
        what = "is empty" if document.value is None else "has no keys and values"
        return FormResult("train", None, None, text, problem=YamlProblem(f"The text {what}.", 1))
    return _with_lines(_check(dict(document.value), workspace, text), document.lines)


def check_data(data: Mapping[str, object], workspace: Workspace, text: str | None = None) -> FormResult:
    """Validate the values of a form; comments of its earlier YAML `text` are kept."""
    checked = _check(dict(data), workspace, text)
    if checked.ok:
        return checked
    try:
        return _with_lines(checked, yaml_text.read(checked.yaml).lines)
    except YamlProblem as problem:  # more values or deeper than a configuration can be
        return replace(checked, config=None, problem=problem)


def _with_lines(checked: FormResult, lines: Mapping[yaml_text.Path, int]) -> FormResult:
    return replace(checked, errors=tuple(replace(e, line=yaml_text.line_of(lines, e.path)) for e in checked.errors))


def _check(data: JsonObject, workspace: Workspace, text: str | None) -> FormResult:
    kind = data.get("kind", "train")
    if not isinstance(kind, str) or kind not in kinds():
        error = FieldError(("kind",), f"is no run kind; known: {', '.join(kinds())}")
        return FormResult("train", None, data, yaml_text.update(text, data), (error,))
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
    return FormResult(kind, None if errors else config, full, yaml_text.update(text, full), tuple(errors))


def change_kind(data: Mapping[str, object], kind: str) -> JsonObject:
    """Return the data for another run kind with the fields of both kinds; raises `UnknownNameError`."""
    shared = {field["key"] for field in run_node(kind)["fields"]}
    return {**{key: value for key, value in data.items() if key in shared}, "kind": kind}


# -- where a form starts ---------------------------------------------------------------------------------------------
def presets() -> list[Preset]:
    """Return all presets, the default first, then by name."""
    return sorted(core.presets(), key=lambda preset: preset.name != DEFAULT_PRESET)


@lru_cache(maxsize=256)
def runs_on_cpu(preset: Preset) -> bool:
    """Return whether a preset trains a built-in model, which needs no GPU."""
    model = load_yaml(preset.text).get("model")
    name = model.get("name") if isinstance(model, Mapping) else model
    return name is None or name in built_in()


def preset_yaml(name: str) -> str:
    """Return the YAML of a preset; raises `NotFoundError` with the known names."""
    found = {preset.name: preset for preset in presets()}
    if name not in found:
        raise NotFoundError("Preset not found.", value=name, known=list(found), fix="Choose a known preset.")
    return found[name].text


def file_name(name: object) -> str:
    """Return the file name of a configuration, e.g. `quickstart.yaml`."""
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", str(name or "run")).strip("-.")[:100]
    return f"{slug or 'run'}.yaml"


def command(name: object) -> str:
    """Return the command that runs the saved file."""
    return f"rl2f train {file_name(name)}"
