"""Parts of a dialogue as elements: model text with marked spans, outcomes, labels, findings, diffs and tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from app.common.diff import Segment
from app.components.nodes import Element, Node, el
from app.endpoints.dialogues import TurnTokens
from app.endpoints.transcript import DetectorFinding, DialogueDetail, Findings, HintDetail, TurnDetail
from jobs.db.dialogue_models import LEAKED, HintValueSummary
from jobs.db.models import LabelSummary
from rl2f_core.common.text.decimals import decimal
from rl2f_core.types import ActionChoice

Source = Literal["student", "teacher", "task"]

FOLD_CHARS = 4000
"""Number of characters of a long text that are shown before the rest is unfolded."""
LABEL_TEXTS = {"leak": "leak", "no_leak": "no leak", "unsure": "unsure"}
LABEL_SIGNS = {"leak": "⚑", "no_leak": "✓", "unsure": "?"}
OUTCOMES = {
    "1": ("✓", "correct", "rl-right"),
    "0": ("✗", "incorrect", "rl-wrong"),
    "?": ("?", "unparsable", "rl-muted"),
    "-": ("–", "no verdict", "rl-muted"),
}
LEAK_ACTIONS = {"flag": "flagged", "redact": "redacted", "resample": "resampled"}
INVISIBLE = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
INVISIBLE_NAMES = {
    **{0x00: "NUL", 0x0D: "CR", 0x1B: "ESC", 0xAD: "SHY", 0x34F: "CGJ", 0x61C: "ALM", 0x200B: "ZWSP", 0x200C: "ZWNJ"},
    **{0x200D: "ZWJ", 0x200E: "LRM", 0x200F: "RLM", 0x2028: "LSEP", 0x2029: "PSEP", 0x202A: "LRE", 0x202B: "RLE"},
    **{0x202C: "PDF", 0x202D: "LRO", 0x202E: "RLO", 0x2060: "WJ", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI"},
    **{0x2069: "PDI", 0xFEFF: "BOM"},
}
MAX_TINT_NATS = 6
"""Negative log-probability of the strongest tint of a token."""


@dataclass(frozen=True)
class Mark:
    """A marked span of a text, in code points."""

    start: int
    end: int
    kind: Literal["found", "labeled", "pending"]
    """Found by a detector, marked in a label, or selected for a label that is not given yet."""
    title: str = ""


def foldable(name: str, summary: Node, *content: Node, class_: str = "dv-more") -> Element:
    """Return a part of a dialogue that is folded; `ReplayKeys` expands and collapses all of them."""
    return el("details", el("summary", summary), *content, class_=class_, data_fold=name, data_key=name)


MARKDOWN = re.compile(
    r"^```[^\n`]*\n(?P<fence>.*?)(?:\n```[ \t]*(?:\n|\Z)|\Z)|`(?P<code>[^`\n]+)`|\*\*(?P<bold>[^*\n]+)\*\*"
    r"|^#{1,6} +(?P<heading>[^\n]+)",
    re.MULTILINE | re.DOTALL,
)
"""Fenced code (to its end while it is streamed), inline code, bold words and headings."""


# -- text ------------------------------------------------------------------------------------------------------------
def text_block(
    text: str,
    source: Source = "task",
    label: str = "",
    marks: Sequence[Mark] = (),
    *,
    select: str | None = None,
) -> Element:
    """Return a bordered block with a text as it is; a long text is folded.

    Args:
        text: The text.
        source: Who wrote it.
        label: Name for screen readers.
        marks: Marked spans, which may overlap.
        select: Key under which `Selection` reports a selected span of this text.
    """
    shown = max([FOLD_CHARS, *(min(mark.end + 200, 4 * FOLD_CHARS) for mark in marks)])
    folded = len(text) > max(FOLD_CHARS * 1.25, shown)
    end = shown if folded else len(text)
    more = el("span.rl-button.rl-small.tx-more", f"Show all {len(text):,} characters")
    rest = foldable("text", more, *_pieces(text, end, len(text), marks), class_="tx-rest")
    return el(
        "div.rl-model-text.tx-block",
        _pieces(text, 0, end, marks) if text else el("span.rl-muted.tx-nothing", "(nothing)"),
        rest if folded else None,
        role="group",
        aria_label=label or None,
        data_from=source,
        data_select=select,
    )


def markdown_block(text: str, source: Source = "task", label: str = "") -> Element:
    """Return a bordered block with code, headings and bold words of Markdown as elements; all else is text as it is.

    Links, images and HTML stay text, so that a model's message loads nothing. A long text is a `text_block`.
    """
    if len(text) > FOLD_CHARS:
        return text_block(text, source, label)
    nodes: list[Node] = []
    end = 0
    for found in MARKDOWN.finditer(text):
        nodes += _plain(text, end, found.start())
        kind, end = str(found.lastgroup), found.end()
        content = _plain(text, found.start(kind), found.end(kind))
        nodes.append(el({"fence": "pre.rl-code", "code": "code", "heading": "b.tx-heading"}.get(kind, "b"), content))
    nodes += _plain(text, end, len(text))
    return el("div.rl-model-text.tx-block.tx-markdown", nodes, role="group", aria_label=label or None, data_from=source)


def inline(text: str | None, limit: int = 80) -> Element:
    """Return a text in a line, cut after `limit` characters."""
    text = text or ""
    cut = len(text) > limit
    return el(
        "span.tx-inline",
        _plain(text, 0, min(len(text), limit)),
        "…" if cut else None,
        title=INVISIBLE.sub("·", text[:2000]) if cut else None,
    )


def _pieces(text: str, start: int, end: int, marks: Sequence[Mark]) -> list[Node]:
    """Return `text[start:end]`, divided where a mark starts or ends."""
    inside = [mark for mark in marks if mark.start < end and mark.end > start]
    edges = sorted({start, end, *(max(start, mark.start) for mark in inside), *(min(end, mark.end) for mark in inside)})
    out: list[Node] = []
    for low, high in pairwise(edges):
        over = [mark for mark in inside if mark.start <= low and mark.end >= high]
        nodes = _plain(text, low, high)
        if over:
            kinds = " ".join(dict.fromkeys(f"tx-{mark.kind}" for mark in over))
            titles = "\n".join(mark.title for mark in over if mark.title)
            out.append(el("mark", nodes, class_=f"tx-mark {kinds}", title=titles or None))
        else:
            out += nodes
    return out


def _plain(text: str, start: int, end: int) -> list[Node]:
    """Return `text[start:end]` with its invisible characters by name; `data-o` is the position of each piece."""
    out: list[Node] = []
    for found in INVISIBLE.finditer(text, start, end):
        if found.start() > start:
            out.append(el("span", text[start : found.start()], data_o=start))
        out.append(_invisible(found[0], found.start()))
        start = found.end()
    if start < end:
        out.append(el("span", text[start:end], data_o=start))
    return out


def _invisible(char: str, position: int) -> Element:
    code = f"U+{ord(char):04X}"
    name = INVISIBLE_NAMES.get(ord(char), code)
    return el("span.tx-invisible", name, title=f"invisible character {code}", data_o=position, data_one="1")


# -- numbers and outcomes --------------------------------------------------------------------------------------------
def signed(value: float | None, digits: int = 2) -> str:
    """Return e.g. `+.31`, `−.31` or `–` if the value is None."""
    return decimal(value, digits, signed=True)


def fact(name: str, value: str, title: str | None = None) -> Element:
    """Return a named number."""
    named = el("span.rl-muted", f"{name} ")
    return el("span.dv-fact", named, el("span.rl-num", value), title=title)


def chip(*children: Node, title: str | None = None, class_: str = "") -> Element:
    """Return a small rounded text."""
    return el("span", *children, class_=f"rl-chip {class_}".strip(), title=title)


def sign(outcome: str) -> Element:
    """Return the sign of an attempt, by a key of `OUTCOMES`."""
    text, word, color = OUTCOMES[outcome]
    return el("span", text, class_=f"tx-sign {color}", title=word)


def signs(outcomes: str) -> Element:
    """Return the signs of a dialogue's attempts."""
    words = ", ".join(OUTCOMES[outcome][1] for outcome in outcomes)
    return el("span.tx-signs", [sign(outcome) for outcome in outcomes], role="img", aria_label=words or "no turns")


