"""`knights_knaves`: who always tells the truth and who always lies, from what 2 to 8 people say about one another.

Every puzzle has exactly one solution, proven over all 2ⁿ assignments (`_kk_logic`), and the splits are disjoint up to
renaming people.  The task family is that of Logic-RL (arXiv 2502.14768) and RLTF (arXiv 2602.02482); the generator,
the texts and the verifier are our own.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rl2f_core.config import BASIC, BaseConfig
from rl2f_core.environments import _kk_logic as logic
from rl2f_core.environments import _kk_perturb as perturb
from rl2f_core.environments import _kk_text as words
from rl2f_core.environments._kk_hints import Count, false_count, told_counts
from rl2f_core.environments._kk_told import full_assignments, told_roles
from rl2f_core.environments._kk_worked import worked
from rl2f_core.environments.base import CONTENTLESS, MAX_ATTEMPT_CHARS, Environment, Floor, draw, split_of, wrap
from rl2f_core.errors import DataError
from rl2f_core.registry import register
from rl2f_core.types import Split, Task, Verdict

FLOOR_SAMPLE = 4000
"""Test tasks behind `floor`: half choose the pattern, the other half measure it."""
MIN_THINK_WORDS = 3
"""Words for each person that a think block needs, the problem's own lines not counted."""
_THINK_TAG = re.compile(r"</?think>", re.IGNORECASE)
_THINK_FIRST = re.compile(r"\s*<think>(.*?)</think>\s*<answer>", re.IGNORECASE | re.DOTALL)


