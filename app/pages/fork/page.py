"""Page Fork: a dialogue continues from one of its turns under other hints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import gradio as gr

from app.components.browser.address import Replacement
from app.components.browser.keys import Key
from app.components.nodes import Element, Node, el
from app.components.view import View
from app.endpoints.fork import EarlierFork, ForkResult
from app.endpoints.studio import Studio
from app.pages._events import FAST, LATEST, QUEUED, handler
from app.pages._frame import page_frame
from app.pages._query import QueryFields
from app.pages.fork import result, view
from jobs.db.models import ACTIVE
from jobs.db.queries.dialogues import DialogueFilter
from rl2f_core.common.text.integers import whole_number
from rl2f_core.errors import ConfigError, RL2FError
from rl2f_core.evaluation.counterfactual.arms import HINTS
from rl2f_core.types import JsonObject

PATH = "fork"
TITLE = "Fork"
ORDER = 45
IN_NAVIGATION = False
DEFAULT_ARMS = ["original", "contentless", "shuffled", "misleading"]
ATTEMPTS = [("All remaining", ""), *((str(n), str(n)) for n in (1, 2, 3, 4))]
LATER_HINTS = [("Run's teacher", "run"), ("Arm's teacher", "arm"), ("Contentless", "contentless")]
MAX_SAMPLES = 500
MAX_TEXT_IN_ADDRESS = 400
MAX_OPEN = 12
"""Open branches of the tree that the address keeps."""
REFRESH_SECONDS = 0.7
SCALE_SAMPLES = """() => {
  const field = document.querySelector("#fork-samples input");
  field.value = Math.max(1, Math.min(%d, Math.round(%s * field.value)));
  field.dispatchEvent(new Event("input", { bubbles: true }));
}"""
SKIPPED_RESULT = [gr.skip()] * 3
LEAF = ".fk-leaf:focus"
KEYS = [
    *(
        Key(str(i), f"switch a hint on or off: {hint}", f"#fork-arms label:nth-of-type({i}) input")
        for i, hint in enumerate(HINTS, 1)
    ),
    Key("w", "write a hint", "#fork-text textarea", "focus"),
    Key("s", "select checkpoints", "#fork-checkpoints input", "focus"),
    Key("+", "twice the samples", "#fork-more"),
    Key("-", "half the samples", "#fork-fewer"),
    Key("p", "preview", "#fork-preview"),
    Key("r", "start the fork", "#fork-start"),
    Key("Ctrl+Enter", "start the fork", "#fork-start", typing=True),
    Key("j ArrowDown", "next dialogue of the tree", ".fk-leaf", "next"),
    Key("k ArrowUp", "previous dialogue", ".fk-leaf", "previous"),
    Key("Enter e", "expand or collapse the branch", f"{LEAF}[data-action]"),
    Key("o", "open the dialogue", f"{LEAF} a, .fk-row:has({LEAF}) a"),
    Key("b", "back to the original dialogue", ".fk-back"),
]


class State(TypedDict):
    """What a browser tab shows."""

    text: str
    """The last text of the edited hint."""
    reason: str
    """Why the turn cannot be forked."""
    version: int
    """Version of the fork."""


class Subject(NamedTuple):
    """The turn that a fork continues from; its fields are parameters of the address."""

    run: int
    dialogue: str
    turn: int


def build(studio: Studio) -> None:
    """Build the dialogue on top, the form on the left and the result on the right."""
    address = page_frame(studio, TITLE, KEYS)
    top = View(elem_id="fork-top")
    with gr.Row(equal_height=False, elem_id="fork-body"):
        with gr.Column(scale=4, min_width=320):
            with gr.Group(elem_id="fork-form"):
                checkpoints = gr.Dropdown([], label="Student checkpoints", multiselect=True, elem_id="fork-checkpoints")
                arms = gr.CheckboxGroup(list(HINTS), label="Hints", elem_id="fork-arms")
                text = gr.Textbox(label="Edited hint", lines=2, max_length=4000, elem_id="fork-text")
                teacher = gr.Dropdown(["scripted"], label="Teacher", value="scripted", visible=False)
                with gr.Row(elem_classes="fork-numbers"):
                    samples = gr.Number(
                        label="Samples per hint", precision=0, minimum=1, maximum=MAX_SAMPLES, elem_id="fork-samples"
                    )
                    attempts = gr.Dropdown(ATTEMPTS, label="Attempts after it", min_width=140)
                    later = gr.Dropdown(LATER_HINTS, label="Later hints", min_width=140)
                    seed = gr.Number(label="Seed", precision=0, minimum=0, min_width=140)
            with gr.Row(elem_classes="fork-scale"):
                for label, name, factor in (("½ samples", "fewer", 0.5), ("2 × samples", "more", 2)):
                    button = gr.Button(label, size="sm", min_width=80, elem_id=f"fork-{name}")
                    button.click(None, js=SCALE_SAMPLES % (MAX_SAMPLES, factor))
            earlier = View()
        with gr.Column(scale=7, min_width=320):
            bar, previewed = View(elem_id="fork-bar"), View()
            shown_result = View(elem_id="fork-result")
    timer, state = gr.Timer(REFRESH_SECONDS, active=False), gr.State({"text": "", "reason": "", "version": 0})
    fields = QueryFields(
        {
            "checkpoints": (checkpoints, []),
            "arms": (arms, DEFAULT_ARMS),
            "text": (text, ""),
            "teacher": (teacher, "scripted"),
            "samples": (samples, 16),
            "attempts": (attempts, ""),
            "later_hints": (later, "run"),
            "seed": (seed, 0),
        }
    )
    page = _Page(studio, fields)
    inputs, results = fields.components, [shown_result, timer, state]
    address.input(page.open, address, [address, top, *inputs, bar, earlier, *results], **FAST)
    # one event for all edits: the answers of several could arrive in another order
    edited = [address, state, arms, teacher, bar]
    gr.on(fields.edits, page.edit, [address, state, *inputs], edited, **LATEST)
    bar.click(page.act, [address, state, *inputs], [address, previewed, earlier, *results], **QUEUED)
    shown_result.click(page.act_on_result, [address, state], [address, *results], **FAST)
    timer.tick(page.refresh, [address, state], [earlier, *results], **FAST)


class _Page:
    """The events of the page.

    Args:
        studio: The endpoints.
        fields: The fields of the form.
    """

    def __init__(self, studio: Studio, fields: QueryFields) -> None:
        self._studio, self._fields = studio, fields
        self._forks, self._dialogues = studio.fork, studio.dialogues
        self._writable = not studio.context.read_only

    @handler
    def open(self, query: dict[str, str]) -> list[object]:
        """Show the turn of the address, its form, and the result of the fork of the address."""
        try:
            subject = self._subject(query)
            if subject is None:
                shown = view.no_subject()
            else:
                query = {**query, **{name: str(value) for name, value in subject._asdict().items()}}
                return [Replacement(query), *self._open(query, subject)]
        except RL2FError as error:
            shown = view.not_found(str(error))
        form = [gr.skip()] * len(self._fields.components)
        return [gr.skip(), shown, *form, gr.skip(), gr.skip(), *SKIPPED_RESULT]

    def _open(self, query: dict[str, str], subject: Subject) -> list[object]:
        """Return heading, fields, buttons, earlier forks and result."""
        shown = self._dialogues.get_dialogue(subject.run, subject.dialogue)
        choices = self._forks.fork_choices(subject.run, subject.dialogue)
        turns = shown.turns
        hint = turns[subject.turn].hint if subject.turn < len(turns) else None
        form = self._fields.values(query)
        known = [item.label for item in choices.checkpoints]
        form["checkpoints"] = [label for label in map(str, form["checkpoints"]) if label in known]
        form["checkpoints"] = form["checkpoints"] or [choices.default_checkpoint]
        form["arms"] = [arm for arm in form["arms"] if arm in HINTS]
        if hint is None and "arms" not in query:
            form["arms"] = DEFAULT_ARMS[1:]
        if hint and "text" not in query:
            form["text"] = hint.text
        allowed = {"teacher": choices.teachers, "attempts": _values(ATTEMPTS), "later_hints": _values(LATER_HINTS)}
        for name, values in allowed.items():
            if form[name] not in values:
                form[name] = self._fields.fields[name][1]
        extra: dict[str, JsonObject] = {
            "checkpoints": {"choices": view.checkpoint_choices(choices.checkpoints, subject.run)},
            "arms": {"choices": view.arm_choices(choices.hints, hint is not None)},
            "teacher": {"choices": choices.teachers, "visible": "teacher" in form["arms"]},
        }
        state: State = {"text": form["text"], "reason": view.blocked_reason(shown, subject.turn), "version": 0}
        return [
            view.heading(shown, subject.turn, is_open="fork" not in query),
            *(gr.update(value=value, **extra.get(name, {})) for name, value in form.items()),
            self._bar(form, state),
            self._earlier(query, choices.forks),
            *self._result(query, state),
        ]

    @handler
    def edit(self, query: dict[str, str], state: State, *values: object) -> list[object]:
        """Write the form to the address; a changed text selects the edited hint."""
        form, arms = self._form(values), gr.skip()
        if form["text"] != state["text"] and "edited" not in form["arms"]:
            form["arms"] = arms = [hint for hint in HINTS if hint == "edited" or hint in form["arms"]]
        state = {**state, "text": form["text"]}
        is_taught = gr.update(visible="teacher" in form["arms"])
        return [self._query(query, form), state, arms, is_taught, self._bar(form, state)]

    @handler
    def act(self, event: gr.EventData, query: dict[str, str], state: State, *values: object) -> list[object]:
        """Preview or start the fork of the form."""
        form = self._form(values)
        if event._data["action"] == "preview":
            return [gr.skip(), self._preview(query, form), gr.skip(), *SKIPPED_RESULT]
        queued = self._forks.start_fork(**self._arguments(query, form))
        query = {**query, **self._query(query, form), "fork": str(queued.run), "open": ""}
        query = {name: value for name, value in query.items() if value}
        return [query, gr.skip(), self._earlier(query), *self._result(query, state)]

    @handler
    def act_on_result(self, event: gr.EventData, query: dict[str, str], state: State) -> list[object]:
        """Stop the fork, or expand or collapse a branch."""
        data, shown = event._data, _opened(query)
        if data["action"] == "stop":
            self._studio.run.stop_run(int(data["run"]))
        else:
            shown = [item for item in shown if item != data["id"]] if data["id"] in shown else [*shown, data["id"]]
        query = {**query, "open": ",".join(shown)}
        return [Replacement(query), *self._result(query, state)]

    @handler
    def refresh(self, query: dict[str, str], state: State) -> list[object]:
        """Show the fork again if it changed."""
        job = self._forks.fork_result(_int(query.get("fork"))).job
        if job.version == state["version"]:
            return gr.skip()
        is_active = job.status in ACTIVE
        earlier = gr.skip() if is_active else self._earlier(query)
        return [earlier, *self._result(query, state)]

    def _form(self, values: Sequence[object]) -> JsonObject:
        form = self._fields.named(values)
        return {**form, "text": form["text"] or "", "arms": [hint for hint in HINTS if hint in form["arms"]]}

    def _subject(self, query: dict[str, str]) -> Subject | None:
        run, fork = _int(query.get("run")), _int(query.get("fork"))
        if run and query.get("dialogue"):
            return Subject(run, query["dialogue"], _int(query.get("turn")))
        found = self._forks.fork_result(fork) if fork else None
        return None if found is None or found.run is None else Subject(found.run, found.event_id, found.turn)

    def _query(self, query: dict[str, str], form: JsonObject) -> Replacement:
        """Return the address of a form; a long text is omitted."""
        kept = {name: query[name] for name in (*Subject._fields, "fork", "open") if name in query}
        changed = self._fields.query(list(form.values()))
        if "edited" not in form["arms"] or len(form["text"]) > MAX_TEXT_IN_ADDRESS:
            changed.pop("text", None)
        return Replacement(kept | changed)

    def _arguments(self, query: dict[str, str], form: JsonObject) -> JsonObject:
        """Return the arguments of `start_fork`."""
        subject = self._subject(query)
        if subject is None:
            raise ConfigError("No dialogue is open.", fix="Open a dialogue and fork it.")
        text = form["text"].strip()
        if "edited" in form["arms"] and not text:
            raise ConfigError("The edited hint is empty.", fix="Write it first, or deselect it.")
        added = {"edited": {"text": text}, "teacher": {"teacher": form["teacher"]}}
        return {
            "run": subject.run,
            "event_id": subject.dialogue,
            "turn": subject.turn,
            "checkpoints": form["checkpoints"],
            "arms": [{"hint": hint, **added.get(hint, {})} for hint in form["arms"]],
            "samples": int(form["samples"] or 0),
            "attempts": int(form["attempts"]) if form["attempts"] else None,
            "later_hints": form["later_hints"],
            "seed": int(form["seed"] or 0),
        }

    def _bar(self, form: JsonObject, state: State) -> list[Node]:
        samples = int(form["samples"] or 0)
        samples += bool(samples) and "redacted" in form["arms"]  # one more, with the dialogue's own seed
        count = len(form["checkpoints"]) * len(form["arms"]) * samples
        return view.run_bar(count, form["arms"], is_ready=bool(count) and not state["reason"], writable=self._writable)

    def _preview(self, query: dict[str, str], form: JsonObject) -> Element:
        fork = self._arguments(query, form)
        found = self._forks.preview_fork(**fork)
        place = {name: fork[name] for name in ("run", "event_id", "turn")}
        turns, text = self._dialogues.get_dialogue(fork["run"], fork["event_id"]).turns, form["text"].strip()
        original = turns[fork["turn"]].hint if "original" in form["arms"] else None
        screened = self._forks.screen_hint(**place, text=text) if "edited" in form["arms"] else None
        return view.preview(found, original, text, screened)

    def _earlier(self, query: dict[str, str], forks: Sequence[EarlierFork] | None = None) -> Element | None:
        subject = self._subject(query)
        if subject is None:
            return None
        listed = self._forks.fork_choices(subject.run, subject.dialogue).forks if forks is None else forks
        return view.earlier_forks(listed, subject.run, subject.dialogue, _int(query.get("fork")))

    def _result(self, query: dict[str, str], state: State) -> list[object]:
        """Return the result, the timer and the state."""
        fork, idle = _int(query.get("fork")), [gr.Timer(active=False), {**state, "version": 0}]
        if not fork:
            return [result.no_result(), *idle]
        try:
            found = self._forks.fork_result(fork)
        except RL2FError as error:
            return [el("p.rl-card.rl-wrong", str(error), role="alert"), *idle]
        report, job = found.report, found.job
        shown = [
            result.status_card(found, self._writable),
            result.report_card(report) if report else None,
            self._tree(found, _opened(query)) if report else None,
        ]
        is_active = job.status in ACTIVE
        return [el("div.rl-stack", shown), gr.Timer(active=is_active), {**state, "version": job.version}]

    def _tree(self, found: ForkResult, opened: Sequence[str]) -> Element | None:
        if found.run is None:
            return None
        fork, pages = found.job.id, {}
        for key in opened:
            checkpoint, _, arm = key.partition("|")
            if arm and "|" not in arm:
                filter = DialogueFilter(run=fork, phase="fork", checkpoint=checkpoint, condition=arm)
                pages[key] = self._dialogues.list_dialogues(filter)
        samples = {f"{key}|{row.event_id}": row.event_id for key, page in pages.items() for row in page.rows}
        shown = {key: self._dialogues.get_dialogue(fork, samples[key]) for key in opened if key in samples}
        return result.tree(found, self._dialogues.get_dialogue(found.run, found.event_id), pages, shown)


def _values(choices: Sequence[tuple[str, str]]) -> list[str]:
    return [value for _, value in choices]


def _int(text: str | None) -> int:
    return whole_number(text or "", 0)


def _opened(query: dict[str, str]) -> list[str]:
    return [key for key in query.get("open", "").split(",") if key][:MAX_OPEN]
