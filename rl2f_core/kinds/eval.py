"""kind: eval. Several checkpoints on the same tasks, under the same controls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from rl2f_core.config import BaseRun, RunConfig, parse_config
from rl2f_core.errors import ConfigError
from rl2f_core.fields import BASIC, KNOWN_CHECKPOINT, BaseConfig
from rl2f_core.registry import register
from rl2f_core.run import Journal, Progress, RunDir, Stop, announce


class EvalRun(BaseRun):
    """An evaluation of trained adapters."""

    kind: Literal["eval"] = "eval"
    """Kind of run."""
    adapters: dict[str, str | None] = Field(min_length=1, json_schema_extra={**BASIC, **KNOWN_CHECKPOINT})
    """Name in the report → folder of a LoRA adapter; null is the base model."""


@register("kind")
class Eval:
    """An evaluation."""

    class Config(BaseConfig):
        """The name of the kind."""

        type: Literal["eval"] = "eval"

    config_type = EvalRun
    several = True
    """Several processes can work on it together."""

    def execute(self, config: EvalRun, run_dir: RunDir, journal: Journal, stop: Stop, progress: Progress) -> bool:
        """Play and report; False where `stop` ended it early."""
        from rl2f_core.evaluation.evaluate import evaluate_run
        from rl2f_core.rollout.build import build_backend, build_environment

        progress.say(f"Loading {config.model.name} …")
        backend = build_backend(config, run_dir, progress)
        if journal.position is None:
            announce(journal, progress, "environment", build_environment(config.environment).about())
        sources = {name: None if path is None else Path(path) for name, path in config.adapters.items()}
        if not evaluate_run(config, run_dir, journal, backend, sources, stop, progress):
            return False
        journal.commit({**(journal.position or {}), "done": True})
        return True


Target = tuple[str | Path, str | None]
"""A run's folder and one checkpoint in it (`stage@step`); None stands for the last checkpoint of every stage."""


def eval_config(targets: Sequence[Target], overrides: dict[str, object] | None = None) -> EvalRun:
    """The evaluation that compares targets on the environment of the first one's run.

    Args:
        targets: What to compare; the base model is always compared too, and comes first.
        overrides: Fields to replace in `evaluation`.

    Raises `RunError` or `ConfigError` where a folder or a checkpoint does not exist.
    """
    adapters: dict[str, str | None] = {"base": None}
    first: RunConfig | None = None
    several = len({str(folder) for folder, _ in targets}) > 1
    for folder, name in targets:
        run_dir = RunDir.open(folder)
        config = run_dir.config()
        if not isinstance(config, RunConfig):
            raise ConfigError("Only training runs have checkpoints.", value=str(folder))
        if first is None:
            first = config
        elif config.model.name != first.model.name:
            raise ConfigError("The runs have different base models.", value=[first.model.name, config.model.name])
        names = [name] if name else _last_checkpoints(run_dir, config)
        for checkpoint in names:
            label = f"{run_dir.path.name}:{checkpoint}" if several else checkpoint
            adapters[label] = str(run_dir.checkpoint(checkpoint).resolve())
    if first is None:
        raise ConfigError("Nothing to evaluate.", fix="Name at least one run's folder.")
    shared = {k: v for k, v in first.model_dump().items() if k in BaseRun.model_fields}
    shared["evaluation"] = {**shared["evaluation"], **(overrides or {})}
    made = parse_config({**shared, "kind": "eval", "name": f"eval {first.name}"[:100], "adapters": adapters})
    assert isinstance(made, EvalRun)
    return made


def _last_checkpoints(run_dir: RunDir, config: RunConfig) -> list[str]:
    there = run_dir.checkpoint_names()
    names = []
    for stage in config.stages:
        of_stage = [n for n in there if n.rpartition("@")[0] == stage.name]
        names += [max(of_stage, key=lambda n: int(n.rpartition("@")[2]))] if of_stage else []
    if not names:
        raise ConfigError("The run has no checkpoint yet.", value=str(run_dir.path))
    return names
