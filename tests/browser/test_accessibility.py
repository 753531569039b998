"""axe-core finds no serious violation of WCAG 2.1 AA on any page, in light and dark; the focus is visible."""

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
    "/audit",
    "/api",
)
SERIOUS = ("serious", "critical")
FOCUS_WITHOUT_MARK = """() => {
  const look = (node) => {
    const styles = [];
    for (let i = 0; i < 4 && node; i++, node = node.parentElement) {
      const { outlineStyle, outlineWidth, outlineColor, boxShadow, borderColor } = getComputedStyle(node);
      styles.push(outlineStyle === 'none' ? '' : outlineWidth + outlineColor, boxShadow, borderColor);
    }
    return styles.join();
  };
  const last = window.lastFocus, node = document.activeElement;
  window.lastFocus = { node, look: look(node) };
  if (!last || last.node === document.body || !last.node.isConnected || last.node === node) return null;
  if (look(last.node) !== last.look) return null;
  return last.node.outerHTML.slice(0, 160);
}"""
"""Returns the previously focused element if it looks as it did with the focus; a field's frame counts as its look."""


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


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES)
def test_every_tab_stop_of_a_page_shows_the_focus(server: Any, visit: Callable[..., Any], path: str) -> None:
    tab = visit(path.format(run=server.run))
    tab.wait_for_timeout(1500)  # lazily loaded components
    tab.add_style_tag(content="*, ::before, ::after { transition: none !important; }")
    unmarked = set()
    for _ in range(60):
        tab.keyboard.press("Tab")
        unmarked.add(tab.evaluate(FOCUS_WITHOUT_MARK))
    assert unmarked == {None}
