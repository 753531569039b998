"""Measure how many hints per second a cascade of leak detectors without a model checks on one core.

Half of the hints of each environment are the scripted teacher's, whose few texts repeat as in a run. The other half are
new sentences of 10 to 40 words, as a language model writes them. Dialogues have up to four turns, so that some hints
have earlier hints.

    python -m tests.benchmarks.leaks --detectors exact,mentions
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from rl2f_core import registry
from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import Demonstrator, ScriptedHints
from rl2f_core.leaks.base import LeakQuery, make_detectors, run_cascade
from rl2f_core.leaks.parsing import parse_detectors
from rl2f_core.types import Task

WANTED = 4_000
"""Minimum of hints per second on one core, from the project's requirements."""
DEFAULT = "mentions"
OPENINGS = (
    "Not quite, but you are getting closer", "That is a reasonable try", "Let us slow down for a moment", "Hmm, no",
    "I can see how you got there", "Good effort so far", "Careful with this one", "Almost",
)  # fmt: skip
MIDDLES = {
    "arithmetic": (
        "look at the column of ones first and check whether {a} and {b} give you something to carry into the next one",
        "add {a} and {b} again by columns, and write down what you carry before you start with the tens",
        "when I compare your {attempt} with what the problem asks, the tens do not fit what you carried",
    ),
    "guess_number": (
        "the number that I think of is somewhere else in the range from {low} to {high}, so move away from {attempt}",
        "you said {attempt}, and from there you should take a bigger step in the other direction than last time",
        "try to cut what is left of the range in half each time, as then you need only a few more guesses",
    ),
    "secret_code": (
        "some of the letters in {attempt} are in their right place already, so keep those and change only the others",
        "remember that each place can hold any of {letters}, and that a letter may stand in more than one place",
        "compare your last code with the one before it and ask yourself which place told you something new",
    ),
    "knights_knaves": (
        "suppose that {one} is a knight and read what {one} says about the others; does that fit with your answer?",
        "if {one} lies, then what {one} says is false, so look at what {two} says before you decide about anybody",
        "your answer calls {one} a knave, and then the words of {two} should be false, as you can check step by step",
    ),
    "binary_matrix": (
        "look at row 2 again and count for each 1 how many steps up, down, left or right it is from the nearest 0",
        "you wrote {attempt}, but a cell in the second column cannot be that far away when a 0 lies close to it",
        "start with the cells beside a 0, which are all 1, and go on from there to those that lie farther away",
    ),
    "shortest_path": (
        "your way {attempt} runs into a wall before it comes near the goal, so go back and look at the cell below",
        "step 2 does not bring you closer, and after it you would have to go back up or to the left again",
        "count rows and columns between S and G to see how many steps down and to the right you need at least",
    ),
    "maze": (
        "you turned left in a corridor that ends there, so walk back to the last crossing and try the other side",
        "your way {attempt} is fine at the beginning, but then it enters a dead end from which it cannot get out",
        "begin at G and walk backwards until you meet a corridor that you know, then read the steps in turn",
    ),
    "gsm_symbolic": (
        "read the question again and ask yourself which of the numbers are counted twice in your {attempt}",
        "you found {attempt}, but one of the amounts is for a week and another for a day, so bring them together first",
        "write down what each number in the story stands for before you multiply any two of them with each other",
    ),
    "reasoning_gym": (
        "go through the terms from left to right and write the sum so far after each, then look where it went wrong",
        "you answered {attempt}, and that cannot be right, as the signs of the last two terms differ from each other",
        "one of the terms has a minus before it that you may have read as a plus, so check them one after the other",
    ),
}  # fmt: skip
CLOSINGS = (
    "Take your time.", "Then answer again in the same form.", "What do you notice?", "I am sure you will find it.",
    "Read the problem once more before you answer.", "Write your reasoning down this time.",
)  # fmt: skip


