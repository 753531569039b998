"""reasoning-gym's data sets as environments: names and levels, their own scorers, and what scorers must not do."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from rl2f_core.config.loading import dump_yaml, parse_config
from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.reasoning_gym.dataset_names import NAMES, UNUSABLE
from rl2f_core.environments.reasoning_gym.environment import ONE_NUMBER, ReasoningGym, says_more
from rl2f_core.environments.reasoning_gym.gsm_symbolic import GsmSymbolic
from rl2f_core.environments.sandbox.worker import is_safe_expression
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.types import SPLITS, Verdict

pytestmark = pytest.mark.xdist_group("workers")
FEW = ("chain_sum", "word_sorting", "countdown", "spiral_matrix", "fraction_simplification")
"""A number, words, an expression, a grid that the package reads by eval, and LaTeX."""


def made(name: str, **more: Any) -> ReasoningGym:
    return ReasoningGym(ReasoningGym.Config(name=name, **more))  # type: ignore[arg-type]


def config(environment: Any) -> Any:
    return parse_config({"environment": environment, "stages": [{"name": "s", "method": "sft", "steps": 1}]})


# -- names ---------------------------------------------------------------------------------------------------------
def test_the_short_type_is_the_type_and_the_name() -> None:
    short = config("reasoning_gym:gcd")
    assert short == config({"type": "reasoning_gym:gcd"}) == config({"type": "reasoning_gym", "name": "gcd"})
    assert short == config({"type": "reasoning_gym:gcd", "name": "gcd"})
    assert "type: reasoning_gym\n  name: gcd\n" in dump_yaml(short)
    for wrong in ({"type": "reasoning_gym:gcd", "name": "lcm"}, "reasoning_gym:chess", "arithmetic:gcd"):
        with pytest.raises(ConfigError):
            config(wrong)


def test_data_sets_that_make_no_environment_are_refused_with_the_reason() -> None:
    assert len(NAMES) + len(UNUSABLE) == 106 and not set(NAMES) & set(UNUSABLE)
    for name in UNUSABLE:
        with pytest.raises(ValidationError, match="cannot be an environment: "):
            made(name)
    with pytest.raises(ValidationError, match="seed cannot be set here"):
        made("gcd", settings={"seed": 3})


def test_the_form_shows_the_names_as_one_field() -> None:
    from app.forms import schema

    options = schema.options("environment")
    assert not any(":" in name for name in options)
    fields = {field["key"]: field for field in options["reasoning_gym"]["fields"]}
    assert fields["name"]["node"] == {"kind": "choice", "values": list(NAMES)} and fields["name"]["basic"]
    assert fields["settings"]["node"]["kind"] == "map"


def test_levels_and_settings_change_the_problems_and_wrong_ones_are_clear_errors() -> None:
    easy, hard = (made("chain_sum", level=level).task("test", 0) for level in (0, 3))
    assert easy.level == "chain_sum level 0" and len(easy.public["problem"]) < len(hard.public["problem"])
    task = made("chain_sum", settings={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}).task(
        "test", 0
    )
    assert len(task.privileged["answer"]) <= 2
    for more, said in (
        ({"level": 99}, "has levels 0 to 10, not 99"),
        ({"settings": {"foo": 1}}, "unexpected keyword argument 'foo'"),
        ({"settings": {"max_terms": 1}}, "max_terms must be >= min_terms"),
    ):
        with pytest.raises(DataError, match=said):
            made("chain_sum", **more).task("train", 0)  # type: ignore[arg-type]


# -- tasks and verdicts --------------------------------------------------------------------------------------------
def check_data_set(name: str, count: int) -> None:
    """Streams repeat and are disjoint, gold is right, wrong and hedged answers are not."""
    environment, keys = made(name), list[set[str]]()
    for split in SPLITS:
        tasks = [environment.task(split, i) for i in range(count)]
        assert tasks == [environment.task(split, i) for i in range(count)]
        keys.append({environment.canonical(task) for task in tasks})
        for index, task in enumerate(tasks):
            rng, gold = random.Random(index), environment.gold_answer(task)
            assert json.loads(task.model_dump_json()) and environment.verify(task, wrap_answer(gold)).correct, gold
            score, why = environment.source.scores([environment._scoring_job(task, gold)])[0]
            assert (score, why) == (1.0, ""), (gold, score, why)
            wrong = environment.verify(
                task, environment.simulate_attempt(task, [], rng, follow_hint=False, correct=False)
            )
            assert not wrong.correct and wrong.parsed is not None, wrong
            for said in (f"{gold} {gold}", f"{gold} or 0", f"I say {gold}", "zzz", "", "9" * 3000, f"{gold}\u200b"):
                found = environment.verify(task, wrap_answer(said))
                assert not found.correct, (said, found)
            assert environment.hint(task, [wrong], rng) != environment.misleading_hint(task, [wrong], rng)
    assert keys[0].isdisjoint(keys[1]) and keys[0].isdisjoint(keys[2]) and keys[1].isdisjoint(keys[2])


@pytest.mark.parametrize("name", FEW)
def test_a_few_data_sets_keep_to_their_scorers(name: str) -> None:
    check_data_set(name, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_data_set_keeps_to_its_scorer(name: str) -> None:
    check_data_set(name, 2)


def test_a_wrong_answer_never_scores_all_in_a_hint() -> None:
    env = ReasoningGym(ReasoningGym.Config(name="time_intervals"))
    near = Verdict(correct=False, score=0.9996, parsed="02:27:06")
    assert env.hint(env.task("train", 0), [near], random.Random(0)).endswith("It scores 0.99 of 1.")


@pytest.mark.parametrize("name", sorted(ONE_NUMBER))
def test_a_number_is_accepted_without_the_scorer_just_where_the_scorer_accepts_it(name: str) -> None:
    env = ReasoningGym(ReasoningGym.Config(name=name))  # type: ignore[arg-type]
    task = env.task("train", 0)
    gold = env.gold_answer(task)
    for said in (gold, f"+{gold}", f"{gold}.0", f"{gold}0", f"{gold}.01", f"-{gold}", "0", f"1{gold}", "", "none"):
        assert env.is_correct_answer(task, said) == env.verify(task, wrap_answer(said)).correct
    assert env.is_correct_answer(task, gold)


def test_another_right_answer_is_accepted_by_the_scorer() -> None:
    environment = made("countdown")
    task = environment.task("test", 0)
    gold = environment.gold_answer(task)
    assert environment.verify(task, wrap_answer(f"({gold})*1")).correct is False  # says the answer and more
    assert environment.verify(task, wrap_answer(gold.replace(" ", ""))).correct


@pytest.mark.parametrize("name", ["spiral_matrix", "string_insertion", "n_queens", "binary_matrix", "countdown",
                                  "puzzle24", "polynomial_multiplication", "simple_integration"])  # fmt: skip
@pytest.mark.slow
def test_no_scorer_runs_the_answer_as_code(name: str, tmp_path: Path) -> None:
    environment, mark = made(name), tmp_path / "mark"
    task = environment.task("test", 0)
    for said in (f"[open('{mark}','w')]", f"[__import__('os').system('touch {mark}')]",
                 f"x+__import__('os').system('touch {mark}')", f"Symbol('x').func(open('{mark}','w'))"):  # fmt: skip
        assert environment.source.scores([environment._scoring_job(task, said)])[0][0] < 1
        assert not environment.verify(task, wrap_answer(said)).correct
    assert not mark.exists()


def test_a_scorer_that_reads_a_list_by_eval_reads_it_without() -> None:
    environment = made("spiral_matrix")
    task = environment.task("test", 0)
    numbers = environment.gold_answer(task).split()
    listed = environment.verify(task, wrap_answer("[" + ", ".join(numbers) + "]"))
    assert not listed.correct and listed.score == 0.1  # the scorer's mark for the right list in the wrong form


def test_only_harmless_expressions_reach_a_parser_that_evaluates() -> None:
    assert all(is_safe_expression(said) for said in ("x**2 + 3*x + C", "sin(2*x)/4 - log(x)", "12*(3+4) - 0.5"))
    assert not any(
        is_safe_expression(s) for s in ("__import__('os')", "x.func", "lambda: 1", "open(x)", "[1]", "x;y", "eval(x)")
    )


def test_saying_the_answer_and_more_is_seen() -> None:
    assert says_more("7 or 8", "7") and says_more("I say [1, 2]", "[1, 2]") and says_more("a b a b", "a b")
    assert not says_more("17", "7") and not says_more("a b", "a b") and not says_more("b a", "a b")


def test_the_command_line_verifies_a_data_set_by_name(tmp_path: Path) -> None:
    from app.cli import app

    lines = [
        {"problem": "What is 1 + 2?", "answer": "3", "attempt": wrap_answer(said)} for said in ("3", "4", "3 or 4")
    ]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = CliRunner().invoke(app, ["verify", "reasoning_gym:chain_sum", str(file)])
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["correct"] for line in done.stdout.splitlines()] == [True, False, False]


def test_a_word_problem_brings_its_worked_solution_and_a_hint_that_says_which_side() -> None:
    environment = GsmSymbolic(GsmSymbolic.Config())
    task = environment.task("train", 0)
    assert "Give the result as your final answer" not in task.public["problem"]
    told = environment.worked_solution(task)
    assert told is not None and "####" not in told and environment.verify(task, told).correct
    given = environment.task_from_gold("How many pens?", "132")
    said = {n: environment.hint(given, [environment.verify(given, wrap_answer(n))], random.Random(0))
            for n in ("131", "20", "133.5", "1,000", "none")}  # fmt: skip
    assert said == {
        "131": "Too low, by a little.",
        "20": "Too low, by a lot.",
        "133.5": "Too high, by a little.",
        "1,000": "Too high, by a lot.",
        "none": "The answer is a number, and no number was found.",
    }
    distances = [environment.verify(given, wrap_answer(n)).distance for n in ("132", "142", "32", "999999")]
    assert distances == [0.0, 0.01, 0.1, 1.0]
