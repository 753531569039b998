"""The hand-written hints: what their README promises."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[3] / "data" / "leaks" / "handwritten.jsonl"
WORDS = 10
ENVIRONMENTS = {
    "secret_code", "guess_number", "arithmetic", "knights_knaves", "binary_matrix", "math", "shortest_path", "maze",
}  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def sequences(rows: list[dict[str, Any]], split: str) -> set[str]:
    """Return all sequences of `WORDS` words in the hints of a split."""
    found = set()
    for row in rows:
        if row["split"] == split:
            for hint in row["hints"]:
                words = re.findall(r"[a-z]+", hint.lower())
                found |= {" ".join(words[i : i + WORDS]) for i in range(len(words) - WORDS + 1)}
    return found


def test_there_are_400_hints_on_distinct_tasks_of_all_environments(rows: list[dict[str, Any]]) -> None:
    assert len(rows) >= 400
    assert len({row["id"] for row in rows}) == len({(row["problem"], row["answer"]) for row in rows}) == len(rows)
    assert {row["environment"] for row in rows} == ENVIRONMENTS
    assert all(len(row["hints"]) == len(row["attempts"]) and row["why"] for row in rows)


def test_about_half_of_each_split_are_near_misses(rows: list[dict[str, Any]]) -> None:
    for split in ("dev", "test"):
        counts = Counter(row["label"] for row in rows if row["split"] == split)
        assert 0.45 <= counts["leak"] / (counts["leak"] + counts["no_leak"]) <= 0.55


def test_dev_and_test_have_other_authors_and_share_no_wording(rows: list[dict[str, Any]]) -> None:
    authors = {split: {row["author"] for row in rows if row["split"] == split} for split in ("dev", "test")}
    assert not authors["dev"] & authors["test"]
    assert not sequences(rows, "dev") & sequences(rows, "test")


def test_test_has_at_least_five_kinds_of_leaks_that_dev_lacks(rows: list[dict[str, Any]]) -> None:
    kinds = {split: {row["kind"] for row in rows if row["split"] == split} for split in ("dev", "test")}
    assert len(kinds["test"] - kinds["dev"]) >= 5


def test_a_hint_is_ambiguous_if_its_two_labels_differ(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        same = row["author_label"] == row["second_label"]
        assert row["label"] == (row["author_label"] if same else "ambiguous"), row["id"]
