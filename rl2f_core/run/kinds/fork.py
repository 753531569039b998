"""Run kind `fork`: continue a stored dialogue from one turn under other hints; the source run stays unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD
from rl2f_core.config.loading import validate_config
from rl2f_core.evaluation.counterfactual.arms import check_fork
from rl2f_core.evaluation.counterfactual.config import CounterfactualRun, inherit_settings
from rl2f_core.evaluation.counterfactual.fork_points import find_dialogue, fork_point_at
from rl2f_core.registry import register
from rl2f_core.run.context import RunContext
from rl2f_core.run.directory import RunDir
from rl2f_core.run.kinds.base import Kind


class ForkRun(CounterfactualRun):
    """Fork of a dialogue."""

    kind: Literal["fork"] = "fork"
    """Run kind."""
    dialogue: str = Field(min_length=1, max_length=1000, json_schema_extra=BASIC_FIELD)
    """Event id of the dialogue in the source run."""
    turn: int = Field(0, ge=0, lt=10_000, json_schema_extra=BASIC_FIELD)
    """0-based attempt after which the hint changes."""


@register("run_kind")
class Fork(Kind[ForkRun]):
    """Fork of a dialogue."""

    config_class = ForkRun

    def execute(self, config: ForkRun, context: RunContext) -> bool:
        """Run the branches and report; False if `context.stop` ended it early."""
        from rl2f_core.evaluation.counterfactual.runner import run_forks

        source = context.run_dir.resolve_run(config.source)
        origin = fork_point_at(find_dialogue(source, config.dialogue), config.turn)
        check_fork(config.arms, config.later_hints, origin)
        return run_forks("fork", config, source, {name: [origin] for name in config.checkpoints}, context)


def fork_config(
    source: RunDir,
    name: str,
    event: str,
    turn: int,
    checkpoints: Mapping[str, str | None],
    arms: Sequence[object],
    **changes: object,
) -> ForkRun:
    """Return the fork of a dialogue, with the dialogue's settings.

    Args:
        source: The run with the dialogue.
        name: The source in the configuration: its run directory, or the name of a sibling directory.
        event: Event id of the dialogue.
        turn: 0-based turn of the hint that changes.
        checkpoints: Adapter directory by name; None is the base model.
        arms: `Arm`s or their data; empty for the default arms.
        changes: Further fields.

    Raises `DataError` or `ConfigError` if the dialogue cannot be forked at this turn with these arms.
    """
    dialogue = find_dialogue(source, event)
    origin = fork_point_at(dialogue, turn)
    data = {
        **inherit_settings(source, dialogue.phase, dialogue.stage, dialogue.step, dialogue.task.id),
        "name": f"fork {source.config().name}"[:100],
        "source": name,
        "dialogue": event,
        "turn": turn,
        "checkpoints": dict(checkpoints),
        **changes,
    }
    config = validate_config(ForkRun, {**data, **({"arms": list(arms)} if arms else {})})
    check_fork(config.arms, config.later_hints, origin)
    return config
