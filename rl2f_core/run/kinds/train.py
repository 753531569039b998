"""Run kind `train`: training stages, then an evaluation of their checkpoints."""

from __future__ import annotations

from rl2f_core.config.run import RunConfig
from rl2f_core.registry import register
from rl2f_core.run.context import RunContext
from rl2f_core.run.kinds.base import Kind


@register("run_kind")
class Train(Kind[RunConfig]):
    """Training and evaluation."""

    config_class = RunConfig
    supports_distributed = True

    def execute(self, config: RunConfig, context: RunContext) -> bool:
        """Train the remaining steps and evaluate; False if `context.stop` ended it early."""
        from rl2f_core.evaluation.evaluate import evaluate_run
        from rl2f_core.learning.training.start_from import adopt_stages, adopted_evaluations
        from rl2f_core.learning.training.trainer import Trainer

        if config.start_from is not None and context.journal.resume_state is None:
            adopt_stages(config, context, config.start_from)
        trainer = Trainer(config, context)
        if not trainer.run():
            return False
        adopted = adopted_evaluations(context.run_dir) if config.start_from is not None else ()
        names = config.evaluated_checkpoints()
        sources = {name: None if name == "base" else context.run_dir.checkpoint(name) for name in names}
        models = trainer.engine.teacher.models
        if names and not evaluate_run(config, context, trainer.backend, sources, models, adopted):
            return False
        trainer.retainer.seal_events()
        context.journal.commit({"stage": len(config.stages), "step": 0, "done": True})
        return True
