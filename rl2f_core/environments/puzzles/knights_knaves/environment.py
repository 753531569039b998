"""`knights_knaves`: who always tells the truth and who always lies, from the statements of 2 to 8 people.

Every puzzle has exactly one solution, proven over all 2ⁿ assignments (`logic`), and the splits are disjoint up to
renaming people.  The task family is that of Logic-RL (arXiv 2502.14768) and RLTF (arXiv 2602.02482); the generator,
the texts and the verifier are our own.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rl2f_core.config.fields import BASIC_FIELD, FILE_REF, ComponentConfig
from rl2f_core.environments.base import (
    CONTENTLESS,
    MAX_ATTEMPT_CHARS,
    assign_split,
    distinct_tasks,
    new_task,
    sample_task,
    wrap_answer,
)
from rl2f_core.environments.candidates import Candidate, Region, one_of
from rl2f_core.environments.capabilities import (
    AnswerSpace,
    Baselines,
    Demonstrator,
    LeakVocabulary,
    Levels,
    MisleadingHints,
    Perturbations,
    last_parsed,
)
from rl2f_core.environments.puzzles.knights_knaves import logic
from rl2f_core.environments.puzzles.knights_knaves import perturbations as perturb
from rl2f_core.environments.puzzles.knights_knaves import text as puzzle_text
from rl2f_core.environments.puzzles.knights_knaves.hint_counts import Count, false_count, hint_counts
from rl2f_core.environments.puzzles.knights_knaves.hint_statements import ROLES, blame, claim_agreement, hint_statements
from rl2f_core.environments.puzzles.knights_knaves.published import canonical_keys, puzzles_of_size
from rl2f_core.environments.puzzles.knights_knaves.stated_roles import full_assignments, stated_roles
from rl2f_core.environments.puzzles.knights_knaves.think import think_problem
from rl2f_core.environments.puzzles.knights_knaves.worked_solutions import worked_solution
from rl2f_core.errors import DataError, FieldValueError
from rl2f_core.registry import register
from rl2f_core.types import ConstantBaseline, Split, Task, TaskData, Verdict

BASELINE_TASKS = 4000
"""Test tasks of the constant baseline: half select the pattern, the other half measure it."""


@register("environment")
class KnightsKnaves(MisleadingHints, Demonstrator, Baselines, LeakVocabulary, AnswerSpace, Levels, Perturbations):
    """All patterns of roles are equally frequent, and each puzzle has its pattern as the only solution."""

    level_field = "people"
    level_values = tuple(range(2, logic.MAX_PEOPLE + 1))
    perturbation_kinds = ("renamed", "reordered", "roles_flipped", "statement_changed")

    class Config(ComponentConfig):
        """Level, wording and seed."""

        type: Literal["knights_knaves"] = "knights_knaves"
        """Name of the environment."""
        people: int = Field(2, ge=2, le=logic.MAX_PEOPLE, json_schema_extra=BASIC_FIELD)
        """Number of people in a puzzle, n."""
        fewest: int | None = Field(None, ge=2, le=logic.MAX_PEOPLE)
        """Minimum number of people: each puzzle has from this number up to `people`, uniformly; None is always
        `people`."""
        depth: int = Field(2, ge=2, le=3, json_schema_extra=BASIC_FIELD)
        """Maximum levels of a statement; a plain `Zoey is a knight` has one. At 2 people and depth 2 there are only 57
        puzzles up to renaming for all splits; depth 3 has over 20,000."""
        width: int = Field(2, ge=2, le=3)
        """Maximum number of parts of an `and` or `or`."""
        problems: int | None = Field(None, ge=1)
        """Number of training puzzles, all distinct up to renaming: any so many consecutive tasks are all of them. None
        generates a new puzzle for each task."""
        source: str | None = Field(None, min_length=1, json_schema_extra=FILE_REF)
        """Parquet or JSONL file with the training puzzles, in the form of the data set K-and-K/knights-and-knaves
        (columns quiz, names, solution, statements); validation and test puzzles are generated."""
        think: bool = False
        """Ask for a <think> block before the answer. An attempt whose block is missing, empty, filler or an echo of
        the problem is then not well-formed, even if it is correct."""
        roles: tuple[str, str] = ("knight", "knave")
        """Role words of people who tell the truth and who lie, in the singular, e.g. `["saint", "sinner"]`."""
        seed: int = 0
        """Seed of the task order."""

        @model_validator(mode="after")
        def _check_fewest(self) -> KnightsKnaves.Config:
            if self.fewest is not None and self.fewest > self.people:
                raise FieldValueError(f"fewest {self.fewest} is more than people {self.people}", "fewest")
            if self.source is not None and self.problems is not None:
                raise FieldValueError("a source has its own number of puzzles; leave out problems", "problems")
            if self.source is not None and self.roles != ("knight", "knave"):
                raise FieldValueError("the puzzles of a source are about knights and knaves; leave out roles", "roles")
            return self

        @field_validator("roles")
        @classmethod
        def _check_roles(cls, roles: tuple[str, str]) -> tuple[str, str]:
            first, second = roles
            names = {name.casefold() for name in (*puzzle_text.NAMES, *puzzle_text.EXAMPLE_NAMES)}
            for role in roles:
                if not re.fullmatch("[a-z]{2,20}", role) or role in puzzle_text.GRAMMAR_WORDS | names:
                    raise ValueError(
                        f"a role is one word in small letters that is neither a name nor grammar, not {role!r}"
                    )
            if first == second or first == f"{second}s" or second == f"{first}s":
                raise ValueError(f"the two roles must differ, not {first!r} and {second!r}")
            return roles

    config: Config

    # -- tasks -------------------------------------------------------------------------------------------------
    def task(self, split: Split, index: int) -> Task:
        """Draw the solution before the puzzle, so that all role patterns are equally frequent in every split.

        Raises `DataError` if the source cannot be read, or there are fewer than `problems` puzzles.
        """
        if split == "train" and (self.config.source is not None or self.config.problems is not None):
            fixed = self._from_source() if self.config.source is not None else _generated(self.config)
            task = fixed[index % len(fixed)]
            return task.model_copy(update={"split": split, "id": f"{self.name}/{split}/{index}"})
        n, solution = self.drawn(split, index)
        return sample_task(self, split, index, self.config.seed, partial(self._make, n=n, solution=solution))

    def _from_source(self) -> list[Task]:
        """Return the puzzles of the source with the configured numbers of people."""
        config = self.config
        rows = puzzles_of_size(str(config.source), config.fewest or config.people, config.people)
        return [
            self._build(row.text, [*row.people], row.puzzle, _to_roles(row.people, row.solution, config.roles), "given")
            for row in rows
        ]

    def drawn(self, split: Split, index: int) -> tuple[int, int]:
        """Return the number of people and the solution of the task at a position, without generating its puzzle."""
        rng, n = random.Random(f"{self.name}/{self.config.seed}/{split}/{index}/solution"), self.config.people
        if self.config.fewest is not None:
            n = rng.randint(self.config.fewest, n)
        return n, rng.randrange(2**n)

    def _make(self, rng: random.Random, n: int, solution: int) -> Task:
        roles, config = self.config.roles, self.config
        given = set() if config.source is None else canonical_keys(config.source)
        while True:
            puzzle = logic.generate(solution, n, config.depth, rng, width=config.width)
            if not given or logic.canonical_key(puzzle) not in given:
                break
        people = rng.sample(puzzle_text.NAMES, n)
        text = puzzle_text.render_puzzle(puzzle, people, [rng.randrange(len(puzzle_text.SAYS)) for _ in people], roles)
        level = f"depth {config.depth}" + (f", width {config.width}" if config.width > 2 else "")
        return self._build(text, people, puzzle, _to_roles(people, solution, roles), level)

    def _build(self, text: str, people: list[str], puzzle: logic.Puzzle, assigned: dict[str, str], level: str) -> Task:
        public: TaskData = {"text": text, "people": people, "statements": list(puzzle)}
        return new_task(self, f"{len(people)} people, {level}", public, {"answer": puzzle_text.normal_form(assigned)})

    def canonical(self, task: Task) -> str:
        """The puzzle, or the text without parsed statements, up to renaming and reordering people."""
        puzzle = logic.as_puzzle(task.public["statements"])
        if puzzle:
            return logic.canonical_key(puzzle)
        number = {name.casefold(): f"#{i}" for i, name in enumerate(_by_appearance(task))}
        return " ".join(
            number.get(word.casefold(), word.casefold()) for word in re.findall(r"\w+", task.public["text"])
        )

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Parse names and roles from the gold answer, `Owen=knave; Zoey=knight` or `Zoey is a knight, Owen is …`.

        Statements are parsed if the problem has the form of this environment's texts and the gold answer solves it;
        otherwise `public["statements"]` is empty, and hints only count wrong people.  Raises `DataError` if the answer
        does not give each of 1 to 8 people one of the two roles.
        """
        roles = self.config.roles
        assigned = puzzle_text.parse_answer(answer, None, roles)
        if assigned is None or len(assigned) > logic.MAX_PEOPLE:
            raise DataError(
                f"The gold answer does not give each of 1 to {logic.MAX_PEOPLE} people one role.",
                value=answer,
                known=roles,
                fix=f"Write it as `{puzzle_text.answer_text(puzzle_text.EXAMPLE_NAMES, self._example())}`.",
            )
        parsed = puzzle_text.parse_puzzle(problem, list(assigned), roles)
        if parsed is not None:
            people, puzzle = parsed
            if logic.first_contradicted(puzzle, _to_bits(people, assigned, roles)) is None:
                return self._build(problem, people, puzzle, assigned, "given")
        return self._build(problem, list(assigned), (), assigned, "statements not read")

    def perturbations(self, task: Task) -> dict[str, Task]:
        """Other names; another order of speaking; the role words exchanged; one statement and the solution changed.

        The first three are the same puzzle, so canonical key, split and the solution's pattern stay.  The last is
        another puzzle with exactly one solution: of the task's split, or of the validation split for a training task,
        or, in a tiny space without such puzzles, of any split except train.
        """
        puzzle, people = logic.as_puzzle(task.public["statements"]), list(task.public["people"])
        if not puzzle:
            return {}
        roles, rng = self._roles(task), random.Random(f"{self.name}/{self.config.seed}/{task.id}/perturbed")
        says = perturb.says_of(task.public["text"], puzzle, people, roles)
        solution = self._bits(task, self.gold_answer(task))
        other_names = rng.sample([name for name in puzzle_text.NAMES if name not in people], len(people))
        order = rng.sample(range(len(people)), len(people))
        while order == sorted(order):
            order = rng.sample(range(len(people)), len(people))

        copies: dict[str, Task] = {}

        def add(name: str, puzzle: logic.Puzzle, people: list[str], says: list[int], solution: int) -> None:
            words: puzzle_text.Roles = (roles[1], roles[0]) if name == "roles_flipped" else roles
            text = puzzle_text.render_puzzle(puzzle, people, says, words)
            built = self._build(text, people, puzzle, _to_roles(people, solution, words), "perturbed")
            public = built.public if words == self.config.roles else {**built.public, "roles": list(words)}
            update = {"id": f"{task.id}/{name}", "split": task.split, "level": task.level, "public": public}
            copies[name] = built.model_copy(update=update)

        add("renamed", puzzle, other_names, says, solution)
        reordered_people, reordered_says = [people[i] for i in order], [says[i] for i in order]
        reordered_solution = sum((solution >> person & 1) << k for k, person in enumerate(order))
        add("reordered", perturb.reordered(puzzle, order), reordered_people, reordered_says, reordered_solution)
        add("roles_flipped", puzzle, people, says, solution)
        changed = self._changed(task, puzzle, rng)
        if changed is not None:
            add("statement_changed", changed[0], people, says, changed[1])
        return copies

    def _changed(self, task: Task, puzzle: logic.Puzzle, rng: random.Random) -> tuple[logic.Puzzle, int] | None:
        required_split = "validation" if task.split == "train" else task.split
        spare: list[logic.Puzzle] = []
        given = set() if self.config.source is None else canonical_keys(self.config.source)  # training problems

        def fits(candidate: logic.Puzzle) -> bool:
            key = logic.canonical_key(candidate)
            split = "train" if key in given else assign_split(key)
            if split != "train" and not spare:
                spare.append(candidate)
            return split == required_split

        changed = perturb.changed(puzzle, self.config.depth, rng, fits, width=self.config.width)
        return (spare[0], logic.solutions(spare[0])[0]) if changed is None and spare else changed

    def _roles(self, task: Task) -> puzzle_text.Roles:
        """Return the role words of this task, which a copy may exchange."""
        first, second = task.public.get("roles", self.config.roles)
        return first, second

    # -- student -----------------------------------------------------------------------------------------------
    def system_prompt(self) -> str:
        """How to answer, with an example about people who occur in no puzzle."""
        think = "Reason in <think>…</think> first. " if self.config.think else ""
        example = puzzle_text.answer_text(puzzle_text.EXAMPLE_NAMES, self._example())
        return f"{think}Give everyone's role, as in {wrap_answer(example)}."

    def _example(self) -> dict[str, str]:
        return dict(zip(puzzle_text.EXAMPLE_NAMES, self.config.roles, strict=True))

    def prompt(self, public: TaskData) -> str:
        return public["text"]

    def hint_names(self, task: Task) -> tuple[str, ...]:
        """The people in the order of the problem."""
        return tuple(task.public["people"])

    # -- verifier ----------------------------------------------------------------------------------------------
    def parse(self, task: Task, text: str) -> str | None:
        """Parse the roles of all people, each exactly once, and nothing else; see `text.parse_answer`."""
        if len(text) > MAX_ATTEMPT_CHARS:
            return None
        assigned = puzzle_text.parse_answer(text, task.public["people"], self.config.roles)
        return None if assigned is None else puzzle_text.normal_form(assigned)

    def score_parsed(self, task: Task, parsed: str) -> Verdict:
        """Score: the fraction of people whose role is correct. Distance: the fraction of the others."""
        attempted, gold = self._assigned(task, parsed), self._assigned(task, self.gold_answer(task))
        correct = tuple(name for name in task.public["people"] if attempted[name] == gold[name])
        wrong = [name for name in task.public["people"] if name not in correct]
        return Verdict(
            correct=not wrong,
            score=len(correct) / len(gold),
            parsed=puzzle_text.normal_form(attempted),
            detail=f"{len(correct)} of {len(gold)} people are right"
            + (f"; wrong: {', '.join(wrong)}" if wrong else ""),
            well_formed=True,
            distance=len(wrong) / len(gold),
            parts={name: attempted[name] for name in task.public["people"]},
            correct_parts=correct,
        )

    def verify(self, task: Task, attempt: str) -> Verdict:
        """Mark an attempt without reasoning before the answer as not well-formed, if `think` is set."""
        verdict = super().verify(task, attempt)
        if not self.config.think or not verdict.well_formed:
            return verdict
        problem = think_problem(attempt, task.public["text"], task.public["people"])
        if problem is None:
            return verdict
        return verdict.model_copy(update={"well_formed": False, "detail": f"{verdict.detail}; {problem}"})

    def _assigned(self, task: Task, text: str) -> dict[str, str]:
        return puzzle_text.parse_answer(text, task.public["people"], self.config.roles) or {}

    def _bits(self, task: Task, text: str) -> int:
        return _to_bits(task.public["people"], self._assigned(task, text), self._roles(task))

    def _tried(self, task: Task, attempts: Sequence[Verdict]) -> list[int]:
        """Return the attempts that could be parsed, oldest first."""
        return [self._bits(task, verdict.parsed) for verdict in attempts if verdict.parsed is not None]

    def worked_solution(self, task: Task) -> str | None:
        """Try one assignment of roles after the other until all claims fit; see `worked_solutions`.

        None if the statements could not be parsed.
        """
        puzzle, people = logic.as_puzzle(task.public["statements"]), task.public["people"]
        if not puzzle:
            return None
        steps = worked_solution(puzzle, people, self.config.roles)
        answer = wrap_answer(puzzle_text.answer_text(people, self._assigned(task, self.gold_answer(task))))
        return f"<think>{steps}</think>{answer}" if self.config.think else f"{steps} {answer}"

    # -- scripted teacher --------------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Name the first person whose statement contradicts the last attempt, and the number of wrong people.

        The person follows from the problem and the attempt.  The count does not, so its precision leaves at least two
        untried answers open (`hint_counts`).
        """
        if last_parsed(attempts) is None:
            return self._unreadable()
        tried = self._tried(task, attempts)
        count_range, _ = hint_counts(len(task.public["people"]), self._bits(task, self.gold_answer(task)), tried)[-1]
        puzzle = logic.as_puzzle(task.public["statements"])
        return _hint_text(task, logic.first_contradicted(puzzle, tried[-1]), count_range)

    def _unreadable(self) -> str:
        first, second = map(puzzle_text.article, self.config.roles)
        return f"Your answer could not be read. Call each person once either {first} or {second}."

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Name a person whose statement fits the last attempt, with a false count if the true hint has one.

        If no statement fits, name any person with a false count.
        """
        people = task.public["people"]
        if last_parsed(attempts) is None:
            return _hint_text(task, rng.randrange(len(people)), None)
        puzzle, tried = logic.as_puzzle(task.public["statements"]), self._tried(task, attempts)
        solution = self._bits(task, self.gold_answer(task))
        fitting = [i for i in range(len(puzzle)) if logic.fits(puzzle, i, tried[-1])]
        count_range, groups = hint_counts(len(people), solution, tried)[-1]
        others = [group for group in groups if group != count_range] if len(groups) > 1 else []
        count = rng.choice(others) if others else None
        if not fitting and count is None:
            count = false_count(len(people), solution, tried[-1], rng)
        named = rng.choice(fitting or list(range(len(puzzle)))) if puzzle else None
        return _hint_text(task, named, count)

    def claim_agreement(self, task: Task, before: Verdict, hint: str, attempt: Verdict) -> float | None:
        """See `false_claims.claim_agreement`."""
        puzzle = logic.as_puzzle(task.public["statements"])
        return claim_agreement(task.public["people"], puzzle, before, hint, attempt)

    # -- simulated student -------------------------------------------------------------------------------------
    def simulate_attempt(
        self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow_hint: bool, correct: bool
    ) -> str:
        """Start, equally often, with one wrong role or any wrong assignment.

        With `follow_hint`, the next attempt is untried and fits the named person's statement and the count; it is
        correct only if nothing else is left.  Otherwise it is any wrong assignment except the last.
        """
        people, roles = task.public["people"], self._roles(task)
        solution = self._bits(task, self.gold_answer(task))
        guess = solution if correct else self._guess(task, solution, attempts, rng, follow_hint)
        answer = puzzle_text.answer_text(people, _to_roles(people, guess, roles))
        if not self.config.think:
            return wrap_answer(answer)
        puzzle = logic.as_puzzle(task.public["statements"])
        checks = [
            f" Then what {people[i]} says is {'true' if guess >> i & 1 else 'false'}, which fits."
            for i in range(len(puzzle))
            if logic.fits(puzzle, i, guess)
        ]
        return f"<think>Suppose {answer}.{''.join(checks)}</think>{wrap_answer(answer)}"

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
            count_range, _ = hint_counts(len(people), solution, tried)[-1]
            low, high = count_range or (0, len(people))
            options = [
                a
                for a in options
                if (named is None or logic.fits(puzzle, named, a)) and low <= (a ^ tried[-1]).bit_count() <= high
            ]
        return rng.choice([a for a in options if a != solution] or options or wrong)

    # -- information in a hint ---------------------------------------------------------------------------------
    def answer_space(self, task: Task) -> Region:
        """All 2ⁿ assignments of roles, whether or not they agree with the puzzle's statements."""
        return one_of(ROLES, range(2 ** len(task.public["people"])))

    def answer_values(self, task: Task, parsed: str) -> Candidate:
        return {ROLES: self._bits(task, parsed)}

    def hint_statements(self, task: Task, attempts: Sequence[Verdict], hint: str) -> tuple[Region, ...] | None:
        """See `hint_statements`; the statements of the puzzle were ignored before."""
        if hint == self._unreadable():
            return ()
        tried = self._tried(task, attempts[-1:])
        return hint_statements(hint, task.public["people"], logic.as_puzzle(task.public["statements"]), tried)

    # -- reference lines ---------------------------------------------------------------------------------------
    def constant_baseline(self) -> ConstantBaseline:
        """The best constant pattern of roles in order of speaking, and the fraction of test tasks it solves.

        Names differ between puzzles, so no constant text is correct.  Measured on `BASELINE_TASKS` test tasks: the most
        frequent pattern of the first half, counted in the second.  By construction each pattern has 2⁻ⁿ of the puzzles
        with n people.
        """
        return _measure_baseline(self.config)

    # -- leak detection ----------------------------------------------------------------------------------------
    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        """Spans that give everybody a role, in any wording of `asserted_roles`."""
        return full_assignments(text, task.public["people"], self._roles(task))

    def stated_parts(self, task: Task, text: str) -> list[tuple[int, int, str, str]]:
        return stated_roles(text, task.public["people"], self._roles(task))

    def student_parts(self, task: Task, parsed: Sequence[str]) -> set[tuple[str, str]]:
        """The roles of the last attempt, because there are only two."""
        return super().student_parts(task, parsed[-1:])


