"""Run kind `train`: training stages, then an evaluation of their checkpoints."""

from __future__ import annotations

from rl2f_core.config.run import RunConfig
from rl2f_core.registry import register
from rl2f_core.run.directory import RunDir
from rl2f_core.run.journal import Journal
from rl2f_core.run.progress import Progress, ShouldStop
from rl2f_core.run_kinds.base import Kind


@register("run_kind")
class Train(Kind[RunConfig]):
    """Training and evaluation."""

    config_class = RunConfig
    supports_distributed = True

    def execute(
        self, config: RunConfig, run_dir: RunDir, journal: Journal, stop: ShouldStop, progress: Progress
    ) -> bool:
        """Train the remaining steps and evaluate; False if `stop` ended it early."""
        from rl2f_core.evaluation.evaluate import evaluate_run
        from rl2f_core.training.checkpoints import checkpoints_to_evaluate
        from rl2f_core.training.trainer import Trainer

        trainer = Trainer(config, run_dir, journal, stop, progress)
        if not trainer.run():
            return False
        names = checkpoints_to_evaluate(config)
        sources = {name: None if name == "base" else run_dir.checkpoint(name) for name in names}
        models = trainer.engine.teacher.models
        if names and not evaluate_run(config, run_dir, journal, trainer.backend, sources, stop, progress, models):
            return False
        journal.commit({"stage": len(config.stages), "step": 0, "done": True})
        return True
