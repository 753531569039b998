"""kind: hint_value. What a sample of a run's hints was worth: p(solve | hint) − p(solve | contentless), each by itself
and on average.

The hints are drawn from all that stand in the run, each as likely as any other: of every checkpoint those in its own
evaluation dialogues under `hints`, so that it goes on from attempts of its own; or those of training.  By default the
very next attempt alone counts: where the run's teacher hints again, it tells both arms most of what the first hint told
one of them, and the worth of that one is hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from rl2f_core.config import BASIC, BaseConfig, parse_config
from rl2f_core.counterfactual.config import CounterfactualRun, settings_of
from rl2f_core.counterfactual.source import Origin, draw, hinted
from rl2f_core.errors import DataError
from rl2f_core.registry import register
from rl2f_core.run import Journal, Progress, RunDir, Stop


class HintValueRun(CounterfactualRun):
    """What a run's hints were worth."""

    kind: Literal["hint_value"] = "hint_value"
    """Kind of run."""
    hints: int = Field(32, ge=1, le=100_000, json_schema_extra=BASIC)
    """Hints that are drawn for each checkpoint."""
    of: Literal["evaluation", "train"] = Field("evaluation", json_schema_extra=BASIC)
    """Whose: each checkpoint's own in the evaluation under `hints`, or those of training, the same for all."""
    samples: int = Field(8, ge=1, le=1000, json_schema_extra=BASIC)
    """Dialogues of each arm after each turn; sample j of every arm has the same seed."""
    turns: int | None = Field(1, ge=1, le=64, json_schema_extra=BASIC)
    """Attempts after the hint: 1 is the very next one alone, null what the dialogue had left."""


@register("kind")
class HintValue:
    """An estimate of hints' worth."""

    class Config(BaseConfig):
        """The name of the kind."""

        type: Literal["hint_value"] = "hint_value"

    config_type = HintValueRun

    def execute(self, config: HintValueRun, run_dir: RunDir, journal: Journal, stop: Stop, progress: Progress) -> bool:
        """Play and report; False where `stop` ended it early."""
        from rl2f_core.counterfactual.play import play_from

        source = run_dir.named(config.source)
        origins = {name: drawn(config, source, name) for name in config.checkpoints}
        return play_from("hint_value", config, source, origins, run_dir, journal, stop, progress)


def drawn(config: HintValueRun, source: RunDir, checkpoint: str) -> list[Origin]:
    """The turns whose hints are judged under a checkpoint. Raises `DataError` where the run has none."""
    own = checkpoint if config.of == "evaluation" else None
    found = hinted(source, config.of, own)
    if not found:
        whose = f"of {checkpoint} " if own else ""
        raise DataError(f"The run has no {config.of} dialogues {whose}with hints.", value=str(source.path),
                        fix="Evaluate it under the control `hints` first, or take the hints of training "
                        "(of: train).")  # fmt: skip
    return draw(found, config.hints, config.seed)


def hint_value_config(
    source: RunDir, name: str, checkpoints: Mapping[str, str | None], *, of: str = "evaluation", **changes: Any
) -> HintValueRun:
    """The estimate for a run, with the settings that its dialogues were played with; see `fork_config`."""
    data = {**settings_of(source, of), "kind": "hint_value", "name": f"hint value {source.config().name}"[:100],
            "source": name, "of": of, "checkpoints": dict(checkpoints), **changes}  # fmt: skip
    made = parse_config(data)
    assert isinstance(made, HintValueRun)
    return made
