"""kind: train. Stages of training, then the evaluation of their checkpoints."""

from __future__ import annotations

from typing import Literal

from rl2f_core.config import BaseConfig, RunConfig
from rl2f_core.registry import register
from rl2f_core.run import Journal, Progress, RunDir, Stop


@register("kind")
class Train:
    """A training run."""

    class Config(BaseConfig):
        """The name of the kind."""

        type: Literal["train"] = "train"

    config_type = RunConfig
    several = True
    """Several processes can work on it together."""

    def execute(self, config: RunConfig, run_dir: RunDir, journal: Journal, stop: Stop, progress: Progress) -> bool:
        """Train what is left, evaluate; False where `stop` ended it early."""
        from rl2f_core.evaluation.evaluate import evaluate_run
        from rl2f_core.training.loop import Trainer, checkpoints_to_evaluate

        trainer = Trainer(config, run_dir, journal, stop, progress)
        if not trainer.run():
            return False
        names = checkpoints_to_evaluate(config, run_dir)
        sources = {name: None if name == "base" else run_dir.checkpoint(name) for name in names}
        models = trainer.engine.teacher.models
        if names and not evaluate_run(config, run_dir, journal, trainer.backend, sources, stop, progress, models):
            return False
        journal.commit({"stage": len(config.stages), "step": 0, "done": True})
        return True
