"""What changed between two attempts, in words."""

from __future__ import annotations

import time

from app.common.diff import MAX_WORDS, changes


def joined(pieces: list[tuple[str, str]], kinds: str) -> str:
    return "".join(text for kind, text in pieces if kind in kinds)


def test_a_changed_answer_shows_as_one_word_for_another() -> None:
    assert changes("<answer>7</answer>", "<answer>12</answer>") == [
        ("=", "<answer>"), ("-", "7"), ("+", "12"), ("=", "</answer>")
    ]  # fmt: skip


def test_equal_texts_have_no_change_and_empty_ones_no_pieces() -> None:
    assert changes("same", "same") == [("=", "same")]
    assert changes("", "") == []
    assert changes("", "new") == [("+", "new")]
    assert changes("old", "") == [("-", "old")]


def test_a_repeated_word_is_not_taken_for_both_ends() -> None:
    assert changes("a a", "a a a") == [("=", "a a"), ("+", " a")]
    assert changes("a a a", "a a") == [("=", "a a"), ("-", " a")]


def test_kept_and_removed_make_the_old_text_kept_and_added_the_new_one() -> None:
    pairs = [
        ("it is 7, no 8", "it was 9, so 8!"),
        ("eins zwei\n\ndrei", "zwei drei\tvier"),
        ("😀 a\u200bb", "😀 b\u202ea"),
    ]
    for before, after in pairs:
        pieces = changes(before, after)
        assert joined(pieces, "=-") == before
        assert joined(pieces, "=+") == after


def test_long_texts_are_compared_in_bounded_time() -> None:
    before, after = "a " * 50_000, "a " * 25_000 + "b " + "a " * 25_000
    start = time.monotonic()
    assert joined(changes(before, after), "=+") == after
    worst = changes("x y " * MAX_WORDS + "x", "y z " * MAX_WORDS + "z")
    assert [kind for kind, _ in worst] == ["-", "+"], "too many differing words are given whole"
    assert time.monotonic() - start < 5
