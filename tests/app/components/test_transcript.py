"""Transcript elements: model text stays text, marks divide it by code points, and numbers have signs."""

from __future__ import annotations

from typing import Any

from page_nodes import elements
from page_nodes import text as text_of

from app.components.elements.transcript import (
    FOLD_CHARS,
    Mark,
    inline,
    signed,
    signs,
    text_block,
    token_view,
    word_diff,
)
from app.endpoints.dialogues import TurnTokens
from rl2f_core.common.text.decimals import decimal


def test_a_text_is_shown_as_it_is() -> None:
    evil = "<script>alert(1)</script> ${x} {{y}} ![a](http://b)"
    assert text_of(text_block(evil)) == evil
    assert not elements(text_block(evil), "script")


def test_invisible_characters_have_names_and_positions_are_code_points() -> None:
    pieces = elements(text_block("😀a\u202eb\U000e0041"), "span")
    assert [text_of(piece) for piece in pieces] == ["😀a", "RLO", "b", "U+E0041"]
    assert [piece[1]["data-o"] for piece in pieces] == [0, 2, 3, 4]


def test_overlapping_marks_divide_the_text() -> None:
    marks = [Mark(2, 6, "found", "exact: cdef"), Mark(4, 8, "labeled", "anna: leak")]
    found = elements(text_block("abcdefghij", "teacher", "hint 1", marks), "mark")
    assert [(text_of(mark), mark[1]["class"]) for mark in found] == [
        ("cd", "tx-mark tx-found"),
        ("ef", "tx-mark tx-found tx-labeled"),
        ("gh", "tx-mark tx-labeled"),
    ]
    assert found[1][1]["title"] == "exact: cdef\nanna: leak"


def test_a_long_text_is_folded_but_whole() -> None:
    text = "x" * (3 * FOLD_CHARS)
    block = text_block(text)
    (rest,) = elements(block, "details")
    assert "open" not in rest[1] and f"Show all {len(text):,} characters" in text_of(rest)
    assert text_of(block).count("x") == len(text)
    assert not elements(text_block("short"), "details")


def test_numbers_have_a_sign_unless_they_are_zero() -> None:
    assert [signed(0.306), signed(-0.3), signed(0.001), signed(None)] == ["+.31", "−.30", ".00", "–"]
    assert decimal(-1.5, 1) == "−1.5"


def test_outcomes_are_words_for_screen_readers() -> None:
    assert signs("?01")[1]["aria-label"] == "unparsable, incorrect, correct"


def test_a_cut_line_ends_with_an_ellipsis() -> None:
    assert text_of(inline("abcdef", 3)) == "abc…"


def test_a_diff_shows_removed_and_added_words() -> None:
    diff: Any = word_diff([("=", "I guess "), ("-", "seven"), ("+", "eight")])
    assert [text_of(each) for each in elements(diff, "del")] == ["seven"]
    assert [text_of(each) for each in elements(diff, "ins")] == ["eight"]
    assert text_of(word_diff([("=", "same")])) == "same text as before"
    assert word_diff(None) is None


def test_less_probable_tokens_are_darker() -> None:
    tokens: list[Any] = [
        {"id": 5, "text": "a", "logprob": -3.0},
        {"id": 6, "text": "\n", "logprob": -60.0},
        {"id": 7, "text": None, "logprob": None},
    ]
    shown = [each for each in elements(token_view(TurnTokens(model="m", tokens=tokens)), "span") if "style" in each[1]]
    assert [each[1]["style"] for each in shown] == ["--tint: 38%", "--tint: 75%", "--tint: 0%"]
    assert shown[0][1]["title"] == "log p -3.0000 · p 0.0498 · id 5"
    assert [text_of(each) for each in shown] == ["a", "↵\n", "7"]
    assert "No tokens are stored" in text_of(token_view(TurnTokens(model="m", tokens=[])))


def test_markdown_of_a_message_is_code_and_bold_and_its_html_stays_text() -> None:
    from app.components.elements.transcript import markdown_block

    message = (
        "# Plan\nUse `x = 1` and **bold**.\n```python\nprint('<b>')\n```\n<img src=x onerror=alert(1)> [a](http://b)"
    )
    block = markdown_block(message, "student")

    def pick(node: Any, tag: str) -> list[str]:
        if not isinstance(node, list):
            return []
        own = [flat(node)] if node[0] == tag else []
        return own + [each for child in node[2:] for each in pick(child, tag)]

    def flat(node: Any) -> str:
        return node if isinstance(node, str) else "".join(map(flat, node[2:]))

    assert pick(block, "code") == ["x = 1"] and pick(block, "b") == ["Plan", "bold"]
    assert pick(block, "pre") == ["print('<b>')"] and pick(block, "img") == pick(block, "a") == []
    assert flat(block).endswith("<img src=x onerror=alert(1)> [a](http://b)")
    assert pick(markdown_block("```\nfirst line\nsecond"), "pre") == ["first line\nsecond"], "while it is streamed"
