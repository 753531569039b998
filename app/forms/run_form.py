"""The form of a run and its YAML, both ways. It knows no field by name: everything comes from the config classes.

`check_yaml` and `check_data` say what a text, or what a form holds, amounts to: the data with every default written
out, the YAML that the command line takes, and what is wrong, at the field that caused it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import yaml
from pydantic import ValidationError

from app.forms import yaml_text
from app.forms.allowlist import source_errors
from app.forms.errors import FieldError, field_errors
from app.forms.schema import complete, config_class, options, run_node
from app.forms.yaml_text import YamlProblem
from jobs.db.errors import NotFoundError
from jobs.workspace import Workspace
from rl2f_core import registry
from rl2f_core.config import presets as core
from rl2f_core.config.loading import parse_config
from rl2f_core.config.presets import Preset
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError
from rl2f_core.model_store.store import built_in
from rl2f_core.paths import CONFIGS

PRESETS = CONFIGS
DEFAULT_PRESET = "quickstart"


@dataclass(frozen=True)
class Checked:
    """What a form or a text amounts to."""

    kind: str
    """Kind of run; the form's own where the data names none that is known."""
    config: BaseRun | None
    """The configuration, where nothing is wrong."""
    data: dict[str, Any] | None
    """What the form shows; None where the text is no YAML or no mapping."""
    yaml: str
    """The data as YAML, with the comments and the order of the text that it was made from; a broken text itself."""
    errors: tuple[FieldError, ...] = ()
    problem: YamlProblem | None = None
    """Where the text is broken, in which case there are no field errors."""

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return self.config is not None


def spec(kind: str) -> dict[str, Any]:
    """The form of a kind of run: its `root` node, and the `components` that it may hold. Raises `UnknownNameError`."""
    parts = [part for part in registry.PACKAGES if part != "run_kind"]
    return {"root": run_node(kind), "components": {part: options(part) for part in parts}}


def kinds() -> list[str]:
    """The kinds of run there are."""
    return registry.names("run_kind")


def check_yaml(text: str, workspace: Workspace) -> Checked:
    """What a YAML text amounts to."""
    try:
        document = yaml_text.read(text)
    except YamlProblem as problem:
        return Checked("train", None, None, text, problem=problem)
    if not isinstance(document.value, Mapping):
        what = "is empty" if document.value is None else "holds no keys and values"
        return Checked("train", None, None, text, problem=YamlProblem(f"The text {what}.", 1))
    checked = _check(dict(document.value), workspace, text)
    errors = tuple(replace(e, line=yaml_text.line_of(document.lines, e.path)) for e in checked.errors)
    return replace(checked, errors=errors)


def check_data(data: Mapping[str, Any], workspace: Workspace, text: str | None = None) -> Checked:
    """What the values of a form amount to; `text` is the YAML beside it, whose comments stay."""
    checked = _check(dict(data), workspace, text)
    if checked.ok:
        return checked
    try:
        lines = yaml_text.read(checked.yaml).lines
    except YamlProblem as problem:  # more values or deeper than a configuration can be
        return replace(checked, config=None, problem=problem)
    return replace(checked, errors=tuple(replace(e, line=yaml_text.line_of(lines, e.path)) for e in checked.errors))


def _check(data: dict[str, Any], workspace: Workspace, text: str | None) -> Checked:
    kind = data.get("kind", "train")
    if not isinstance(kind, str) or kind not in kinds():
        error = FieldError(("kind",), f"is no kind of run; known: {', '.join(kinds())}")
        return Checked("train", None, data, yaml_text.update(text, data), (error,))
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
    blamed = {error.path for error in errors}
    errors += [error for error in source_errors(node, full, workspace) if error.path not in blamed]
    return Checked(kind, None if errors else config, full, yaml_text.update(text, full), tuple(errors))


def change_kind(data: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A form's data as another kind of run: what both have is kept. Raises `UnknownNameError`."""
    shared = {field["key"] for field in run_node(kind)["fields"]}
    return {**{key: value for key, value in data.items() if key in shared}, "kind": kind}


# -- where a form starts ---------------------------------------------------------------------------------------------
def presets() -> list[Preset]:
    """All presets, the default first, then by name."""
    return sorted(core.presets(), key=lambda preset: preset.name != DEFAULT_PRESET)


@lru_cache(maxsize=256)
def runs_on_cpu(preset: Preset) -> bool:
    """Whether it trains a built-in model, and so was made for this machine and not for a GPU."""
    model = yaml.load(preset.text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)).get("model")
    name = model.get("name") if isinstance(model, Mapping) else model
    return name is None or name in built_in()


def preset_yaml(name: str) -> str:
    """The text of a preset; raises `NotFound` naming those there are."""
    found = {preset.name: preset for preset in presets()}
    if name not in found:
        raise NotFoundError("There is no such preset.", value=name, known=list(found), fix="Choose one of the list.")
    return found[name].text


def file_name(name: object) -> str:
    """The file that a configuration is saved as, e.g. `quickstart.yaml`."""
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", str(name or "run")).strip("-.")[:100]
    return f"{slug or 'run'}.yaml"


def command(name: object) -> str:
    """The command that runs the saved file."""
    return f"rl2f train {file_name(name)}"
