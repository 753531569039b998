"""The report of a study, from constructed results, and the changes of its file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import study_data
import yaml

from rl2f_core.common.paths import CONFIGS
from rl2f_core.common.stats.intervals import Interval
from rl2f_core.errors import DataError
from rl2f_core.evaluation.across_seeds import Comparison
from rl2f_core.evaluation.figure_files import html_page
from rl2f_core.evaluation.study.registration import changes, read_versions, register
from rl2f_core.evaluation.study.report import (
    CLEAN_REWARD_TEXT,
    FinishedPart,
    build_study_report,
    curves_chart,
    file_links,
    find,
    read_part,
)
from rl2f_core.evaluation.study.spec import Hypothesis, Study, parse_study

TINY = yaml.safe_load((CONFIGS / "studies" / "tiny.yaml").read_text("utf-8"))


evaluated = functools.cache(study_data.evaluated)


def study(**changed: Any) -> Study:
    return parse_study(yaml.safe_dump({**TINY, "seeds": [0, 1, 2], **changed}, sort_keys=False))


def part(folder: Path, seed: int, solved: int, rewards: Sequence[float] = (0.1, 0.2, 0.3)) -> FinishedPart:
    rows = [{"step": step, "reward": reward} for step, reward in enumerate(rewards, 1)]
    return FinishedPart(folder, evaluated(seed, solved), {"rl2f": rows})


def no_link(part: str, checkpoint: str, condition: str) -> str:
    return ""


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, FinishedPart | None]:
    """The method solves 16, 8 and 12 of 20 problems, its twin none; rewards differ by 1, 2 and 3 per seed."""
    found: dict[str, FinishedPart | None] = {}
    for seed, solved in enumerate((16, 8, 12)):
        found[f"rl2f-seed-{seed}"] = part(tmp_path / "a", seed, solved, [1.0 + seed] * 3)
        found[f"contentless-seed-{seed}"] = part(tmp_path / "b", seed, 0, [0.0] * 3)
    return found


def test_the_hypotheses_are_tested_over_seeds_and_problems(parts: dict[str, Any], tmp_path: Path) -> None:
    """The first interval is computed by hand in `test_across_seeds`: +.60 [.20, .89]; so is its detectable effect.

    The rewards of the last steps differ by 1, 2 and 3: mean 2, t interval over three seeds [−.48, 4.48].
    """
    planned = study()
    report = build_study_report(planned, register(planned, tmp_path, 0), parts, file_links(parts, tmp_path))
    first, second, third = report.hypotheses
    assert first.finding == "confirmed, at least the smallest effect"
    assert (first.comparison.difference.low, first.comparison.difference.high) == pytest.approx((0.2, 0.89), abs=0.01)
    assert first.comparison.detectable is not None and first.comparison.detectable > 0.4  # of three hypotheses
    assert first.comparison.difference.holm_p == pytest.approx(2 * (second.comparison.difference.p_value or 0), rel=0.6)
    assert second.comparison.difference.value == pytest.approx(0.6)  # both effects of rl2f minus none
    assert third.comparison.values == pytest.approx((1, 2, 3)) and third.finding == "not shown"
    assert third.comparison.difference.low == pytest.approx(-0.484, abs=1e-3)
    text = report.to_markdown()
    assert "| The content of hints teaches | confirmed, at least the smallest effect | +.60 [.20, .89] |" in text
    assert "| equal: 1,001 and 1,001 | solved | rl2f − contentless |" in text
    assert "| rl2f | rl2f@3 | hints | hint effect | +.60 [.20, .89] | .80 .40 .60 |" in text
    assert f"SHA-256 of the file: {planned.sha256}" in text


@pytest.mark.parametrize(
    ("finished", "moment"),
    [(0, "before a part had finished"), (1, "after 1 finished part"), (6, "after 6 finished parts")],
)
def test_a_report_states_how_many_parts_had_finished_before_the_registration(
    finished: int, moment: str, parts: dict[str, Any], tmp_path: Path
) -> None:
    versions = register(study(), tmp_path, finished)
    assert f" UTC, {moment}; SHA-256" in build_study_report(study(), versions, parts, no_link).sentences()[0]


def test_numbers_that_a_finding_distinguishes_are_shown_as_different(parts: dict[str, Any], tmp_path: Path) -> None:
    planned = study()
    report = build_study_report(planned, register(planned, tmp_path, 0), parts, no_link)
    first, smallest = report.hypotheses[0], report.hypotheses[0].hypothesis.smallest_effect
    difference = Interval(value=0.03, low=-0.02, high=smallest - 0.004, n=20, holm_p=0.0503)
    changed = first.model_copy(update={"comparison": first.comparison.model_copy(update={"difference": difference})})
    (_, _, (row,)), *_ = report.model_copy(update={"hypotheses": (changed,)}).tables()
    assert find(first.hypothesis, changed.comparison, planned=3) == "not shown; smaller than the smallest effect"
    assert row[2:6] == ["+.030 [−.020, .096]", ".60 − .00", ".0503", ".100"]


def test_parts_without_a_result_are_named_and_left_out(parts: dict[str, Any], tmp_path: Path) -> None:
    planned = study()
    parts |= {"contentless-seed-0": None, "contentless-seed-1": None, "contentless-seed-2": None}
    report = build_study_report(planned, register(planned, tmp_path, 0), parts, file_links(parts, tmp_path))
    assert report.missing == ("contentless-seed-0", "contentless-seed-1", "contentless-seed-2")
    assert [result.finding for result in report.hypotheses][::2] == ["no result yet", "no result yet"]
    assert "Parts without a result: contentless-seed-0" in report.to_markdown()
    assert {arm.arm for arm in report.arms} == {"rl2f"}
    report = build_study_report(planned, read_versions(tmp_path), dict.fromkeys(parts), no_link)
    assert report.arms == () and len(report.hypotheses) == 3


def test_a_hypothesis_is_tested_when_all_seeds_have_finished(parts: dict[str, Any], tmp_path: Path) -> None:
    """Its interval is shown before. In Holm's correction, hypotheses without a test count as not significant."""
    planned = study()
    versions = register(planned, tmp_path, 0)
    whole = build_study_report(planned, versions, parts, no_link).hypotheses[0]
    report = build_study_report(planned, versions, parts | {"rl2f-seed-2": None}, no_link)
    assert {result.finding for result in report.hypotheses} == {"not tested: 2 of 3 seeds"}
    first = report.hypotheses[0].comparison.difference
    assert first.value == pytest.approx(0.6) and first.low is not None and first.holm_p is None
    lonely = study(hypotheses=[*TINY["hypotheses"][:1], {**TINY["hypotheses"][2], "quantity": "training/leak_rate"}])
    (tested, absent) = build_study_report(lonely, versions, parts, no_link).hypotheses
    assert absent.finding == "no result yet"
    assert tested.comparison.difference.p_value == whole.comparison.difference.p_value
    assert tested.comparison.difference.holm_p == pytest.approx(2 * (tested.comparison.difference.p_value or 0))


