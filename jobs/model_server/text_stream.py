"""Text of a growing token sequence: only whole characters, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class TextStream:
    """Decodes a sequence as it grows and searches for stop strings.

    Args:
        decode: Decodes token ids.
        stops: Texts that end the sequence.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self.decode, self.stops = decode, stops
        self.text = ""
        """The text that later tokens cannot change."""

    def update(self, token_ids: Sequence[int], *, is_finished: bool) -> bool:
        """Decode all tokens so far; return whether the text contains a stop string."""
        text = self.decode(token_ids)
        found = [position for stop in self.stops if (position := text.find(stop)) >= 0]
        if found:
            text = text[: min(found)]
        elif not is_finished:
            text = text.rstrip("\ufffd")  # the rest of a character may follow
            text = text[: len(text) - self._num_held(text)]
        if text.startswith(self.text):
            self.text = text
        return bool(found)

    def _num_held(self, text: str) -> int:
        """Return the length of the longest end of `text` with which a stop string begins."""
        lengths = (n for stop in self.stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
        return max(lengths, default=0)
