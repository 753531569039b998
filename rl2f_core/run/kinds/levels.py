"""Run kind `levels`: checkpoints on several levels of an environment, and on perturbed variants of its tasks."""

from __future__ import annotations

from collections.abc import Sequence

from rl2f_core.config.loading import validate_config
from rl2f_core.errors import ConfigError
from rl2f_core.evaluation.levels.config import LevelsRun
from rl2f_core.registry import register
from rl2f_core.run.context import RunContext
from rl2f_core.run.kinds.base import Kind
from rl2f_core.run.kinds.eval import Target, eval_config
from rl2f_core.types import JsonObject

MAX_NEW_TOKENS = 256
"""Maximum tokens of an attempt without a training run; the roles of eight people take about 80."""


@register("run_kind")
class Levels(Kind[LevelsRun]):
    """Evaluation by level."""

    config_class = LevelsRun

    def execute(self, config: LevelsRun, context: RunContext) -> bool:
        """Evaluate and report; False if `context.stop` ended it early."""
        from rl2f_core.dialogue.rollout.build import build_backend
        from rl2f_core.evaluation.levels.runner import evaluate_levels

        context.progress.message(f"Loading {config.model.name} …")
        if not evaluate_levels(config, context, build_backend(config, context.run_dir, context.progress)):
            return False
        context.journal.commit({**(context.journal.resume_state or {}), "done": True})
        return True


def levels_config(
    targets: Sequence[Target], environment: str | None = None, model: str | None = None, **changes: object
) -> LevelsRun:
    """Return an evaluation by level of checkpoints, or of a base model without targets.

    Args:
        targets: Checkpoints to compare with the base model.
        environment: Name of an environment that replaces the first target's, with default settings.
        model: Base model; only without targets.
        changes: Fields of `LevelsRun`.
    """
    data: JsonObject
    if targets:
        if model is not None:
            raise ConfigError("Targets use the model of their run; `model` is not allowed.", value=model)
        data = eval_config(targets).model_dump(mode="json", exclude={"kind"})
        data["name"] = data["name"].replace("eval", "levels", 1)
        if environment is not None and environment != data["environment"]["type"]:
            data |= {"environment": environment, "teacher": "scripted"}
    elif environment is None:
        raise ConfigError("Nothing to evaluate.", fix="Pass a run directory, or --environment NAME.")
    else:
        data = {"environment": environment, "name": f"levels {environment}"[:100], "adapters": {"base": None}}
        data["rollout"] = {"max_new_tokens": MAX_NEW_TOKENS, "max_seq_len": 4 * MAX_NEW_TOKENS}
        data |= {"model": {"name": model}} if model else {}
    return validate_config(LevelsRun, {**data, **changes})
