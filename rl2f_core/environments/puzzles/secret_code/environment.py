"""`secret_code`: find L letters of an alphabet of A; the hint shows the correct places of the last attempt.

A minimal test of hint use: `Correct so far: K ? Z` contains only letters that the student wrote, and using it requires
copying from the context.  Without hints the student can only guess.  Baseline and bounds have closed forms.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import lru_cache
from string import ascii_uppercase
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.environments.base import new_task, sample_task, wrap_answer
from rl2f_core.environments.candidates import Candidate, Region, one_of
from rl2f_core.environments.capabilities import (
    AnswerSpace,
    Baselines,
    Demonstrator,
    LeakVocabulary,
    Levels,
    MisleadingHints,
    SolveBounds,
    last_parsed,
)
from rl2f_core.environments.puzzles.secret_code.stated_letters import (
    is_interjection,
    judged_places,
    stated_letters,
)
from rl2f_core.errors import DataError, FieldValueError
from rl2f_core.registry import register
from rl2f_core.types import ConstantBaseline, Split, Task, TaskData, Verdict

FRAME = "Correct so far:"
"""Prefix of every hint."""
_NO_FRAME = "?" * len(FRAME)
_SEPARATORS = ("", " +", ", ?", "-")
"""Between the letters of an answer, the same throughout."""
_BETWEEN = re.compile(r"[\"'`*]{0,2}\s{0,2}(?:[,;/|\-–—>→]{0,2})\s{0,2}(?:then )?[\"'`*]{0,2}")
"""Between the letters of a code in free text; a question mark, dot or underscore is a blank instead."""


@register("environment")
class SecretCode(MisleadingHints, Demonstrator, Baselines, LeakVocabulary, AnswerSpace, Levels):
    """The code is drawn uniformly from all A^L sequences; letters may repeat."""

    level_field = "length"
    level_values = (2, 3, 4, 5)

    class Config(ComponentConfig):
        """Level and seed."""

        type: Literal["secret_code"] = "secret_code"
        """Name of the environment."""
        length: int = Field(3, ge=1, le=8, json_schema_extra=BASIC_FIELD)
        """Number of letters of the code, L."""
        letters: int = Field(3, ge=2, le=26, json_schema_extra=BASIC_FIELD)
        """Size of the alphabet, A."""
        alphabet: str = ""
        """A fixed alphabet such as `ABCD`; empty draws one from A to Z for each task. A fixed one has only A^L
        tasks for all splits, so a student can memorize which codes of a small one occur."""
        pool: int = Field(26, ge=2, le=26)
        """Number of first capital letters that alphabets are drawn from. With few, every alphabet occurs in training,
        and only the pairs of alphabet and code are new at test time."""
        avoid: float = Field(0.5, ge=0, le=1)
        """Probability that the simulated student avoids a letter that the hint just showed to be wrong there."""
        seed: int = 0
        """Seed of the task order."""

        @model_validator(mode="before")
        @classmethod
        def _set_letters(cls, data: object) -> object:
            if isinstance(data, dict) and isinstance(data.get("alphabet"), str) and data["alphabet"]:
                return {"letters": len(data["alphabet"]), **data}
            return data

        @field_validator("alphabet")
        @classmethod
        def _check_alphabet(cls, value: str) -> str:
            if len(set(value)) != len(value) or not set(value) <= set(ascii_uppercase):
                raise ValueError("an alphabet is distinct capital letters A to Z, e.g. ABCD")
            return value

        @model_validator(mode="after")
        def _check_letters(self) -> SecretCode.Config:
            if self.letters > self.pool:
                raise FieldValueError(f"letters is {self.letters} but pool only {self.pool}", "letters")
            if self.alphabet and self.letters != len(self.alphabet):
                raise FieldValueError(
                    f"letters is {self.letters} but alphabet {self.alphabet!r} has {len(self.alphabet)}", "letters"
                )
            return self

    config: Config

    # -- tasks -------------------------------------------------------------------------------------------------
    def task(self, split: Split, index: int) -> Task:
        return sample_task(self, split, index, self.config.seed, self._make)

    def _make(self, rng: random.Random) -> Task:
        letters = sorted(self.config.alphabet or rng.sample(ascii_uppercase[: self.config.pool], self.config.letters))
        return self._build(letters, [rng.choice(letters) for _ in range(self.config.length)])

    def _build(self, letters: Sequence[str], code: Sequence[str]) -> Task:
        public: TaskData = {"letters": list(letters), "length": len(code)}
        return new_task(self, f"{len(code)} of {len(letters)} letters", public, {"code": " ".join(code)})

    def canonical(self, task: Task) -> str:
        """The sorted alphabet and the code. Other letters are another task, because copying them is the skill."""
        return f"{''.join(sorted(task.public['letters']))}:{task.privileged['code'].replace(' ', '')}"

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Parse the alphabet from a list of capital letters in the problem (`each K, Q or Z`, `A B C`, `ABC`).

        The default is the configured alphabet. Raises `DataError` without an alphabet, or if the answer is not a code
        over it.
        """
        letters = _listed_letters(problem) or list(self.config.alphabet)
        if len(letters) < 2:
            raise DataError(
                "The problem lists no alphabet.", value=problem, fix="Write the letters, e.g. `each K, Q or Z`."
            )
        code = next(filter(None, (_parse_code(answer, letters, n) for n in range(1, 9))), None)
        if code is None:
            raise DataError("The gold answer is not a code over the alphabet.", value=answer, known=letters)
        written = re.search(r"(?<![0-9])([0-9]{1,3}) letters?\b", problem)
        if written and int(written[1]) != len(code.split()):
            raise DataError(f"The problem asks for {written[1]} letters, the gold answer has others.", value=answer)
        return self._build(sorted(letters), code.split())

    # -- student -----------------------------------------------------------------------------------------------
    def system_prompt(self) -> str:
        return f"Reply as {wrap_answer(' '.join('?' * self.config.length))}."

    def prompt(self, public: TaskData) -> str:
        *first, last = public["letters"]
        count = public["length"]
        return f"Find the code: {count} letter{'s' * (count > 1)}, each {', '.join(first)} or {last}."

    def hint_names(self, task: Task) -> tuple[str, ...]:
        """The alphabet in order."""
        return tuple(task.public["letters"])

    # -- verifier ----------------------------------------------------------------------------------------------
    def gold_answer(self, task: Task) -> str:
        return task.privileged["code"]

    def parse(self, task: Task, text: str) -> str | None:
        """Parse `KQZ`, `K Q Z`, `K, Q, Z` or `K-Q-Z` in any case, with the right number of letters of the alphabet."""
        return _parse_code(text, task.public["letters"], task.public["length"])

    def score_parsed(self, task: Task, parsed: str) -> Verdict:
        """Score: the fraction of correct places. Distance: the fraction of the others."""
        code, parts = task.privileged["code"].split(), self.answer_parts(task, parsed)
        correct = tuple(place for place, letter in zip(parts, code, strict=True) if parts[place] == letter)
        return Verdict(
            correct=len(correct) == len(code),
            score=len(correct) / len(code),
            parsed=parsed,
            detail=f"{len(correct)} of {len(code)} places are right; the code is {task.privileged['code']}",
            well_formed=True,
            distance=(len(code) - len(correct)) / len(code),
            parts=parts,
            correct_parts=correct,
        )

    # -- scripted teacher --------------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """`Correct so far: K ? Z` for the last attempt; all blank if it could not be parsed."""
        return _show(_confirmed(task, attempts))

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Blank out correct places and confirm wrong letters; if all are wrong, some of them.

        After an attempt that could not be parsed, confirm one wrong letter that the student did not write.
        """
        code = task.privileged["code"].split()
        shown: list[str | None] = [None] * len(code)
        if last_parsed(attempts) is None:
            position = rng.randrange(len(code))
            shown[position] = rng.choice([letter for letter in task.public["letters"] if letter != code[position]])
            return _show(shown)
        last = attempts[-1]
        wrong = [k for k in range(len(code)) if str(k + 1) not in last.correct_parts]
        if len(wrong) == len(code) > 1:
            wrong = rng.sample(wrong, rng.randint(1, len(code) - 1))
        for k in wrong:
            shown[k] = last.parts[str(k + 1)]
        return _show(shown)

    def claim_agreement(self, task: Task, before: Verdict, hint: str, attempt: Verdict) -> float | None:
        """False claims: each confirmed letter that is wrong, and each blank at a place that was right.

        An attempt satisfies the first by the same letter, the second by another one.
        """
        code, shown = self.gold_answer(task).split(), hint.removeprefix(FRAME).split()
        if not hint.startswith(FRAME) or len(shown) != len(code):
            return None
        satisfied = []
        for place, (letter, right) in enumerate(zip(shown, code, strict=True), 1):
            written = attempt.parts.get(str(place))
            if letter != "?" and letter != right:
                satisfied.append(written == letter)
            elif letter == "?" and before.parts.get(str(place)) == right:
                satisfied.append(written is not None and written != right)
        return sum(satisfied) / len(satisfied) if satisfied else None

    # -- simulated student -------------------------------------------------------------------------------------
    def simulate_attempt(
        self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow_hint: bool, correct: bool
    ) -> str:
        """With `follow_hint`, keep confirmed places and draw the others; otherwise draw a new code.

        With probability `avoid`, a drawn place avoids the letter that was just shown to be wrong there; otherwise it is
        uniform over the alphabet. A new code repeats no earlier one unless all were tried. Either may be correct by
        chance.
        """
        if correct:
            return wrap_answer(self.gold_answer(task))
        letters, length = task.public["letters"], task.public["length"]
        if follow_hint:
            shown_wrong = attempts[-1].parts if attempts else {}
            code = []
            for position, kept in enumerate(_confirmed(task, attempts), 1):
                avoided = shown_wrong.get(str(position)) if rng.random() < self.config.avoid else None
                code.append(kept or rng.choice([letter for letter in letters if letter != avoided]))
            return wrap_answer(" ".join(code))
        earlier = {verdict.parsed for verdict in attempts if verdict.parsed is not None}
        while True:
            fresh = " ".join(rng.choice(letters) for _ in range(length))
            if fresh not in earlier or len(earlier) >= len(letters) ** length:
                return wrap_answer(fresh)

    # -- reference lines ---------------------------------------------------------------------------------------
    def constant_baseline(self) -> ConstantBaseline:
        """One letter L times: correct with probability A^−L if the task's alphabet contains it.

        An alphabet drawn from a pool of P contains k given letters with probability C(P−k, A−k) / C(P, A), which
        decreases in k, so k = 1 and the fraction is A/P · A^−L. Over all codes; a split of a small alphabet has fewer.
        """
        a, length = self.config.letters, self.config.length
        letter = (self.config.alphabet or ascii_uppercase)[0]
        probability = 1.0 if self.config.alphabet else a / self.config.pool
        return ConstantBaseline(" ".join(letter * length), probability * a**-length)

    def bounds(self, turns: int) -> SolveBounds:
        """Solve probabilities within T turns, over codes drawn uniformly (A letters, L places).

        with_hints: a place is learned only by trying letters there, and its letter is uniform over A, so T tries find
        it with probability at most min(1, T/A), independently for each place. A player who keeps confirmed letters and
        tries no refuted one again reaches this bound: min(1, T/A)^L.

        without_hints: each turn rules out one code of A^L: min(1, T / A^L).

        copying: confirmed places stay, the others are drawn with replacement. A place is open after T turns with
        probability (1 − 1/A)^T, independently: (1 − (1 − 1/A)^T)^L. This is `simulate_attempt` with `follow_hint` and
        `avoid` 0.
        """
        a, length = self.config.letters, self.config.length
        return SolveBounds(
            with_hints=min(1.0, turns / a) ** length,
            without_hints=min(1.0, turns / a**length),
            copying=(1 - (1 - 1 / a) ** turns) ** length,
        )

    # -- information in a hint ---------------------------------------------------------------------------------
    def answer_space(self, task: Task) -> Region:
        """All A^L codes, by place."""
        letters = frozenset(task.public["letters"])
        return ({str(k + 1): letters for k in range(task.public["length"])},)

    def answer_values(self, task: Task, parsed: str) -> Candidate:
        return self.answer_parts(task, parsed)

    def hint_statements(self, task: Task, attempts: Sequence[Verdict], hint: str) -> tuple[Region, ...] | None:
        """One statement per place: a letter is the code's; a blank excludes the last attempt's letter there.

        Of a free text, the letters that it states for a place, and the places of the last attempt that it judges.
        """
        length, letters = task.public["length"], task.public["letters"]
        places = hint.removeprefix(FRAME).split()
        is_scripted = hint.startswith(FRAME) and len(places) == length and max(map(len, places)) == 1
        stated: list[tuple[str, str]]
        if is_scripted:
            stated = [(str(k), letter) for k, letter in enumerate(places, 1) if letter != "?"]
            judged = [(k, False) for k, letter in enumerate(places, 1) if letter == "?"]
        else:
            stated = list(dict.fromkeys((place, letter) for *_, place, letter in self.stated_parts(task, hint)))
            judged = judged_places(hint, length)
        last = last_parsed(attempts)
        tried = {} if last is None else self.answer_parts(task, last)
        statements = [one_of(place, [letter]) for place, letter in stated]
        for place, is_right in judged:
            if written := tried.get(str(place)):
                statements.append(one_of(str(place), {written} if is_right else set(letters) - {written}))
        return tuple(statements) if statements or is_scripted else None

    # -- leak detection ----------------------------------------------------------------------------------------
    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        """Words of L alphabet letters, and L single letters with only spaces, commas, dashes, quotes or `then` between.

        A blank such as `?` separates them. The hint's prefix and interjections ("Hmm, look again") are not codes.
        """
        letters, length = frozenset(task.public["letters"]), task.public["length"]
        matches: list[tuple[int, int, str]] = []
        row: list[tuple[int, int, str]] = []
        for word in _words_of(length).finditer(text.replace(FRAME, _NO_FRAME)):
            written = word[0].upper()
            if not letters.issuperset(written):
                continue
            start, end = word.span()
            if end - start == length and not (length > 1 and is_interjection(text, start, end)):
                matches.append((start, end, " ".join(written)))
            if end - start != 1:
                row = []
                continue
            if row and not (start - row[-1][1] <= 16 and _BETWEEN.fullmatch(text, row[-1][1], start)):
                row = []
            row = [*row[-(length - 1) :], (start, end, written)] if length > 1 else []
            if length > 1 and len(row) == length:
                matches.append((row[0][0], end, " ".join(letter for _, _, letter in row)))
        return sorted(matches)

    def answer_parts(self, task: Task, parsed: str) -> dict[str, str]:
        return {str(k): letter for k, letter in enumerate(parsed.split(), 1)}

    def stated_parts(self, task: Task, text: str) -> list[tuple[int, int, str, str]]:
        return stated_letters(text, task.public["letters"], task.public["length"])


@lru_cache(maxsize=16)
def _words_of(length: int) -> re.Pattern[str]:
    """Words of one letter or of `length` letters."""
    return re.compile(rf"[A-Za-z](?<!\w.)(?:[A-Za-z]{{{length - 1}}})?(?!\w)")


@lru_cache(maxsize=16)
def _codes_of(length: int) -> list[re.Pattern[str]]:
    """Patterns for `length` letters, one per separator."""
    return [re.compile(f"[A-Za-z](?:{separator}[A-Za-z]){{{length - 1}}}") for separator in _SEPARATORS]


def _parse_code(text: str, letters: Sequence[str], length: int) -> str | None:
    """Return the code in normal form, `K Q Z`, or None."""
    text = text.strip(" \t\r\n")
    for pattern in _codes_of(length):
        if pattern.fullmatch(text):
            written = [c for c in text.upper() if c in ascii_uppercase]
            return " ".join(written) if set(written) <= set(letters) else None
    return None


def _confirmed(task: Task, attempts: Sequence[Verdict]) -> list[str | None]:
    """Return the last attempt's letters, None at wrong places."""
    last = attempts[-1] if attempts else None
    places = [str(k + 1) for k in range(task.public["length"])]
    return [last.parts[k] if last is not None and k in last.correct_parts else None for k in places]


def _show(places: Sequence[str | None]) -> str:
    return f"{FRAME} {' '.join(letter or '?' for letter in places)}"


def _listed_letters(problem: str) -> list[str]:
    """Return the longest list of distinct single capitals, with `or` and `and` between, or else the first such word."""
    runs: list[list[str]] = [[]]
    candidates = re.findall(r"[A-Za-z]+", problem)
    for word in candidates:
        if len(word) == 1 and word.isupper():
            runs[-1].append(word)
        elif word not in ("or", "and"):
            runs.append([])
    longest = max(runs, key=len)
    if len(longest) > 1 and len(set(longest)) == len(longest):
        return longest
    return next((list(w) for w in candidates if len(w) > 1 and w.isupper() and len(set(w)) == len(w)), [])
