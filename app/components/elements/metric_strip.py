"""Cards that summarize a run: hint effect, solve rate by turn, revisions, groups, leaks by turn."""

from __future__ import annotations

from app.components.elements.help_tip import help_tip
from app.components.nodes import Element, Node, el
from app.plots.metric_info import MetricInfo, group_info, metric_info
from rl2f_core.types import JsonObject

GROUP_COLORS = ("var(--rl-student)", "var(--rl-right)", "var(--rl-wrong)")
"""Colors of mixed, all-correct and all-incorrect groups."""
FEEDBACK = MetricInfo(
    "Revisions after feedback",
    "",
    help="Behavior of the next attempt after an incorrect one.",
    formula="revision = an incorrect attempt and the next attempt",
)
TEACHER = MetricInfo(
    "Teacher quality",
    "",
    help="Hints of the model teacher: true and leaking fractions; bits, tokens, seconds and price for each hint.",
    formula="true: of the hints with a statement that can be read; leaking: of the hints that a detector checked; "
    "seconds: in which the step waited for teacher and verifier / hints, as concurrent hints overlap",
)


def metric_cards(cards: JsonObject, kind: str, active: bool) -> Element | None:
    """Return the cards; None for a kind of run without metrics.

    Args:
        cards: See `app.plots.summary_cards`.
        kind: Kind of the run.
        active: The run has not ended.
    """
    if kind not in ("train", "eval") and not any(cards.values()):
        return None
    pending = (
        "Available after the final evaluation."
        if active
        else "Not evaluated with and without hints. Evaluate a checkpoint."
    )
    no_group = "An evaluation trains nothing." if kind == "eval" else "No group was trained on yet."
    hints, solved, changes, groups = (cards[name] for name in ("hints", "solved", "changes", "groups"))
    leaks, teacher = cards.get("leaks"), cards.get("teacher")
    return el(
        "div.rl-glance",
        _card("Did the hints help?", metric_info("effect"), _hints(hints) if hints else pending, hints),
        _card("Solved by turn", group_info("cum_acc/"), _by_turn(solved) if solved else "No dialogue yet.", solved),
        _card(FEEDBACK.title, FEEDBACK, _changes(changes) if changes else "No attempt after feedback yet.", changes),
        _card("Groups", group_info("groups/"), _groups(groups) if groups else no_group, groups),
        _card("Leaks read by turn", metric_info("leak_rate"), _by_turn(leaks, "--rl-leak"), leaks) if leaks else None,
        _card(TEACHER.title, TEACHER, _changes(teacher), teacher) if teacher else None,
    )


def _card(title: str, info: MetricInfo, content: list[Node] | str, card: JsonObject | None) -> Element:
    return el(
        "section.rl-card",
        el("h2", el("span.rl-with-help", title), help_tip(title, info.help, info.formula)),
        el("span.rl-muted", content) if isinstance(content, str) else content,
        el("span.rl-source", card["source"]) if card else None,
    )


def _hints(card: JsonObject) -> list[Node]:
    verdict: Node = el("b", card["verdict"]) if card["separated"] else card["verdict"]
    return [
        el("div.rl-big", el("b", card["value"]), el("span.rl-muted", card["interval"])),
        el("div", verdict),
        el(
            "div.rl-under",
            (el("span", f"{control['control']} ", el("b", control["text"])) for control in card["under"]),
        ),
    ]


def _by_turn(card: JsonObject, color: str = "--rl-student") -> list[Node]:
    rows: list[Node] = []
    for bar in card["bars"]:
        low, high = bar["low"], bar["high"]
        interval = None if low is None else el("u", style=f"left: {100 * low:.1f}%; width: {100 * (high - low):.1f}%")
        rows += [
            el("span.rl-muted", str(bar["turn"])),
            el(
                "span.rl-bar",
                el("i", style=f"width: {100 * (bar['value'] or 0):.1f}%; background: var({color})"),
                interval,
                title=bar["text"],
            ),
            el("b", bar["text"].split(" ")[0], title=bar["text"]),
        ]
    return [el("div.rl-turns", rows)]


def _changes(card: JsonObject) -> list[Node]:
    def stat(pair: JsonObject) -> Element:
        info = metric_info(pair["metric"])
        label = el("span.rl-with-help", pair["name"], help_tip(pair["name"], info.help, info.formula))
        return el("div.rl-stat", el("b", pair["text"]), label, title=f"{pair['metric']} {pair['title']}")

    return [el("div.rl-quad", map(stat, card["pairs"]))]


def _groups(card: JsonObject) -> list[Node]:
    groups = list(zip(card["fractions"], GROUP_COLORS, strict=True))
    bars = [el("i", style=f"width: {100 * group['value']:.1f}%; background: {color}") for group, color in groups]
    rows = [
        el("div", el("i", style=f"background: {color}"), group["name"], el("b", group["text"]), title=group["metric"])
        for group, color in groups
    ]
    return [el("div.rl-split", bars), el("div.rl-shares", rows)]
