"""Detector `classifier`: facts, augmentation, threshold, training and reports."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from leak_helpers import arithmetic, code

from rl2f_core.config.leaks import LeaksConfig
from rl2f_core.environments.knights_knaves.environment import KnightsKnaves
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.leaks.base import LeakQuery, run_cascade
from rl2f_core.leaks.classifier import examples as sources
from rl2f_core.leaks.classifier.augment import augment, rename, shift, transplant, typos
from rl2f_core.leaks.classifier.detector import ClassifierDetector, find_span
from rl2f_core.leaks.classifier.examples import Example, generated, handwritten, scripted
from rl2f_core.leaks.classifier.facts import answer_facts, mention_facts, told_fact
from rl2f_core.leaks.classifier.operations import operations
from rl2f_core.leaks.classifier.quality import choose_threshold, make_report
from rl2f_core.leaks.classifier.rendering import Encoding, encode, render
from rl2f_core.leaks.classifier.stored import DETECTOR, new_version, read_detector, trained_detectors
from rl2f_core.leaks.classifier.train import TrainingConfig, split, train, training_set
from rl2f_core.leaks.guard import make_detectors
from rl2f_core.modeling.sequence_classifier import HEAD_FILE, ClassifierShape, Features, SequenceClassifier
from rl2f_core.types import LeakType

SUM = ("What is 73 + 79?", "152")


def example(problem: str, answer: str, attempt: str, hint: str, leak: bool, **fields: object) -> Example:
    env, task = arithmetic(problem, answer)
    query = LeakQuery(task, hint, (f"<answer>{attempt}</answer>",))
    return replace(Example(env, query, leak, "kind", sources.HANDWRITTEN, problem), **fields)


# -- facts -------------------------------------------------------------------------------------------------------------
def test_facts_of_a_number_state_difference_digits_and_parity() -> None:
    env, task = arithmetic(*SUM)
    facts = answer_facts(env, task, ("<answer>252</answer>",))
    # 152 − 252 = −100; the hundreds digit differs; 1 + 5 + 2 = 8
    assert facts == "even; digit sum 8; try - 100 is the answer; try wrong hundreds 2>1; try right ones, tens"


def test_facts_state_a_simple_ratio_and_the_reversed_digits() -> None:
    assert "try x 3 is the answer" in answer_facts(*arithmetic("30 + 33", "63"), ("<answer>21</answer>",))
    assert "try reversed" in answer_facts(*arithmetic("30 + 33", "63"), ("<answer>36</answer>",))


def test_facts_of_a_code_state_which_letters_differ() -> None:
    env, task = code("E B D B", "B, D, E or F")
    facts = answer_facts(env, task, ("<answer>F F F F</answer>", "<answer>E D D D</answer>"))
    assert "try 1 right none" in facts
    assert facts.endswith("try 2 wrong 2 D>B, 4 D>B; try 2 right 1, 3")


def test_mentioned_numbers_are_explained_by_the_dialogue() -> None:
    env, task = arithmetic(*SUM)
    said = mention_facts(
        env, task, ("<answer>252</answer>",), "One hundred too much, not 252, and 73 stays; think of 251."
    )
    # 152, reversed, is 251
    assert said == "251 answer reversed; 252 try; 73 problem; 100 answer minus try"


def test_stated_letters_are_marked_true_or_false_and_new_or_old() -> None:
    env, task = code("E B D B", "B, D, E or F")
    attempts = ("<answer>E D D D</answer>",)
    said = mention_facts(env, task, attempts, "The second letter is B. The first letter is E. The fourth letter is D.")
    assert said == "says 2=B true new; says 1=E true old; says 4=D false old"


@pytest.mark.parametrize(
    ("hint", "told"),
    [("It is exactly one hundred less than what you wrote.", "all (equivalent)"), ("Think again.", "nothing")],
)
def test_what_the_statements_of_a_hint_leave_is_a_fact(hint: str, told: str) -> None:
    env, task = arithmetic(*SUM)
    query = LeakQuery(task, hint, ("<answer>252</answer>",))
    assert told_fact(env, query) == told and f"\nTold: {told}\n" in render(env, query).end


def test_the_rendering_ends_with_computed_facts_and_offsets_point_into_the_hint(tiny: Path) -> None:
    from transformers import AutoTokenizer

    env, task = arithmetic(*SUM)
    rendering = render(env, LeakQuery(task, "Take 100 away.", ("<answer>252</answer>",), ()))
    assert rendering.context.startswith("Problem: What is 73 + 79?\nAnswer: 152\nTries: 252\nFacts: ")
    encoding = encode(AutoTokenizer.from_pretrained(tiny), rendering, 2000)
    first, last = encoding.offsets[0], encoding.offsets[-1]
    assert rendering.hint[first[0] : last[1]] == "Take 100 away." and rendering.context.endswith("Hint: ")
    assert len(encoding.token_ids) > encoding.hint_start + len(encoding.offsets)


def test_a_long_context_loses_its_beginning_and_the_hint_stays(tiny: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    env, task = arithmetic(*SUM)
    encoding = encode(tokenizer, render(env, LeakQuery(task, "Take 100 away.")), 70)
    assert len(encoding.token_ids) == 70
    assert tokenizer.decode(encoding.token_ids).endswith("Hint: Take 100 away.\nHas: 100 other\nTold: nothing\nLeak?")
    assert len(encode(tokenizer, render(env, LeakQuery(task, "Take 100 away.")), 8).token_ids) == 8


# -- examples ----------------------------------------------------------------------------------------------------------
def test_only_dev_halves_are_training_data(tmp_path: Path) -> None:
    row = {
        "id": "a", "environment": "arithmetic", "problem": SUM[0], "answer": "152", "attempts": ["<answer>1</answer>"],
        "hints": ["It is 152."], "label": "leak", "kind": "literal", "register": "terse", "split": "dev",
    }  # fmt: skip
    rows = [row, {**row, "id": "b", "split": "test"}, {**row, "id": "c", "label": "ambiguous"}]
    file = tmp_path / "hints.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    (found,) = handwritten(file)
    assert (
        found.group == "arithmetic/What is 73 + 79?/152"
        and found.leak_type is LeakType.EXACT
        and found.register == "terse"
    )


def test_another_seed_gives_other_generated_hints_with_the_phrasings_of_dev() -> None:
    first, second = generated(), generated(extra_seed=1)
    assert len(first) == len(second)
    assert not {e.digest() for e in first} & {e.digest() for e in second}


# -- augmentation ------------------------------------------------------------------------------------------------------
def test_a_transplanted_leak_is_no_leak_because_its_statement_no_longer_holds() -> None:
    leak = example(*SUM, "252", "Exactly one hundred too much.", True, leak_type=LeakType.EQUIVALENT)
    same_error = example("What is 20 + 21?", "41", "141", "Try again.", False)  # also 100 too much
    other_error = example("What is 50 + 12?", "62", "61", "Try again.", False)
    assert transplant(leak, [leak, same_error], random.Random(0)) is None
    moved = transplant(leak, [leak, same_error, other_error], random.Random(0))
    assert moved is not None and not moved.leak and moved.leak_type is None
    assert moved.query.task.public["a"] == 50 and moved.query.attempts == ("<answer>61</answer>",)


def test_a_transplanted_hint_that_states_the_other_answer_is_rejected() -> None:
    leak = example(*SUM, "252", "It is not 252 but 62 plus 90, so 152. Or was it 62?", True)
    other = example("What is 50 + 12?", "62", "61", "Try again.", False)
    assert transplant(leak, [other], random.Random(0)) is None


def test_shifted_sums_keep_the_error_and_the_label() -> None:
    leak = example(*SUM, "252", "Exactly one hundred too much.", True)
    moved = shift(leak, random.Random(0))
    assert moved is not None and moved.leak
    a, b = moved.query.task.public["a"], moved.query.task.public["b"]
    assert a != 73 and b == 79 and moved.query.attempts == (f"<answer>{a + b + 100}</answer>",)


@pytest.mark.parametrize("hint", ["It is 152.", "73 is nearly 70.", "The 5 is right.", "The last digit is right."])
def test_a_hint_that_names_a_number_of_the_problem_is_not_shifted(hint: str) -> None:
    assert shift(example(*SUM, "252", hint, True), random.Random(0)) is None


def test_renamed_people_change_everywhere_and_the_answer_stays_correct() -> None:
    env = KnightsKnaves(KnightsKnaves.Config())
    (task,) = [env.task("train", 0)]
    names = env.hint_names(task)
    wrong = "; ".join(f"{name}=knight" for name in names)
    if env.is_correct_answer(task, wrong):
        wrong = "; ".join(f"{name}=knave" for name in names)
    query = LeakQuery(task, f"{names[0]} is no friend of {names[1]}.", (f"<answer>{wrong}</answer>",))
    given = env.task_from_gold(env.prompt(task.public), env.gold_answer(task))
    moved = rename(Example(env, replace(query, task=given), False, "", "handwritten", "x"), random.Random(0))
    assert moved is not None
    text = " ".join([env.prompt(moved.query.task.public), *moved.query.attempts, moved.query.hint])
    assert not any(name in text.split() for name in names)
    assert env.verify(moved.query.task, f"<answer>{env.gold_answer(moved.query.task)}</answer>").correct


def test_typos_spare_numbers() -> None:
    original = example(
        *SUM, "252", "Please subtract exactly one hundred from whatever you wrote there, 252. " * 5, True
    )
    spoiled = typos(original, random.Random(1))
    assert spoiled.query.hint != original.query.hint and spoiled.leak
    assert spoiled.query.hint.count("hundred") == 5 and spoiled.query.hint.count("252") == 5


def test_operations_lead_from_the_attempt_to_the_answer() -> None:
    env = arithmetic()[0]
    found = list(operations([env], 30, random.Random(0)))
    assert {e.leak for e in found} == {True, False}
    for each in found:
        assert not env.verify(each.query.task, each.query.attempts[0]).correct
    added = [e for e in found if e.kind == "operation_subtract"]
    assert added
    for each in added:
        error = int(each.query.attempts[0][8:-9]) - int(env.gold_answer(each.query.task))
        assert error > 0 and f"{error} answer minus try" in mention_facts(
            env, each.query.task, each.query.attempts, each.query.hint
        )


def test_a_deleted_or_exchanged_place_of_a_code_gives_the_answer() -> None:
    env = code("Q K Z Q", "K, Q or Z")[0]
    found = [e for e in operations([env], 60, random.Random(0)) if e.leak and e.kind == "operation_exchange"]
    assert found
    for each in found:
        gold, attempt = env.gold_answer(each.query.task).split(), each.query.attempts[0][8:-9].split()
        wrong = [i for i in range(len(gold)) if gold[i] != attempt[i]]
        assert len(wrong) == 2 and sorted(gold) == sorted(attempt)


def test_scripted_hints_are_no_leaks() -> None:
    found = list(scripted([arithmetic()[0]], 5, random.Random(0)))
    assert len(found) == 5 and not any(e.leak for e in found)
    assert all(len(e.query.attempts) == len(e.query.hints) + 1 for e in found)


# -- split and threshold -----------------------------------------------------------------------------------------------
def test_a_task_is_on_one_side_of_the_split_and_augmentation_uses_training_tasks_only() -> None:
    config = TrainingConfig(benchmarks=("handwritten",), copies=2, num_operations=0, num_scripted=0)
    parts = split(handwritten(), config)
    train_groups, heldout_groups = ({e.group for e in side} for side in (parts.train, parts.heldout))
    assert train_groups and heldout_groups and not train_groups & heldout_groups
    heldout_hints = {e.query.hint for e in parts.heldout}
    assert not heldout_hints & {e.query.hint for e in training_set(parts, config)}


@pytest.mark.parametrize("left_out", ["kind=encoded", "environment=maze"])
def test_a_left_out_kind_or_environment_is_neither_trained_nor_held_out(left_out: str) -> None:
    config = TrainingConfig(leave_out=left_out, benchmarks=("handwritten",), copies=1, num_operations=5, num_scripted=2)
    parts = split(handwritten(), config)
    what, _, name = left_out.partition("=")
    value: Callable[[Example], str] = (lambda e: e.kind) if what == "kind" else (lambda e: e.environment.name)
    assert parts.left_out and all(value(e) == name for e in parts.left_out)
    assert not any(value(e) == name for e in (*training_set(parts, config), *parts.heldout))


def test_further_seeds_add_generated_hints_that_are_neither_held_out_nor_left_out() -> None:
    config = TrainingConfig(generated_seeds=1, copies=0, num_operations=0, num_scripted=0, leave_out="environment=maze")
    parts = split([*generated(), *handwritten()], config)
    found = training_set(parts, config)
    added = {e.digest() for e in found} - {e.digest() for e in parts.train}
    assert len(added) > 500 and not any(e.environment.name == "maze" for e in found)
    assert not {e.group for e in found} & {e.group for e in parts.heldout}


def test_an_unknown_left_out_kind_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="encoded"):
        split(handwritten(), TrainingConfig(leave_out="kind=unheard"))
    with pytest.raises(ValueError, match="kind=NAME"):
        TrainingConfig(leave_out="encoded")


def test_one_class_alone_is_no_training_data() -> None:
    leaks = [replace(e, leak=True) for e in handwritten()]
    with pytest.raises(DataError, match="need leaks and hints without a leak"):
        split(leaks, TrainingConfig())


def scored(*pairs: tuple[float, bool], source: str = "a") -> tuple[list[Example], np.ndarray]:
    found = [example(*SUM, "1", "x", leak, source=source, group=str(i)) for i, (_, leak) in enumerate(pairs)]
    return found, np.array([p for p, _ in pairs])


def test_the_threshold_is_the_lowest_with_the_wanted_precision() -> None:
    listed, leak = scored((0.9, True), (0.8, True), (0.7, False), (0.6, True), (0.5, True), (0.4, False))
    assert choose_threshold(listed, leak, 0.95) == 0.8
    assert choose_threshold(listed, leak, 0.8) == 0.5  # 4 of 5
    assert choose_threshold(listed, leak, 0.5) == 0.4


def test_without_a_sufficient_threshold_nothing_is_flagged() -> None:
    listed, leak = scored((0.9, False), (0.8, True))
    assert not (leak >= choose_threshold(listed, leak, 0.95)).any()


def test_each_large_source_reaches_the_precision_and_hints_without_leaks_count_everywhere() -> None:
    first, p = scored(*[(0.9, True), (0.8, True), (0.7, True)] * 10, source="generated")
    second, q = scored(*[(0.95, True), (0.85, False)] * 20, source="handwritten")
    third, r = scored((0.97, False), source="scripted")
    assert choose_threshold([*first, *second], np.concatenate([p, q]), 0.95) == 0.95
    assert choose_threshold([*first, *second], np.concatenate([p, q]), 0.5) == 0.85
    every = choose_threshold([*first, *second, *third], np.concatenate([p, q, r]), 0.98)
    assert every > 0.97


def test_a_source_with_few_leaks_counts_only_with_all_others() -> None:
    first, p = scored(*[(0.9, True), (0.8, True), (0.7, False)] * 20, source="generated")
    few, q = scored((0.85, False), (0.84, True), source="teacher_written")
    # At 0.8: 41 of 42 are leaks, although the small source has one false alarm and one leak.
    assert choose_threshold([*first, *few], np.concatenate([p, q]), 0.95) == 0.8


def test_the_report_counts_by_hand() -> None:
    listed, leak = scored((0.95, True), (0.92, False), (0.31, True), (0.05, False), (0.0, False))
    report = make_report(listed, leak, 0.5, 0.95)
    assert report.overall.counts.model_dump() == {"tp": 1, "fn": 1, "fp": 1, "tn": 2}
    assert report.overall.precision.value == report.overall.recall.value == 0.5
    top, bottom = report.reliability[9], report.reliability[0]
    assert (top.n, top.probability, top.fraction) == (2, pytest.approx(0.935), 0.5)
    assert (bottom.n, bottom.probability, bottom.fraction) == (2, pytest.approx(0.025), 0.0)
    # (2 · |.935 − .5| + 1 · |.31 − 1| + 2 · |.025 − 0|) / 5
    assert report.calibration_error == pytest.approx((0.87 + 0.69 + 0.05) / 5)
    assert set(report.by_kind) == {"kind", "not: kind"}


def test_the_cross_fitted_threshold_of_a_half_comes_from_the_other_half() -> None:
    # Tasks alternate between the halves: 0, 2 are one, 1, 3 the other.
    listed, leak = scored((0.9, True), (0.6, True), (0.5, False), (0.2, False))
    report = make_report(listed, leak, 0.6, 0.95)
    # The half {0.9 leak, 0.5} gives the threshold 0.9 and misses 0.6; {0.6 leak, 0.2} gives 0.6 and finds 0.9.
    assert report.by_source["a"].recall.value == 1.0
    assert report.cross_fitted["a"].counts.model_dump() == {"tp": 1, "fn": 1, "fp": 0, "tn": 2}


# -- detector ----------------------------------------------------------------------------------------------------------
def test_the_span_is_the_contiguous_region_with_the_highest_attribution() -> None:
    offsets = ((0, 4), (4, 8), (8, 12), (12, 16), (16, 20))
    attribution = np.array([9.0, 0.1, 5.0, -6.0, 0.2, 0.1, 9.0])
    assert find_span(Encoding((0,) * 7, 1, offsets), attribution) == (4, 12)
    assert find_span(Encoding((0,), 1, ()), np.array([1.0])) is None


@pytest.fixture(scope="module")
def trained(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a detector that was trained on sums which differ in one sentence."""
    folder = new_version(tmp_path_factory.mktemp("detectors"), "tiny")
    assert train(settings(tiny), folder, marked_examples()) is not None
    return folder


