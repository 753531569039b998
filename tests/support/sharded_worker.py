"""One process of two that share out a learner's weights: `sharded_worker.py ddp|fsdp[-full] MODEL FOLDER`.

Accelerate shards on GPUs alone, so FSDP is set in its state by hand; what shards, gathers and clips is its own code and
torch's, which run on CPUs (gloo) too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from learner_rows import learner, rows, stage

from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig
from rl2f_core.learning.learner.scoring import Scorer
from rl2f_core.models.process_group import init_distributed

OPTIONS = LossConfig(epsilon=0.1, epsilon_high=0.3)
NOW = stage(micro_batch_tokens=20, weight_decay=0.1)


class Sharded(Learner):
    """A learner whose weights are shared out by FSDP2."""

    def setup_accelerator(self, folder: Path) -> Any:
        from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

        accelerator = super().setup_accelerator(folder)
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", reshard_after_forward=True,
            cpu_ram_efficient_loading=False,
        )  # fmt: skip
        return accelerator


def updates(of: Learner, first: int, count: int) -> list[dict[str, float]]:
    """So many steps on the rows."""
    return [of.update(rows(), OPTIONS, NOW.resolve(step, 0.7)) for step in range(first, first + count)]


def main(kind: str, tiny: Path, folder: Path) -> None:
    """Two steps, a commit, and a third step by a learner that goes on from the commit."""
    ranks = init_distributed("cpu")
    kind, _, full = kind.partition("-")
    made = learner(Sharded if kind == "fsdp" else Learner, tiny, full=bool(full))
    assert made.sharding == ("fsdp" if kind == "fsdp" else "")
    assert hasattr(next(iter(made.parameters.values())), "full_tensor") == (kind == "fsdp")
    made.reset()
    made.begin_stage(OPTIONS, NOW)
    scorer = Scorer(made, 20, 0.7)
    made.reference, start = made.snapshot(), scorer.score(rows(), scorer.logprobs)
    found = updates(made, 0, 2)
    with made.reference_weights("stage_start"):
        held = scorer.score(rows(), scorer.logprobs)
    assert held == start != scorer.score(rows(), scorer.logprobs)
    made.reference = None
    made.save(folder)
    ranks.barrier()
    again = learner(type(made), tiny, seed=4, full=bool(full))
    again.load(folder)
    found += updates(again, 2, 1)
    again.save_adapter(folder / "last")
    assert ranks.all_gather(found) == [found] * 2
    if ranks.is_main_process:
        (folder / "found.json").write_text(json.dumps(found))
    ranks.barrier()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
