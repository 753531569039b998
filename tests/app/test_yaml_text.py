"""YAML beside the form: comments that stay, values that browsers and runs read alike, and broken texts."""

from __future__ import annotations

import re

import pytest
import yaml

from app.forms import run_form, yaml_text
from jobs.workspace import Workspace
from rl2f_core.config.loading import to_yaml

COMMENTED = """\
# Are two letters enough?
name: mine  # by Ada
stages:
# a short one
- method: {type: sft, hint_follow_rate: 0.7}
  name: warmup
  steps: 2  # few

# the one that counts
- {name: rl2f, method: rl2f, steps: 3, learning_rate: 2e-4}
environment: arithmetic  # easy
"""


def test_comments_and_order_of_a_text_survive_edits_in_the_form(workspace: Workspace) -> None:
    loaded = run_form.check_yaml(COMMENTED, workspace)
    assert loaded.ok and loaded.data is not None
    data = yaml_text.for_browser(loaded.data)
    data["stages"][1]["steps"] = 7
    data["environment"]["digits"] = 3
    data["stages"].insert(1, {**data["stages"][1], "name": "between"})
    edited = run_form.check_data(data, workspace, loaded.yaml)
    assert edited.ok and yaml.safe_load(edited.yaml) == edited.data
    for text in (loaded.yaml, edited.yaml):
        comments = re.findall("#.*", text)
        assert comments == [line.strip() for line in re.findall("#.*", COMMENTED)]
        assert re.findall(r"^(name|stages|environment):", text, re.MULTILINE) == ["name", "stages", "environment"]
    rows = [line.split("#")[0].strip() for line in edited.yaml.splitlines()]
    assert [row for row in rows if row.startswith(("- name", "name: w", "steps"))] == [
        "name: warmup", "steps: 2", "- name: between", "steps: 7", "- name: rl2f", "steps: 7",
    ]  # fmt: skip
    again = run_form.check_data(yaml_text.for_browser(edited.data), workspace, edited.yaml)
    assert again.yaml == edited.yaml


@pytest.mark.parametrize("text", ["", "a: [", "- 1", "x" * 300_000, "a: !!python/none x", "a: &b {c: 1}\nd: *b\n"])
def test_a_text_that_holds_no_comments_to_keep_is_written_anew(text: str) -> None:
    data = {"a": {"c": 2}, "on": "yes", "n": None}
    assert yaml_text.update(text, data) == to_yaml(data)


def test_an_edited_scalar_changes_nothing_else_of_the_text() -> None:
    text = "a:   1   # one\nb: {c: [1,2], d: 'x'}\ne: |\n  long\n"
    data = {"a": 25, "b": {"c": [1, 3], "d": "a: b"}, "e": "long\n"}
    written = text.replace("a:   1", "a:   25").replace("[1,2]", "[1,3]").replace("'x'", "'a: b'")
    assert yaml_text.update(text, data) == written and yaml.safe_load(written) == data


def test_values_are_written_as_the_parser_of_runs_reads_them() -> None:
    text = "a: yes # 1\nb: 010 # 2\nc: 2e-4 # 3\nd: 'on' # 4\ne: {f: 1} # 5\n"
    data = {"a": "yes", "b": 10, "c": 0.0002, "d": "on", "e": {"f": None, "g": 1e-05}}
    written = yaml_text.update(text, data)
    assert yaml.safe_load(written) == data and re.findall(r"# \d", written) == [f"# {n}" for n in range(1, 6)]


# -- broken YAML -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("name: a\nstages: [1, 2\nseed: 3\n", 3, "expected"),
        ("name: a\n  seed: 3\n", 2, "mapping values"),
        ("name: a\nseed: 1\nname: b\n", 3, "`name` is given twice"),
        ("name: a\nx: !!python/object/apply:os.system [ls]\n", 2, "could not determine a constructor"),
        ("- a\n- b\n", 1, "no keys and values"),
        ("", 1, "is empty"),
        ("name: a\nx: \x07\n", 2, "character"),
        ("name: a\n? [1, 2]\n: 3\n", 2, "plain word"),
        ("name: *nobody\n", 1, "alias"),
    ],
)
def test_broken_yaml_says_the_line_and_keeps_the_text(text: str, line: int, words: str, workspace: Workspace) -> None:
    checked = run_form.check_yaml(text, workspace)
    assert checked.yaml_error is not None and checked.yaml_error.line == line and words in checked.yaml_error.message
    assert checked.yaml == text and checked.data is None and not checked.ok


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x, x, x, x, x, x, x]\n"
        + "".join(f"{n}: &{n} [{', '.join([f'*{p}'] * 8)}]\n" for p, n in zip("abcdefg", "bcdefgh", strict=True)),
        "a: &a [*a]\n",
        "[" * 1000,
        "a: " + "9" * 5000,
        "x" * 300_000,
    ],
    ids=["billion laughs", "an alias of itself", "nested", "digits", "long"],
)
def test_a_text_that_would_blow_up_is_refused_in_time(text: str, workspace: Workspace) -> None:
    assert run_form.check_yaml(text, workspace).yaml_error is not None


def test_values_that_no_browser_knows_become_words() -> None:
    text = "a: .inf\nb: .nan\nc: 2024-01-02\nd: !!binary aGk=\n1: x\n"
    assert yaml_text.for_browser(yaml_text.read(text).value) == {
        "a": ".inf", "b": ".nan", "c": "2024-01-02", "d": "b'hi'", "1": "x",
    }  # fmt: skip


def test_comments_stay_beside_a_value_that_was_empty() -> None:
    assert "# note" in yaml_text.update("a:\nb: 1 # note\n", {"a": 3, "b": 1})
    assert "# note" in yaml_text.update("a: {x: , y: 2} # note\n", {"a": {"x": "z", "y": 2}})
