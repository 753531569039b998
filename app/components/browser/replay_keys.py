"""`ReplayKeys`: what the browser changes in a replay without the server."""

from __future__ import annotations

from app.components.component import Component


class ReplayKeys(Component):
    """Selects the current turn, expands and collapses folded parts, and switches the font of texts.

    Clicks on the actions `turn`, `next_turn`, `previous_turn`, `turn_tokens`, `expand`, `collapse` and `font` trigger
    no event. A handler reads the current turn from the page, with `js` of its event.
    """

    MODULE = "browser/replay_keys.js"

    def __init__(self) -> None:
        super().__init__(visible="hidden")
