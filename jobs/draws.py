"""From which population a labelled hint was drawn at random, and where that makes it count.

Only a random draw says something of the hints that nobody labelled. What was drawn from a population is a random
sample of each part of it as well, but not of anything larger, nor of hints that came after the draw: once a run has
ended its draws stand, and while one goes on the same draw is to be labelled on.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rl2f_core.errors import DataError


@dataclass(frozen=True)
class Draw:
    """A random draw, made apart among the hints that a source flagged and those that it did not."""

    source: str = "run"
    """Whose findings part the hints: run, or the id of a run that asked again."""
    run: int | None = None
    """The run that it was drawn from; None for all but forks (`jobs.store.counts.among`)."""
    environment: str = ""
    """The environment that it was drawn from; empty for all."""

    def text(self) -> str:
        """As it is kept with a label: `source/run/environment`."""
        return f"{self.source}/{'' if self.run is None else self.run}/{self.environment}"

    @classmethod
    def parse(cls, text: str) -> Draw:
        """The draw of a kept text; raises `DataError` where it is none."""
        source, _, rest = text.partition("/")
        run, slash, environment = rest.partition("/")
        if not source or not slash or not (run == "" or run.isdigit()):
            raise DataError("This is no random draw.", value=text, known=["run/12/", "run//arithmetic"])
        return cls(source, int(run) if run else None, environment)

    def covers(self, places: Collection[tuple[int, str]]) -> bool:
        """Whether all hints of these places, pairs of run and environment, could have been drawn."""
        return all(self.run in (None, run) and self.environment in ("", name) for run, name in places)
