"""Scores of detectors on hints with known leaks, and the recommended cascade, for the page Labels."""

from __future__ import annotations

from collections.abc import Sequence

from app.common.quantities import fraction
from app.components.elements.transcript import inline, text_block
from app.components.nodes import Element, Node, el
from app.endpoints.leaks.detectors import Recommendation
from app.pages.labels.report import estimate, interval_cell, number_cell, number_table
from rl2f_core.common.stats.intervals import Interval
from rl2f_core.leaks.benchmark.comparison import CascadeResult
from rl2f_core.leaks.benchmark.score import Score
from rl2f_core.types import JsonObject

HELD_OUT = (
    "Detectors are tuned on dev and reported on test, which have no phrasing in common. "
    "The other tables are of both together."
)


GROUPINGS = ("kind", "register", "environment")
JUDGES = (
    "Held-out kinds are disguises that do not occur on dev. After mentions, llm_judge decides the hints with a "
    "probability between .2 and .8. Alone, a judge of 1.5 billion parameters is far below mentions; in the cascade it "
    "decides too few hints to tell whether it helps. A judge of 7B or more is advisable if blind labels show leaks "
    "that mentions misses; measure it with the command above first."
)
RECORD = "rl2f leaks benchmark --detectors CASCADE --json data/results/leaks/benchmark-dev.json"
"""Command that records a cascade."""


def benchmark_view(scores: JsonObject, results: Sequence[CascadeResult], recommended: Recommendation) -> Element:
    """Return the scores of detectors on benchmarks.

    Args:
        scores: Scores of the default detectors on generated hints, and the misclassified ones of the dev split.
        results: Recorded results of cascades.
        recommended: The recommended cascade for the budget of the page.
    """
    kinds = scores["kinds"]
    leaks = sorted((kind for kind in kinds if kind["leak"]), key=lambda kind: kind["flagged_fraction"]["value"])
    near = sorted((kind for kind in kinds if not kind["leak"]), key=lambda kind: -kind["flagged_fraction"]["value"])
    return el(
        "div.lb-report.bd-bench",
        _recommendation(recommended),
        _comparison(results) if results else None,
        [_groups(results, by) for by in GROUPINGS] if results else None,
        _summary(scores),
        el("div.bd-column", _by_environment(scores), _kinds("Near-misses by kind", "near-miss", near)),
        _kinds("Leaks by obfuscation", "obfuscation", leaks),
        _mistakes(scores),
    )


def _recommendation(recommended: Recommendation) -> Element:
    """Return which cascade to use within the budget."""
    result = recommended.result
    if result is None:
        some = "No recorded cascade is within this budget at this precision."
        text: list[Node] = [some if recommended.candidates else f"No cascade is recorded. Record one: {RECORD}"]
    else:
        score = result.report.overall
        text = [
            "Recommended: ", el("b", result.detectors, data_recommended=result.detectors), ". Recall ",
            *estimate(score.recall), ", precision ", *estimate(score.precision),
            f" on {result.hints:,} hints of {result.benchmark} ({result.split}), "
            f"{_price(result)} US$ per 1,000 hints, {_speed(result)} hints/s.",
        ]  # fmt: skip
    about = (
        "The cascade with the highest recall among the recorded ones within the price, speed and precision above. "
        "Speeds are those of the machine of the record."
    )
    return el(
        "section.rl-card.bd-head",
        el("p.bd-sentence", text),
        el("p.rl-muted.rl-small", about),
        aria_label="recommended cascade",
    )


def _comparison(results: Sequence[CascadeResult]) -> Element:
    rows = []
    for result in results:
        held_out, available = result.report.held_out, result.available
        hints = f"{result.hints:,}" + (f" of {available:,}" if result.hints < available else "")
        rows.append(
            el(
                "tr",
                el("th.bd-cascade", result.detectors, scope="row"),
                el("td", f"{result.benchmark} ({result.split})"),
                number_cell(hints),
                interval_cell(result.report.overall.precision),
                interval_cell(result.report.overall.recall),
                interval_cell(held_out.recall) if held_out else number_cell("–"),
                number_cell(f"{result.judged / result.hints:.0%}" if result.needs_model else "–"),
                number_cell(_price(result)),
                number_cell(_speed(result)),
                data_row=f"{result.detectors} {result.benchmark} {result.split}",
            )
        )
    heads = [
        "detectors", "benchmark", "hints", "precision", "recall", "recall, held-out kinds", "judged",
        "US$ / 1,000 hints", "hints/s",
    ]  # fmt: skip
    return el(
        "section.rl-card.rl-stack.bd-wide",
        el("h2", "Cascades"),
        number_table(heads, rows, "recorded cascades"),
        el("p.rl-muted.rl-small", JUDGES),
        aria_label="recorded cascades",
    )


def _groups(results: Sequence[CascadeResult], by: str) -> Element | None:
    """Return the recall of each cascade on hand-written hints by kind, register or environment."""
    chosen = [result for result in results if result.benchmark == "handwritten"]
    scores: dict[str, Score] = {}
    for result in chosen:
        scores |= {name: item for name, item in getattr(result.report, f"by_{by}").items() if item.recall.n}
    if not scores:
        return None
    rows = []
    for name in sorted(scores):
        found = [getattr(result.report, f"by_{by}").get(name) for result in chosen]
        cells = [interval_cell(item.recall) if item else number_cell("") for item in found]
        rows.append(_row({"name": name}, number_cell(scores[name].recall.n), *cells))
    heads = [by, "leaks", *(f"{result.detectors} ({result.split})" for result in chosen)]
    title = f"Recall on hand-written hints by {by}"
    return el("section.rl-card.rl-stack.bd-wide", el("h2", title), number_table(heads, rows, title), aria_label=title)


