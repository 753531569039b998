"""MLflow: runs of an experiment, with dialogues as traces."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD, ENDPOINT_REF
from rl2f_core.registry import register
from rl2f_core.run.tracking.base import Messages, ProjectTrackerConfig, Tracker
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from mlflow import MlflowClient

STATUS = {"succeeded": "FINISHED", "stopped": "KILLED", "interrupted": "KILLED"}
"""Status of a run → status in MLflow; others failed."""
INVALID = re.compile(r"[^\w\-. :/]")
"""Characters that a metric's name cannot contain."""
INVALID_IN_FILES = re.compile(r"[^\w\-. ]+")
"""Characters that an artifact's name should not contain."""
MAX_PARAMS = 100
"""Parameters in one request."""
MAX_VALUE = 500
"""Characters of a parameter."""


@register("tracker")
class MLflow(Tracker):
    """Logs metrics, the configuration as parameters, tables as artifacts, and dialogues as traces."""

    class Config(ProjectTrackerConfig):
        """Runs of MLflow."""

        type: Literal["mlflow"] = "mlflow"
        """Name of the tracker."""
        uri: str | None = Field(None, json_schema_extra={**BASIC_FIELD, **ENDPOINT_REF})
        """Tracking server, e.g. http://127.0.0.1:5000 or sqlite:///mlflow.db; None is MLFLOW_TRACKING_URI, or else
        MLflow's default."""

    name = "mlflow"
    packages = ("mlflow",)
    settings: Config
    _client: MlflowClient
    _run_id: str
    _experiment: str

    def start(self, id: str | None) -> str:
        """Create a run, or set the status of the known one to running."""
        os.environ.setdefault("MLFLOW_ENABLE_ASYNC_TRACE_LOGGING", "false")  # this thread already is asynchronous
        import mlflow
        from mlflow.entities import Param

        if self.settings.uri is not None:
            mlflow.set_tracking_uri(self.settings.uri)  # traces use the global address
        self._client = mlflow.MlflowClient()
        known = self._client.get_experiment_by_name(self.settings.project)
        self._experiment = known.experiment_id if known else self._client.create_experiment(self.settings.project)
        if id is not None:
            self._run_id = id
            self._client.update_run(id, status="RUNNING")
            return id
        self._run_id = str(self._client.create_run(self._experiment, run_name=self.config.name).info.run_id)
        params = [Param(key, value[:MAX_VALUE]) for key, value in _flatten(self.public_config())]
        for start in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(self._run_id, params=params[start : start + MAX_PARAMS])
        return self._run_id

    def log_metrics(self, values: dict[str, float], step: int, time: float) -> None:
        """Log metrics."""
        from mlflow.entities import Metric

        metrics = [Metric(INVALID.sub("-", name), value, int(time * 1000), step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], step: int) -> None:
        """Log a table as an artifact."""
        data = {column: [row[i] for row in rows] for i, column in enumerate(columns)}
        self._client.log_table(self._run_id, data, f"evaluation/{INVALID_IN_FILES.sub('-', name)}.json")

    def log_dialogue(self, name: str, messages: Messages, facts: JsonObject, step: int) -> None:
        """Log a dialogue as a trace."""
        span = self._client.start_trace(
            name,
            inputs={"messages": messages[:1]},
            attributes={**facts, "train_step": step},
            experiment_id=self._experiment,
            run_id=self._run_id,
        )
        self._client.end_trace(span.trace_id, outputs={"messages": messages[1:]})

    def close(self) -> None:
        """Set the status of the run."""
        self._client.set_terminated(self._run_id, STATUS.get(self.status, "FAILED"))


def _flatten(node: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the text of every value."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _flatten(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, str(node)
