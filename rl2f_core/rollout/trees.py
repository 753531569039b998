"""Tree rollouts: several dialogues of a group continue the same first attempt and its hint (RLTF, arXiv 2602.02482)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rl2f_core.rollout.request import RolloutRequest
from rl2f_core.types import Rollout


def run_trees(
    run: Callable[[Sequence[RolloutRequest]], list[Rollout]], requests: Sequence[RolloutRequest], branches: int
) -> list[Rollout]:
    """Run requests of which each block of `branches` shares its first turn.

    The first request of a block runs as usual. The others continue its first turn with their own seeds; if it ended
    there, they are copies of it, so each first attempt has the same weight in its group.

    Args:
        run: Runs requests and returns their rollouts in order.
        requests: The requests of whole groups, each group with a multiple of `branches`.
        branches: Dialogues per first attempt.
    """
    if branches == 1:
        return run(requests)
    leaders = run(requests[::branches])
    pairs = [(request, leaders[position // branches]) for position, request in enumerate(requests)]
    continued = {
        request.id: replace(request, turns=leader.dialogue.turns[:1])
        for position, (request, leader) in enumerate(pairs)
        if position % branches and len(leader.dialogue.turns) > 1
    }
    rollouts = dict(zip(continued, run(list(continued.values())), strict=True)) if continued else {}
    return [rollouts.get(request.id) or _copy(leader, request) for request, leader in pairs]


def _copy(leader: Rollout, request: RolloutRequest) -> Rollout:
    """Return a rollout as that of another request."""
    changes = {"id": request.id, "index": request.index, "seed": request.seed}
    return replace(leader, dialogue=leader.dialogue.model_copy(update=changes))
