"""`python -m tests.benchmarks.compiled`: updates with the model's blocks compiled by torch and as they are.

One learner makes updates on the same rows of drawn tokens both ways in turns (A B A B) in one process.  What compiling
takes, with nothing kept from an earlier run, is what the first compiled update takes longer; from it follows after how
many rows it has paid.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Sequence
from typing import Any

from rl2f_core.types import TrainingSample

from .learner import RATE, made_learner
from .report import busy, parser, ratio, spread, table
from .worker import Memory, Settings, Stopwatch

OPENING, TURN = 120, 15
"""Tokens of a row before the student's first, and of a turn, of which every third is the student's."""
SIDES = ("compiled", "plain")


def drawn(seed: int, rows: int, words: int) -> list[TrainingSample]:
    """Rows of 200 to 320 tokens with an advantage each."""
    rng, made = random.Random(seed), []
    for _ in range(rows):
        length = rng.randint(200, 320)
        tokens = [rng.randrange(100, words) for _ in range(length)]
        weight = [float(t >= OPENING and (t - OPENING) // TURN % 3 == 0) for t in range(length)]
        advantage, zeros = rng.choice([-1.0, 1.0]), [0.0] * length
        made.append(TrainingSample(tokens, [w > 0 for w in weight], [-1.5 * w for w in weight],
                           [advantage * w for w in weight], weight, zeros, zeros))  # fmt: skip
    return made


def main(argv: Sequence[str] | None = None) -> None:
    """Run both sides and print what was found."""
    options = parser("tests.benchmarks.compiled", __doc__, repeats=5)
    options.add_argument("--rows", type=int, default=16)
    options.add_argument("--micro-batch-tokens", type=int, default=1300)
    options.add_argument("--words", type=int, default=40_000, help="tokens are drawn from so many of the vocabulary")
    options.add_argument("--rank", type=int, default=16)
    args = options.parse_args(argv)
    from rl2f_core.config.stage import StageConfig
    from rl2f_core.learning.learner.losses import LossConfig
    from rl2f_core.learning.learner.torch_compile import compile_blocks
    from rl2f_core.models.store.store import get_model

    kept = tempfile.TemporaryDirectory()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = kept.name  # nothing is there yet
    folder = str(get_model(args.model, on_message=print).path.resolve())
    learner = made_learner(Settings(folder, device=args.device, dtype=args.dtype, rank=args.rank))
    stage = StageConfig(name="bench", method="rl2f", steps=1000, learning_rate=RATE,
                        micro_batch_tokens=args.micro_batch_tokens)  # fmt: skip
    load = os.getloadavg()[0]
    print(busy(load, os.cpu_count() or 1), flush=True)

    def update(side: str, step: int) -> dict[str, Any]:
        compile_blocks(learner.model, on=side == "compiled")
        memory, watch = Memory(learner.device), Stopwatch(learner.device)
        metrics = learner.update(drawn(step, args.rows, args.words), LossConfig(), stage.resolve(step, 1.0))
        return {**watch.read(), "loss": metrics["loss"], **memory.report()}

    first = {side: update(side, 0) for side in SIDES}
    sides: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for step in range(1, args.repeats + 1):
        for side, found in sides.items():
            found.append(update(side, step))
    seconds = {side: [answer["seconds"] for answer in found] for side, found in sides.items()}
    faster = ratio([1 / s for s in seconds["compiled"]], [1 / s for s in seconds["plain"]])
    once, won = first["compiled"]["seconds"], spread(seconds["plain"]).median - spread(seconds["compiled"]).median
    compiling = once - spread(seconds["compiled"]).median
    print(table([["side", "seconds an update"], *([side, spread(found).text(2)] for side, found in seconds.items())]))
    paid = f"has paid after {args.rows * compiling / won:.0f} rows" if won > 0 else "never pays"
    print(f"compiled: {faster.text(2)} times as fast; compiling takes {compiling:.0f} s and {paid}", flush=True)
    if args.out:
        settings = {name: value for name, value in vars(args).items() if name != "out"}
        found_all = {"settings": settings, "load": load, "first": first, "answers": sides, "compiling": compiling}
        args.out.write_text(json.dumps({**found_all, "ratio": faster._asdict()}, indent=1))


if __name__ == "__main__":
    main()
