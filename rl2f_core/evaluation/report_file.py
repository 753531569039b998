"""The file of an evaluation's report in a run directory."""

from __future__ import annotations

from pathlib import Path

from rl2f_core.common.file_io import checked_path
from rl2f_core.errors import DataError
from rl2f_core.evaluation.report import EvaluationReport

FILE = "evaluation/report.json"


def read_report(run: Path) -> EvaluationReport | None:
    """Return the report of a run directory; None if it has none. Raises `DataError` if it cannot be read."""
    path = checked_path(run, FILE)
    try:
        return EvaluationReport.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError("The evaluation's report cannot be read.", value=f"{run.name}/{FILE}") from error
    except ValueError as error:
        raise DataError(
            "The evaluation's report is damaged.", value=f"{run.name}/{FILE}", fix="Evaluate again."
        ) from error
