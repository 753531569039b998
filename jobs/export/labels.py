"""Which label counts: people's, the detectors', or the detectors' where no person decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jobs.export.records import PersonLabel, Step

Source = Literal["people", "detector", "both"]
LEAK, NO_LEAK, UNSURE = "leak", "no_leak", "unsure"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a hint counts as."""

    leaks: bool | None
    """None where nobody decided; such a hint is in no row that needs a label."""
    source: str
    """people or detector; where nobody decided, the reason: unsure, disputed or unlabelled."""

    @property
    def word(self) -> str:
        """leak, no_leak, or empty where nobody decided."""
        return "" if self.leaks is None else LEAK if self.leaks else NO_LEAK


def decide(step: Step, source: Source, labeller: str = "") -> Decision:
    """The label of a turn's hint.

    People decide by majority; *unsure* is no vote. Where they are equally divided the hint is *disputed* and no
    detector can settle it. With `both` the detectors' finding counts where no person voted.

    Args:
        step: The turn; its hint must not be None.
        source: Whose word counts.
        labeller: Only this person's labels count; empty for everybody's.
    """
    if source != "detector":
        voted = _vote([p for p in step.people if not labeller or p.labeller == labeller])
        if voted is not None and (voted.source != UNSURE or source == "people"):
            return voted
    if source != "people" and step.leak is not None:
        return Decision(step.leak.leaked, "detector")
    return Decision(None, "unlabelled")


def _vote(people: Sequence[PersonLabel]) -> Decision | None:
    if not people:
        return None
    votes = Counter(p.label for p in people)
    yes, no = votes[LEAK], votes[NO_LEAK]
    if yes == no:
        return Decision(None, "disputed" if yes else UNSURE)
    return Decision(yes > no, "people")
