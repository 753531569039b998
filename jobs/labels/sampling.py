"""Sampling frames: which hints a label extrapolates to.

A random sample of a population is a random sample of each of its parts as well, but not of a larger population, nor of
hints that were ingested after the sample was drawn.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rl2f_core.common.text.integers import whole_number
from rl2f_core.errors import DataError

_OWN = "#own"
"""End of the stored form of a frame without controls."""


@dataclass(frozen=True)
class SamplingFrame:
    """The population of a random sample, stratified by whether a source flagged the hint."""

    source: str = "run"
    """Source of the findings: run, or the id of a rescore run."""
    run: int | None = None
    """The run; None for all runs (see `jobs.labels.hint_counts.in_scope`)."""
    environment: str = ""
    """The environment; empty for all."""
    without_controls: bool = False
    """Only hints of conditions that are not controls (see `rl2f_core.run.events.OWN_CONDITIONS`)."""

    def text(self) -> str:
        """Return `source/run/environment`, with `#own` without controls: the form stored with a label."""
        run, end = "" if self.run is None else self.run, _OWN if self.without_controls else ""
        return f"{self.source}/{run}/{self.environment}{end}"

    @classmethod
    def parse(cls, text: str) -> SamplingFrame:
        """Parse the stored form; raises `DataError` if it is invalid."""
        source, _, rest = text.partition("/")
        run, slash, environment = rest.partition("/")
        number = whole_number(run, None)
        if not source or not slash or (run and number is None):
            raise DataError("Invalid sampling frame.", value=text, known=["run/12/", "run//arithmetic"])
        return cls(source, number, environment.removesuffix(_OWN), environment.endswith(_OWN))

    def covers(self, groups: Collection[tuple[int, str]]) -> bool:
        """Whether the frame contains all hints of these pairs of run and environment."""
        return all(self.run in (None, run) and self.environment in ("", name) for run, name in groups)
