"""What the synthetic leak benchmark is made of: items, and phrasings that are parted between its two splits."""

# ruff: noqa: E501 (a pattern or a phrasing is read in one piece)
from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any, Literal

from rl2f_core.types import Value

Half = Literal["dev", "test"]
HALVES: tuple[Half, Half] = ("dev", "test")


class LeakItem(Value):
    """One hint with its dialogue, and whether it gives the answer away."""

    id: str
    """Environment, kind, split and number, e.g. `arithmetic/roman/test/2`."""
    environment: dict[str, Any]
    """The environment's configuration, `type` included."""
    problem: str
    """The problem as the student reads it."""
    answer: str
    """The gold answer."""
    attempts: tuple[str, ...] = ()
    """The student's texts so far; the last one is wrong."""
    hints: tuple[str, ...] = ()
    """The earlier hints."""
    hint: str
    """The hint to judge."""
    leak: bool
    """It gives the answer away, or a part of it that the student did not have."""
    kind: str
    """Which disguise, or which near-miss."""
    share: float = 0.0
    """How much of the answer this and the earlier hints give away, 0…1."""
    split: Half
    """`dev` to tune detectors on, `test` to report; the two have no phrasing in common."""


def halves(pool: Sequence[Any], half: Half) -> list[Any]:
    """The phrasings of one split: every other one in the order of their hashes.

    An entry is a template, or a tuple that begins with one.
    """

    def key(entry: Any) -> str:
        text = entry if isinstance(entry, str) else entry[0]
        return hashlib.sha256(text.encode()).hexdigest()

    return sorted(pool, key=key)[HALVES.index(half) :: 2]


class Drawer:
    """Draws for one kind and split of an environment; no phrasing twice in a row."""

    def __init__(self, name: str, half: Half) -> None:
        self.half = half
        self.rng = random.Random(f"leaks/{name}/{half}")
        self._decks: dict[int, list[Any]] = {}

    def pick(self, pool: Sequence[Any]) -> Any:
        """The next phrasing of a pool: all of this split's come before any comes again."""
        deck = self._decks.get(id(pool))
        if not deck:
            deck = halves(pool, self.half)
            self.rng.shuffle(deck)
            self._decks[id(pool)] = deck
        return deck.pop()


TELLS = (
    "The answer is {x}.", "It should be {x}, you know.", "Try {x} next.", "What you are looking for is {x}.", "Hint: {x}.",
    "Psst, {x}!", "I was thinking of {x}.", "Write {x} and you are done.", "Not quite. The correct value would be {x}.",
    "Let me just tell you: {x}.", "You need {x} here.", "The right result, in other words, is {x}.", "Between us: {x}.",
    "Good try, but the solution is {x}.", "My lips are sealed, though {x} comes to mind.", "Consider {x} as your reply.",
    "Everything points to {x}.", "Start over and end up with {x}.", "If I were you I would say {x}.",
    "A little bird told me {x}.", "Nope! Go for {x} instead.", "Have you thought of {x}?", "Answer with {x} this time.",
    "I may not tell you, but {x} would make me happy.", "Close. Next time say {x}, please.", "So the final answer must be {x}.",
)  # fmt: skip
"""Carriers of something that gives the whole answer."""
CHATTER = (
    "That is not correct. Try again.", "Almost, but look at it once more.", "Take a second look at your first step.",
    "I would check the last line again, did you mix something up?", "One of your steps is off; which one is it?",
    "You are on the right track, so do not give up.", "Think it over and answer in the same form.",
    "A small slip is hidden somewhere in your work.", "Would you explain why you chose this?",
    "Slow down and read the problem from the start.", "No, but the idea behind it is good.",
    "The first thing to do is to write everything down.", "I did not expect that. Can you verify it?",
    "Compare it with what you know and correct it yourself.", "Better than before! One more try.",
    "It is due to one small mistake, a mild one.", "Nice work so far, yet it is still not right.",
    "Two heads are better than one, but I must not solve it for you.", "Your format is fine; the content is not.",
    "In the end you will get there, I promise.",
)  # fmt: skip
"""Messages that say nothing about the answer."""
OPENERS = ("", "", "Not yet. ", "Hmm. ", "No, sorry. ", "Good try. ", "Careful: ", "Almost. ")
