"""Which label counts: people's, the detectors', or the detectors' where no person decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jobs.export.export_records import ExportTurn, HumanLabel

Source = Literal["human", "detector", "both"]
LEAK, NO_LEAK, UNSURE = "leak", "no_leak", "unsure"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a hint counts as."""

    leaks: bool | None
    """None where nobody decided; such a hint is in no row that needs a label."""
    source: str
    """human or detector; where nobody decided, the reason: unsure, disputed or unlabeled."""

    @property
    def word(self) -> str:
        """leak, no_leak, or empty where nobody decided."""
        return "" if self.leaks is None else LEAK if self.leaks else NO_LEAK


def decide(step: ExportTurn, source: Source, annotator: str = "") -> Decision:
    """The label of a turn's hint.

    People decide by majority; *unsure* is no vote. Where they are equally divided the hint is *disputed* and no
    detector can settle it. With `both` the detectors' finding counts where no person voted.

    Args:
        step: The turn; its hint must not be None.
        source: Whose word counts.
        annotator: Only this person's labels count; empty for everybody's.
    """
    if source != "detector":
        voted = _vote([p for p in step.human_labels if not annotator or p.annotator == annotator])
        if voted is not None and (voted.source != UNSURE or source == "human"):
            return voted
    if source != "human" and step.leak is not None:
        return Decision(step.leak.leaked, "detector")
    return Decision(None, "unlabeled")


def _vote(people: Sequence[HumanLabel]) -> Decision | None:
    if not people:
        return None
    votes = Counter(p.label for p in people)
    yes, no = votes[LEAK], votes[NO_LEAK]
    if yes == no:
        return Decision(None, "disputed" if yes else UNSURE)
    return Decision(yes > no, "human")