def leak_flag(leak_state: int) -> Element | None:
    """Return a flag if a hint of a dialogue leaked; see `DialogueRow`."""
    return el("span.rl-leak", "⚑", title="a hint leaked") if leak_state == LEAKED else None


# -- hints -----------------------------------------------------------------------------------------------------------
def label_chip(label: LabelSummary) -> Element:
    """Return an annotator's label."""
    title = "\n".join(part for part in ("blind" if label.blind else "not blind", label.note) if part)
    text = f"{LABEL_SIGNS[label.label]} {LABEL_TEXTS[label.label]}"
    by = el("span.rl-muted", " · ", inline(label.annotator, 30))
    return el("span.tx-label", text, by, data_label=label.label, title=title)


def hint_marks(findings: Iterable[DetectorFinding], labels: Iterable[LabelSummary] = ()) -> list[Mark]:
    """Return the spans that detectors and annotators marked in a hint."""
    marks: list[Mark] = []
    for found in findings:
        if found.start is not None and found.end is not None:
            title = f"{found.detector or 'detector'}: {found.evidence}"
            marks.append(Mark(found.start, found.end, "found", title))
    for label in labels:
        if label.start is not None and label.end is not None:
            title = f"{label.annotator}: {LABEL_TEXTS[label.label]}"
            marks.append(Mark(label.start, label.end, "labeled", title))
    return marks


