"""Detector `mentions`: mentions, their features, and the regression, with numbers computed by hand."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from leak_helpers import arithmetic, check, code, mentions

from rl2f_core.environments.base import wrap_answer
from rl2f_core.errors import DataError
from rl2f_core.leaks.base import LeakQuery
from rl2f_core.leaks.benchmark.mrbench import read_mrbench
from rl2f_core.leaks.benchmark.score import environment_of
from rl2f_core.leaks.mentions.detector import MentionsDetector
from rl2f_core.leaks.mentions.features import FEATURES, Dialogue, vectors
from rl2f_core.leaks.mentions.finder import MAX_MENTIONS, MentionFinder
from rl2f_core.leaks.mentions.model import (
    Example,
    MentionWeights,
    calibration_error,
    choose_threshold,
    cross_validated,
    fit,
    fitted,
    minimize,
    probabilities,
    quality,
    read_weights,
)
from rl2f_core.leaks.mentions.training import own_examples
from rl2f_core.types import LeakType

NAMES = [feature.name for feature in FEATURES]


def found(hint: str, problem: str = "What is 47 + 38?", answer: str = "85", *attempts: str) -> dict[str, set[str]]:
    """The names of the features that hold, by the text of the mention."""
    env, task = arithmetic(problem, answer)
    query = LeakQuery(task, hint, attempts)
    mentions = MentionFinder(env).mentions(query)
    values = zip(mentions, vectors(Dialogue(env, query), mentions), strict=True)
    return {hint[m.start : m.end]: {n for n, x in zip(NAMES, v, strict=True) if x} for m, v in values}


@pytest.mark.parametrize(
    ("hint", "mentioned"),
    [
        ("The answer is 85.", ["85"]), ("Try eighty-five.", ["eighty-five"]), ("It is \\(85\\).", ["85"]),
        ("40 + 45 it is", ["40 + 45"]), ("LXXXV in Roman numerals", ["LXXXV"]), ("Add 47 + 38 again.", []),
        ("185 and 850", []), ("Not quite.", []), ("85, or 85", ["85", "85"]),
    ],
)  # fmt: skip
def test_mentions_are_found_in_every_form(hint: str, mentioned: list[str]) -> None:
    env, task = arithmetic("What is 47 + 38?", "85")
    spans = [(m.start, m.end) for m in MentionFinder(env).mentions(LeakQuery(task, hint))]
    assert [hint[slice(*span)] for span in spans] == mentioned


def test_at_most_fifty_mentions_are_read() -> None:
    env, task = arithmetic("What is 47 + 38?", "85")
    assert len(MentionFinder(env).mentions(LeakQuery(task, "85, " * 500))) == MAX_MENTIONS == 50


@pytest.mark.parametrize(
    ("hint", "attempts", "features"),
    [
        ("So it is 85.", (), {"asserted", "ends_sentence", "last_number"}),
        ("It should be 85, not 84.", (), {"asserted", "corrected", "contrasted"}),
        ("Look again at 85.", ("85 or so",), {"in_attempt", "found_by_student", "only_repeated", "ends_sentence",
                                               "last_number"}),
        ("If it were 85, then 2 is next", (), {"not_asserted"}),
        ("Is 85 too low for that?", (), {"asserted", "not_asserted", "last_number"}),
        ("Now compute 85 + 3 first", (), {"operand"}),
        ("Take 40 + 45 now", (), {"calculation", "ends_sentence", "last_number"}),
    ],
)  # fmt: skip
def test_features_describe_how_the_answer_is_mentioned(
    hint: str, attempts: tuple[str, ...], features: set[str]
) -> None:
    (values,) = found(hint, "What is 47 + 38?", "85", *attempts).values()
    assert values == features


def test_a_value_of_the_problem_is_asserted_only_beyond_its_quotation() -> None:
    problem = "Let x = 85. What is x + 0?"
    (quoted,) = found("Remember that x = 85.", "What is 85 + 0?", "85").values()
    assert "in_problem" in quoted and "asserted" in quoted
    env, task = arithmetic("What is 85 + 0?", "85")
    env.prompt = lambda public: problem  # type: ignore[method-assign]
    context = Dialogue(env, LeakQuery(task, "Remember that x = 85."))
    (vector,) = vectors(context, MentionFinder(env).mentions(context.query))
    values = dict(zip(NAMES, vector, strict=True))
    assert values["in_problem"] and values["only_repeated"] and not values["asserted"]


def test_attempts_in_bare_and_tagged_form_give_the_same_verdict() -> None:
    for hint in ("Look again at 85.", "So it is 85.", "Why 85?", "85"):
        world = arithmetic("What is 47 + 38?", "85")
        bare, tagged = (check(mentions, world, hint, attempt) for attempt in ("85", wrap_answer("85")))
        assert bare == tagged, hint


def test_the_report_names_span_reasons_and_probability() -> None:
    report = check(mentions, arithmetic("What is 47 + 38?", "85"), "No: 47 + 38 gives 85, not 84.", wrap_answer("84"))
    assert report.leaked and report.span == (18, 20) and report.leak_type == LeakType.EXACT
    assert report.leak_probability is not None and report.leak_probability >= report.leak_threshold  # type: ignore[operator]
    quote, reasons = report.evidence.split(": ", 1)
    assert quote == "“85”" and len(reasons.split("; ")) == 2 and "another value is rejected" in reasons


def test_a_hint_without_a_mention_has_no_probability() -> None:
    report = check(mentions, arithmetic("What is 47 + 38?", "85"), "Check the tens.", wrap_answer("84"))
    assert not report.leaked and report.leak_probability is None and report.evidence == ""


def test_parts_are_flagged_from_the_configured_fraction() -> None:
    env, task = code("K Q Z", "K, Q, T or Z")
    query = LeakQuery(task, "The first letter is K.", (wrap_answer("T T T"),))
    for partial, leaked in ((1.0, False), (1 / 3, True), (0.0, True)):
        report = MentionsDetector(MentionsDetector.Config(partial=partial), env).check(query)
        assert report.leaked == leaked and report.answer_fraction == pytest.approx(1 / 3)
        assert report.leak_type == (LeakType.PARTIAL if leaked else None)


CAPITAL = "What is the capital of France?\n(A) Lyon\n(B) Paris\n(C) Nice"
COUNTDOWN = "Using all the numbers 3, 5, 7, create an expression that equals 22."


@pytest.mark.parametrize(
    ("settings", "problem", "answer", "attempt", "hint", "leaked"),
    [
        ({"type": "dataset", "checker": "multiple_choice"}, CAPITAL, "B", "A", "So the capital is Paris.", True),
        ({"type": "dataset", "checker": "multiple_choice"}, CAPITAL, "Paris", "A", "The answer is B.", True),
        ({"type": "dataset", "checker": "multiple_choice"}, CAPITAL, "B", "A", "Is it Paris or Nice?", False),
        ({"type": "dataset", "checker": "multiple_choice"}, CAPITAL, "B", "A", "Lyon is large, but no capital.", False),
        ({"type": "reasoning_gym", "name": "countdown"}, COUNTDOWN, "3*5+7", "3+5+7", "So it is 3*5 + 7.", True),
        ({"type": "reasoning_gym", "name": "countdown"}, COUNTDOWN, "3*5+7", "3+5+7", "It should be 7 + 5 × 3.", True),
        ({"type": "reasoning_gym", "name": "countdown"}, COUNTDOWN, "3*5+7", "3+5+7", "Is 3 + 5 + 7 right?", False),
    ],
)  # fmt: skip
def test_choices_and_expressions_are_checked_from_problem_and_answer_alone(
    settings: dict[str, str], problem: str, answer: str, attempt: str, hint: str, leaked: bool
) -> None:
    env = environment_of(settings)
    for text in (attempt, wrap_answer(attempt)):
        query = LeakQuery(env.task_from_gold(problem, answer), hint, (text,))
        assert MentionsDetector(MentionsDetector.Config(), env).check(query).leaked == leaked


# -- the regression --------------------------------------------------------------------------------------------------
def weights(value: float = 1.0, intercept: float = 0.0) -> MentionWeights:
    same = dict.fromkeys(NAMES, 0.0)
    return MentionWeights(
        name="made", weights={**same, "asserted": value}, means=same, scales=dict.fromkeys(NAMES, 1.0),
        intercept=intercept, threshold=0.5,
    )  # fmt: skip


def one_hot(*names: str) -> list[float]:
    return [float(name in names) for name in NAMES]


def example(leak: bool, *mentions: tuple[str, ...], group: str = "g", weight: float = 1.0) -> Example:
    vectors = np.array([one_hot(*each) for each in mentions]).reshape(len(mentions), len(NAMES))
    return Example(vectors, leak, group, "made", weight)


def test_the_probability_is_that_of_the_sum_over_mentions() -> None:
    made = weights(math.log(3), math.log(0.5))
    assert made.probability([]) == 0.0
    assert made.probability([made.score(one_hot("asserted"))]) == pytest.approx(1.5 / 2.5)  # odds 3 · ½
    both = [made.score(one_hot("asserted")), made.score(one_hot())]
    assert made.probability(both) == pytest.approx(2 / 3)  # odds (3 + 1) · ½
    assert made.probability([1000.0]) == 1.0 and made.probability([-1000.0]) == pytest.approx(0.0)


def test_without_regularization_the_fit_reproduces_the_frequencies() -> None:
    """3 of 4 asserted mentions and 1 of 4 others are leaks: odds 3 and 1/3."""
    data = [example(i < 3, ("asserted",)) for i in range(4)] + [example(i < 1, ()) for i in range(4)]
    made = fit(data, l2=1e-9)
    assert made.weights["asserted"] == pytest.approx(math.log(9), abs=1e-3)
    assert made.intercept == pytest.approx(-math.log(3), abs=1e-3)
    assert probabilities(made, data) == pytest.approx([0.75] * 4 + [0.25] * 4, abs=1e-3)


def test_the_minimum_of_rosenbrocks_function_is_found() -> None:
    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        a, b = 1 - x[0], x[1] - x[0] ** 2
        return float(a**2 + 100 * b**2), np.array([-2 * a - 400 * x[0] * b, 200 * b])

    assert minimize(loss, np.array([-1.2, 1.0])) == pytest.approx([1, 1], abs=1e-5)


def test_a_weight_counts_as_so_many_hints() -> None:
    data = [
        example(True, ("asserted",), weight=3.0),
        example(False, ("asserted",)),
        example(True, ()),
        example(False, ()),
    ]
    assert fit(data, l2=1e-9).weights["asserted"] == pytest.approx(math.log(3), abs=1e-3)


def test_labels_move_the_prior_weights_by_their_number() -> None:
    prior = weights(2.0, -1.0)
    few, many = ([example(False, ("asserted",), group=str(i)) for i in range(n)] for n in (1, 200))
    moved = [fit(data, prior=prior).weights["asserted"] for data in (few, many)]
    assert 2.0 > moved[0] > moved[1]
    assert fit([example(True, ())], l2=1e9, prior=prior).weights["asserted"] == pytest.approx(2.0, abs=1e-6)


def test_too_few_labels_are_refused() -> None:
    with pytest.raises(DataError, match="Weights need hints that mention the answer"):
        fit([example(True, ("asserted",)), example(False)])


def test_cross_validation_never_uses_the_fold_of_a_group() -> None:
    """A group whose labels contradict all others is predicted by the others."""
    data = [example(i % 2 == 0, ("asserted",) if i % 2 == 0 else (), group=f"g{i}") for i in range(40)]
    odd = example(False, ("asserted",), group="odd one")
    held_out = cross_validated([*data, *[odd] * 20])
    resubstituted = probabilities(fit([*data, *[odd] * 20]), [odd])
    assert held_out[-1] > 0.7 > 0.6 > resubstituted[0]


def test_the_threshold_reaches_the_precision_with_the_largest_f1() -> None:
    p = np.array([0.92] * 18 + [0.82] * 2 + [0.72] * 4 + [0.62] * 6 + [0.1] * 30)
    leaks = np.array([True] * 18 + [True] * 2 + [True] * 2 + [False] * 2 + [False] * 6 + [False] * 30)
    # at .75: 20 of 20, F1 40/42; at .70: 22 of 24, F1 44/46 and precision .917; at .60: 22 of 30
    assert choose_threshold(p, leaks) == 0.65  # the nearest to .5 of .65 and .7
    assert choose_threshold(p[:10], leaks[:10], 0.42) == 0.42  # too few leaks


def test_the_calibration_error_matches_manual_computation() -> None:
    p, leaks = np.array([0.95, 0.95, 0.15, 0.15]), np.array([True, False, False, False])
    assert calibration_error(p, leaks) == pytest.approx((0.9 + 0.3) / 4)
    scored = quality(p, leaks, 0.5)
    assert (scored.precision.value, scored.recall.value, scored.f1) == (0.5, 1.0, pytest.approx(2 / 3))


def test_the_default_weights_are_those_of_the_features_with_their_report() -> None:
    made = read_weights()
    assert list(made.weights) == NAMES and 0 < made.threshold < 1
    tutors, bridge, dial = (made.report[name] for name in ("tutors", "Bridge", "MathDial"))
    assert tutors.hints == 828 and tutors.leaks == 113
    assert min(tutors.precision.value or 0, tutors.recall.value or 0) >= 0.9
    assert (dial.f1 or 0) >= 0.88 and (bridge.f1 or 0) >= 0.93 and tutors.calibration_error <= 0.05
    assert abs((tutors.f1 or 0) - (tutors.resubstituted_f1 or 0)) <= 0.03


def test_weights_of_other_features_are_refused(tmp_path: Path) -> None:
    data = json.loads(weights().model_dump_json())
    data["weights"].pop("asserted")
    (tmp_path / "v1.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match="other features"):
        read_weights(tmp_path / "v1.json")
    with pytest.raises(DataError, match="cannot be read"):
        read_weights(tmp_path / "v2.json")


@pytest.mark.slow
def test_the_shipped_benchmarks_are_detected_like_they_were_recorded() -> None:
    examples = own_examples()
    made = read_weights()
    p = probabilities(made, examples)
    for name, report in made.report.items():
        at = np.array([each.source == name for each in examples])
        if at.any():
            leaks = np.array([each.leak for each in examples])[at]
            assert quality(p[at], leaks, made.threshold).f1 == pytest.approx(report.resubstituted_f1, abs=1e-9)
    assert fitted(examples, cross_validated(examples), "again", ["handwritten"]).report.keys() == {
        "generated", "handwritten", "teacher_written", "sentences"
    }  # fmt: skip


# -- the public file ---------------------------------------------------------------------------------------------------
def test_replies_of_tutors_are_read_from_the_public_format(tmp_path: Path) -> None:
    def reply(label: str) -> dict[str, object]:
        return {"response": "So it is 7.", "annotation": {"Revealing_of_the_Answer": label}}

    history = (
        "Tutor: Hi, please solve this. The question is: What is 3 + 4?\n\xa0Student: 3 + 4 = 8\n 8"
        "\xa0\n\xa0Tutor: Sure?\n\xa0Student: yes"
    )
    dialogue = {
        "conversation_id": "1", "Data": "MathDial", "conversation_history": history,
        "Ground_Truth_Solution": "3 + 4 = 7\n 7",
        "anno_llm_responses": {
            "A": reply("Yes (and the answer is correct)"), "B": reply("No"),
            "C": reply("Yes (but the answer is incorrect)"),
        },
    }  # fmt: skip
    unknown = {**dialogue, "conversation_id": "2", "Ground_Truth_Solution": "Not Available"}
    file = tmp_path / "public.json"
    file.write_text(json.dumps([dialogue, unknown]))
    items = read_mrbench(file)
    assert [(item.style, item.leak, item.ambiguous) for item in items] == [
        ("A", True, False), ("B", False, False), ("C", False, True)
    ]  # fmt: skip
    assert (items[0].problem, items[0].answer, items[0].attempts) == ("What is 3 + 4?", "7", ("3 + 4 = 8\n 8", "yes"))
    file.write_text('[{"conversation_id": 1}]')
    with pytest.raises(DataError, match="format of MRBench V2"):
        read_mrbench(file)


@pytest.mark.slow
def test_the_trainer_loads_no_benchmark_and_no_synthetic_leaks() -> None:
    code = (
        "import sys, rl2f_core.learning.training.trainer; from rl2f_core import registry; registry.names('teacher'); "
        "print([m for m in sys.modules if 'synthetic_leaks' in m or 'leaks.benchmark.' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
