"""The detector report. Figures of the test set are sent only after its access is logged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from app.api.dialogues import Number, Text
from app.api.labels import Name
from jobs.labels import report_queries
from jobs.labels.estimation import labels_needed, sample_size_for
from jobs.labels.report_queries import Scope
from rl2f_core.errors import ConfigError

if TYPE_CHECKING:
    from app.common.context import Context
    from jobs.labels.detector_report import DetectorReport

MAX_DISPUTES = 200
_GROUP_BY = {"tier": "detector", "control": "condition"}
"""Value of `by` → grouping of the report, if they differ."""
_KEYS = {
    "annotator_kappa": "labellers", "annotators": "labellers", "too_few_labels": "small", "usage": "used",
    "disagreements": "disputes", "detector": "tier", "among_annotators": "between", "with_detector": "against",
    "true_positives": "hits", "false_negatives": "misses", "missed_leaks": "missed", "not_sampled": "picked",
    "partial_sample": "narrower", "not_blind": "unblind",
}  # fmt: skip
"""Field of the report → JSON key, if they differ."""


class Asked(BaseModel):
    """Query parameters of a report; unknown ones are ignored."""

    model_config = ConfigDict(extra="ignore")
    run: Number | None = None
    environment: Text = ""
    source: Annotated[str, Field(max_length=20)] = "run"
    by: Annotated[str, Field(max_length=20)] = "tier"

    @property
    def group_by(self) -> str:
        """The grouping of the report."""
        return _GROUP_BY.get(self.by, self.by)

    def scope(self, *, test: bool) -> Scope:
        """Convert the query parameters to a scope."""
        return Scope(self.run, self.environment, self.source, test)


class Opened(Asked):
    """Who unlocks the test set, and the scope of the report."""

    model_config = ConfigDict(extra="forbid")
    who: Name


def router(context: Context) -> APIRouter:
    """Routes below `/api/labels/board`."""
    api = APIRouter(prefix="/api/labels/board")
    db = context.db

    @api.get("")
    def read(query: Annotated[Asked, Query()]) -> dict[str, Any]:
        """Return the report on the dev set."""
        return _shown(context, report_queries.read(db, query.scope(test=False), query.group_by), test=False)

    @api.post("/test")
    def test(body: Opened) -> dict[str, Any]:
        """Log the access and return the report on the test set with every grouping."""
        reports = report_queries.read_all(db, body.scope(test=True))
        if body.group_by not in reports:
            raise ConfigError("Unknown grouping.", value=body.by, known=list(reports))
        report_queries.unlock_test_set(db, body.scope(test=True), body.who)
        names = {new: old for old, new in _GROUP_BY.items()}
        every = {
            names.get(name, name): _old_keys(report.model_dump(mode="json", include={"rows", "hidden"}))
            for name, report in reports.items()
        }
        return {**_shown(context, reports[body.group_by], test=True), "breakdowns": every}

    @api.get("/sources")
    def sources() -> list[dict[str, Any]]:
        """Return the sources of findings."""
        return [
            {"name": each.name, "detectors": each.detectors, "time": each.time} for each in report_queries.sources(db)
        ]

    return api


def _old_keys(data: Any) -> Any:
    """Rename the keys of nested JSON data by `_KEYS`."""
    if isinstance(data, dict):
        return {_KEYS.get(key, key): _old_keys(value) for key, value in data.items()}
    return [_old_keys(item) for item in data] if isinstance(data, list) else data


def _shown(context: Context, report: DetectorReport, *, test: bool) -> dict[str, Any]:
    """Return the report with the labels needed for ± .05 and the accesses to the test set."""
    total = report.total.estimates
    accesses = report_queries.list_accesses(context.db)
    data = report.model_dump(mode="json")
    disagreements = data.pop("disagreements")
    for item in disagreements:
        item["answers"] = item.pop("labels")
    return {
        **_old_keys(data),
        "half": "test" if test else "dev",
        "disputes": _old_keys(disagreements[-MAX_DISPUTES:][::-1]),
        "disputed": len(disagreements),
        "more": {
            "precision": labels_needed(total.precision, total.n_flagged),
            "recall": labels_needed(total.recall, total.n_flagged + total.n_unflagged),
            "first": sample_size_for(),
        },
        "openings": {
            "n": len(accesses),
            "last": [
                {"who": each.annotator, **each.model_dump(include={"time", "source", "run_id", "environment"})}
                for each in accesses[:5]
            ],
        },
    }
