"""kind: fork. One turn of a stored dialogue, taken up again under other hints; the original is only read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from rl2f_core.config import BASIC, BaseConfig, parse_config
from rl2f_core.counterfactual.config import CounterfactualRun, settings_of
from rl2f_core.counterfactual.source import find_dialogue, origin_at
from rl2f_core.registry import register
from rl2f_core.run import Journal, Progress, RunDir, Stop


class ForkRun(CounterfactualRun):
    """A dialogue that goes on differently."""

    kind: Literal["fork"] = "fork"
    """Kind of run."""
    dialogue: str = Field(min_length=1, max_length=1000, json_schema_extra=BASIC)
    """Id of the dialogue's event in the source run."""
    turn: int = Field(0, ge=0, lt=10_000, json_schema_extra=BASIC)
    """The attempt after which the hint changes, counted from 0."""


@register("kind")
class Fork:
    """A fork."""

    class Config(BaseConfig):
        """The name of the kind."""

        type: Literal["fork"] = "fork"

    config_type = ForkRun

    def execute(self, config: ForkRun, run_dir: RunDir, journal: Journal, stop: Stop, progress: Progress) -> bool:
        """Play and report; False where `stop` ended it early."""
        from rl2f_core.counterfactual.play import play_from

        source = run_dir.named(config.source)
        origin = origin_at(find_dialogue(source, config.dialogue), config.turn)
        origins = {name: [origin] for name in config.checkpoints}
        return play_from("fork", config, source, origins, run_dir, journal, stop, progress)


def fork_config(
    source: RunDir, name: str, event: str, turn: int, checkpoints: Mapping[str, str | None], arms: Sequence[Any],
    **changes: Any,
) -> ForkRun:  # fmt: skip
    """The fork of a dialogue, with the settings it was played with.

    Args:
        source: The run that holds it.
        name: How the configuration names that run: its folder, or its bare name beside the fork's own folder.
        event: Id of the dialogue's event.
        turn: 0-based.
        checkpoints: By name, the folder of an adapter; None is the base.
        arms: `Arm`s or their data; none stands for the default four.
        changes: Further fields.

    Raises `DataError` or `ConfigError` where it cannot be forked so.
    """
    found = find_dialogue(source, event)
    origin_at(found, turn)
    title = source.config().name
    data = {
        **settings_of(source, found.phase, found.stage, found.step, found.task.id), "kind": "fork",
        "name": f"fork {title}"[:100], "source": name, "dialogue": event, "turn": turn,
        "checkpoints": dict(checkpoints), **changes,
    }  # fmt: skip
    made = parse_config({**data, **({"arms": list(arms)} if arms else {})})
    assert isinstance(made, ForkRun)
    return made