def _price(result: CascadeResult) -> str:
    price = result.usd_per_1000_hints
    return "unknown" if price is None else f"{price:,.2f}"


def _speed(result: CascadeResult) -> str:
    speed = result.hints_per_second
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"


def _summary(scores: JsonObject) -> Element:
    splits: dict[str, JsonObject] = {split["name"]: split for split in scores["by"]["split"]}
    test, dev = splits.get("test") or scores["overall"], splits.get("dev")
    count = scores["overall"]["leaks"] + scores["overall"]["near"]
    item = 1000 * scores["seconds"] / count
    phrasings = " in phrasings that no detector was tuned on" if "test" in splits else ""
    speed = f"{item:.3f}" if item < 0.1 else f"{item:.2f}"
    return el(
        "section.rl-card.bd-head",
        el("p.bd-sentence", _figures("Precision", test), f"{phrasings}, {test['near']:,} of them near-misses."),
        el("p", "On dev, which detectors are tuned on: ", _figures("precision", dev), ".") if dev else None,
        el(
            "p.rl-muted",
            f"{' and '.join(scores['detectors'])} as configured by default, {speed} ms per hint. Code wrote the hints, "
            "so their leaks are known; the detector report is about the hints of real teachers.",
        ),
        aria_label="summary",
    )


def _figures(first: str, score: JsonObject) -> list[Node]:
    count = score["leaks"] + score["near"]
    end = f", F1 {fraction(score['f1'])} on {count:,} synthetic hints"
    precision, recall = (estimate(Interval(**score[name])) for name in ("precision", "recall"))
    return [f"{first} ", *precision, ", recall ", *recall, end]


def _by_environment(scores: JsonObject) -> Element:
    detectors = [_row(item, number_cell(item["found"]), number_cell(item["false"])) for item in scores["by_detector"]]
    return el(
        "section.rl-card.rl-stack",
        el("h2", "By environment"),
        _scores("environment", scores["by"]["environment"]),
        el("h2", "By split"),
        _scores("split", scores["by"]["split"]),
        el("p.rl-muted.rl-small", HELD_OUT),
        el("h2", "By detector"),
        number_table(["detector", "leaks found", "false alarms"], detectors, "by detector"),
        aria_label="by environment",
    )


def _scores(head: str, scores: list[JsonObject]) -> Element:
    rows = []
    for item in scores:
        numbers = [number_cell(number) for number in (fraction(item["f1"]), item["leaks"], item["near"])]
        cells = [interval_cell(Interval(**item[name])) for name in ("precision", "recall")]
        rows.append(_row(item, *cells, *numbers))
    return number_table([head, "precision", "recall", "F1", "leaks", "near-misses"], rows, f"scores by {head}")


def _kinds(title: str, head: str, kinds: list[JsonObject]) -> Element:
    rows = [_row(kind, interval_cell(Interval(**kind["flagged_fraction"])), number_cell(kind["n"])) for kind in kinds]
    listed = number_table([head, "flagged", "of"], rows, f"flagged by {head}")
    return el("section.rl-card.rl-stack", el("h2", title), listed, aria_label=title)


def _row(named: JsonObject, *cells: Element) -> Element:
    return el("tr", el("th", named["name"].replace("_", " "), scope="row"), *cells, data_row=named["name"])


def _mistakes(scores: JsonObject) -> Element:
    wrong = scores["wrong"]
    hidden = f"{scores['wrong_test']:,} more on test are not listed, so that nobody tunes on them."
    return el(
        "section.rl-card.rl-stack.bd-wide",
        el("h2", f"Mistakes on dev ({scores['wrong_dev']})"),
        el("div.bd-wrongs", [_mistake(item) for item in wrong]) if wrong else el("p.rl-muted", "None."),
        el("p.rl-muted.rl-small", hidden),
        aria_label="mistakes",
    )


def _mistake(wrong: JsonObject) -> Element:
    kind = f" {wrong['environment']} · {wrong['kind']} ".replace("_", " ")
    turns: list[Node] = []
    for i, attempt in enumerate(wrong["attempts"]):
        turns.append(text_block(attempt, "student", f"attempt {i + 1}"))
        if i < len(wrong["hints"]):
            turns.append(text_block(wrong["hints"][i], "teacher", f"hint {i + 1}"))
    detector = wrong["detector"]
    return el(
        "details.bd-wrong",
        el(
            "summary",
            el("span.tx-label", "missed" if wrong["leak"] else "false alarm", data_label="leak"),
            el("span.rl-muted.rl-small", kind),
            inline(wrong["hint"], 120),
        ),
        el(
            "div.rl-stack",
            text_block(wrong["problem"], label="task"),
            turns,
            text_block(wrong["hint"], "teacher", "the hint"),
            el(
                "p.rl-muted.rl-small",
                "gold answer: ",
                inline(wrong["answer"], 200),
                f" · {detector}: " if detector else None,
                inline(wrong["evidence"], 200) if detector else None,
            ),
        ),
    )
