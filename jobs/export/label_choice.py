"""Choose the label of a hint: human labels, detector findings, or findings where no annotator decided."""

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
    """The label of a hint."""

    leaks: bool | None
    """None if undecided; such a hint is in no row that needs a label."""
    source: str
    """human or detector; if undecided, the reason: unsure, disputed or unlabeled."""

    @property
    def word(self) -> str:
        """leak, no_leak, or empty if undecided."""
        return "" if self.leaks is None else LEAK if self.leaks else NO_LEAK


def decide(step: ExportTurn, source: Source, annotator: str = "") -> Decision:
    """Return the label of a turn's hint.

    The majority of human labels decides without *unsure*. On a tie the hint is *disputed*, whatever a detector found.
    With `both`, the detector finding decides if no annotator chose leak or no_leak.

    Args:
        step: The turn; it has a hint.
        source: Whose labels count.
        annotator: Only this annotator's labels count; empty for all.
    """
    if source != "detector":
        vote = _vote([label for label in step.human_labels if not annotator or label.annotator == annotator])
        if vote is not None and (vote.source != UNSURE or source == "human"):
            return vote
    leak = None if step.turn.hint is None else step.turn.hint.leak
    if source != "human" and leak is not None:
        return Decision(leak.leaked, "detector")
    return Decision(None, "unlabeled")


def _vote(labels: Sequence[HumanLabel]) -> Decision | None:
    if not labels:
        return None
    votes = Counter(label.label for label in labels)
    if votes[LEAK] == votes[NO_LEAK]:
        return Decision(None, "disputed" if votes[LEAK] else UNSURE)
    return Decision(votes[LEAK] > votes[NO_LEAK], "human")
