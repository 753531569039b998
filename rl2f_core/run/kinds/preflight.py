"""Run kind `preflight`: check whether a training run is worth starting, without training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rl2f_core.common.file_io import write_atomically
from rl2f_core.config.loading import validate_config
from rl2f_core.config.rollout import ReflectorConfig
from rl2f_core.config.run import BaseRun, RunConfig
from rl2f_core.errors import ConfigError, PreflightError
from rl2f_core.models.process_group import current_group
from rl2f_core.registry import get, register
from rl2f_core.run.context import RunContext
from rl2f_core.run.events import LogEvent
from rl2f_core.run.kinds.base import Kind
from rl2f_core.types import TrainingSample

if TYPE_CHECKING:
    from rl2f_core.config.stage import StageConfig
    from rl2f_core.models.backends.base import Backend


class PreflightRun(RunConfig):
    """Preflight of the first on-policy stage, with the initial weights."""

    kind: Literal["preflight"] = "preflight"  # type: ignore[assignment]
    """Run kind."""


@register("run_kind")
class Preflight(Kind[PreflightRun]):
    """Standalone preflight."""

    config_class = PreflightRun
    supports_distributed = True

    def execute(self, config: PreflightRun, context: RunContext) -> bool:
        """Generate dialogues, report, and raise `PreflightError` if the run is not worth starting."""
        from rl2f_core.dialogue.rollout.build import build_backend, build_engine, load_reflector
        from rl2f_core.learning.training.curriculum import tracker_for_stage
        from rl2f_core.learning.training.preflight import preflight
        from rl2f_core.learning.training.step import dialogue_events

        run_dir, journal, progress = context.run_dir, context.journal, context.progress
        refused = (journal.resume_state or {}).get("refused")
        if refused:
            raise PreflightError(refused["reason"], fix=refused["fix"])
        progress.message(f"Loading {config.model.name} …")
        backend = build_backend(config, run_dir, progress)
        stages = [(s, get("method", s.method.type)(s.method)) for s in config.stages]
        stage, method = next(((s, m) for s, m in stages if m.on_policy), stages[0])
        adapter = None
        initial = config.lora_of(stage).init_adapter
        if initial is not None:
            adapter = "start"
            backend.load_adapter(adapter, Path(initial))
        run = config.for_stage(stage)
        if config.rollout.reflector is not None and config.rollout.reflector.stage is not None:
            reflector = ReflectorConfig(max_new_tokens=config.rollout.reflector.max_new_tokens)  # not trained yet
            run = run.model_copy(update={"rollout": run.rollout.model_copy(update={"reflector": reflector})})
        load_reflector(run, backend, run_dir)
        engine = build_engine(run, backend)
        curriculum = tracker_for_stage(run, stage, engine)
        report, groups = preflight(
            engine if curriculum is None else curriculum.engines[0],
            config,
            stage,
            method,
            adapter=adapter,
            policy=adapter or "base",
            on_progress=partial(progress.update, "preflight"),
            time_update=partial(_time_update, config, stage, backend),
        )
        follows = stages[0][0] is not stage or not method.on_policy
        text = report.to_text()
        if follows and not report.passed:
            text += (
                f"\n  These are the initial weights; {stage.name} follows {stages[0][0].name} and is checked again "
                "with its own initial weights."
            )
        if current_group().is_main_process:
            write_atomically(run_dir.path / "preflight.json", report.model_dump_json(indent=2))
            write_atomically(run_dir.path / "preflight.txt", text + "\n")
        journal.emit(dialogue_events("preflight", stage.name, 0, groups))
        journal.emit([LogEvent(id="preflight", level="info" if report.passed else "warning", text=text)])
        progress.message(text)
        if not report.passed and not follows and not config.preflight.ignore_failure:
            refused = {"reason": f"Stage {stage.name} is not worth starting. {report.reason}", "fix": report.fix}
            journal.commit({"refused": refused})
            raise PreflightError(refused["reason"], fix=refused["fix"])
        journal.commit({"done": True})
        return True


def preflight_config(config: BaseRun) -> PreflightRun:
    """Return the preflight of a training run. Raises `ConfigError` for another kind of run."""
    if not isinstance(config, RunConfig):
        kind = getattr(config, "kind", None)
        raise ConfigError("Only a training run has a preflight.", value=kind, fix="Start the run itself.")
    data = {**config.model_dump(mode="json"), "kind": "preflight", "name": f"preflight {config.name}"[:100]}
    return validate_config(PreflightRun, data)


def _time_update(config: RunConfig, stage: StageConfig, backend: Backend, samples: Sequence[TrainingSample]) -> float:
    """Measure the seconds of one update with a temporary learner; 0 if the backend has no weights."""
    from rl2f_core.learning.training.trainer import build_learner

    if backend.folder is None:
        return 0.0
    return build_learner(config, stage, backend).seconds_of_update(samples, stage)
