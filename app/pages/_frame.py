"""Parts that every page has: its title and address, keyboard shortcuts, and the notice of a read-only server."""

from __future__ import annotations

from collections.abc import Sequence

from app.components.browser.address import Address
from app.components.browser.keys import Key, Keys
from app.components.nodes import el
from app.components.view import View
from app.endpoints.studio import Studio

READ_ONLY = (
    "This server is read-only: it shows everything and changes nothing. Stop the other server, then restart this."
)


def page_frame(studio: Studio, title: str, keys: Sequence[Key] = ()) -> Address:
    """Add the common parts of a page and return its address.

    Args:
        studio: The workspace.
        title: Title of the window and heading of the page's keys.
        keys: Keyboard shortcuts of the page.
    """
    if studio.context.read_only:
        owner = studio.context.lock_owner or "Another server uses this workspace."
        View(el("div.rl-banner", f"{owner} {READ_ONLY}", role="status"))
    Keys(title, list(keys))
    return Address(title)
