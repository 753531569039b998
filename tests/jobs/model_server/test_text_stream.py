"""Text of a growing sequence: whole characters, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jobs.model_server.text_stream import TextStream


def decode(token_ids: Sequence[int]) -> str:
    """One token per byte."""
    return bytes(token_ids).decode("utf-8", "replace")


def texts(data: str, *stops: str) -> tuple[list[str], bool]:
    """The text after each byte, and whether a stop string ended it."""
    stream, seen, tokens = TextStream(decode, stops), [], list(data.encode())
    for n in range(1, len(tokens) + 1):
        stopped = stream.update(tokens[:n], is_finished=n == len(tokens))
        seen.append(stream.text)
        if stopped:
            return seen, True
    return seen, False


def test_a_character_is_shown_when_all_of_its_bytes_are_there() -> None:
    assert texts("aéb") == (["a", "a", "aé", "aéb"], False)


def test_an_incomplete_character_is_shown_at_the_end() -> None:
    stream = TextStream(decode)
    stream.update([97, 0xC3], is_finished=True)
    assert stream.text == "a\ufffd"


@pytest.mark.parametrize(
    ("data", "stops", "shown", "stopped"),
    [
        ("one\n\ntwo", ["\n\n"], ["o", "on", "one", "one", "one"], True),
        ("a\nb", ["\n\n"], ["a", "a", "a\nb"], False),  # held back until it cannot become a stop string
        ("a\n", ["\n\n"], ["a", "a\n"], False),  # the end
        ("xaab", ["aab"], ["x", "x", "x", "x"], True),
        ("xaaab", ["aab"], ["x", "x", "x", "xa", "xa"], True),  # overlapping beginnings
        ("ab", ["b", "ab"], ["", ""], True),  # the earliest one
        ("stop", ["stop"], ["", "", "", ""], True),
    ],
)
def test_a_stop_string_never_appears(data: str, stops: list[str], shown: list[str], stopped: bool) -> None:
    assert texts(data, *stops) == (shown, stopped)