def finding_lines(hint: Findings) -> list[Node]:
    """Return the planted leak and one sentence per finding of a hint, or that none was found."""
    kind = hint.planted
    planted = [el("p.tx-finding.tx-planted", f"planted leak: {kind.replace('_', ' ')}")] if kind else []
    if hint.findings:
        return [*planted, *(_finding(found) for found in hint.findings)]
    if hint.leak_found:
        return [*planted, el("p.tx-finding.rl-leak", "⚑ leak")]
    if isinstance(hint, HintDetail) and hint.error:
        return [*planted]
    text = "no leak found" if hint.leak_checked else "not checked for leaks"
    return [*planted, el("p.tx-finding.rl-muted", text)]


def _finding(found: DetectorFinding) -> Element:
    fraction, action = found.answer_fraction, found.action
    rescored = found.source and found.source != "run"
    return el(
        "p.tx-finding.rl-leak",
        f"⚑ {found.detector} leak" if found.detector else "⚑ leak",
        f" ({found.leak_type})" if found.leak_type not in (None, found.detector) else None,
        f" (rescored in run {found.source})" if rescored else None,
        el("span", ": ", inline(found.evidence, 160)) if found.evidence else None,
        None if found.leak_probability is None else _probability(found),
        f" · {fraction:.0%} of the answer" if fraction else None,
        f" · {LEAK_ACTIONS.get(action, 'dialogue dropped')}" if action else None,
    )


def _probability(found: DetectorFinding) -> Element:
    title = f"flagged from {decimal(found.leak_threshold)}"
    return el("span", f" · probability {decimal(found.leak_probability)}", title=title)


