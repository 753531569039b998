"""Page Fork: a dialogue continues from one of its turns under other hints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import gradio as gr

from app.components.address import Replacement
from app.components.keys import Key
from app.components.nodes import el
from app.components.view import View
from app.endpoints.studio import Studio
from app.pages import _fork_result as result
from app.pages import _fork_view as view
from app.pages._events import FAST, QUEUED, handler
from app.pages._frame import page_frame
from app.pages._query import QueryFields
from rl2f_core.counterfactual.arms import HINTS
from rl2f_core.errors import ConfigError, RL2FError

if TYPE_CHECKING:
    from app.endpoints.dialogues import DialoguePage
    from app.endpoints.fork import ForkResult

PATH = "fork"
TITLE = "Fork"
ORDER = 45
IN_NAVIGATION = False
DEFAULT_ARMS = ["original", "contentless", "shuffled", "misleading"]
ATTEMPTS = [("All remaining", ""), *((str(n), str(n)) for n in (1, 2, 3, 4))]
LATER_HINTS = [("The run's teacher", "run"), ("The arm's own", "arm"), ("Contentless", "contentless")]
MAX_SAMPLES = 500
MAX_TEXT_IN_ADDRESS = 400
MAX_OPEN = 12
"""Open branches of the tree that the address keeps."""
REFRESH_SECONDS = 0.7
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


SUBJECT = ("run", "dialogue", "turn")
"""Parameters of a subject in the address."""


class Subject(NamedTuple):
    """The turn that a fork continues from."""

    run: int
    event_id: str
    turn: int


def build(studio: Studio) -> None:
    """Build the dialogue on top, the form on the left and the result on the right."""
    forks, dialogues, writable = studio.fork, studio.dialogues, not studio.context.read_only

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
                        label="Samples per hint", precision=0, minimum=1, maximum=MAX_SAMPLES, min_width=140
                    )
                    attempts = gr.Dropdown(ATTEMPTS, label="Attempts after it", min_width=140)
                    later = gr.Dropdown(LATER_HINTS, label="Later hints", min_width=140)
                    seed = gr.Number(label="Seed", precision=0, minimum=0, min_width=140)
            notice = View(elem_id="fork-notice")
            with gr.Row(elem_classes="fork-buttons"):
                fewer = gr.Button("½ samples", size="sm", min_width=80, elem_id="fork-fewer")
                more = gr.Button("2 × samples", size="sm", min_width=80, elem_id="fork-more")
                preview = gr.Button("Preview", size="sm", min_width=80, elem_id="fork-preview")
                start = gr.Button(
                    "Start fork", variant="primary", size="sm", interactive=False, min_width=100, elem_id="fork-start"
                )
            previewed = View(elem_id="fork-previewed")
            config = gr.Code(language="yaml", label="Configuration", interactive=False, visible=False, max_lines=20)
            earlier = View(elem_id="fork-earlier")
        with gr.Column(scale=7, min_width=320):
            status = View(elem_id="fork-status")
            report = View(elem_id="fork-report")
            tree = View(elem_id="fork-tree")
    timer = gr.Timer(REFRESH_SECONDS, active=False)
    seen, blocked, hinted = gr.State(0), gr.State(""), gr.State("")

    fields = QueryFields(
        {
            "checkpoints": (checkpoints, []),
            "arms": (arms, DEFAULT_ARMS),
            "text": (text, ""),
            "teacher": (teacher, "scripted"),
            "samples": (samples, 16),
            "attempts": (attempts, ""),
            "then": (later, "run"),
            "seed": (seed, 0),
        }
    )

    def form_of(values: Sequence[Any]) -> dict[str, Any]:
        form = dict(zip(fields.fields, values, strict=True))
        return {**form, "arms": [hint for hint in HINTS if hint in form["arms"]]}

    def subject_of(query: dict[str, str]) -> Subject | None:
        run, fork = _int(query.get("run")), _int(query.get("fork"))
        if run and query.get("dialogue"):
            return Subject(run, query["dialogue"], _int(query.get("turn")))
        found = forks.fork_result(fork) if fork else None
        return Subject(found["run"], found["event_id"], found["turn"]) if found and found["run"] else None

    def new_query(query: dict[str, str], form: dict[str, Any]) -> Replacement:
        """Return the address of a form; a long text is omitted."""
        kept = {name: query[name] for name in ("run", "dialogue", "turn", "fork", "open") if name in query}
        changed = fields.query(list(form.values()))
        if "edited" not in form["arms"] or len(form["text"] or "") > MAX_TEXT_IN_ADDRESS:
            changed.pop("text", None)
        return Replacement(kept | changed)

    def form_notes(form: dict[str, Any], reason: str) -> list[Any]:
        """Return the number of dialogues, and the state of the buttons."""
        count = len(form["checkpoints"]) * len(form["arms"]) * int(form["samples"] or 0)
        ready = bool(count) and not reason
        notice = view.count_text(count, form["arms"]) if writable else el("p.rl-muted", "Read-only server.")
        return [notice, gr.update(interactive=ready), gr.update(interactive=ready and writable)]

    def arguments(query: dict[str, str], form: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of `start_fork`."""
        subject = subject_of(query)
        if subject is None:
            raise ConfigError("No dialogue is open.", fix="Open a dialogue and fork it.")
        written = (form["text"] or "").strip()
        if "edited" in form["arms"] and not written:
            raise ConfigError("The edited hint is empty.", fix="Write it first, or deselect it.")
        added = {"edited": {"text": written}, "teacher": {"teacher": form["teacher"]}}
        return {
            **subject._asdict(),
            "checkpoints": form["checkpoints"],
            "arms": [{"hint": hint, **added.get(hint, {})} for hint in form["arms"]],
            "samples": int(form["samples"] or 0),
            "attempts": int(form["attempts"]) if form["attempts"] else None,
            "later_hints": form["then"],
            "seed": int(form["seed"] or 0),
        }

    def draw_tree(found: ForkResult, opened: Sequence[str]) -> Any:
        if found["report"] is None or found["run"] is None:
            return None
        fork = found["job"]["id"]
        pages: dict[str, DialoguePage] = {}
        for key in opened:
            checkpoint, _, arm = key.partition("|")
            if arm and "|" not in arm:
                filter: Any = {"run": fork, "phase": "fork", "checkpoint": checkpoint, "condition": arm}
                pages[key] = dialogues.list_dialogues(filter)
        samples = {f"{key}|{row['event_id']}": row["event_id"] for key, page in pages.items() for row in page["rows"]}
        shown = {key: dialogues.get_dialogue(fork, samples[key]) for key in opened if key in samples}
        return result.tree(found, dialogues.get_dialogue(found["run"], found["event_id"]), pages, shown)

    def draw_result(query: dict[str, str]) -> list[Any]:
        """Return status, report, tree, earlier forks, timer, and version of the run."""
        subject, fork = subject_of(query), _int(query.get("fork"))
        listed = forks.fork_choices(subject.run, subject.event_id)["forks"] if subject else []
        past = view.earlier_forks(listed, subject.run, subject.event_id, fork) if subject else None
        rest = [None, None, past, gr.Timer(active=False), 0]
        if not fork:
            return [result.no_result(), *rest]
        try:
            found = forks.fork_result(fork)
        except RL2FError as error:
            return [el("p.rl-card.rl-wrong", str(error), role="alert"), *rest]
        return [
            result.status_card(found, writable),
            result.report_card(found["report"]) if found["report"] else None,
            draw_tree(found, _opened(query)),
            past,
            gr.Timer(active=found["job"]["status"] in result.ACTIVE),
            found["job"]["version"],
        ]

    def open_form(query: dict[str, str], subject: Subject) -> list[Any]:
        """Return heading, reason, original hint, fields and notes of a subject."""
        shown = dialogues.get_dialogue(subject.run, subject.event_id)
        choices = forks.fork_choices(subject.run, subject.event_id)
        reason = view.blocked_reason(shown, subject.turn)
        turns = shown["turns"]
        hint = turns[subject.turn]["hint"] if subject.turn < len(turns) else None
        form = fields.values(query)
        labels = [each["label"] for each in choices["checkpoints"]]
        chosen = [label for label in map(str, form["checkpoints"]) if label in labels]
        form["checkpoints"] = chosen or [choices["default_checkpoint"]]
        form["arms"] = [arm for arm in form["arms"] if arm in HINTS]
        if hint is None and "arms" not in query:
            form["arms"] = DEFAULT_ARMS[1:]
        if "text" not in query:
            form["text"] = hint["hint"] if hint else ""
        for name, allowed in (("teacher", choices["teachers"]), ("attempts", _values(ATTEMPTS)),
                              ("then", _values(LATER_HINTS))):  # fmt: skip
            if form[name] not in allowed:
                form[name] = fields.fields[name][1]
        extra: dict[str, dict[str, Any]] = {
            "checkpoints": {"choices": view.checkpoint_choices(choices["checkpoints"], subject.run)},
            "arms": {"choices": view.arm_choices(choices["hints"], hint is not None)},
            "teacher": {"choices": choices["teachers"], "visible": "teacher" in form["arms"]},
        }
        heading = [
            view.heading(shown, subject.turn),
            view.dialogue_before(shown, subject.turn, is_open="fork" not in query),
            view.blocked_notice(shown, subject.turn),
        ]
        updates = [gr.update(value=value, **extra.get(name, {})) for name, value in form.items()]
        return [heading, reason, hint["hint"] if hint else "", *updates, *form_notes(form, reason)]

    @handler
    def open_page(query: dict[str, str]) -> list[Any]:
        try:
            subject = subject_of(query)
            if subject is not None:
                query = {**query, **{name: str(v) for name, v in zip(SUBJECT, subject, strict=True)}}
                return [Replacement(query), *open_form(query, subject), *draw_result(query)]
            shown = view.no_subject()
        except RL2FError as error:
            shown = view.not_found(str(error))
        return [gr.skip(), shown, *[gr.skip()] * (len(opened) - 2)]

    @handler
    def edit(query: dict[str, str], reason: str, *values: Any) -> list[Any]:
        form = form_of(values)
        return [new_query(query, form), *form_notes(form, reason)]

    @handler
    def choose_arms(query: dict[str, str], reason: str, *values: Any) -> list[Any]:
        return [gr.update(visible="teacher" in form_of(values)["arms"]), *edit(query, reason, *values)]

    @handler
    def write(original: str, query: dict[str, str], reason: str, *values: Any) -> list[Any]:
        form = form_of(values)
        if "edited" in form["arms"] or form["text"] == original:
            return [gr.skip(), *edit(query, reason, *values)]
        form["arms"] = [hint for hint in HINTS if hint == "edited" or hint in form["arms"]]
        return [form["arms"], *edit(query, reason, *form.values())]

    @handler
    def show_preview(query: dict[str, str], *values: Any) -> list[Any]:
        form = form_of(values)
        fork = arguments(query, form)
        found = forks.preview_fork(**fork)
        place = (fork["run"], fork["event_id"], fork["turn"])
        original = dialogues.get_dialogue(*place[:2])["turns"][fork["turn"]] if "original" in form["arms"] else None
        written = form["text"].strip() if "edited" in form["arms"] else ""
        screened = (written, forks.screen_hint(*place, written)) if written else None
        notes = view.preview_notes(found, view.original_note(original) if original else None, screened)
        return [notes, gr.update(value=found["config"], visible=True)]

    @handler
    def start_fork(query: dict[str, str], *values: Any) -> list[Any]:
        form = form_of(values)
        queued = forks.start_fork(**arguments(query, form))
        query = {**query, **new_query(query, form), "fork": str(queued["run"]), "open": ""}
        return [{name: value for name, value in query.items() if value}, *draw_result(query)]

    @handler
    def refresh(query: dict[str, str], version: int) -> Any:
        found = forks.fork_result(_int(query.get("fork")))
        return gr.skip() if found["job"]["version"] == version else draw_result(query)

    @handler
    def toggle(event: gr.EventData, query: dict[str, str]) -> list[Any]:
        key, shown = event._data["id"], _opened(query)
        shown = [each for each in shown if each != key] if key in shown else [*shown, key]
        query = {**query, "open": ",".join(shown)}
        return [Replacement(query), draw_tree(forks.fork_result(_int(query.get("fork"))), shown)]

    @handler
    def stop(event: gr.EventData, query: dict[str, str]) -> list[Any]:
        studio.run.stop_run(int(event._data["run"]))
        return draw_result(query)

    inputs = fields.components
    notes = [notice, preview, start]
    results = [status, report, tree, earlier, timer, seen]
    opened = [address, top, blocked, hinted, *inputs, *notes, *results]
    last: dict[str, Any] = {**FAST, "trigger_mode": "always_last"}
    edited = [address, blocked, *inputs]
    address.input(open_page, address, opened, **FAST)
    simple = [checkpoints.input, teacher.input, samples.input, samples.blur, attempts.input, later.input]
    simple += [seed.input, seed.blur]
    gr.on(simple, edit, edited, [address, *notes], **last)
    arms.input(choose_arms, edited, [teacher, address, *notes], **last)
    # a text field may lose the first input after an update
    gr.on([text.input, text.blur], write, [hinted, *edited], [arms, address, *notes], **last)
    scaled = ((fewer, "(n) => Math.max(1, Math.round(n / 2))"), (more, f"(n) => Math.min({MAX_SAMPLES}, 2 * n)"))
    for button, scale in scaled:
        button.click(None, samples, samples, js=scale).then(edit, edited, [address, *notes], **last)
    preview.click(show_preview, [address, *inputs], [previewed, config], **QUEUED)
    start.click(start_fork, [address, *inputs], [address, *results], **QUEUED)
    tree.click(toggle, address, [address, tree], **FAST)
    status.click(stop, address, results, **FAST)
    timer.tick(refresh, [address, seen], results, **FAST)


def _values(choices: Sequence[tuple[str, str]]) -> list[str]:
    return [value for _, value in choices]


def _int(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _opened(query: dict[str, str]) -> list[str]:
    return [key for key in query.get("open", "").split(",") if key][:MAX_OPEN]
