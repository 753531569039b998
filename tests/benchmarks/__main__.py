"""`python -m tests.benchmarks`: run the benchmarks, print a table, write JSON where asked."""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.learner import read_rows
from tests.benchmarks.report import (
    Spread,
    headline,
    megabytes,
    opponent,
    ratio,
    rollout_work,
    spread,
    table,
    update_work,
)
from tests.benchmarks.rollout import PLAIN
from tests.benchmarks.worker import Settings, Worker, started

WANTED = {"rollout": 1.5, "update": 1.3}
"""Least ratios, from the project's requirements."""


def say(text: str) -> None:
    """Progress, as it comes."""
    print(text, flush=True)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="built-in name, folder or hub id")
    parser.add_argument("--adapter", default="", help="LoRA folder whose weights play the dialogues")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--repeats", type=int, default=3, help="measured repeats of each side")
    parser.add_argument("--dialogues", type=int, default=64, help="dialogues at once, in groups of 8")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=24, help="limit of a student turn")
    parser.add_argument("--rows", type=int, default=32, help="rows of an update, at most the dialogues")
    parser.add_argument("--micro-rows", type=int, default=4, help="rows of a micro-batch; must divide --rows")
    parser.add_argument("--rank", type=int, default=16, help="LoRA rank")
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    args = parser.parse_args(argv)
    if not 2 <= args.rows <= args.dialogues or args.rows % args.micro_rows or args.rows % 2:
        parser.error("--rows is even, at most --dialogues, and a multiple of --micro-rows")
    if args.repeats < 1:
        parser.error("--repeats is at least 1")
    return args


def settings_of(args: argparse.Namespace) -> Settings:
    """Sizes from the command line, with the model's folder found (and fetched where it is missing)."""
    from rl2f_core.models import get_model

    names = ("device", "dtype", "adapter", "dialogues", "turns", "max_new_tokens", "rows", "micro_rows", "rank")
    sizes = {name: getattr(args, name) for name in names}
    return Settings(folder=str(get_model(args.model, say=say).path.resolve()), steps=args.repeats + 1, **sizes)


def bench_rollout(worker: Worker, repeats: int) -> dict[str, Any]:
    """Engine and plain loop in turns; the plain loop with each attention once, then with the faster."""
    first = {side: worker.ask(side=side, repeat=0) for side in ("engine", *PLAIN)}
    against = opponent({side: rate(first[side]) for side in PLAIN})
    sides: dict[str, list[dict[str, Any]]] = {side: [] for side in ("engine", against)}
    for repeat in range(1, repeats + 1):
        for side, found in sides.items():
            found.append(worker.ask(side=side, repeat=repeat))
    sides |= {side: [first[side]] for side in PLAIN if side != against}
    result = result_of("rollout", "engine", against, sides)
    result["against"] = f"generate ({against})"
    result["work"] = {
        side: [rollout_work(worker.info["body"], worker.info["head"], r["read"], r["student"]) for r in found]
        for side, found in sides.items()
    }
    return result