def settings(tiny: Path, **changes: object) -> TrainingConfig:
    values = {
        "model": {"name": str(tiny)}, "layers": None, "trained_layers": None, "benchmarks": (), "copies": 0,
        "num_operations": 0, "num_scripted": 0, "epochs": 8, "learning_rate": 1e-2, "batch_size": 8, "max_tokens": 1000,
    }  # fmt: skip
    return TrainingConfig.model_validate({**values, **changes})


def marked_examples() -> list[Example]:
    listed = []
    for i in range(32):
        hint = "!!!!!!!!" if i % 2 else "Add the tens again."
        problem, answer = f"What is {20 + i} + 31?", str(51 + i)
        listed.append(example(problem, answer, "7", hint, bool(i % 2), source=sources.LABELS))
    return listed


def test_a_hint_leaks_if_its_probability_is_at_least_the_threshold(trained: Path) -> None:
    env, task = arithmetic("What is 71 + 12?", "83")
    queries = [LeakQuery(task, hint, ("<answer>7</answer>",)) for hint in ("!!!!!!!!", "!!!!!!?!")]
    scores = [
        report.leak_probability or 0.0
        for report in ClassifierDetector(ClassifierDetector.Config(path=str(trained)), env).check_batch(queries)
    ]
    middle = sum(scores) / 2  # the weights are those of one processor; which of the two is larger does not matter
    detector = ClassifierDetector(ClassifierDetector.Config(path=str(trained), threshold=middle), env)
    leak, clean = sorted(detector.check_batch(queries), key=lambda report: not report.leaked)
    assert leak.leaked and leak.detector == "classifier" and leak.leak_type is not None
    assert leak.span is not None and 0 <= leak.span[0] < leak.span[1] <= 8 and 0 < leak.answer_fraction <= 1
    assert leak.evidence.startswith("probability ") and "tiny/v1" in leak.evidence
    assert not clean.leaked and clean.leak_probability is not None and leak.leak_probability is not None
    assert clean.leak_probability < detector.threshold <= leak.leak_probability


