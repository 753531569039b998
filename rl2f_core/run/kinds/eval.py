"""Run kind `eval`: several checkpoints on the same tasks, under the same conditions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from rl2f_core import registry
from rl2f_core.config.fields import BASIC_FIELD, CHECKPOINT_REF, ComponentConfig
from rl2f_core.config.loading import load_config, validate_config
from rl2f_core.config.presets import preset, presets
from rl2f_core.config.run import BaseRun, RunConfig
from rl2f_core.errors import ConfigError, rl2f_command
from rl2f_core.registry import register
from rl2f_core.run.context import RunContext
from rl2f_core.run.directory import RunDir
from rl2f_core.run.kinds.base import Kind
from rl2f_core.types import JsonObject


class EvalRun(BaseRun):
    """An evaluation of trained adapters."""

    kind: Literal["eval"] = "eval"
    """Run kind."""
    adapters: dict[str, str | None] = Field(min_length=1, json_schema_extra={**BASIC_FIELD, **CHECKPOINT_REF})
    """Name in the report → directory of a LoRA adapter; null is the base model."""


@register("run_kind")
class Eval(Kind[EvalRun]):
    """Evaluation of checkpoints."""

    config_class = EvalRun
    supports_distributed = True

    def execute(self, config: EvalRun, context: RunContext) -> bool:
        """Evaluate and report; False if `context.stop` ended it early."""
        from rl2f_core.dialogue.rollout.build import build_backend, build_environment
        from rl2f_core.evaluation.evaluate import evaluate_run
        from rl2f_core.leaks.base import skipped_detectors

        context.progress.message(f"Loading {config.model.name} …")
        backend = build_backend(config, context.run_dir, context.progress)
        journal = context.journal
        if journal.resume_state is None:
            context.log("environment", build_environment(config.environment).describe_data())
            skipped = skipped_detectors(config.leak_detection.detectors, config.environment)
            context.log("leaks:skipped", "\n".join(skipped))
        sources = {name: None if path is None else Path(path) for name, path in config.adapters.items()}
        if not evaluate_run(config, context, backend, sources):
            return False
        journal.commit({**(journal.resume_state or {}), "done": True})
        return True


Target = tuple[str | Path, str | None]
"""A run directory and one checkpoint (`stage@step`); None for the last checkpoint of every stage."""


def eval_config(targets: Sequence[Target], on: Sequence[str] = ()) -> EvalRun:
    """Return an evaluation of targets on the environment of the first target's run.

    The base model comes first in the report.

    Args:
        targets: Checkpoints to compare.
        on: Other environments (`find_environment`). Several are a mixture, with the run's number of tasks of each.

    Raises `RunError` or `ConfigError` if a run directory or checkpoint is missing.
    """
    adapters: dict[str, str | None] = {"base": None}
    first: RunConfig | None = None
    rollout: JsonObject = {}
    multiple_runs = len({str(folder) for folder, _ in targets}) > 1
    for folder, name in targets:
        run_dir = RunDir.open(folder)
        config = run_dir.config()
        if not isinstance(config, RunConfig):
            raise ConfigError("Only training runs have checkpoints.", value=str(folder))
        if first is None:
            first, rollout = config, run_dir.rollout_settings(config)
        elif config.model.name != first.model.name:
            names = [first.model.name, config.model.name]
            raise ConfigError("Cannot compare runs with different base models.", value=names)
        names = [name] if name else _last_checkpoints(run_dir, config)
        for checkpoint in names:
            label = f"{run_dir.path.name}:{checkpoint}" if multiple_runs else checkpoint
            adapters[label] = str(run_dir.checkpoint(checkpoint).resolve())
    if first is None:
        raise ConfigError("Nothing to evaluate.", fix="Pass at least one run directory.")
    shared = {k: v for k, v in first.model_dump().items() if k in BaseRun.model_fields}
    data: JsonObject = {**shared, "rollout": rollout, "name": f"eval {first.name}"[:100], "adapters": adapters}
    if on:
        found = {label: find_environment(name, first.environment) for label, name in _labels(on).items()}
        parts = [{"name": label, "environment": environment} for label, environment in found.items()]
        data["environment"] = {"type": "mixture", "environments": parts} if len(parts) > 1 else parts[0]["environment"]
        tasks = first.evaluation.num_tasks * len(parts)
        data["evaluation"] = {**first.evaluation.model_dump(), "num_tasks": tasks}
    return validate_config(EvalRun, data)


def find_environment(name: str, own: ComponentConfig) -> JsonObject:
    """Return the configuration of an environment.

    Args:
        name: A registered name, with the settings of `own` if that has the same type and default ones otherwise; or a
            preset, or a YAML file, of which only the environment is used.
        own: The environment of the run.

    Raises:
        ConfigError: There is no such environment.
    """
    kind = str(registry.expand_type("environment", {"type": name})["type"])
    if name == own.type:
        return own.model_dump(mode="json")
    if kind in registry.names("environment"):
        return registry.expand_type("environment", {"type": name})
    known = {item.name for item in presets()}
    if name in known or Path(name.rpartition(":")[0] or name).is_file():
        config = preset(name).config() if name in known else load_config(name)
        return config.environment.model_dump(mode="json")
    raise ConfigError(
        "There is no such environment.",
        value=name,
        known=registry.names("environment"),
        fix="Give registered names, names of presets, or YAML files.",
    )


def _labels(names: Sequence[str]) -> dict[str, str]:
    """Return the names by short unique labels, e.g. `maze` for `presets/maze.yaml`."""
    labels: dict[str, str] = {}
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(name.replace(":", "-")).name.removesuffix(".yaml")).strip("-")[:28]
        label = stem or "environment"
        labels[label if label not in labels else f"{label}-{len(labels) + 1}"] = name
    return labels


def _last_checkpoints(run_dir: RunDir, config: RunConfig) -> list[str]:
    available, missing = run_dir.checkpoint_names(), run_dir.missing_checkpoints()
    names = []
    for stage in config.stages:
        of_stage = [n for n in (*available, *missing) if n.rpartition("@")[0] == stage.name]
        names += [max(of_stage, key=lambda n: int(n.rpartition("@")[2]))] if of_stage else []
    if not names:
        raise ConfigError("The run has no checkpoint yet.", value=str(run_dir.path))
    if lost := [name for name in names if name in missing]:
        fix = rl2f_command("eval", f"{run_dir.path}@{available[-1]}") if available else "Restore them."
        raise ConfigError("The weights of the last checkpoints are missing.", value=lost, known=available, fix=fix)
    return names
