"""Run kind `hint_value`: p(solved | hint) − p(solved | contentless) of a sample of a run's hints.

The hints are a uniform sample of each checkpoint's evaluation dialogues under `hints`, or of the training dialogues. By
default only the next attempt counts. With more turns, later hints would give both arms most of the information of the
first hint and hide its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD
from rl2f_core.config.loading import validate_config
from rl2f_core.errors import DataError
from rl2f_core.evaluation.counterfactual.config import CounterfactualRun, inherit_settings
from rl2f_core.evaluation.counterfactual.fork_points import ForkPoint, hinted_turns, sample_fork_points
from rl2f_core.registry import register
from rl2f_core.run.context import RunContext
from rl2f_core.run.directory import RunDir
from rl2f_core.run.kinds.base import Kind


class HintValueRun(CounterfactualRun):
    """Hint values of a run."""

    kind: Literal["hint_value"] = "hint_value"
    """Run kind."""
    hints: int = Field(32, ge=1, le=100_000, json_schema_extra=BASIC_FIELD)
    """Sampled hints per checkpoint."""
    of: Literal["evaluation", "train"] = Field("evaluation", json_schema_extra=BASIC_FIELD)
    """Source: each checkpoint's evaluation under `hints`, or training (the same hints for all checkpoints)."""
    samples: int = Field(8, ge=1, le=1000, json_schema_extra=BASIC_FIELD)
    """Dialogues per arm and fork point; sample j has the same seed in every arm."""
    turns: int | None = Field(1, ge=1, le=64, json_schema_extra=BASIC_FIELD)
    """Attempts after the hint; 1 uses only the next attempt, null the remaining turns."""


@register("run_kind")
class HintValue(Kind[HintValueRun]):
    """Estimation of hint values."""

    config_class = HintValueRun

    def execute(self, config: HintValueRun, context: RunContext) -> bool:
        """Run the branches and report; False if `context.stop` ended it early."""
        from rl2f_core.evaluation.counterfactual.runner import run_forks

        source = context.run_dir.resolve_run(config.source)
        origins = {name: sampled_fork_points(config, source, name) for name in config.checkpoints}
        return run_forks("hint_value", config, source, origins, context)


def sampled_fork_points(config: HintValueRun, source: RunDir, checkpoint: str) -> list[ForkPoint]:
    """Return the sampled fork points of a checkpoint. Raises `DataError` if the run has none."""
    only = checkpoint if config.of == "evaluation" else None
    points = hinted_turns(source, config.of, only)
    if not points:
        owner = f"of {checkpoint} " if only else ""
        raise DataError(
            f"The run has no {config.of} dialogues {owner}with hints.",
            value=str(source.path),
            fix="Evaluate it under the condition `hints` first, or use the hints of training (of: train).",
        )
    return sample_fork_points(points, config.hints, config.seed)


def hint_value_config(
    source: RunDir, name: str, checkpoints: Mapping[str, str | None], *, of: str = "evaluation", **changes: object
) -> HintValueRun:
    """Return the estimation of hint values, with the settings of the dialogues; see `fork_config`."""
    data = {
        **inherit_settings(source, of),
        "name": f"hint value {source.config().name}"[:100],
        "source": name,
        "of": of,
        "checkpoints": dict(checkpoints),
        **changes,
    }
    return validate_config(HintValueRun, data)