def test_results_do_not_depend_on_the_batch(trained: Path) -> None:
    env, task = arithmetic("What is 71 + 12?", "83")
    detector = ClassifierDetector(ClassifierDetector.Config(path=str(trained)), env)
    queries = [LeakQuery(task, hint) for hint in ("Add.", "A much longer hint than the other one. " * 5, "!!!!")]
    together = [report.leak_probability for report in detector.check_batch(queries)]
    assert together == pytest.approx([detector.check(query).leak_probability for query in queries], abs=2e-2)


def test_the_cascade_keeps_the_probability_of_an_unflagged_hint(trained: Path) -> None:
    env, task = arithmetic("What is 71 + 12?", "83")
    never = ClassifierDetector.Config(path=str(trained), threshold=1.0)
    detectors = make_detectors([never, *LeaksConfig().detectors], env)
    (report,) = run_cascade(detectors, [LeakQuery(task, "Add.")])
    assert not report.leaked and report.leak_probability is not None


def test_detector_json_states_data_seeds_threshold_and_quality(trained: Path, tiny: Path) -> None:
    stored = read_detector(trained)
    assert stored.name == "tiny/v1" and stored.seed == 0 and stored.data == {"labels": 26}
    assert stored.report.overall.area.n == 32 - 26 and stored.threshold == stored.report.threshold
    assert stored.classes == ("none", "exact", "equivalent", "derivation", "partial")
    assert trained_detectors(trained.parent.parent) == [trained]


