"""Choose the label of a hint: human labels, detector findings, or findings where no annotator decided.

A planted leak is known, so it needs no detector: it leaks unless human labels decide otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from jobs.export.datasets.controls import CONTROL_TEACHERS, is_false
from jobs.export.datasets.export_records import written
from rl2f_core.environments.base import CONTENTLESS, NO_VERDICT_HINT
from rl2f_core.types import Hint, Turn

if TYPE_CHECKING:
    from jobs.db.models import LeakLabel

Source = Literal["human", "detector", "both"]
LEAK, NO_LEAK, UNSURE = "leak", "no_leak", "unsure"


@dataclass(frozen=True, slots=True)
class Decision:
    """The label of a hint."""

    leaks: bool | None
    """None if undecided; such a hint is in no row that needs a label."""
    source: str
    """human, detector or planted; if undecided, the reason: unsure, disputed or unlabeled."""
    is_false: bool = False
    """A control wrote the hint that is not true of the problem."""
    has_content: bool = True
    """The hint is neither of a control nor contentless, so that a preference pair can choose it."""

    @property
    def good(self) -> bool:
        """Whether the hint is decided as leak-free and is not false."""
        return self.leaks is False and not self.is_false

    @property
    def word(self) -> str:
        """leak, no_leak, or empty if undecided."""
        return "" if self.leaks is None else LEAK if self.leaks else NO_LEAK


def decide(turn: Turn, labels: Sequence[LeakLabel], source: Source, annotator: str = "") -> Decision:
    """Return the label of a turn's hint.

    The majority of human labels decides without *unsure*. On a tie the hint is *disputed*, whatever a detector found.
    With `both`, the detector finding decides if no annotator chose leak or no_leak. Unless only human labels count, a
    planted leak has no need of a finding.

    Args:
        turn: The turn; it has a hint.
        labels: The human labels of the hint.
        source: Whose labels count.
        annotator: Only this annotator's labels count; empty for all.
    """
    decision = _decide(turn.hint, labels, source, annotator)
    hint = turn.hint
    if hint is None:
        return decision
    by_control = is_false(hint) or hint.teacher in CONTROL_TEACHERS
    has_content = not by_control and written(turn) not in (CONTENTLESS, NO_VERDICT_HINT)
    return replace(decision, is_false=is_false(hint), has_content=has_content)


def _decide(hint: Hint | None, labels: Sequence[LeakLabel], source: Source, annotator: str) -> Decision:
    if source != "detector":
        vote = _vote([label for label in labels if not annotator or label.annotator == annotator])
        if vote is not None and (vote.source != UNSURE or source == "human"):
            return vote
    if source != "human" and hint is not None and hint.planted is not None:
        return Decision(True, "planted")
    if source != "human" and hint is not None and hint.leak is not None and hint.leak.is_complete:
        return Decision(hint.leak.leaked, "detector")
    return Decision(None, "unlabeled")


def _vote(labels: Sequence[LeakLabel]) -> Decision | None:
    if not labels:
        return None
    votes = Counter(label.label for label in labels)
    if votes[LEAK] == votes[NO_LEAK]:
        return Decision(None, "disputed" if votes[LEAK] else UNSURE)
    return Decision(votes[LEAK] > votes[NO_LEAK], "human")
