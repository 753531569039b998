"""`Keys`: keyboard shortcuts of a page, and the dialog that lists them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from app.components.component import Component


@dataclass(frozen=True)
class Key:
    """A shortcut."""

    keys: str
    """Names of `KeyboardEvent.key`, separated by spaces, such as `j ArrowDown` or `Ctrl+Enter`."""
    text: str
    """What the key does, for the list of keys."""
    target: str
    """CSS selector of the elements."""
    act: Literal["click", "focus", "next", "previous"] = "click"
    """Click the first visible element, focus it, or move the focus to the next or previous one of them."""
    typing: bool = False
    """The key also works while a text field has the focus."""


COMMON = (Key("/", "search", "input[type=search], .search input, .search textarea", "focus"),)


class Keys(Component):
    """Keyboard shortcuts of a page, and the parts of its navigation bar: *Skip to the page*, *Keys*, *Light or dark*.

    `?` lists the keys, `T` switches the theme, Escape leaves a field. Keys without a visible target do nothing.

    Args:
        group: Heading of the keys in the list.
        keys: The keys of the page.
    """

    MODULE = "browser/keys.js"

    def __init__(self, group: str, keys: list[Key]) -> None:
        groups = [[group, [asdict(key) for key in keys]], ["Everywhere", [asdict(key) for key in COMMON]]]
        super().__init__(groups=groups)
