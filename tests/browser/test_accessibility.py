"""axe-core finds no serious violation of WCAG 2.1 AA on any page, in light and dark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

PAGES = (
    "/",
    "/new?preset=quickstart",
    "/run?run={run}",
    "/run?run={run}&tab=evaluation",
    "/dialogues?run={run}",
    "/fork",
    "/labels?run={run}",
    "/chat",
    "/compare?runs={run}",
    "/exports?runs={run}",
)
SERIOUS = ("serious", "critical")


def violations(tab: Any) -> list[str]:
    """Return each serious violation with its elements."""
    found = Axe().run(tab, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:160] for node in each['nodes'][:4]]}"
        for each in found
        if each["impact"] in SERIOUS
    ]


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_no_serious_violation(
    server: Any, visit: Callable[..., Any], new_page: Callable[..., Any], path: str, theme: str
) -> None:
    tab = visit(path.format(run=server.run), new_page(width=1440, height=900, theme=theme))
    tab.wait_for_timeout(500)  # plots and lazily loaded components
    assert violations(tab) == []
