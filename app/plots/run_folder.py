"""Metric rows and plot settings of a run directory, without a database."""

from __future__ import annotations

from app.plots.run_charts import PlotOptions
from app.plots.series import StepMetrics
from rl2f_core import registry
from rl2f_core.config.run import BaseRun, RunConfig
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import MetricEvent, read_events


def step_metrics(run_dir: RunDir) -> list[StepMetrics]:
    """Return the metrics of all training steps in order; of a repeated step, the last."""
    events: dict[tuple[str, int], MetricEvent] = {}
    for event in read_events(run_dir.events_path, having=b'"metric"'):
        if isinstance(event, MetricEvent) and event.step > 0:
            events[event.stage, event.step] = event
    return [StepMetrics(e.stage, e.step, n, e.time, e.values) for n, e in enumerate(events.values())]


def plot_options(config: BaseRun) -> PlotOptions:
    """Return the plot settings of a configuration."""
    stages = config.stages if isinstance(config, RunConfig) else ()
    return PlotOptions(
        off_policy=frozenset(s.name for s in stages if not registry.get("method", s.method.type).on_policy),
        max_new_tokens=config.rollout.max_new_tokens,
    )