def test_the_threshold_was_chosen_on_the_probabilities_of_the_stored_detector(trained: Path) -> None:
    """A threshold equals a probability; that of the network before the adapter is merged may differ slightly."""
    stored = read_detector(trained)
    environment = arithmetic()[0]
    detector = ClassifierDetector(ClassifierDetector.Config(path=str(trained)), environment)
    config = TrainingConfig(benchmarks=())
    heldout = split(marked_examples(), config).heldout
    reports = detector.check_batch([example.query for example in heldout])
    counts = stored.report.overall.counts
    assert sum(report.leaked for report in reports) == counts.tp + counts.fp


def test_training_is_deterministic(trained: Path, tiny: Path, tmp_path: Path) -> None:
    again = train(settings(tiny), new_version(tmp_path, "tiny"), marked_examples())
    first = read_detector(trained)
    assert again is not None and again.data_sha256 == first.data_sha256
    assert again.threshold == first.threshold and again.report == first.report
    weights = [(folder / "adapter_model.safetensors").read_bytes() for folder in (trained, tmp_path / "tiny" / "v1")]
    assert weights[0] == weights[1]


def test_a_head_alone_needs_one_pass_for_each_text(tiny: Path, tmp_path: Path) -> None:
    config = settings(tiny, trained_layers=0, head_penalty=0.01)
    folder = new_version(tmp_path, "head")
    features: Features = {}
    stored = train(config, folder, marked_examples(), features=features)
    assert stored is not None and sorted(path.name for path in folder.iterdir()) == [DETECTOR, HEAD_FILE]
    assert len(features) == 32
    detector = ClassifierDetector(ClassifierDetector.Config(path=str(folder)), arithmetic()[0])
    task = arithmetic("What is 71 + 12?", "83")[1]
    (report,) = detector.check_batch([LeakQuery(task, "Add the tens again.", ("<answer>7</answer>",))])
    assert report.leak_probability is not None
    known = dict.fromkeys(features, np.zeros_like(next(iter(features.values()))))
    again = train(config, new_version(tmp_path, "head"), marked_examples(), features=known)
    assert again is not None and again.report.overall.area.value == 0.5, "it computed known features again"


