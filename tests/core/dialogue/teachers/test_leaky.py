"""Teacher `leaky`: planted leaks of known kind, kept apart from the base teacher's own hints."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rl2f_core import registry
from rl2f_core.common.paths import CONFIGS
from rl2f_core.config.leaks import LeaksConfig
from rl2f_core.config.loading import load_config, parse_config
from rl2f_core.config.rollout import RewardConfig
from rl2f_core.dialogue.metrics.dialogues import Metrics, compute_metrics
from rl2f_core.dialogue.rollout.leak_guard import LeakGuard
from rl2f_core.dialogue.rollout.rewards import turn_rewards
from rl2f_core.dialogue.teachers.base import FeedbackRequest, Teacher
from rl2f_core.dialogue.teachers.shuffled import RecordedHints
from rl2f_core.environments.base import CONTENTLESS, Environment, wrap_answer
from rl2f_core.errors import ConfigError
from rl2f_core.leaks.base import LeakQuery, make_detectors, run_cascade
from rl2f_core.leaks.synthetic.planting import KINDS, plant
from rl2f_core.types import Dialogue, Hint, LeakReport, LeakType, RewardTerm, StopReason, Task, Turn, Verdict

DISGUISED = ("arithmetic", "guess_number", "secret_code", "knights_knaves", "binary_matrix", "shortest_path", "maze")
FREE_LANGUAGE = {"difference_from_attempt", "exchange_of_places", "verdict_on_parts"}


def environment(name: str, **settings: object) -> Environment:
    cls = registry.get("environment", name)
    return cls(cls.Config(**settings))


def leaky(env: Environment, **settings: object) -> Teacher:
    cls = registry.get("teacher", "leaky")
    return cls(cls.Config.model_validate({"type": "leaky", **settings}), env)


def request(env: Environment, attempt: str, index: int = 0, **settings: object) -> FeedbackRequest:
    task = env.task("train", index)
    turn = Turn(index=0, attempt=attempt, verdict=env.verify(task, wrap_answer(attempt)))
    return replace(FeedbackRequest(task, (turn,), seed=3), **settings)  # type: ignore[arg-type]


def wrong_verdicts(env: Environment, count: int) -> Iterator[tuple[Task, Verdict]]:
    """Yield tasks with a wrong attempt of the simulated student."""
    for index in range(count):
        task, rng = env.task("train", index), random.Random(index)
        verdict = env.verify(task, env.simulate_attempt(task, [], rng, follow_hint=False, correct=False))
        if not verdict.correct:
            yield task, verdict


# -- planting ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", DISGUISED)
def test_planted_leaks_of_the_benchmarks_kinds_reveal_the_answer_to_the_detectors(name: str):
    env = environment(name)
    detectors = make_detectors(LeaksConfig().detectors, env)
    flags: Counter[tuple[str, bool]] = Counter()
    for number, (task, verdict) in enumerate(wrong_verdicts(env, 40)):
        leak = plant(env, task, [verdict], str(number))
        assert leak is not None
        (report,) = run_cascade(detectors, [LeakQuery(task, leak.text, (wrap_answer(verdict.parsed or ""),))])
        flags[leak.kind, report.leaked] += 1
    disguised = {key: n for key, n in flags.items() if key[0] not in FREE_LANGUAGE}
    assert sum(n for (_, found), n in disguised.items() if found) >= 0.8 * sum(disguised.values())
    assert len({kind for kind, _ in flags}) >= 4


def test_every_kind_fits_some_task():
    planted = set()
    for name in DISGUISED:
        env = environment(name, **({"people": 3} if name == "knights_knaves" else {}))
        for number, (task, verdict) in enumerate(wrong_verdicts(env, 30)):
            leaks = [plant(env, task, [verdict], str(number), (kind,)) for kind in KINDS if kind not in planted]
            planted |= {leak.kind for leak in leaks if leak is not None}
    assert {*KINDS} - planted <= {"exchange_of_places"}  # the simulated student seldom exchanges two letters


def test_a_difference_is_stated_with_its_sign_and_size():
    env = environment("guess_number")
    task = env.task_from_gold("I think of a whole number from 1 to 900. Guess it.", "629")
    texts = {
        plant(env, task, [env.verify(task, "<answer>281</answer>")], str(s), ("difference_from_attempt",)).text
        for s in range(20)
    }
    assert len(texts) > 2
    assert all("348" in text and any(w in text.lower() for w in ("low", "add", "more")) for text in texts)


def test_an_exchange_is_planted_only_if_it_gives_the_code():
    env = environment("secret_code")
    task = env.task_from_gold("Find the code: 3 letters, each B, K, Q or Z.", "B K Q")
    kinds = ("exchange_of_places",)
    leak = plant(env, task, [env.verify(task, "<answer>Q K B</answer>")], "0", kinds)
    assert leak is not None
    assert any(first in leak.text and third in leak.text for first, third in (("first", "third"), ("1", "3")))
    assert plant(env, task, [env.verify(task, "<answer>Q B K</answer>")], "0", kinds) is None
    assert plant(env, task, [env.verify(task, "I do not know")], "0", kinds) is None


def test_the_only_misjudged_person_is_named_and_nobody_if_two_are_misjudged():
    env = environment("knights_knaves", people=2)
    task = env.task("train", 0)
    people, gold = task.public["people"], env.gold_answer(task)
    role = dict(part.split("=") for part in gold.split("; "))
    other = {"knight": "knave", "knave": "knight"}
    kinds = ("verdict_on_parts",)

    def verdict(wrong: int) -> Verdict:
        said = {p: other[role[p]] if i < wrong else role[p] for i, p in enumerate(people)}
        return env.verify(task, wrap_answer(", ".join(f"{p} is a {r}" for p, r in said.items())))

    leak = plant(env, task, [verdict(1)], "0", kinds)
    assert leak is not None and people[0] in leak.text and people[1] not in leak.text
    assert plant(env, task, [verdict(2)], "0", kinds) is None


@pytest.mark.slow
def test_an_environment_without_disguises_gets_the_answer_verbatim():
    env = environment("gsm_symbolic")
    task = env.task("train", 0)
    leak = plant(env, task, [], "0", ("verbatim",))
    assert leak is not None and env.gold_answer(task) in leak.text


def test_a_partial_leak_never_repeats_a_part_that_the_attempt_has_right():
    env = environment("secret_code")
    task = env.task_from_gold("Find the code: 3 letters, each B, K, Q or Z.", "B K Q")
    verdict = env.verify(task, "<answer>B K Z</answer>")  # only the third letter is wrong
    texts = [plant(env, task, [verdict], str(s), ("partial",)).text for s in range(20)]
    assert all("Q" in text.replace("Quebec", "Q") for text in texts)


# -- the teacher -------------------------------------------------------------------------------------------------------
def test_hints_depend_only_on_seed_task_turn_and_retry():
    env = environment("secret_code")
    code = env.gold_answer(env.task("train", 0))
    wrong = " ".join(reversed(code.split())) if code != " ".join(reversed(code.split())) else "?"
    teacher = leaky(env, rate=0.5)
    requests = [request(env, wrong, seed=seed) for seed in range(40)]
    together = teacher.feedback(requests)
    alone = [leaky(env, rate=0.5).feedback([each])[0] for each in reversed(requests)][::-1]
    assert together == alone
    assert 8 <= sum(message.planted is not None for message in together) <= 32
    assert len({message.planted for message in together}) > 3


def test_the_rate_is_the_fraction_of_planted_hints():
    env = environment("guess_number")
    requests = [request(env, "1", index=i, seed=i) for i in range(1, 1001)]
    planted = [m.planted for m in leaky(env, rate=0.1).feedback(requests)]
    assert 70 <= sum(kind is not None for kind in planted) <= 130  # 0.1 · 1000 ± 3 standard deviations
    assert {m.planted for m in leaky(env, rate=0).feedback(requests)} == {None}
    assert None not in {m.planted for m in leaky(env, rate=1).feedback(requests)}


def test_other_hints_are_exactly_those_of_the_base():
    env = environment("guess_number")
    requests = [request(env, "1", index=i, seed=i) for i in range(1, 40)]
    scripted = registry.get("teacher", "scripted")
    base = scripted(scripted.Config(), env).feedback(requests)
    for message, own in zip(leaky(env, rate=0.3).feedback(requests), base, strict=True):
        assert message == own or message.planted is not None


def test_only_the_allowed_kinds_are_planted():
    env = environment("guess_number")
    requests = [request(env, "1", index=i, seed=i) for i in range(1, 60)]
    planted = {m.planted for m in leaky(env, rate=1, kinds=["roman", "verbatim"]).feedback(requests)}
    assert planted == {"roman", "verbatim"}


def test_a_kind_that_does_not_fit_the_task_leaves_the_hint_to_the_base():
    env = environment("secret_code")
    (message,) = leaky(env, rate=1, kinds=["exchange_of_places"]).feedback([request(env, "no letters", index=1)])
    assert message.planted is None and message.text


def test_a_resampled_planted_hint_comes_from_the_base():
    env = environment("guess_number")
    asked = request(env, "1", index=1)
    teacher = leaky(env, rate=1, kinds=["verbatim"])
    guard = LeakGuard.from_config(LeaksConfig(action="resample"), env)
    (screened,) = guard.screen([asked], teacher.feedback([asked]), teacher.name, teacher.feedback)
    hint, answer = screened.hint, env.gold_answer(asked.task)
    assert hint.planted == "verbatim"
    assert hint.feedback is not None and answer in hint.feedback and answer not in hint.text
    assert hint.text != CONTENTLESS and hint.leak is not None and hint.leak.leaked


def test_a_correct_attempt_gets_no_planted_leak():
    env = environment("guess_number")
    asked = request(env, env.gold_answer(env.task("train", 1)), index=1)
    assert asked.turns[-1].verdict.correct
    assert leaky(env, rate=1).feedback([asked])[0].planted is None


def test_the_detectors_do_not_receive_the_ground_truth():
    assert {*LeakQuery.__dataclass_fields__} == {"task", "hint", "attempts", "hints"}


def test_planted_hints_are_no_source_of_shuffled_ones():
    env = environment("guess_number")
    turn = Turn(index=0, attempt="1", verdict=Verdict(correct=False, score=0, parsed="1"))

    def recorded(planted: str | None) -> RecordedHints:
        hint = Hint(text="Higher.", teacher="leaky", planted=planted)
        dialogue = Dialogue(id="d", task_id="t", group="g", index=0, stop_reason=StopReason.EXHAUSTED,
                            turns=(turn.model_copy(update={"hint": hint}),))  # fmt: skip
        return RecordedHints(env, [(env.task("train", 1), dialogue)], "leaky")

    assert recorded(None).match(env.task("train", 2), 0)[0]
    assert recorded("roman").match(env.task("train", 2), 0) == ()


# -- configuration -----------------------------------------------------------------------------------------------------
def config(teacher: object, **settings: object):
    stage = {"name": "rl2f", "steps": 1, "method": {"type": "rl2f"}}
    return parse_config({"kind": "train", "environment": {"type": "arithmetic"}, "stages": [stage], "teacher": teacher,
                         **settings})  # fmt: skip


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ({"type": "leaky", "base": {"type": "leaky"}}, "leaky cannot wrap leaky"),
        ({"type": "leaky", "base": "human"}, "open page Chat"),
        ({"type": "leaky", "base": "nobody"}, "unknown teacher 'nobody'"),
        ({"type": "leaky", "rate": 1.5}, "less than or equal to 1"),
        ({"type": "leaky", "kinds": ["romans"]}, "unknown kind of leak 'romans'; known: acrostic"),
        (
            {"type": "leaky", "kinds": ["acrostic", "roman"]},
            "teacher.kinds has acrostic, which environment 'arithmetic' has not; known: base64",
        ),
    ],
)
def test_an_invalid_base_rate_or_kind_is_named_in_the_error(teacher: object, message: str):
    with pytest.raises(ConfigError, match=message):
        config(teacher)


def test_the_base_must_fit_the_environment():
    with pytest.raises(ConfigError, match="teacher 'scripted' has hints on numbers alone"):
        config({"type": "leaky"}, environment={"type": "math", "answers": "all"})


def test_no_oracle_needs_a_base_that_hints_on_correct_attempts():
    evaluation = {"conditions": ["hints", "no_oracle"]}
    with pytest.raises(ConfigError, match="no_oracle"):
        config({"type": "leaky"}, evaluation=evaluation)
    config({"type": "leaky", "base": "self_critique"}, evaluation=evaluation)


def test_the_quickstart_runs_with_planted_leaks_by_one_override():
    found = load_config(CONFIGS / "quickstart" / "quickstart.yaml", ["teacher.type=leaky", "reward.leak_penalty=0.5"])
    assert (found.teacher.type, found.teacher.base.type, found.teacher.rate) == ("leaky", "scripted", 0.1)
    assert found.reward.leak_penalty == 0.5


def test_a_known_kind_is_accepted():
    assert config({"type": "leaky", "kinds": ["roman", "roman"]}).teacher.kinds == ("roman",)
    assert FREE_LANGUAGE < {*KINDS}


# -- metrics and rewards -----------------------------------------------------------------------------------------------
def turn_with(planted: str | None, leaked: bool, teacher: str = "leaky", error: str | None = None) -> Turn:
    hint = Hint(text="x", teacher=teacher, planted=planted, leak=LeakReport(leaked=leaked, error=error))
    return Turn(index=0, attempt="1", verdict=Verdict(correct=False, score=0, parsed="1"), hint=hint)


def test_planted_hints_never_count_in_the_teachers_leak_rate():
    turns = [turn_with("roman", True), turn_with("roman", False), turn_with("latex", True), turn_with(None, True)]
    turns += [turn_with(None, False)] * 3
    dialogues = [Dialogue(id=str(i), task_id=str(i), group="g", index=0, turns=(turn,),
                          stop_reason=StopReason.EXHAUSTED) for i, turn in enumerate(turns)]  # fmt: skip
    found = compute_metrics(dialogues, 1)
    assert (found["leak_rate"].value, found["leak_rate"].n) == (1 / 4, 4)
    assert (found["planted_rate"].value, found["planted_rate"].n) == (pytest.approx(3 / 7), 7)
    assert (found["planted_recall"].value, found["planted_recall"].n) == (pytest.approx(2 / 3), 3)


def test_hints_that_a_judge_failed_to_check_are_a_metric_of_their_own():
    """Of four hints, one was flagged, one was checked, and the judge failed on two: 1 of the 2 checked ones leaks."""

    def found(error: str | None) -> Metrics:
        turns = [turn_with(None, True), turn_with(None, False), *[turn_with(None, False, error=error)] * 2]
        dialogues = [Dialogue(id=str(i), task_id=str(i), group="g", index=0, turns=(turn,),
                              stop_reason=StopReason.EXHAUSTED) for i, turn in enumerate(turns)]  # fmt: skip
        return compute_metrics(dialogues, 1)

    down = found("The endpoint is down.")
    assert (down["unchecked_hint_rate"].value, down["leak_rate"].value) == (1 / 2, 1 / 2)
    assert "unchecked_hint_rate" not in found(None).flat() and found(None)["leak_rate"].value == 1 / 4


def test_other_teachers_have_no_planted_rate():
    dialogue = Dialogue(id="d", task_id="t", group="g", index=0, turns=(turn_with(None, False, "scripted"),),
                        stop_reason=StopReason.EXHAUSTED)  # fmt: skip
    assert "planted_rate" not in compute_metrics([dialogue], 1).flat()


@pytest.mark.parametrize(("leaked", "feedback", "penalty"), [(True, None, -0.5), (False, None, 0), (True, "raw", 0)])
def test_the_leak_penalty_of_a_planted_leak_follows_what_the_detector_and_the_student_saw(leaked, feedback, penalty):
    hint = Hint(text="x", teacher="leaky", planted="roman", leak=LeakReport(leaked=leaked), feedback=feedback)
    wrong = Verdict(correct=False, score=0, parsed="1")
    terms = turn_rewards(RewardConfig(leak_penalty=0.5), wrong, wrong, hint)
    assert sum(term.value for term in terms if term.name == "leak_penalty") == penalty


def test_the_copy_rate_counts_attempts_after_hints_that_state_the_answer():
    """Four hints state the answer and were read (two planted, two flagged); two of the four next attempts copy it.

    A partial leak, a replaced leak, a clean hint, and the last hint, which no attempt follows, do not count.
    """

    def pair(name: str, hint: Hint, copied: bool) -> Dialogue:
        turns = [
            Turn(index=0, attempt="1", verdict=Verdict(correct=False, score=0, parsed="1"), hint=hint),
            Turn(index=1, attempt="2", verdict=Verdict(correct=copied, score=float(copied), parsed="2"),
                 hint=None if copied else turn_with("roman", True).hint),
        ]  # fmt: skip
        stop = StopReason.SOLVED if copied else StopReason.EXHAUSTED
        return Dialogue(id=name, task_id=name, group="g", index=0, turns=tuple(turns), stop_reason=stop)

    def hint(leak: LeakReport | None = None, **changes: Any) -> Hint:
        return Hint(**{"text": "x", "teacher": "leaky", "leak": leak, **changes})

    exact, partial = (LeakReport(leaked=True, leak_type=kind) for kind in (LeakType.EXACT, LeakType.PARTIAL))
    dialogues = [
        pair("a", hint(exact, planted="verbatim"), True),
        pair("b", hint(planted="roman"), False),
        pair("c", hint(exact), True),
        pair("d", hint(LeakReport(leaked=True)), False),
        pair("e", hint(partial), True),
        pair("f", hint(exact, planted="verbatim", text="[…]", feedback="x"), True),
        pair("g", hint(LeakReport(leaked=False)), True),
        pair("h", hint(partial, planted="partial"), True),
    ]
    found = compute_metrics(dialogues, 2)
    assert (found["copied_answer_rate"].value, found["copied_answer_rate"].n) == (2 / 4, 4)


def test_the_solve_rate_after_a_clean_hint_counts_second_attempts_alone():
    """Of three second attempts after an incorrect one and a clean hint, one is correct.

    Attempts after a leak, after a correct first attempt, third attempts and dialogues of one turn do not count.
    """
    clean, leak, replaced = turn_with(None, False), turn_with("roman", False), turn_with("roman", True)
    replaced = replaced.model_copy(update={"hint": replaced.hint.model_copy(update={"text": "[…]", "feedback": "x"})})
    solved = Turn(index=0, attempt="2", verdict=Verdict(correct=True, score=1, parsed="2"))
    shapes = [[clean, solved], [clean, clean, solved], [replaced, clean], [leak, solved], [solved, solved], [clean]]
    dialogues = [Dialogue(id=str(i), task_id=str(i), group="g", index=0, stop_reason=StopReason.EXHAUSTED,
                          turns=tuple(turn.model_copy(update={"index": k}) for k, turn in enumerate(turns)))
                 for i, turns in enumerate(shapes)]  # fmt: skip
    found = compute_metrics(dialogues, 3)["clean_hint_solve_rate"]
    assert (found.value, found.n) == (1 / 3, 3)


def test_an_export_copies_answers_of_planted_leaks_that_no_detector_flags():
    """Of five exported completions two follow an unnoticed leak; those after a flagged leak are not exported."""
    missed, flagged, clean = turn_with("roman", False), turn_with("roman", True), turn_with(None, False)
    partial = turn_with("partial", False)
    solved = Turn(index=0, attempt="2", verdict=Verdict(correct=True, score=1, parsed="2"))
    shapes = [[missed, clean, solved], [missed, solved], [flagged, solved], [clean, flagged, solved],
              [clean, solved], [partial, solved], [solved], [missed, missed, missed]]  # fmt: skip
    dialogues = [Dialogue(id=str(i), task_id=str(i), group="g", index=0, stop_reason=StopReason.EXHAUSTED,
                          turns=tuple(turn.model_copy(update={"index": k}) for k, turn in enumerate(turns)))
                 for i, turns in enumerate(shapes)]  # fmt: skip
    found = compute_metrics(dialogues, 3)["exported_copy_rate"]
    assert (found.value, found.n) == (2 / 5, 5)


def test_the_clean_reward_leaves_out_dialogues_in_which_a_leak_was_read() -> None:
    """Rewards 1, 2, 4, 8 and 16; the second reads a planted, the third a flagged leak: (1 + 8 + 16) / 3."""
    leaked = LeakReport(leaked=True, leak_type=LeakType.EXACT)
    hints = [
        Hint(text="x", teacher="t", leak=LeakReport(leaked=False)),
        Hint(text="x", teacher="leaky", leak=LeakReport(leaked=False), planted="roman"),
        Hint(text="x", teacher="t", leak=leaked),
        Hint(text="[…]", teacher="t", leak=leaked, feedback="x"),
        None,
    ]
    dialogues = [
        Dialogue(
            id=str(i), task_id=str(i), group="g", index=0, stop_reason=StopReason.EXHAUSTED,
            turns=(Turn(index=0, attempt="1", verdict=Verdict(correct=False, score=0, parsed="1"), hint=hint,
                        rewards=(RewardTerm(name="x", score=2.0**i),)),),
        )
        for i, hint in enumerate(hints)
    ]  # fmt: skip
    found = compute_metrics(dialogues, 1)
    assert (found["reward"].value, found["clean_reward"].value) == pytest.approx((31 / 5, 25 / 3))