def test_each_number_links_to_its_dialogues(parts: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "a" / "evaluation" / "dialogues" / "rl2f@3" / "hints.jsonl"
    file.parent.mkdir(parents=True)
    file.touch()
    planned = study()
    report = build_study_report(
        planned, register(planned, tmp_path / "out", 0), parts, file_links(parts, tmp_path / "out")
    )
    path = "../a/evaluation/dialogues/rl2f@3/hints.jsonl"
    assert f"| solved | rl2f [0]({path}) [1]({path}) [2]({path}) − contentless |" in report.to_markdown()
    assert f"| [.80]({path}) [.40]({path}) [.60]({path}) |" in report.to_markdown()
    page = html_page("x", [], [curves_chart(planned, parts)], report.tables())
    assert f'<a href="{path}">0</a>' in page and f'<a href="{path}">.80</a>' in page


def test_curves_are_means_of_the_seeds_in_bands_of_all(parts: dict[str, Any]) -> None:
    first, _ = curves_chart(study(), parts).plots
    line = first.lines[0]
    assert (line.name, list(line.x), list(line.y)) == ("rl2f", [1, 2, 3], [2, 2, 2])
    assert (list(line.low), list(line.high)) == ([1, 1, 1], [3, 3, 3])


@pytest.mark.parametrize(
    ("low", "high", "holm", "direction", "finding"),
    [
        (0.05, 0.3, 0.03, "higher", "confirmed"),
        (0.15, 0.3, 0.03, "higher", "confirmed, at least the smallest effect"),
        (0.05, 0.3, 0.06, "higher", "not shown"),
        (0.05, 0.3, 0.03, "lower", "the opposite"),
        (-0.3, -0.05, 0.03, "lower", "confirmed"),
        (-0.3, -0.05, 0.03, "different", "confirmed"),
        (-0.05, 0.3, 0.5, "higher", "not shown"),
        (-0.09, 0.09, 0.5, "higher", "not shown; smaller than the smallest effect"),
        (-0.1, 0.09, 0.5, "higher", "not shown"),
        (-0.09, 0.09, 0.5, "same", "confirmed"),
        (0.02, 0.09, 0.03, "same", "confirmed"),
        (0.02, 0.09, 0.03, "higher", "confirmed; smaller than the smallest effect"),
        (0.02, 0.09, 0.03, "lower", "the opposite; smaller than the smallest effect"),
        (0.02, 0.3, 0.03, "same", "not shown"),
        (0.15, 0.3, 0.03, "same", "the opposite, at least the smallest effect"),
        (0.15, 0.3, 0.06, "same", "not shown"),
    ],
)
def test_a_finding_needs_the_corrected_p_value_and_the_expected_direction(
    low: float, high: float, holm: float, direction: str, finding: str
) -> None:
    fields = {"name": "x", "quantity": "solved", "compare": ["a", "b"], "direction": direction, "smallest_effect": 0.1}
    hypothesis = Hypothesis.model_validate(fields)

    def found(n: int, is_crossed: bool, seeds: int = 5, planned: int = 5) -> str:
        difference = Interval(value=(low + high) / 2, low=low, high=high, n=n, holm_p=holm)
        values = (*[0.2] * seeds, None)  # one seed has no value
        return find(hypothesis, Comparison(values=values, difference=difference, is_crossed=is_crossed), planned)

    assert found(20, True) == found(5, False) == finding  # 5 seeds of a metric without values by problem
    assert found(9, True) == "too few to tell"
    assert found(20, True, seeds=1, planned=1) == "not tested: one seed"
    assert found(20, True, seeds=4) == "not tested: 4 of 5 seeds"


def test_a_third_arm_is_compared_with_the_mean_of_two_others(parts: dict[str, Any], tmp_path: Path) -> None:
    """The arms solve .80 .40 .60, .40 .40 .40 and none: .60 − (.40 + 0) / 2 = .40; rewards 1, 2 and 3 minus 2 / 2."""
    arms = {"rl2f": {}, "contentless": {"stages.1.teacher": "contentless"}, "low": {"stages.1.learning_rate": 1e-4}}
    compare = {"compare": ["rl2f", "low", "contentless"], "smallest_effect": 0.1}
    hypotheses = [{**compare, "name": "Nearer", "quantity": "solved", "direction": "higher"},
                  {**compare, "name": "Reward", "quantity": "training/reward"},
                  {**compare, "name": "To rl2f", "quantity": "solved", "compare": ["low", "contentless", "rl2f"]},
                  {**compare, "name": "Below", "quantity": "solved", "direction": "lower"}]  # fmt: skip
    planned = study(matrix={"arm": arms}, hypotheses=hypotheses)
    parts |= {f"low-seed-{seed}": part(tmp_path / "c", seed, 8, [2.0] * 3) for seed in range(3)}
    report = build_study_report(planned, register(planned, tmp_path, 0), parts, no_link)
    first, second, third, fourth = report.hypotheses
    assert first.comparison.difference.value == pytest.approx(0.4) and len(first.dialogues) == 3
    assert first.finding == "not tested: contentless is not above low"
    assert third.comparison.difference.value == pytest.approx(0.1) and third.finding == "not shown"
    assert fourth.finding == "not shown"  # contentless is below low, so it is tested
    assert second.comparison.values == pytest.approx((0, 1, 2))
    text = report.to_markdown()
    assert "| rl2f − (low + contentless) / 2 |" in text and "| .60 − (.40 + .00) / 2 |" in text


def test_the_last_steps_of_training_are_a_table_by_arm(parts: dict[str, Any], tmp_path: Path) -> None:
    """Rewards 1, 2 and 3: mean 2, t interval over three seeds [−.48, 4.48]. The twin has no copy rate.

    Rates .1, .5 and .9: .5 ± .99, of which a rate can only be 0 to 1.
    """
    for seed in range(3):
        parts[f"rl2f-seed-{seed}"].training["rl2f"][-1]["copied_answer_rate"] = 0.1 + 0.4 * seed
    planned = study()
    report = build_study_report(planned, register(planned, tmp_path, 0), parts, no_link)
    *_, (title, header, rows) = report.tables()
    assert title == "Training by arm, last 10 steps" and header == ["arm", "reward", "copied answer rate"]
    assert rows[0][1] == "2.00 [−.48, 4.48]" and rows[0][2] == ".50 [.00, 1.00]" and rows[1][2] == "–"


def test_a_report_with_planted_leaks_says_which_rewards_cannot_be_compared(
    parts: dict[str, Any], tmp_path: Path
) -> None:
    planned = study()
    versions = register(planned, tmp_path, 0)
    assert CLEAN_REWARD_TEXT not in build_study_report(planned, versions, parts, no_link).sentences()
    for seed in range(3):
        parts[f"rl2f-seed-{seed}"].training["rl2f"][-1] |= {"clean_reward": 0.1, "planted_rate": 0.5}
    assert CLEAN_REWARD_TEXT in build_study_report(planned, versions, parts, no_link).sentences()


def test_changes_of_the_file_are_told_with_the_number_of_finished_parts(tmp_path: Path) -> None:
    first, second, third = TINY["hypotheses"]
    planned = study()
    (version,) = register(planned, tmp_path, 0)
    assert register(planned, tmp_path, 3) == read_versions(tmp_path) == [version]
    assert (version.sha256, version.text, version.finished_parts) == (planned.sha256, planned.text, 0)
    changed = [{**first, "smallest_effect": 0.05, "direction": "different"}, second, {**third, "name": "New"}]
    register(study(hypotheses=changed, seeds=[0, 1]), tmp_path, 1)
    versions = register(parse_study("# a comment\n" + study(hypotheses=changed, seeds=[0, 1]).text), tmp_path, 6)
    texts = list(changes(versions))
    assert len(texts) == 2
    assert (
        "after 1 finished part: hypothesis 'The reward in training differs' removed; hypothesis 'New' added" in texts[0]
    )
    changed_fields = "(smallest_effect 0.1 → 0.05, direction default → different)"
    assert f"hypothesis {first['name']!r} changed {changed_fields}" in texts[0]
    assert texts[0].endswith("seeds [0, 1, 2] → [0, 1].")
    assert texts[1].endswith("after 6 finished parts: only comments or layout changed.")


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("evaluation/report.json", "{", read_part),
        ("report.json", "{", read_part),
        ("training.json", "[]", read_part),
        ("training.json", '{"rl2f": {"step": [1, 2], "reward": [1]}}', read_part),
        ("registration.json", "[", read_versions),
        ("registration.json", "[]", read_versions),
    ],
)
def test_a_damaged_file_is_named_with_its_folder(
    name: str, content: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    folder = tmp_path / "rl2f-seed-1"
    (folder / "evaluation").mkdir(parents=True)
    (folder / "report.json").write_text(evaluated(1, 8).to_json())
    (folder / name).write_text(content)
    with pytest.raises(DataError, match=f"Got: 'rl2f-seed-1/{name}'"):
        read(folder)
