"""The page Chat as elements: list of chats, head, messages with their verdicts and leak reports, ratings."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

from app.common.urls import page_url
from app.components.elements.transcript import (
    OUTCOMES,
    Source,
    finding_lines,
    hint_marks,
    inline,
    markdown_block,
    text_block,
)
from app.components.nodes import Element, Node, action, el, empty, page_button, time_ago
from app.endpoints.transcript import DetectorFinding, Findings
from app.pages.chat.tab import ChatTab
from app.pages.chat.tree import ChatTurn, waits_for_hint
from jobs.chat.tree import are_comparable, is_finished
from jobs.db.models import MessageSummary
from rl2f_core.types import PERSON, JsonObject, LeakReport

STOPS = {
    "solved": ("✓ solved", "rl-right"),
    "exhausted": ("✗ not solved: no attempts left", "rl-wrong"),
    "ended": ("✗ not solved: the episode ended", "rl-wrong"),
    "context_full": ("✗ ended: the context is full", "rl-wrong"),
    "dropped": ("⚑ ended: the hint leaked", "rl-leak"),
    "failed": ("✗ failed", "rl-wrong"),
}
DESCRIPTIONS = {
    "chat": "The base and up to three checkpoints respond side by side, with the same seed and sampling. "
    "Rate which response is better.",
    "play": "The environment sets a task, the checkpoints attempt it, and you or the scripted teacher give hints, as "
    "in training. Leak detectors check every hint, yours too. In an environment with actions you can also play "
    "yourself. Finished dialogues are recorded for replay, labels and export.",
}
SOURCES: dict[str, Source] = {"assistant": "student", "teacher": "teacher", "user": "task"}
BUTTON_STYLE = "rl-small rl-quiet"


# -- list and head -----------------------------------------------------------------------------------------------------
def chat_list(tab: ChatTab) -> Element:
    """Return the page of the list of chats."""
    page = tab.chats
    here = tab.chat.id if tab.chat else None
    rows = [
        el(
            "a.ch-item",
            el("span.rl-cut", chat.title),
            el("small", "interactive task · " if chat.mode == "play" else None, time_ago(chat.changed)),
            href=page_url("chat", chat=chat.id),
            aria_current="page" if chat.id == here else None,
            data_key=f"chat{chat.id}",
            data_action="open",
            data_chat=chat.id,
        )
        for chat in page.chats
    ]
    nothing = el("p.rl-muted.rl-small", "Nothing found." if tab.search else "No chats yet.")
    pager = None
    if page.before or page.after:
        total = el("span.rl-muted.rl-num", f"{page.total:,}" if page.total is not None else "")
        pager = el("div.rl-row", page_button("◄", "newer", page.before), page_button("►", "older", page.after), total)
    return el("div.ch-list", rows or nothing, pager, role="navigation", aria_label="Chats")


def fold(tab: ChatTab) -> Element:
    """Return the heading that folds the list of chats on a narrow screen."""
    return el("details.ch-fold", el("summary", "Chats"), data_key=f"fold{tab.chat.id if tab.chat else None}")


def head(tab: ChatTab) -> Element:
    """Return title, facts and menu of the chat, and the state of the model process."""
    memory = _memory(tab)
    if tab.is_missing:
        return el("header.ch-head")
    if tab.chat is None:
        title = "Interactive task" if tab.is_task else "New chat"
        return el("header.ch-head", el("h1", title), el("span.rl-grow"), memory)
    settings = tab.chat.settings
    sampling = settings["sampling"]
    play = tab.is_task
    facts = [
        settings["model"],
        f"seed {sampling['seed']}",
        f"T {sampling['temperature']:g}",
        f"top p {sampling['top_p']:g}" if sampling["top_p"] < 1 else None,
        f"{sampling['max_new_tokens']} tokens",
        f"{settings['max_turns']} attempts" if play else None,
        f"{settings['source']} · {settings['split']} {settings['index']}" if play else None,
    ]
    files = {"messages": "Export messages (JSONL)", "preference": "Export ratings (JSONL)"}
    save = [
        el("a", text, href=f"/chats/{tab.id}/{name}.jsonl", download=True)
        for name, text in files.items()
        if not (play and name == "preference")
    ]
    delete = el(
        "button.rl-danger",
        "Delete",
        data_action="delete",
        data_confirm=f"Delete “{tab.chat.title}” and all its branches? Recorded dialogues remain.",
    )
    menu = el(
        "details.rl-menu",
        el("summary.rl-button.rl-small", "⋯", aria_label="More"),
        el(
            "div.rl-menu-items",
            el("button", "Rename", data_action="rename") if tab.is_writable else None,
            save,
            el("button", "Copy link", data_action="copy"),
            delete if tab.is_writable else None,
        ),
    )
    return el(
        "header.ch-head",
        el("h1", tab.chat.title),
        el("span.rl-muted.rl-small", " · ".join(fact for fact in facts if fact)),
        el("span.rl-grow"),
        memory,
        menu,
    )


def _memory(tab: ChatTab) -> Element:
    memory = tab.memory
    if not memory.running:
        title = "It is loaded with the next message, and unloaded when idle."
        return el("span.rl-chip", "○ model unloaded", title=title)
    unload = action("⏏", "unload", style="rl-icon", title="Unload the model")
    text = f"● {memory.model} in memory" if memory.model else "● model process"
    return el("span.rl-chip", text, unload if tab.is_writable else None, title=f"process {memory.pid}")


def about(tab: ChatTab) -> list[Node]:
    """Return what a new chat or interactive task is."""
    if tab.chat is not None:
        return []
    missing: list[Node] = [" No run has a checkpoint yet. ", el("a", "Start one", href=page_url("new"))]
    return [el("p.rl-muted.ch-lead", DESCRIPTIONS[tab.mode], None if tab.runs else missing)]


def note(tab: ChatTab) -> list[Node]:
    """Return the progress of the turn and the last error, or why nothing can be written."""
    if not tab.is_writable:
        return [el("p.rl-muted", "Read-only server: chats can be read, not continued.")]
    if tab.chat is None and not tab.models and not tab.is_missing:
        return [empty("No model is here yet", "Fetch the small one with: rl2f models get smollm2-135m")]
    status = el("span.rl-muted", tab.status) if tab.status else None
    error = None if tab.error is None or tab.is_missing else _error(tab.error)
    return [el("div.ch-note", status, error, role="status", aria_live="polite")] if status or error else []


def _error(error: JsonObject) -> Element:
    known = f"Known: {', '.join(map(str, error['known']))}." if error.get("known") else ""
    fix = " ".join(part for part in (known, error.get("fix")) if part)
    return el("div.ch-error", el("b", "✗ "), error["what"], el("small", f" {fix}") if fix else None, role="alert")


def edit_label(tab: ChatTab, role: str) -> str:
    """Return the label of the editor of a message."""
    if role == "teacher":
        return "Another hint; the original remains"
    if role == "user":
        return "Another message in a branch; the original remains"
    if tab.is_task:
        return "Another attempt beside the original; it is verified"
    return "Another response beside the original; the chat can continue from it"


# -- messages ----------------------------------------------------------------------------------------------------------
def settled(tab: ChatTab) -> list[Node]:
    """Return all turns of a chat except the last one."""
    if tab.is_task:
        return []
    return [_turn(tab, turn) for turn in tab.tree.turns()[:-1]]


def current(tab: ChatTab) -> list[Node]:
    """Return the last turn of a chat, or an interactive task."""
    if tab.is_missing and tab.error is not None:
        new = el("a.rl-button", "New chat", href="/chat")
        box = el("div.rl-stack", empty(tab.error["what"], tab.error.get("fix")), new, role="alert")
        return [box]
    if tab.is_task:
        return [_task(tab)] if tab.tree.prompt else []
    return [_turn(tab, turn) for turn in tab.tree.turns()[-1:]]


def _turn(tab: ChatTab, turn: ChatTurn) -> Element:
    return el(
        "section.ch-turn",
        _message(tab, turn.user),
        _columns([_message(tab, response) for response in turn.responses.values()]),
        _ratings(tab, turn.responses.values()) if tab.is_writable else None,
        data_key=f"turn{turn.user.id}",
    )


def _columns(columns: list[Element]) -> Element:
    return el("div.ch-columns", columns, style=f"--columns: {len(columns) or 1}")


def _message(tab: ChatTab, message: MessageSummary) -> Element:
    role, detail = message.role, message.detail
    source = SOURCES.get(role, "task")
    author = _author(tab, message)
    streaming = message.status == "streaming"
    is_prompt = role == "user" and tab.is_task
    body: list[Node] = []
    if streaming:
        text = el("div.rl-model-text.tx-block.ch-streaming", message.content, data_from="student")
        body = [el("div", text, aria_busy="true")]
    elif role == "teacher":
        body = _hint(message)
    elif message.content or message.status != "failed":
        show = markdown_block if role == "assistant" and not tab.is_task else text_block
        body = [show(message.content, source, author)]
    observation = ((detail.get("turn") or {}).get("verdict") or {}).get("observation")
    if observation is not None:
        body.append(text_block(observation, "task", "observation"))
    error = detail.get("error") if role == "assistant" else None
    who = el("b", author, class_={"student": "rl-student", "teacher": "rl-teacher"}.get(source))
    foot = [
        _numbers(message),
        _answer(tab) if is_prompt else None,
        el("span.rl-grow"),
        el("span.ch-tools", _tools(tab, message, is_prompt)),
    ]
    return el(
        "article.ch-message",
        el("header.ch-who", who, _verdict(message), _switch(tab, message)),
        body,
        _error(error) if error else None,
        el("div.ch-foot", foot),
        data_key=f"m{message.id}",
        data_role=role,
        data_status=message.status,
        data_id=message.id,
    )


def _author(tab: ChatTab, message: MessageSummary) -> str:
    if message.role == "assistant":
        return tab.checkpoint_name(message.checkpoint)
    if message.role == "teacher":
        return "Scripted teacher" if message.detail.get("by") == "scripted" else "You, as teacher"
    return "Task" if tab.is_task else "You"


def _verdict(message: MessageSummary) -> Element | None:
    found = (message.detail.get("turn") or {}).get("verdict")
    if not found:
        return None
    sign, word, color = OUTCOMES["1" if found["correct"] else "?" if found["parsed"] is None else "0"]
    if found.get("observation") is not None and not found["correct"]:
        is_valid = found["well_formed"]
        sign, word, color = (
            ("→", f"reward {found['reward']:g}", "rl-muted") if is_valid else ("?", "invalid", "rl-wrong")
        )
    parsed = None if found["parsed"] is None else [el("span.rl-muted", " parsed "), inline(found["parsed"], 40)]
    return el(f"span.ch-verdict.{color}", f"{sign} {word}", parsed)


def _switch(tab: ChatTab, message: MessageSummary) -> Element | None:
    """Return the position among the alternatives, such as ‹ 2/3 ›."""
    siblings = [sibling.id for sibling in tab.tree.siblings(message)]
    if len(siblings) < 2:
        return None
    position = siblings.index(message.id)

    def step(sign: str, label: str, targets: list[int]) -> Element:
        target = targets[0] if targets else None
        return action(sign, "select", style="rl-icon ch-step", title=label, disabled=target is None, message=target)

    before, after = siblings[:position][-1:], siblings[position + 1 :]
    return el(
        "span.ch-switch.rl-num",
        step("‹", "previous branch", before),
        f"{position + 1}/{len(siblings)}",
        step("›", "next branch", after),
        role="group",
        aria_label="branches",
    )


def _numbers(message: MessageSummary) -> Element | None:
    detail = message.detail
    tokens, first = detail.get("tokens"), detail.get("first")
    parts = ["edited"] if detail.get("edited") else []
    if tokens:
        parts.append(f"{tokens} tok")
    if tokens and first is not None and tokens > 1 and detail["seconds"] > first:
        parts.append(f"{(tokens - 1) / (detail['seconds'] - first):.1f} tok/s")
    if first is not None:
        parts.append(f"first {first:.2f} s")
    if message.status == "stopped":
        parts.append("stopped")
    elif detail.get("stop") == "length":
        parts.append("cut at the limit")
    if not parts:
        return None
    title = f"seed {detail['seed']}, {detail.get('prompt_tokens')} prompt tokens" if "seed" in detail else None
    return el("span.rl-muted.rl-num.ch-numbers", " · ".join(parts), title=title)


def _tools(tab: ChatTab, message: MessageSummary, is_prompt: bool) -> list[Node]:
    if is_prompt or message.status == "streaming":
        return []
    number = message.id
    tools: list[Node] = []
    if message.content:
        tools.append(action("Copy", "copy", style=BUTTON_STYLE, text=message.content))
    if tab.is_busy or not tab.is_writable:
        return tools
    tools.append(_tool("Edit", "edit", "Edit in a branch; the original remains", number))
    if message.role == "assistant" and message.checkpoint != PERSON:
        tools.append(_tool("Regenerate", "retry", "Sample an alternative with another seed", number))
    return tools


def _tool(label: str, name: str, title: str, message: int) -> Element:
    return action(label, name, style=BUTTON_STYLE, title=title, message=message)


def _answer(tab: ChatTab) -> Element:
    if tab.answer is None:
        return action("Show gold answer (hidden from the student)", "answer", style=BUTTON_STYLE)
    hide = action("Hide", "hide", style=BUTTON_STYLE)
    return el("p.ch-line", el("b", "Gold answer "), inline(tab.answer.answer, 400), " ", hide)


def _hint(message: MessageSummary) -> list[Node]:
    """Return the text of a hint and what the leak detectors found; if the guard changed it, both texts."""
    hint, error = message.detail.get("hint") or {}, message.detail.get("error")
    stored = hint.get("leak") or {}
    known = {name: stored[name] for name in LeakReport.model_fields if name in stored}
    leak = LeakReport.model_validate({"leaked": False, **known})
    findings = [DetectorFinding.of("run", leak)] if leak.leaked else []
    checked = bool(stored) and leak.is_complete
    found = Findings(planted=None, leak_found=leak.leaked, leak_checked=checked, findings=findings)
    lines = [
        el("p.tx-finding.rl-muted", "Teacher error: ", inline(str(error), 200)) if error else None,
        *finding_lines(found),
    ]
    feedback, marks = hint.get("feedback"), hint_marks(findings)
    if feedback is None:
        return [text_block(message.content, "teacher", "hint", marks), *lines]
    return [
        el("p.rl-muted.rl-small.ch-line", "feedback"),
        text_block(feedback, "teacher", "feedback", marks),
        el("p.rl-muted.rl-small.ch-line", "hint that the student reads"),
        text_block(message.content, "teacher", "hint"),
        *lines,
    ]


def _ratings(tab: ChatTab, responses: Collection[MessageSummary]) -> Element | None:
    """Return which of two responses is better, for every pair with the same prompt: ← better, tie, better →."""
    pairs = [(a, b) for a, b in combinations(responses, 2) if are_comparable(tab.tree.messages, a, b)]
    if not pairs and sum(map(is_finished, responses)) > 1:
        return el("p.rl-muted.rl-small", "Responses to different conversations cannot be rated against each other.")
    if len(pairs) < 2:
        return _pair(tab, *pairs[0]) if pairs else None
    given = sum(str(b.id) in (a.detail.get("preferences") or {}) for a, b in pairs)
    summary = el("summary", f"Rate the responses ({given} of {len(pairs)} pairs rated)")
    return el("details.ch-pairs", summary, [_pair(tab, *pair) for pair in pairs], data_key=f"pairs{pairs[0][0].parent}")


def _pair(tab: ChatTab, a: MessageSummary, b: MessageSummary) -> Element:
    rating = (a.detail.get("preferences") or {}).get(str(b.id))

    def button(choice: str, text: str, label: str) -> Element:
        is_given = rating == choice
        pressed, chosen = str(is_given).lower(), "" if is_given else choice
        return action(
            text,
            "rate",
            style="rl-small",
            aria_label=label,
            aria_pressed=pressed,
            response=a.id,
            other=b.id,
            choice=chosen,
        )

    def name(message: MessageSummary) -> Element:
        text = tab.checkpoint_name(message.checkpoint)
        return el("span.rl-cut", text, title=text)

    return el(
        "div.ch-pair",
        name(a),
        button("better", "← better", f"{a.checkpoint} is better"),
        button("tie", "tie", "a tie"),
        button("worse", "better →", f"{b.checkpoint} is better"),
        name(b),
        role="group",
        aria_label="Which response is better?",
    )


# -- interactive tasks -------------------------------------------------------------------------------------------------
def _task(tab: ChatTab) -> Element:
    prompt = tab.tree.prompt
    assert prompt is not None
    columns = []
    for checkpoint in tab.tree.attempted():
        chain = tab.tree.chain(checkpoint)
        messages = [_message(tab, message) for message in chain if message.content or message.role != "teacher"]
        columns.append(el("div.ch-column", messages, _progress(tab, chain), data_key=checkpoint))
    return el("section.ch-turn", _message(tab, prompt), _columns(columns), data_key="task")


def _progress(tab: ChatTab, chain: list[MessageSummary]) -> Element | None:
    """Return how a dialogue ended, or that its last attempt waits for a hint."""
    last = chain[-1]
    detail = last.detail
    attempts = sum(message.role == "assistant" for message in chain)
    if ended := detail.get("ended"):
        text, color = STOPS.get(ended, (ended, "rl-muted"))
        text = f"{text} at attempt {attempts}" if ended == "solved" else text
        recorded, missing = detail.get("recorded"), detail.get("not_recorded")
        link = None
        if recorded:
            url = page_url("dialogues", run=recorded["run"], dialogue=recorded["event"], turn=0)
            link = el("a.rl-small", "replay and label", href=url)
        why = el("small.rl-wrong", f"not recorded: {missing}") if missing else None
        return el("div.ch-end", el("b", text, class_=color), link, why)
    if not waits_for_hint(last) or not tab.is_writable:
        return None
    checkpoint = last.checkpoint
    state = el("span.rl-muted", "waits for a hint")
    if checkpoint == PERSON:
        state = el("span.rl-muted", "choose an action")
    elif len(tab.sampled()) > 1:
        box = el(
            "input",
            type="checkbox",
            checked=checkpoint not in tab.without_hint,
            data_change="target",
            data_checkpoint=checkpoint,
        )
        state = el("label.ch-check", box, "receives the hint")
    count = el("span.rl-muted", f"attempt {attempts} of {tab.chat.settings['max_turns']}" if tab.chat else "")
    end = _tool("End here", "end", "Record the dialogue as it is", last.id)
    return el("div.ch-end", state, count, None if tab.is_busy else end)