def test_the_head_is_the_penalized_logistic_regression_of_the_standardized_features(tiny: Path) -> None:
    """Two examples, one of each class: the optimum is the root of an equation in one number."""
    shape = ClassifierShape(classes=2, layers=1, trained_layers=0)
    network = SequenceClassifier.create(tiny, shape, 1, torch.float32, torch.device("cpu"))
    network.fit_head(np.array([[3.0], [5.0]], np.float32), np.array([0, -1]), penalty=0.5)
    head = network.model.score
    # Standardized features are ∓1; by symmetry the weights are (−w, w) and log-odds are 2w x, so the loss is
    # log(1 + exp(−2w)) + 0.5 / 2 · 2 w². Its derivative is zero at 2 / (1 + exp(2w)) = w, i.e. w = 0.5213.
    w = 0.5213
    assert 2 / (1 + np.exp(2 * w)) == pytest.approx(w, abs=1e-4)
    assert head.weight.detach().numpy() == pytest.approx(np.array([[-w], [w]]), abs=1e-4)
    assert head.bias.detach().numpy() == pytest.approx(np.array([4 * w, -4 * w]), abs=1e-3)


def test_a_stopped_training_leaves_no_folder(tiny: Path, tmp_path: Path) -> None:
    folder = new_version(tmp_path, "tiny")
    assert train(settings(tiny), folder, marked_examples(), stop=lambda: True) is None
    assert not folder.exists()