def hint_origin(hint: HintDetail) -> list[Node]:
    """Return the prompt template and the cost of a model teacher's hint, and the error without a hint."""
    usage, template, error = hint.usage, hint.prompt_template, hint.error
    parts: list[Node] = []
    if template:
        parts.append(el("span.rl-num", inline(template, 60), title="prompt template and hash of its file"))
    if usage:
        parts.append(f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens")
        parts += [f"${usage.cost:.2g}"] if usage.cost is not None else []
        parts += ["from the cache"] if usage.cached else []
        parts += [f"{usage.requests} tries"] if usage.requests > 1 else []
    lines: list[Node] = []
    if error:
        lines.append(el("p.tx-finding.rl-wrong.tx-failed", "Teacher error: ", inline(error, 240)))
    if parts:
        title = f"{usage.seconds:.2f} s; prompt + completion tokens" if usage else None
        lines.append(el("p.tx-finding.rl-muted.tx-origin", separated(parts, " · "), title=title))
    return lines


def separated(parts: Sequence[Node], separator: str) -> list[Node]:
    """Return the parts with a separator between each two."""
    out: list[Node] = [separator] * (2 * len(parts) - 1)
    out[::2] = parts
    return out


def hint_value_chip(values: Sequence[HintValueSummary], url: str) -> Element | None:
    """Return the first measured hint value; its title lists all of them."""
    if not values:
        return None
    lines = ["p(solve | this hint) − p(solve | contentless), 95 % CI"]
    for value in values:
        turns = "" if value.turns is None else f", {value.turns} attempts after it"
        arms = ", ".join(f"{arm} {decimal(rate)}" for arm, rate in value.arms.items())
        run = f"{value.checkpoint}, {value.n} samples{turns} (run {value.run_id})"
        lines.append(f"{run}: {_interval(value)}; solve rates: {arms}")
    text = f"hint value {_interval(values[0])}"
    return el("a.rl-chip.rl-num.dv-value", text, href=url, title="\n".join(lines))


def information_chips(hint: HintDetail, used: float | None) -> list[Node]:
    """Return the bits of a hint and a mark if it determines the answer; none if its bits are unknown.

    Args:
        hint: The hint.
        used: `bits_used` of the next attempt.
    """
    bits, left = hint.hint_bits, hint.bits_left
    if bits is None or left is None:
        return []
    lines = ["log2(answers before / after the hint) that agree with everything shown", f"{decimal(left)} bits left"]
    if used is not None:
        lines.append(f"the next attempt uses {decimal(used)} bits: it agrees with that part of the hint")
    mark = chip("determines the answer", title="a single answer is left; the hint need not state it")
    return [
        chip(f"{decimal(bits)} bits", title="\n".join(lines), class_="rl-num dv-bits"),
        mark if hint.determines_answer else None,
    ]


def _interval(value: HintValueSummary) -> str:
    return f"{signed(value.value)} [{signed(value.low)}, {signed(value.high)}]"


# -- attempts --------------------------------------------------------------------------------------------------------
def word_diff(changes: Sequence[Segment] | None) -> Element | None:
    """Return the removed and added words of an attempt with some of the words around them."""
    if changes is None:
        return None
    if all(kind == "=" for kind, _ in changes):
        return el("p.dv-diff.rl-muted", "same text as before")
    shown: list[Node] = []
    for i, (kind, text) in enumerate(changes):
        if kind == "=":
            kept = _cut(text, first=i == 0, last=i == len(changes) - 1)
            shown.append(el("span.rl-muted", inline(kept, 400)))
        else:
            shown.append(el("del" if kind == "-" else "ins", inline(text, 400)))
    changed = el("span.rl-muted", "changed ")
    return el("p.dv-diff", changed, shown, role="group", aria_label="changes to the previous attempt")


def _cut(text: str, first: bool, last: bool) -> str:
    if len(text) <= 60:
        return text
    return f"{'' if first else text[:25]}…{'' if last else text[-25:]}"


def reflection_block(turn: TurnDetail) -> Element | None:
    """Return the reflector's text before an action, and the probabilities of the labeled actions as bars."""
    if turn.reflection is None and not turn.actions:
        return None
    text = turn.reflection
    label = f"reflection {turn.index + 1}"
    return el(
        "div.rl-stack.dv-reflection",
        None if text is None else el("div.dv-line", el("span.dv-who", "Reflector")),
        None if text is None else text_block(text, label=label),
        _action_bars(turn.actions, turn.parsed),
    )


def _action_bars(actions: Sequence[ActionChoice], chosen: str | None) -> Element | None:
    """Return one row per labeled action: label, action, bar and probability, if it is known."""
    rows: list[Node] = []
    for action in actions:
        value, mark = action.probability, "rl-student" if action.action == chosen else "rl-muted"
        bar = el("span") if value is None else el("span.rl-bar", el("i", style=f"width: {100 * value:.1f}%"))
        name = el("span.rl-mono", f"{action.label}. ", inline(action.action, 80), class_=mark)
        rows += [name, bar, el("span.rl-num", "" if value is None else decimal(value))]
    return el("div.rl-turns", rows, role="group", aria_label="action probabilities") if rows else None


def observation_block(turn: TurnDetail) -> Element | None:
    """Return the reply of a stateful environment; its text is monospaced, as maps need."""
    if turn.observation is None:
        return None
    ended = chip("episode ended") if turn.done else None
    return el(
        "div.rl-stack.dv-observation",
        el("div.dv-line", el("span.dv-who", "Environment"), ended),
        text_block(turn.observation, label=f"observation {turn.index + 1}"),
    )


def shows_hint(turn: TurnDetail) -> bool:
    """Return whether a turn has a hint to show; an empty one beside an observation is not shown."""
    hint = turn.hint
    return hint is not None and bool(hint.feedback or turn.observation is None)


def transcript_text(dialogue: DialogueDetail) -> str:
    """Return a dialogue as plain text."""
    parts = [f"Task\n{dialogue.prompt.text}"]
    for turn in dialogue.turns:
        if turn.reflection:
            parts.append(f"Reflector\n{turn.reflection}")
        parts.append(f"Student, attempt {turn.index + 1}\n{turn.attempt}")
        if turn.observation is not None:
            parts.append(f"Environment\n{turn.observation}")
        if turn.hint and turn.hint.text:
            parts.append(f"Teacher\n{turn.hint.text}")
    return "\n\n".join(parts)


def token_view(found: TurnTokens) -> Element:
    """Return the tokens of an attempt, shaded by their log-probability."""
    tokens = found.tokens
    if not tokens:
        return el("p.dv-token-view.rl-muted.rl-small", "No tokens are stored for this attempt.")
    sampled = any(token.logprob is not None for token in tokens)
    has_text = any(token.text is not None for token in tokens)
    shown: list[Node] = []
    for token in tokens:
        text, logprob = token.text, token.logprob
        word = str(token.id) if text is None else text.replace("\n", "↵\n") or "·"
        value = "no log-probability"
        if logprob is not None:
            value = f"log p {logprob:.4f} · p {math.exp(min(logprob, 0)):.3g}"
        tint = 0 if logprob is None else round(75 * max(0, min(1, -logprob / MAX_TINT_NATS)))
        title = f"{value} · id {token.id}"
        shown.append(el("span.dv-token", inline(word, 200), style=f"--tint: {tint}%", title=title))
    note = (
        "The stronger the shading, the less probable the token (nats, sampling temperature). Hover for the value."
        if sampled
        else "These tokens were not sampled, so they have no log-probability."
    )
    ids = "" if has_text else f" The tokenizer of {found.model} is not on this machine, so ids are shown."
    box = el("div.rl-model-text.tx-block.dv-tokens", shown, data_from="student", data_ids=not has_text)
    return el("div.rl-stack.dv-token-view", box, el("p.rl-muted.rl-small", note, ids))
