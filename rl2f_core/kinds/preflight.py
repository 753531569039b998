"""kind: preflight. Is a training run worth starting?  Nothing is trained; the report and the dialogues are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rl2f_core.config import BaseConfig, RunConfig, write_atomically
from rl2f_core.errors import PreflightError
from rl2f_core.events import DialogueEvent, LogEvent
from rl2f_core.ranks import here
from rl2f_core.registry import get, register
from rl2f_core.run import Journal, Progress, RunDir, Stop
from rl2f_core.types import Sample


class PreflightRun(RunConfig):
    """The preflight of a training run's first stage that learns from its own dialogues, with the starting weights."""

    kind: Literal["preflight"] = "preflight"  # type: ignore[assignment]
    """Kind of run."""


@register("kind")
class Preflight:
    """A preflight on its own."""

    class Config(BaseConfig):
        """The name of the kind."""

        type: Literal["preflight"] = "preflight"

    config_type = PreflightRun
    several = True
    """Several processes can work on it together."""

    def execute(self, config: PreflightRun, run_dir: RunDir, journal: Journal, stop: Stop, progress: Progress) -> bool:
        """Play, report, and raise `PreflightError` where the run is not worth starting."""
        from rl2f_core.evaluation.preflight import preflight
        from rl2f_core.rollout.build import build_backend, build_engine
        from rl2f_core.training.curriculum import course_of

        refused = (journal.position or {}).get("refused")
        if refused:
            raise PreflightError(refused["reason"], fix=refused["fix"])
        progress.say(f"Loading {config.model.name} …")
        backend: Any = build_backend(config, run_dir, progress)
        stages = [(s, get("method", s.method.type)(s.method)) for s in config.stages]
        stage, method = next(((s, m) for s, m in stages if m.on_policy), stages[0])
        start = config.lora.start
        if start is not None:
            backend.load_adapter("start", Path(start))
        engine = build_engine(config, backend)
        course = course_of(config, stage, engine)
        report, groups = preflight(
            engine if course is None else course.engines[0],
            config,
            stage,
            method,
            adapter=None if start is None else "start",
            policy="base" if start is None else "start",
            advanced=lambda done, total: progress.update("preflight", done, total),
            time_update=self._timer(config, backend, stage),
        )
        warmed = stages[0][0] is not stage or not method.on_policy
        text = report.to_text()
        if warmed and not report.passed:
            text += (
                f"\n  These are the starting weights; {stage.name} starts after {stages[0][0].name}, and is "
                "checked again with the weights it starts from."
            )
        if here().main:
            write_atomically(run_dir.path / "preflight.json", report.model_dump_json(indent=2))
            write_atomically(run_dir.path / "preflight.txt", text + "\n")
        journal.emit(
            DialogueEvent.of("preflight", stage.name, 0, group.task, rollout.dialogue)
            for group in groups
            for rollout in group.rollouts
        )
        journal.emit([LogEvent(id="preflight", level="info" if report.passed else "warning", text=text)])
        progress.say(text)
        if not report.passed and not warmed and not config.preflight.override:
            refused = {"reason": f"Stage {stage.name} is not worth starting. {report.reason}", "fix": report.fix}
            journal.commit({"refused": refused})
            raise PreflightError(refused["reason"], fix=refused["fix"])
        journal.commit({"done": True})
        return True

    def _timer(self, config: RunConfig, backend: Any, stage: Any) -> Any:
        """Times one update on rows with a throw-away learner."""

        def timed(samples: Sequence[Sample]) -> float:
            from rl2f_core.training.loop import learner_kind

            if not hasattr(backend, "folder"):
                return 0.0
            learner = learner_kind(stage.trainer)(
                backend.folder, config.lora, dtype=backend.dtype, device=backend.device,
                banned=backend.tokenizer.banned_ids, pad=backend.tokenizer.end_id, seed=0,
            )  # fmt: skip
            return learner.seconds_of_update(samples, stage.at(0))

        return timed
