"""Whether two mathematical answers are the same: by form where form decides, by math-verify in a worker where not.

What form refuses is what a checker of values would fall for: a sum that is only restated, an equation whose right side
happens to fit, several answers at once, an expression copied out of the problem, a power that nobody can work out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from rl2f_core.environments import _worker_pool
from rl2f_core.environments._math_text import is_words, read_number, relation, unsafe_power, words, worked_out

_KEPT = 20_000
MORE_WORDS = 2
"""Plain words that an answer may have beyond those of the gold answer: a unit, not a sentence."""


class Finding(NamedTuple):
    """Whether an answer is right, and why in words."""

    right: bool
    why: str = ""


class Pair(NamedTuple):
    """A gold answer, an answer, both in normal form, and the problem."""

    gold: str
    said: str
    problem: str


def by_form(pair: Pair) -> Finding | None:
    """The finding where the form of the two decides; None where their values must be compared."""
    gold, said = pair.gold, pair.said
    if said == gold:
        return Finding(True)
    if is_words(gold) or is_words(said):
        same = _spelled(gold) == _spelled(said)
        return Finding(same, "" if same else "other words")
    number = read_number(gold) is not None
    if number and read_number(said) is not None:
        return Finding(False, "another number")
    if relation(said) and not relation(gold):
        return Finding(False, "an equation or inequality, where the answer is none")
    if said.count(",") + said.count(";") > gold.count(",") + gold.count(";"):
        return Finding(False, "more values than the answer has")
    if number and not worked_out(said):
        return Finding(False, "not worked out")
    if len(said) > 2 and _tight(said) in _tight(pair.problem):
        return Finding(False, "copied out of the problem")
    if unsafe_power(said) or unsafe_power(gold):
        return Finding(False, "no verdict: a power or factorial too large to work out")
    return None


def too_wordy(gold: str, said: str) -> bool:
    """Whether an answer is prose, measured by the gold answer."""
    return len(words(said)) > len(words(gold)) + MORE_WORDS


def _spelled(text: str) -> str:
    return " ".join(word.casefold() for word in words(text)) or text


def _tight(text: str) -> str:
    return "".join(text.split())


_known: OrderedDict[tuple[str, str], Finding] = OrderedDict()
"""What workers found, for every environment of this process."""


class Judge:
    """Compares by value in worker processes, and remembers what it found.

    Args:
        limit: Seconds for one comparison.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def find(self, pairs: Sequence[Pair]) -> list[Finding]:
        """The findings on all pairs, in order; what workers must compare is sent to them in one batch."""
        found = [by_form(pair) for pair in pairs]
        asked = {(p.gold, p.said): None for p, f in zip(pairs, found, strict=True) if f is None}
        new = [key for key in asked if key not in _known]
        if new:
            jobs = [_worker_pool.Job("math", {"gold": gold, "said": said}) for gold, said in new]
            for key, reply in zip(new, _worker_pool.pool().run(jobs, self.limit), strict=True):
                _known[key] = _finding(reply)
            while len(_known) > _KEPT + len(new):
                _known.popitem(last=False)
        return [f if f is not None else _known[p.gold, p.said] for p, f in zip(pairs, found, strict=True)]


def _finding(reply: _worker_pool.Reply) -> Finding:
    if reply.error:
        return Finding(False, f"no verdict: {reply.error}")
    return Finding(reply.value is True, "" if reply.value is True else "another value")