def bench_update(settings: Settings, info: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Learner and TRL in turns; TRL with each attention once, then with the faster.

    TRL's default recomputes activations, which is slower and smaller; it is measured once, with the faster attention.
    """
    samples = read_rows(settings.rows_file)
    student, tokens = sum(s.weighted for s in samples), sum(len(s.token_ids) for s in samples)
    plain = [(f"trl {name}", dataclasses.replace(settings, attention=name)) for name in PLAIN]
    sides: dict[str, list[dict[str, Any]]] = {}
    with started(("learner", settings), *(("trl_grpo", s) for _, s in plain)) as (ours, *others):
        lora, counts = ours.info["lora"], (ours.info["micro_batches"], others[0].info["micro_batches"])
        named = dict(zip((name for name, _ in plain), others, strict=True))
        first = {name: worker.ask() for name, worker in {"learner": ours, **named}.items()}
        against = opponent({name: 1 / first[name]["seconds"] for name in named})
        for name, worker in named.items():
            if name != against:
                worker.close()
        sides = {"learner": [], against: []}
        for _ in range(repeats):
            for name, found in sides.items():
                found.append({"learner": ours, **named}[name].ask())
    sides |= {name: [first[name]] for name in named if name != against}
    checkpointed = dataclasses.replace(dict(plain)[against], checkpointing=True)
    with started(("trl_grpo", checkpointed)) as (worker,):
        sides[f"{against}, recomputing"] = [worker.ask()]
    for found in sides.values():
        for answer in found:
            answer["student"] = student
    result = result_of("update", "learner", against, sides)
    pairs = [(first["learner"], first[against]), *zip(sides["learner"], sides[against], strict=True)]
    result["same"] = {key: max(relative(a[key], b[key]) for a, b in pairs) for key in ("loss", "grad_norm")}
    result |= {"micro_batches": counts, "rows": len(samples), "tokens": tokens, "lora": lora}
    work = update_work(info["body"], info["head"], lora, tokens, student)
    result["work"] = {side: [work] * len(found) for side, found in sides.items()}
    return result


def relative(a: float, b: float) -> float:
    """|a − b| over the larger."""
    return abs(a - b) / max(abs(a), abs(b), 1e-12)


def rate(answer: dict[str, Any]) -> float:
    """Student tokens per second."""
    return answer["student"] / answer["seconds"]


def result_of(name: str, ours: str, against: str, sides: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Rates of all sides, the headline ratio, and the raw answers."""
    rates = {side: [rate(answer) for answer in found] for side, found in sides.items()}
    return {
        "name": name,
        "against": against,
        "wanted": WANTED[name],
        "rates": rates,
        "ratio": ratio(rates[ours], rates[against]),
        "rise": {side: max(answer["rise"] for answer in found) for side, found in sides.items()},
        "answers": sides,
    }


def rows_of(result: dict[str, Any], gflops: float) -> list[list[str]]:
    """The table's lines for one benchmark: student tokens a second, share of the ceiling, memory."""
    lines = []
    for side, rates in result["rates"].items():
        answers = result["answers"][side]
        shares = [
            work / answer["seconds"] / (gflops * 1e9) for work, answer in zip(result["work"][side], answers, strict=True)
        ]
        memory = megabytes(result["rise"][side]) if result["name"] == "update" else ""
        share = f"{100 * spread(shares).median:.0f} %"
        lines.append([f"{result['name']}: {side}", str(len(rates)), spread(rates).text(), share, memory])
    return lines


def compare_memory(result: dict[str, Any]) -> str:
    """Peak memory of the update, ours against the headline's baseline."""
    ours, theirs = result["rise"]["learner"], result["rise"][result["against"]]
    verdict = "reached" if ours <= theirs else "NOT reached"
    return (
        f"update memory above the loaded model: {megabytes(ours)} against {megabytes(theirs)} "
        f"({ours / max(theirs, 1):.2f} ×); no higher wanted, {verdict}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run everything."""
    args = arguments(argv)
    settings = settings_of(args)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        settings = dataclasses.replace(settings, rows_file=str(Path(folder) / "rows.json"))
        with started(("rollout", settings)) as (worker,):
            info = worker.info
            say(f"{args.model} in {info['dtype']} on {info['device']}: {settings.dialogues} dialogues × "
                f"{settings.turns} turns of at most {settings.max_new_tokens} tokens, {args.repeats} repeats")  # fmt: skip
            ceilings = [worker.ask(ceiling=True)["gflops"]]
            rollout = bench_rollout(worker, args.repeats)
            say(headline(rollout))
            worker.ask(save=settings.rows_file)
            ceilings.append(worker.ask(ceiling=True)["gflops"])
        update = bench_update(settings, info, args.repeats)
    say(headline(update))
    gflops = max(ceilings)
    head = ["side", "runs", "student tokens/s", "of ceiling", "memory"]
    say("\n" + table([head, *rows_of(rollout, gflops), *rows_of(update, gflops)]))
    say(f"\nMatrix products reach {gflops:.0f} GFLOP/s here. Medians, smallest and largest in brackets.")
    say(f"update: {update['rows']} rows, {update['tokens']} tokens, micro-batches {update['micro_batches'][0]} against "
        f"{update['micro_batches'][1]}; largest relative difference over all steps: loss {update['same']['loss']:.1e}, "
        f"gradient norm {update['same']['grad_norm']:.1e}")  # fmt: skip
    say(headline(rollout))
    say(headline(update))
    say(compare_memory(update))
    say(f"{time.perf_counter() - start:.0f} s in all")
    if args.out:
        found = {"settings": dataclasses.asdict(settings), "info": info, "ceiling_gflops": ceilings}
        args.out.write_text(json.dumps({**found, "rollout": plain(rollout), "update": plain(update)}, indent=1))


def plain(result: dict[str, Any]) -> dict[str, Any]:
    """The result with named numbers, for JSON."""
    return {key: value._asdict() if isinstance(value, Spread) else value for key, value in result.items()}


if __name__ == "__main__":
    main()
