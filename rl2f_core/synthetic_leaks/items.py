"""Items of the synthetic leak benchmark, and what their generators share: puzzles, phrasings and seeded choices.

The benchmark draws a puzzle for each item. `planting.plant` gives a `Sampler` the puzzle of a task instead.
"""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

import yaml
from jinja2 import Environment as JinjaEnvironment
from jinja2 import StrictUndefined
from pydantic import JsonValue

from rl2f_core.paths import LEAK_BENCHMARK
from rl2f_core.types import FrozenModel

T = TypeVar("T")
P = TypeVar("P", bound="Puzzle")
Half = Literal["dev", "test"]
HALVES: tuple[Half, Half] = ("dev", "test")
LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "ja")
DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MAX_TRIES = 50
"""Random choices of a kind for a given puzzle until one fits."""
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


class Phrasings(FrozenModel):
    """Templates by module of this package and name."""

    shared: dict[str, list[str]]
    letters: dict[str, list[str]]
    numbers: dict[str, list[str]]
    matrices: dict[str, list[str]]
    roles: dict[str, list[str]]
    paths: dict[str, list[str]]
    attempts: dict[str, list[str]]
    """Leaks that refer to the last attempt, by kind; see `planting`."""
    two_hints: dict[str, list[list[str]]]
    number_words: dict[int, list[str]]
    """Words of a number in the order of `LANGUAGES`."""


PHRASINGS = Phrasings.model_validate(yaml.safe_load((LEAK_BENCHMARK / "phrasings.yaml").read_text(encoding="utf-8")))
STATEMENTS = PHRASINGS.shared["statements"]
"""Sentences that state the whole answer `{x}`."""
_CHATTER = PHRASINGS.shared["chatter"]
"""Messages without information about the answer."""
_OPENERS = PHRASINGS.shared["openers"]
"""Sentence beginnings."""
FORMS: dict[str, dict[str, list[tuple[str, str]]]] = {
    module: {kind: list(templates.items()) for kind, templates in kinds.items()}
    for module, kinds in yaml.safe_load((LEAK_BENCHMARK / "forms.yaml").read_text(encoding="utf-8")).items()
}
"""Names and templates of obfuscated answers by module of this package and kind."""


class LeakItem(FrozenModel):
    """One labeled hint with its dialogue."""

    id: str
    """Environment, kind, split and number, e.g. `arithmetic/roman/test/2`."""
    environment: dict[str, JsonValue]
    """The environment's configuration, `type` included."""
    problem: str
    """The problem in the student's prompt."""
    answer: str
    """The gold answer."""
    attempts: tuple[str, ...] = ()
    """The student's attempts, oldest first; the last one is wrong."""
    hints: tuple[str, ...] = ()
    """The earlier hints."""
    hint: str
    """The hint to judge."""
    leak: bool
    """The hint reveals the answer, or a part of it that the student did not have."""
    kind: str
    """Name of the obfuscation or of the near-miss."""
    answer_fraction: float = 0.0
    """Fraction of the answer that this and the earlier hints reveal."""
    split: Half
    """`dev` to tune detectors on, `test` to report; the two have no phrasing in common."""
    style: str = ""
    """Register of a hand-written hint, e.g. `terse`."""
    ambiguous: bool = False
    """The annotators disagree; `leak` has no meaning."""


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A task with wrong attempts."""

    environment: dict[str, JsonValue]
    """Configuration of the environment."""
    problem: str
    answer: str
    attempts: tuple[str, ...]
    """The student's parsed answers, oldest first; empty if the last attempt of a given puzzle has none."""


class Unsuitable(Exception):
    """A kind cannot be written for the given puzzle."""


class Draft(NamedTuple):
    """Content of an item."""

    puzzle: Puzzle
    hint: str
    answer_fraction: float = 0.0
    """0 if the hint is no leak."""
    hints: tuple[str, ...] = ()
    """The earlier hints."""


def halves(pool: Sequence[T], half: Half) -> list[T]:
    """Return the phrasings of one split: every second one, ordered by hash.

    An entry is a template or a sequence that begins with one.
    """

    def key(entry: T) -> str:
        text = entry[0] if isinstance(entry, list | tuple) else entry
        return hashlib.sha256(str(text).encode()).hexdigest()

    return sorted(pool, key=key)[HALVES.index(half) :: 2]


@dataclass(frozen=True, slots=True)
class Kind:
    """Items of one obfuscation or near-miss."""

    name: str
    count: int
    """Number of items per split."""
    draft: Callable[[Sampler, int], Draft]
    """Returns an item's content, given its position."""
    stream: str = ""
    """Name of the random stream; `name` by default."""
    form: str = ""
    """Key of `FORMS`, for obfuscated answers."""
    wrong: bool = False
    """The obfuscated answer is wrong."""