def _to_roles(people: Sequence[str], assignment: int, roles: puzzle_text.Roles) -> dict[str, str]:
    return {name: roles[0] if assignment >> i & 1 else roles[1] for i, name in enumerate(people)}


def _to_bits(people: Sequence[str], assigned: dict[str, str], roles: puzzle_text.Roles) -> int:
    return sum(1 << i for i, name in enumerate(people) if assigned[name] == roles[0])


def _by_appearance(task: Task) -> list[str]:
    text = task.public["text"].casefold()
    return sorted(task.public["people"], key=lambda name: (text.find(name.casefold()), name))


def _hint_text(task: Task, named: int | None, count: Count | None) -> str:
    people = task.public["people"]
    parts = [] if named is None else [blame(people[named])]
    if count is not None:
        low, high = count
        number = str(low) if low == high else f"{low} to {high}"
        parts.append(f"{number} of {len(people)} people {'is' if high == 1 else 'are'} wrong.")
    return " ".join(parts) or CONTENTLESS


@lru_cache(maxsize=32)
def _generated(config: KnightsKnaves.Config) -> list[Task]:
    """Return the configured number of distinct training puzzles."""
    endless = KnightsKnaves(config.model_copy(update={"problems": None}))
    tasks = distinct_tasks(endless, "train", config.problems or 0)
    if len(tasks) < (config.problems or 0):
        raise DataError(
            f"There are only {len(tasks)} distinct training puzzles.",
            value=config.problems,
            fix="Choose fewer problems, more people, or depth 3.",
        )
    return tasks


@lru_cache(maxsize=32)
def _measure_baseline(config: KnightsKnaves.Config) -> ConstantBaseline:
    environment = KnightsKnaves(config)
    patterns = [environment.drawn("test", index) for index in range(BASELINE_TASKS)]
    half = BASELINE_TASKS // 2
    n, best = min(Counter(patterns[:half]).items(), key=lambda item: (-item[1], item[0]))[0]
    share = patterns[half:].count((n, best)) / len(patterns[half:])
    roles = [config.roles[0] if best >> i & 1 else config.roles[1] for i in range(n)]
    return ConstantBaseline(f"in order of speaking: {', '.join(map(puzzle_text.article, roles))}", share)