def test_fewer_layers_are_loaded_for_a_truncated_detector(tiny: Path, tmp_path: Path) -> None:
    folder = new_version(tmp_path, "tiny")
    assert train(settings(tiny, layers=1, epochs=1), folder, marked_examples()) is not None
    detector = ClassifierDetector(ClassifierDetector.Config(path=str(folder)), arithmetic()[0])
    assert detector.load().network.model.config.num_hidden_layers == 1


def test_a_folder_without_a_detector_is_refused_with_the_command_that_trains_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rl2f leaks train"):
        ClassifierDetector(ClassifierDetector.Config(path=str(tmp_path)), arithmetic()[0])


def test_a_detector_of_another_input_format_is_refused(trained: Path, tmp_path: Path) -> None:
    data = json.loads((trained / DETECTOR).read_text())
    (tmp_path / DETECTOR).write_text(json.dumps({**data, "rendering": 0}))
    with pytest.raises(DataError, match="version 0 of the input text"):
        read_detector(tmp_path)


def test_the_detector_without_a_path_names_the_command_that_trains_one() -> None:
    with pytest.raises(ConfigError, match="rl2f leaks train"):
        make_detectors([ClassifierDetector.Config()], arithmetic()[0])


def test_versions_count_up(tmp_path: Path) -> None:
    assert [new_version(tmp_path, "leaks").name for _ in range(3)] == ["v1", "v2", "v3"]


def test_augmentation_yields_no_transplant_of_a_near_miss_after_its_first_copy() -> None:
    listed = [e for e in handwritten() if not e.leak and e.environment.name == "arithmetic"]
    derived = list(augment(listed, 4, random.Random(0)))
    assert sum(e.augmentation == "transplant" for e in derived) <= len(listed)
    assert not any(e.leak for e in derived)