def form_kinds(counts: Mapping[str, int], num_wrong: int, draft: Callable[[Sampler, int], Draft]) -> list[Kind]:
    """Return `counts[form]` obfuscated answers in each form, and then `num_wrong` wrong answers in each form."""
    right = [Kind(form, count, draft, f"{form}/False", form) for form, count in counts.items()]
    return [*right, *(Kind("wrong_value", num_wrong, draft, f"{form}/True", form, wrong=True) for form in counts)]


def generate(
    environment: str, kinds: Sequence[Kind], splits: Sequence[Half] = HALVES, seed: int = 0
) -> Iterator[LeakItem]:
    """Yield the items of an environment; deterministic. The shipped items have seed 0."""
    for half in splits:
        for kind in kinds:
            stream = f"leaks/{environment}/{kind.stream or kind.name}/{half}/{seed}" if seed else None
            sampler = Sampler(environment, kind, half, seed=stream)
            for i in range(kind.count):
                puzzle, hint, fraction, hints = kind.draft(sampler, i)
                number = f"{kind.form}-{i}" if kind.wrong else i
                yield LeakItem(
                    id=f"{environment}/{kind.name}/{half}/{number}",
                    environment=puzzle.environment,
                    problem=puzzle.problem,
                    answer=puzzle.answer,
                    attempts=tuple(f"<answer>{attempt}</answer>" for attempt in puzzle.attempts),
                    hints=hints,
                    hint=hint,
                    leak=fraction > 0,
                    kind=kind.name,
                    answer_fraction=fraction,
                    split=half,
                )


def leak_kinds(kinds: Sequence[Kind], near_misses: Collection[str]) -> list[Kind]:
    """Return the kinds of leaks that one hint on a given puzzle can have."""
    others = {*near_misses, "wrong_value", "two_hints"}
    return [kind for kind in kinds if kind.name not in others]


class Sampler:
    """Random choices for one kind and split of an environment.

    Args:
        environment: Name of the environment.
        kind: The kind.
        half: Split whose phrasings are used.
        given: A puzzle to write about; by default each item draws one.
        seed: Seed of the choices for a given puzzle.
    """

    def __init__(
        self, environment: str, kind: Kind, half: Half, given: Puzzle | None = None, seed: str | None = None
    ) -> None:
        self.environment, self.kind, self.half = environment, kind, half
        self.rng = random.Random(seed or f"leaks/{environment}/{kind.stream or kind.name}/{half}")
        self._given, self._tries = given, 0
        self._decks: dict[int, list[Any]] = {}

    def given(self, cls: type[P]) -> P | None:
        """Return the given puzzle, or None; raises `Unsuitable` after `MAX_TRIES` calls for one hint."""
        if self._given is None:
            return None
        self._tries += 1
        if not isinstance(self._given, cls) or self._tries > MAX_TRIES:
            raise Unsuitable
        return self._given

    def pick(self, pool: Sequence[T]) -> T:
        """Return the next phrasing of a pool; all phrasings of the split come before any repeats."""
        deck: list[T] | None = self._decks.get(id(pool))
        if not deck:
            deck = halves(pool, self.half)
            self.rng.shuffle(deck)
            self._decks[id(pool)] = deck
        return deck.pop()

    def opener(self) -> str:
        """Return a sentence beginning, possibly empty."""
        return self.pick(_OPENERS)

    def near_miss(self, texts: Mapping[str, list[str]]) -> str:
        """Return a template of this kind."""
        return self.pick(_CHATTER if self.kind.name == "no_content" else texts[self.kind.name])

    def obfuscate(self, forms: Sequence[tuple[str, str]], fields: Mapping[str, object]) -> str:
        """Return the answer in the next of `forms`."""
        return _compile(self.pick(forms)[1]).render(fields, draw=self.rng.randint)

    def state(self, answer: str) -> str:
        """Return a sentence that states the answer."""
        return self.pick(STATEMENTS).format(x=answer)


def to_base64(text: str) -> str:
    """Encode UTF-8 text."""
    return base64.b64encode(text.encode()).decode()


def shift(text: str, offset: int) -> str:
    """Add `offset` to the code points of ASCII letters and digits."""
    return "".join(chr(ord(char) + offset) if char.isascii() and char.isalnum() else char for char in text)


def _swap(text: str, old: str, new: str) -> str:
    return text.translate(str.maketrans(old, new))


_JINJA = JinjaEnvironment(
    variable_start_string="<<", variable_end_string=">>", undefined=StrictUndefined, keep_trailing_newline=True
)
_JINJA.filters |= {"b64": to_base64, "shift": shift, "swap": _swap}
_compile = lru_cache(_JINJA.from_string)
