"""Dialogues played by several processes: each plays its share, and all get all of them, in order.

A dialogue depends on its request alone, so who plays it changes nothing; a share is a run of neighbours, so that the
dialogues of a group, which share their prompt, mostly stay together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl2f_core.ranks import here
from rl2f_core.rollout.engine import Request, RolloutEngine
from rl2f_core.types import Rollout


@dataclass(frozen=True)
class SharedEngine(RolloutEngine):
    """An engine whose dialogues all processes of the run play together: all must ask for the same ones."""

    def play(self, requests: Sequence[Request], **options: Any) -> list[Rollout]:
        """As `RolloutEngine.play`; `advanced` hears of this process's share."""
        alone = super().play
        return here().spread(requests, lambda own: alone(own, **options))