def queries(name: str, count: int, seed: int = 0) -> list[LeakQuery]:
    """Return `count` hints of an environment in dialogues of up to four turns; half of them are scripted."""
    cls = registry.get("environment", name)
    env = cls(cls.Config())
    assert isinstance(env, Demonstrator) and isinstance(env, ScriptedHints)
    rng = random.Random(f"{name}/{seed}")
    found: list[LeakQuery] = []
    index = 0
    while len(found) < count:
        task = env.task("train", index)
        attempts: list[str] = []
        hints: list[str] = []
        index += 1
        for _ in range(rng.randint(1, 4)):
            verdicts = [env.verify(task, attempt) for attempt in attempts]
            attempts.append(env.simulate_attempt(task, verdicts, rng, follow_hint=False, correct=False))
            verdicts.append(env.verify(task, attempts[-1]))
            if verdicts[-1].correct:
                break
            scripted = rng.random() < 0.5
            hint = env.hint(task, verdicts, rng) if scripted else sentence(env, task, attempts[-1], rng)
            found.append(LeakQuery(task, hint, tuple(attempts), tuple(hints)))
            hints.append(hint)
    return found[:count]


def sentence(env: Environment, task: Task, attempt: str, rng: random.Random) -> str:
    """Return a hint of 10 to 40 words without a leak."""
    public = task.public
    people = public.get("people") or [""]
    values = {
        **{key: str(value) for key, value in public.items()},
        "attempt": attempt.removeprefix("<answer>").removesuffix("</answer>"),
        "letters": ", ".join(public.get("letters", [])),
        "one": rng.choice(people),
        "two": rng.choice(people),
    }
    kinds = MIDDLES.get(env.name, tuple(text for texts in MIDDLES.values() for text in texts if "{" not in text))
    body = rng.choice(kinds).format(**values)
    return f"{rng.choice(OPENINGS)}: {body}. {rng.choice(CLOSINGS)}"


def measure(name: str, count: int, chunks: int, detectors: str = DEFAULT) -> dict[str, float]:
    """Measure hints per second of CPU time over chunks of new hints, and the fraction of flagged hints.

    Other processes on the core only lower the rate, so `fast`, the rate of the fastest tenth of the chunks, measures
    the code (as in Python's `timeit`), and `median` and `slow` show how busy the machine was.

    Args:
        name: Name of the environment.
        count: Hints of a chunk.
        chunks: Number of chunks.
        detectors: The cascade; see `parse_detectors`.
    """
    cls = registry.get("environment", name)
    env = cls(cls.Config())
    cascade = make_detectors(parse_detectors(detectors), env)
    run_cascade(cascade, queries(name, count, seed=-1))
    rates, flagged = [], 0
    asked = queries(name, count * chunks)
    for begin in range(0, len(asked), count):
        chunk = asked[begin : begin + count]
        start = time.process_time()
        reports = run_cascade(cascade, chunk)
        rates.append(len(chunk) / (time.process_time() - start))
        flagged += sum(report.leaked for report in reports)
    rates.sort()
    return {
        "fast": rates[int(0.9 * len(rates))],
        "median": statistics.median(rates),
        "slow": rates[0],
        "flagged": flagged / len(asked),
    }


def main(argv: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """Measure every environment of `MIDDLES`, print a line for each, and write JSON if `--out` is given."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.leaks", description=__doc__)
    parser.add_argument("--detectors", default=DEFAULT, help="the cascade, cheapest first")
    parser.add_argument("--hints", type=int, default=500, help="hints of a chunk")
    parser.add_argument("--chunks", type=int, default=30)
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    args = parser.parse_args(argv)
    found = {name: measure(name, args.hints, args.chunks, args.detectors) for name in MIDDLES}
    for name, rate in found.items():
        verdict = "reached" if rate["fast"] >= WANTED else "NOT reached"
        print(
            f"{name}: {rate['fast']:,.0f} hints/s in the fastest tenth of the chunks (median {rate['median']:,.0f}, "
            f"slowest {rate['slow']:,.0f}), {rate['fast'] / WANTED:.1f} times the goal of {WANTED:,}, "
            f"{verdict}; flagged {rate['flagged']:.4f}"
        )
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))
    return found


if __name__ == "__main__":
    main()