@register("environment")
class KnightsKnaves(Environment):
    """All patterns of roles are equally frequent, and each puzzle has its pattern as the only solution."""

    level_field = "people"
    level_values = tuple(range(2, logic.MAX_PEOPLE + 1))
    perturbed = ("renamed", "reordered", "roles_flipped", "statement_changed")

    class Config(BaseConfig):
        """Level, wording and seed."""

        type: Literal["knights_knaves"] = "knights_knaves"
        """Name of the environment."""
        people: int = Field(2, ge=2, le=logic.MAX_PEOPLE, json_schema_extra=BASIC)
        """People in a puzzle, n."""
        fewest: int | None = Field(None, ge=2, le=logic.MAX_PEOPLE)
        """With it, each puzzle has from so many people up to `people`, all numbers equally often; None is always
        `people`."""
        depth: int = Field(2, ge=2, le=3, json_schema_extra=BASIC)
        """Most levels of a statement; a plain `Zoey is a knight` has one. At 2 people and depth 2 there are only 57
        puzzles up to renaming, which the splits share out; depth 3 has over 20,000."""
        think: bool = False
        """Ask for a <think> block before the answer. An attempt whose block is missing, empty, filler or an echo of
        the problem is then not well-formed, right or not."""
        roles: tuple[str, str] = ("knight", "knave")
        """The words for who tells the truth and who lies, in the singular, e.g. `["saint", "sinner"]`."""
        seed: int = 0
        """Fixes the stream of tasks."""

        @model_validator(mode="after")
        def _fewest_is_no_more(self) -> KnightsKnaves.Config:
            if self.fewest is not None and self.fewest > self.people:
                raise ValueError(f"fewest {self.fewest} is more than people {self.people}")
            return self

        @field_validator("roles")
        @classmethod
        def _two_words(cls, roles: tuple[str, str]) -> tuple[str, str]:
            first, second = roles
            taken = words.GRAMMAR_WORDS | {name.casefold() for name in (*words.NAMES, *words.EXAMPLE_NAMES)}
            for role in roles:
                if not re.fullmatch("[a-z]{2,20}", role) or role in taken:
                    raise ValueError(
                        f"a role is one word in small letters that is no name and no grammar, not {role!r}"
                    )
            if first == second or first == f"{second}s" or second == f"{first}s":
                raise ValueError(f"the two roles must differ, not {first!r} and {second!r}")
            return roles

    # -- tasks -------------------------------------------------------------------------------------------------
    def task(self, split: Split, index: int) -> Task:
        """The solution is drawn before the puzzle, so that every split has every pattern of roles equally often."""
        n, solution = self.drawn(split, index)
        return draw(self, split, index, self.config.seed, partial(self._make, n=n, solution=solution))

    def drawn(self, split: Split, index: int) -> tuple[int, int]:
        """How many people there are in the task at a position, and who of them is a knight, as bits in order of
        speaking; no puzzle is made for it."""
        rng, n = random.Random(f"{self.name}/{self.config.seed}/{split}/{index}/solution"), self.config.people
        if self.config.fewest is not None:
            n = rng.randint(self.config.fewest, n)
        return n, rng.randrange(2**n)

    def _make(self, rng: random.Random, n: int, solution: int) -> Task:
        roles = self.config.roles
        puzzle = logic.generate(solution, n, self.config.depth, rng)
        people = rng.sample(words.NAMES, n)
        text = words.render_puzzle(puzzle, people, [rng.randrange(len(words.SAYS)) for _ in people], roles)
        return self._build(text, people, puzzle, _to_roles(people, solution, roles), f"depth {self.config.depth}")

    def _build(self, text: str, people: list[str], puzzle: logic.Puzzle, assigned: dict[str, str], level: str) -> Task:
        return Task(
            id=f"{self.name}/gold",
            environment=self.name,
            split="test",
            level=f"{len(people)} people, {level}",
            public={"text": text, "people": people, "statements": list(puzzle)},
            privileged={"answer": words.normal_form(assigned)},
        )

    def canonical(self, task: Task) -> str:
        """The puzzle up to renaming and reordering people; where no statements are known, the text likewise."""
        puzzle = logic.as_puzzle(task.public["statements"])
        if puzzle:
            return logic.canonical_key(puzzle)
        number = {name.casefold(): f"#{i}" for i, name in enumerate(_by_appearance(task))}
        return " ".join(
            number.get(word.casefold(), word.casefold()) for word in re.findall(r"\w+", task.public["text"])
        )

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Reads names and roles from the gold answer, `Owen=knave; Zoey=knight` or `Zoey is a knight, Owen is …`.

        The statements are read where the problem has the form of this environment's own texts and the gold answer
        solves it; otherwise `public["statements"]` is empty, and hints count wrong people at most.  Raises `DataError`
        where the answer does not give each of 1 to 8 people one of the two roles.
        """
        roles = self.config.roles
        assigned = words.parse_answer(answer, None, roles)
        if assigned is None or len(assigned) > logic.MAX_PEOPLE:
            raise DataError(
                f"The gold answer does not give each of 1 to {logic.MAX_PEOPLE} people one role.",
                value=answer,
                known=roles,
                fix=f"Write it as `{words.answer_text(words.EXAMPLE_NAMES, self._example())}`.",
            )
        read = words.parse_puzzle(problem, list(assigned), roles)
        if read is not None:
            people, puzzle = read
            if logic.first_contradicted(puzzle, _to_bits(people, assigned, roles)) is None:
                return self._build(problem, people, puzzle, assigned, "given")
        return self._build(problem, list(assigned), (), assigned, "statements not read")

    def perturbations(self, task: Task) -> dict[str, Task]:
        """Other people's names; another order of speaking; the two role words exchanged throughout, so that here knaves
        tell the truth; one person's statement replaced, which changes the solution.

        The first three are the same puzzle, so canonical key, split and the solution's pattern stay. The last is
        another puzzle with one solution, proven: of the task's own split, or of the validation split where the task
        is of the training split, or (where a tiny space has neither) of any split but the training one.
        """
        puzzle, people = logic.as_puzzle(task.public["statements"]), list(task.public["people"])
        if not puzzle:
            return {}
        roles, rng = self._roles(task), random.Random(f"{self.name}/{self.config.seed}/{task.id}/perturbed")
        says = perturb.says_of(task.public["text"], puzzle, people, roles)
        solution = self._bits(task, self.answer(task))
        fresh = rng.sample([name for name in words.NAMES if name not in people], len(people))
        order = rng.sample(range(len(people)), len(people))
        while order == sorted(order):
            order = rng.sample(range(len(people)), len(people))
        turned = sum((solution >> person & 1) << k for k, person in enumerate(order))
        made = {
            "renamed": self._copy(task, puzzle, fresh, says, roles, solution),
            "reordered": self._copy(task, perturb.reordered(puzzle, order), [people[i] for i in order],
                                    [says[i] for i in order], roles, turned),
            "roles_flipped": self._copy(task, puzzle, people, says, (roles[1], roles[0]), solution),
        }  # fmt: skip
        found = self._changed(task, puzzle, rng)
        if found is not None:
            made["statement_changed"] = self._copy(task, found[0], people, says, roles, found[1])
        return {name: copy.model_copy(update={"id": f"{task.id}/{name}"}) for name, copy in made.items()}

    def _copy(
        self, task: Task, puzzle: logic.Puzzle, people: list[str], says: list[int], roles: words.Roles, solution: int
    ) -> Task:
        text = words.render_puzzle(puzzle, people, says, roles)
        made = self._build(text, people, puzzle, _to_roles(people, solution, roles), "perturbed")
        public = made.public if roles == self.config.roles else {**made.public, "roles": list(roles)}
        return made.model_copy(update={"split": task.split, "level": task.level, "public": public})

    def _changed(self, task: Task, puzzle: logic.Puzzle, rng: random.Random) -> tuple[logic.Puzzle, int] | None:
        wanted = "validation" if task.split == "train" else task.split
        spare: list[logic.Puzzle] = []

        def fits(made: logic.Puzzle) -> bool:
            split = split_of(logic.canonical_key(made))
            if split != "train" and not spare:
                spare.append(made)
            return split == wanted

        found = perturb.changed(puzzle, self.config.depth, rng, fits)
        if found is None and spare:
            return spare[0], logic.solutions(spare[0])[0]
        return found

    def _roles(self, task: Task) -> words.Roles:
        """The word for who tells the truth and the word for who lies, in this task."""
        first, second = task.public.get("roles", self.config.roles)
        return first, second

    # -- the student's side ------------------------------------------------------------------------------------
    def system(self) -> str:
        """How to answer, with an example about people who are in no puzzle."""
        think = "Reason in <think>…</think> first. " if self.config.think else ""
        return f"{think}Give everyone's role, as in {wrap(words.answer_text(words.EXAMPLE_NAMES, self._example()))}."

    def _example(self) -> dict[str, str]:
        return dict(zip(words.EXAMPLE_NAMES, self.config.roles, strict=True))

    def prompt(self, public: dict[str, Any]) -> str:
        return public["text"]

    # -- the verifier ------------------------------------------------------------------------------------------
    def answer(self, task: Task) -> str:
        return task.privileged["answer"]

    def parse(self, task: Task, text: str) -> str | None:
        """The roles of all people, each exactly once, and nothing else; see `_kk_text.parse_answer`."""
        if len(text) > MAX_ATTEMPT_CHARS:
            return None
        assigned = words.parse_answer(text, task.public["people"], self.config.roles)
        return None if assigned is None else words.normal_form(assigned)

    def judge(self, task: Task, parsed: str) -> Verdict:
        """Score: the share of people who are right. Distance: the share who are wrong."""
        said, gold = self._assigned(task, parsed), self._assigned(task, self.answer(task))
        if not said:
            return Verdict(correct=False, score=0.0, detail="unparsable: not everybody has one role")
        right = tuple(name for name in task.public["people"] if said[name] == gold[name])
        wrong = [name for name in task.public["people"] if name not in right]
        share = len(right) / len(gold)
        return Verdict(
            correct=not wrong,
            score=share,
            parsed=words.normal_form(said),
            detail=f"{len(right)} of {len(gold)} people are right" + (f"; wrong: {', '.join(wrong)}" if wrong else ""),
            well_formed=True,
            distance=len(wrong) / len(gold),
            parts={name: said[name] for name in task.public["people"]},
            right_parts=right,
        )

    def verify(self, task: Task, attempt: str) -> Verdict:
        """As everywhere; where `think` is set, an attempt without real reasoning first is not well-formed."""
        verdict = super().verify(task, attempt)
        if not self.config.think or not verdict.well_formed:
            return verdict
        problem = think_problem(attempt, task.public["text"], task.public["people"])
        if problem is None:
            return verdict
        return verdict.model_copy(update={"well_formed": False, "detail": f"{verdict.detail}; {problem}"})

    def _assigned(self, task: Task, text: str) -> dict[str, str]:
        return words.parse_answer(text, task.public["people"], self.config.roles) or {}

    def _bits(self, task: Task, text: str) -> int:
        return _to_bits(task.public["people"], self._assigned(task, text), self._roles(task))

    def _tried(self, task: Task, attempts: Sequence[Verdict]) -> list[int]:
        """The attempts that could be parsed, oldest first."""
        return [self._bits(task, verdict.parsed) for verdict in attempts if verdict.parsed is not None]

    def worked_solution(self, task: Task) -> str | None:
        """One supposition about everybody's roles after the other, until all claims fit; see `_kk_worked`.

        None where the statements could not be read.
        """
        puzzle, people, roles = logic.as_puzzle(task.public["statements"]), task.public["people"], self.config.roles
        if not puzzle:
            return None
        way = worked(puzzle, people, roles)
        said = wrap(words.answer_text(people, self._assigned(task, self.answer(task))))
        return f"<think>{way}</think>{said}" if self.config.think else f"{way} {said}"

    # -- the scripted teacher ----------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """The first person whose words do not fit the last attempt, and how many people are wrong.

        Who that is follows from the problem and the attempt alone.  The count does not, so it is told only as exactly
        as leaves at least two untried answers open, its absence included (`_kk_hints`): never at 2 people at first.
        """
        if not attempts or attempts[-1].parsed is None:
            return self._format_hint()
        tried = self._tried(task, attempts)
        told, _ = told_counts(len(task.public["people"]), self._bits(task, self.answer(task)), tried)[-1]
        puzzle = logic.as_puzzle(task.public["statements"])
        return _hint_text(task, logic.first_contradicted(puzzle, tried[-1]), told)

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Names a person whose words do fit the last attempt, with a false count where a count would be told.

        Where nobody's words fit, any person is named and the count is false in any case.
        """
        people = task.public["people"]
        if not attempts or attempts[-1].parsed is None:
            return _hint_text(task, rng.randrange(len(people)), None)
        puzzle, tried = logic.as_puzzle(task.public["statements"]), self._tried(task, attempts)
        solution = self._bits(task, self.answer(task))
        fitting = [i for i in range(len(puzzle)) if logic.fits(puzzle, i, tried[-1])]
        told, groups = told_counts(len(people), solution, tried)[-1]
        others = [group for group in groups if group != told] if len(groups) > 1 else []
        count = rng.choice(others) if others else None
        if not fitting and count is None:
            count = false_count(len(people), solution, tried[-1], rng)
        named = rng.choice(fitting or list(range(len(puzzle)))) if puzzle else None
        return _hint_text(task, named, count)

    def _format_hint(self) -> str:
        first, second = (words.article(role) for role in self.config.roles)
        return f"Your answer could not be read. Call each person once either {first} or {second}."

    # -- the imperfect student ---------------------------------------------------------------------------------
    def imitate(self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow: bool, right: bool) -> str:
        """First one person wrong or, as often, any wrong assignment.

        With `follow`, the next attempt is untried, fits the words of the person named and the count; it is right only
        where nothing else is left.  Without, it is any wrong assignment but the last.
        """
        people, roles = task.public["people"], self._roles(task)
        solution = self._bits(task, self.answer(task))
        guess = solution if right else self._guess(task, solution, attempts, rng, follow)
        said = words.answer_text(people, _to_roles(people, guess, roles))
        if not self.config.think:
            return wrap(said)
        puzzle = logic.as_puzzle(task.public["statements"])
        checks = [
            f" Then what {people[i]} says is {'true' if guess >> i & 1 else 'false'}, which fits."
            for i in range(len(puzzle))
            if logic.fits(puzzle, i, guess)
        ]
        return f"<think>Suppose {said}.{''.join(checks)}</think>{wrap(said)}"

    def _guess(self, task: Task, solution: int, attempts: Sequence[Verdict], rng: random.Random, follow: bool) -> int:
        people = range(len(task.public["people"]))
        wrong = [a for a in range(2 ** len(people)) if a != solution]
        tried = self._tried(task, attempts)
        if not tried:
            return solution ^ 1 << rng.choice(people) if rng.random() < 0.5 else rng.choice(wrong)
        if not follow:
            return rng.choice([a for a in wrong if a != tried[-1]] or wrong)
        options = [a for a in (*wrong, solution) if a not in tried]
        if attempts[-1].parsed is not None:
            puzzle = logic.as_puzzle(task.public["statements"])
            named = logic.first_contradicted(puzzle, tried[-1])
            told, _ = told_counts(len(people), solution, tried)[-1]
            low, high = told or (0, len(people))
            options = [
                a
                for a in options
                if (named is None or logic.fits(puzzle, named, a)) and low <= (a ^ tried[-1]).bit_count() <= high
            ]
        return rng.choice([a for a in options if a != solution] or options or wrong)

    # -- reference lines ---------------------------------------------------------------------------------------
    def floor(self) -> Floor:
        """The best constant pattern of roles in order of speaking, and the share of test tasks it solves.

        Names differ from puzzle to puzzle, so no constant text is right; a pattern is the nearest thing to one.
        Measured on `FLOOR_SAMPLE` test tasks: the most frequent pattern of the first half, counted in the second.
        By construction each pattern has 2⁻ⁿ of the puzzles with n people.
        """
        return _floor(self.config)

    # -- for leak detectors ------------------------------------------------------------------------------------
    def candidates(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        """Stretches that give everybody a role, in any wording that `asserted_roles` reads."""
        return full_assignments(text, task.public["people"], self._roles(task))

    def told_parts(self, task: Task, text: str) -> list[tuple[int, int, str, str]]:
        """Roles that a text gives to people."""
        return told_roles(text, task.public["people"], self._roles(task))

    def held_parts(self, task: Task, parsed: Sequence[str]) -> set[tuple[str, str]]:
        """The roles of the last attempt alone: of two roles the student soon wrote both."""
        return super().held_parts(task, parsed[-1:])


def think_problem(attempt: str, problem: str, people: Sequence[str]) -> str | None:
    """Why the think block of an attempt does not count as reasoning, or None where it does.

    The attempt must be one `<think>…</think>` and the answer block, nothing else.  Without the lines it copies from
    the problem, the block must name everybody and have at least `MIN_THINK_WORDS` words a person.  This is a floor
    against empty and filler blocks, not a judgement of the reasoning.
    """
    tags = [tag.casefold() for tag in _THINK_TAG.findall(attempt)]
    match = _THINK_FIRST.match(attempt)
    if tags != ["<think>", "</think>"] or match is None:
        return "no single <think> block right before the answer"
    thought = match.group(1)
    for line in problem.splitlines():
        thought = thought.replace(line, " ") if line else thought
    said = [word.casefold() for word in re.findall(r"\w+(?:['’-]\w+)*", thought)]
    missing = [
        name for name in people if name.casefold() not in {word.removesuffix("'s").removesuffix("’s") for word in said}
    ]
    if missing:
        return f"the <think> block does not speak of {', '.join(missing)}"
    if len(said) < MIN_THINK_WORDS * len(people):
        return f"the <think> block has only {len(said)} words"
    return None


def _to_roles(people: Sequence[str], assignment: int, roles: words.Roles) -> dict[str, str]:
    return {name: roles[0] if assignment >> i & 1 else roles[1] for i, name in enumerate(people)}


def _to_bits(people: Sequence[str], assigned: dict[str, str], roles: words.Roles) -> int:
    return sum(1 << i for i, name in enumerate(people) if assigned[name] == roles[0])


def _by_appearance(task: Task) -> list[str]:
    text = task.public["text"].casefold()
    return sorted(task.public["people"], key=lambda name: (text.find(name.casefold()), name))


def _hint_text(task: Task, named: int | None, count: Count | None) -> str:
    people = task.public["people"]
    parts = [] if named is None else [f"Your answer does not fit what {people[named]} says."]
    if count is not None:
        low, high = count
        number = str(low) if low == high else f"{low} to {high}"
        parts.append(f"{number} of {len(people)} people {'is' if high == 1 else 'are'} wrong.")
    return " ".join(parts) or CONTENTLESS


@lru_cache(maxsize=32)
def _floor(config: KnightsKnaves.Config) -> Floor:
    environment = KnightsKnaves(config)
    patterns = [environment.drawn("test", index) for index in range(FLOOR_SAMPLE)]
    half = FLOOR_SAMPLE // 2
    n, best = min(Counter(patterns[:half]).items(), key=lambda item: (-item[1], item[0]))[0]
    share = patterns[half:].count((n, best)) / len(patterns[half:])
    roles = [config.roles[0] if best >> i & 1 else config.roles[1] for i in range(n)]
    return Floor(f"in order of speaking: {', '.join(map(words.article, roles))}", share)
