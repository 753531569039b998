"""Tree rollouts: several dialogues of a group continue the same first attempt (RLTF, arXiv 2602.02482)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rl2f_core.dialogue.rollout.request import RolloutRequest
from rl2f_core.types import Rollout, Turn

Run = Callable[[Sequence[RolloutRequest]], list[Rollout]]
"""Runs requests and returns their rollouts in order."""
NO_HINT = {"hint": None, "hint_bits": None, "hint_true": None, "bits_left": None, "chance_bits": None,
           "determines_answer": False}  # fmt: skip


def run_trees(
    run: Run, requests: Sequence[RolloutRequest], branches: int, run_other: Run | None = None
) -> list[Rollout]:
    """Run requests of which each block of `branches` shares its first attempt.

    The first request of a block runs as usual. The others continue its first turn with their own seeds; if it ended
    there, they are copies of it, so each first attempt has the same weight in its group.

    Args:
        run: Runs the first request of each block, and the others.
        requests: The requests of whole groups, each group with a multiple of `branches`.
        branches: Dialogues per first attempt.
        run_other: Runs the others with a teacher that gives its own hint on the first attempt. None: they read the
            hint of the block's first dialogue.
    """
    if branches == 1:
        return run(requests)

    def first_turn(leader: Rollout) -> Turn:
        turn = leader.dialogue.turns[0]
        return turn if run_other is None else turn.model_copy(update=NO_HINT)

    leaders = run(requests[::branches])
    pairs = [(request, leaders[position // branches]) for position, request in enumerate(requests)]
    continued = {
        request.id: replace(request, turns=(first_turn(leader),))
        for position, (request, leader) in enumerate(pairs)
        if position % branches and len(leader.dialogue.turns) > 1
    }
    others = (run_other or run)(list(continued.values())) if continued else []
    rollouts = dict(zip(continued, others, strict=True))
    return [rollouts.get(request.id) or _copy(leader, request) for request, leader in pairs]


def _copy(leader: Rollout, request: RolloutRequest) -> Rollout:
    """Return a rollout as that of another request."""
    changes = {"id": request.id, "index": request.index, "seed": request.seed}
    return replace(leader, dialogue=leader.dialogue.model_copy(update=changes))
