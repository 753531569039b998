"""Page Dialogues without a browser: filters of the address, moves in the list, labels, and what is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from replay_data import add_run, odd_events, taxi_events, training_events

from app.common.context import Context
from app.components.elements.dialogue_list import COLUMNS, dialogue_list, dialogue_table, row_key
from app.components.elements.replay import group_kind
from app.components.elements.transcript import transcript_text
from app.endpoints.dialogues import Sibling
from app.endpoints.studio import Studio
from app.pages.dialogues.browse import DialogueBrowser, PageState, merged_ranges, parse_filter
from app.pages.dialogues.page import see
from app.pages.dialogues.view import content, error_view, histogram_chart, pager, shortcuts, step_of
from jobs.db.queries.dialogues import DialogueFilter
from rl2f_core.errors import ConfigError
from rl2f_core.types import ActionChoice

PREFIX = "dialogue:train:rl2f/"


@pytest.fixture
def browser(context: Context) -> DialogueBrowser:
    """A browser of two runs: 1 has 24 training dialogues, 2 has odd ones."""
    add_run(context.db, context.workspace, "small", training_events())
    add_run(context.db, context.workspace, "odd", odd_events())
    return DialogueBrowser(Studio(context))


@pytest.fixture
def place(browser: DialogueBrowser) -> PageState:
    """The first dialogue of run 1."""
    return browser.load(PageState(filter=DialogueFilter(run=1), query={"run": "1"}, annotator="anna"))


def shown(node: Any) -> str:
    """Return the text of an element."""
    return node if isinstance(node, str) else "".join(shown(child) for child in node[2:])


def do(browser: DialogueBrowser, place: PageState, *names: str, **data: Any) -> PageState:
    for name in names:
        place = browser.act(place, {"action": name, **data})
    return place


def test_the_table_orders_by_a_title_and_a_task_opens_the_dialogue(browser: DialogueBrowser, place: PageState) -> None:
    table = do(browser, place, "table")
    assert table.is_table and table.current is None and table.address()["view"] == "table"
    sorted_ = do(browser, table, "order", order="-turns")
    assert sorted_.is_table and sorted_.query["order"] == "-turns" and sorted_.page
    lengths = [row.length for row in sorted_.page.rows]
    assert lengths == sorted(lengths, reverse=True)
    drawn = json.dumps(dialogue_table(sorted_.page.rows, "-turns"), ensure_ascii=False)
    assert '"aria-sort": "descending"' in drawn and '"data-order": "turns"' in drawn and "turns ↓" in drawn
    assert all(f'"data-order": "-{name}"' in drawn for name in COLUMNS if name != "turns")
    run, event = sorted_.refs[2]
    opened = browser.act(sorted_, {"action": "open", "run": run, "event": event})
    assert opened.current == (run, event) and not opened.is_table and opened.address()["view"] == ""
    assert do(browser, sorted_, "table").current == sorted_.refs[0], "the list opens its first dialogue"


def test_the_fields_are_parsed_to_a_filter() -> None:
    fields = {
        "run": "3",
        "step": "18–22",
        "reward": "-0.5..1",
        "leak": "2",
        "labeled": "false",
        "error": "",
        "solved": "2",
    }
    assert parse_filter(fields).model_dump() == {
        "run": 3,
        "step_from": 18,
        "step_to": 22,
        "reward_from": -0.5,
        "reward_to": 1.0,
        "leak_state": 2,
        "labeled": False,
        "solved": "2",
    }
    assert parse_filter({"step": "7"}).model_dump() == {"step_from": 7, "step_to": 7}
    assert parse_filter({"reward": "0.5.."}).model_dump() == {"reward_from": 0.5}


@pytest.mark.parametrize("fields", [{"step": "two"}, {"step": "1–2–3"}, {"reward": "1.2.3"}])
def test_an_unreadable_range_is_an_error(fields: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="is a number, or a range"):
        parse_filter(fields)


def test_ends_of_a_range_in_the_address_are_one_field() -> None:
    assert merged_ranges({"step_from": "2", "step_to": "3", "reward_from": "0.5"}) == {"step": "2–3", "reward": "0.5.."}


def test_keys_move_through_dialogues(browser: DialogueBrowser, place: PageState) -> None:
    assert place.current == (1, PREFIX + "1/0/0")
    place = replace(do(browser, place, "next", "next", "next"), turn=1)
    assert place.current == (1, PREFIX + "1/0/3")
    assert do(browser, place, "previous").turn == 0
    assert do(browser, place, "next_step").current == (1, PREFIX + "2/0/0")
    last = do(browser, place, "last")
    assert last.current == (1, PREFIX + "3/1/3")
    assert do(browser, last, "next").message == "This is the last dialogue of the list."
    assert do(browser, last, "next_step").message == "This is the last step of the list."
    assert do(browser, last, "first").position == 0


def test_another_dialogue_hides_the_answer_and_keeps_tokens_shown(browser: DialogueBrowser, place: PageState) -> None:
    place = do(browser, place, "reveal", "tokens", turn="0")
    assert place.privileged and place.privileged.gold_answer == "A B A B"
    place = do(browser, place, "next")
    assert place.privileged is None and place.tokens is not None
    assert do(browser, place, "tokens", turn="0").tokens is None


def test_the_address_names_what_is_shown(browser: DialogueBrowser, place: PageState) -> None:
    place = do(browser, place, "tokens", "group", turn="0")
    expected = {"run": "1", "dialogue": PREFIX + "1/0/0", "turn": "0", "tokens": "1", "view": "group"}
    assert {name: value for name, value in place.address().items() if value} == expected
    everywhere = replace(place, query={})
    assert everywhere.address()["of"] == "1"


def test_a_label_uses_the_selected_words_and_is_undone(browser: DialogueBrowser, place: PageState) -> None:
    place = browser.open(place, 1, PREFIX + "1/0/3")
    place = browser.act(place, {"action": "label", "label": "leak"}, {"key": "0", "start": 4, "end": 15})
    assert place.message == "Turn 1: leak, with the marked words."
    place = do(browser, place, "label", label="unsure")
    (label,) = place.dialogue.turns[0].hint.labels  # type: ignore[union-attr]
    assert (label.label, label.start, label.end, label.blind) == ("unsure", 4, 15, False)
    assert place.page and place.page.rows[place.position].label_count == 1
    place = do(browser, place, "undo", "undo")
    assert place.dialogue and place.dialogue.turns[0].hint.labels == []  # type: ignore[union-attr]
    assert do(browser, place, "undo").message == "Nothing to undo."
    assert do(browser, replace(place, annotator=""), "label", label="leak").message == "Enter your name first."
    assert do(browser, replace(place, turn=1), "label", label="leak").message == "This attempt has no hint."


def test_tokens_follow_the_turn_whose_button_is_pressed(browser: DialogueBrowser, place: PageState) -> None:
    place = do(browser, browser.open(place, 1, PREFIX + "1/0/3"), "tokens", turn="1")
    assert place.token_turn == 1 and place.tokens is not None
    place = do(browser, place, "tokens", turn="0")
    assert place.token_turn == 0
    assert do(browser, place, "tokens", turn="0").token_turn is None


def test_what_the_browser_shows_counts_in_the_open_dialogue_only(browser: DialogueBrowser, place: PageState) -> None:
    place = browser.open(place, 1, PREFIX + "1/0/3")
    after, note = see(place, json.dumps([f"1 {PREFIX}1/0/3", 1, "why"]))
    assert after.turn == 1 and note == "why"
    assert see(place, json.dumps([f"1 {PREFIX}1/0/2", 1, "why"])) == (place, None)
    assert see(place, "null") == see(place, "") == (place, None)


def test_a_narrow_window_shows_the_list_first(browser: DialogueBrowser) -> None:
    place = browser.load(PageState(filter=DialogueFilter(run=1), narrow=True, in_list=True))
    assert place.current is None and place.page and len(place.page.rows) == 24
    place = browser.act(place, {"action": "open", "run": "1", "event": PREFIX + "1/0/2"})
    assert not place.in_list
    assert do(browser, place, "list").in_list


def test_a_missing_dialogue_is_explained_beside_the_list(browser: DialogueBrowser, place: PageState) -> None:
    place = browser.open(place, 1, "dialogue:nowhere")
    assert place.error and content(place)[1] == error_view(place.error)[1]  # type: ignore[comparison-overlap]
    assert len(place.refs) == 24


def test_a_hostile_dialogue_is_text(browser: DialogueBrowser, place: PageState) -> None:
    place = browser.open(place, 2, "dialogue:train:odd/hostile")
    assert '<script>window.pwned = "script"</script>' in shown(content(place))
    group = do(browser, place, "group")
    assert "<script>" in shown(content(group))


def test_a_reader_cannot_label(browser: DialogueBrowser, place: PageState) -> None:
    place = browser.open(place, 1, PREFIX + "1/0/3")
    assert "select words" in shown(content(place))
    assert "select words" not in shown(content(replace(place, read_only=True)))


def test_the_rewards_of_a_step_are_bars(browser: DialogueBrowser, place: PageState, context: Context) -> None:
    found = step_of(place)
    assert found == (1, "rl2f", 1)
    chart = histogram_chart(Studio(context).run.run_histogram(1, "rl2f", 1), "rl2f", 1)
    (bars,) = chart["figure"]["data"]
    assert bars["x"] == ["−.30", ".80", ".90"] and bars["y"] == [2, 4, 2]
    assert bars["customdata"][1] == {"low": 0.8, "high": 0.8, "stage": "rl2f", "step": 1}


def test_rows_and_pager_of_a_list(place: PageState) -> None:
    assert place.page
    rows: Any = dialogue_list(place.page.rows, with_run=False)
    assert len(rows[2:]) == 24 and "run 1" not in shown(rows)
    assert place.current and [row[2][1]["data-key"] for row in rows[2:]].index(row_key(*place.current)) == 0
    assert "1–24 of 24" in shown(pager(place))


def test_every_key_is_unique() -> None:
    keys = [name for key in shortcuts() for name in key.keys.split()]
    assert len(keys) == len(set(keys))
    assert set("jknpNPgGuvtaexmfc123") <= set(keys)


def test_the_text_of_a_dialogue_contains_what_the_student_read(place: PageState, browser: DialogueBrowser) -> None:
    place = browser.open(place, 1, PREFIX + "1/0/1")
    assert place.dialogue
    text = transcript_text(place.dialogue)
    assert text.index("Task") < text.index("A A B A") < text.index("Correct so far") < text.index("attempt 2")


def test_a_group_is_described_by_its_outcomes() -> None:
    def kind(**solved_at: int | None) -> str:
        known: Any = {"event_id": "", "index": 0, "reward": None}
        signs = {"unknown": "-"}
        return group_kind(
            [Sibling(solved_at=at, outcomes=signs.get(name, "?"), **known) for name, at in solved_at.items()]
        )

    assert kind(a=1, b=None) == kind(a=1, b=None, unknown=None) == "mixed: 1 correct"
    assert (kind(a=None), kind(a=2, b=1), kind(unknown=None)) == ("all incorrect", "all correct", "no verdict")


def test_the_replay_of_an_episode_shows_observation_action_and_reward(context: Context) -> None:
    events = taxi_events()
    add_run(context.db, context.workspace, "taxi", events, environment={"type": "taxi", "dangerous": True})
    browser = DialogueBrowser(Studio(context))
    place = browser.load(PageState(filter=DialogueFilter(run=1), query={"run": "1"}))
    page = shown(content(place))
    assert place.dialogue is not None and place.dialogue.stop_reason == "ended"
    first, last = place.dialogue.turns
    observation = events[0].dialogue.turns[0].verdict.observation
    assert observation is not None and first.observation == observation and "|T" in observation
    assert observation in page and "parsed west" in page and "r −1.00" in page and "episode ended" in page
    assert (first.done, last.done) == (False, True) and "the environment ended the episode" in page
    assert f"Environment\n{observation}" in transcript_text(place.dialogue)
    assert "Teacher" not in page  # an empty hint is not shown beside an observation


def test_the_replay_shows_reflection_and_action_probabilities_as_bars(context: Context) -> None:
    (event,) = taxi_events()
    first, last = event.dialogue.turns
    actions = tuple(
        ActionChoice(label=label, action=action, probability=p)
        for label, action, p in (("A", "<b>south", 0.25), ("B", "west", 0.75), ("C", "north", None))
    )
    first = first.model_copy(update={"actions": actions, "reflection": "The passenger is to the <i>west."})
    dialogue = event.dialogue.model_copy(update={"turns": (first, last)})
    taxi = {"type": "taxi", "dangerous": True, "map": "gymnasium"}
    run = add_run(context.db, context.workspace, "taxi", [event.model_copy(update={"dialogue": dialogue})],
                  environment=taxi, rollout={"prompting": "enumerate"})  # fmt: skip
    place = DialogueBrowser(Studio(context)).load(
        PageState(filter=DialogueFilter(run=run.id), query={"run": str(run.id)})
    )
    assert place.dialogue is not None
    turns = place.dialogue.turns
    assert turns[0].reflection == "The passenger is to the <i>west." and turns[1].reflection is None
    assert turns[0].actions[1].probability == 0.75
    assert turns[1].actions == ()
    page = shown(content(place))
    assert (
        page.index("Reflector") < page.index("The passenger is to the <i>west.") < page.index("A. ") < page.index("B. ")
    )
    bars = json.dumps(content(place))
    assert "width: 75.0%" in bars and "width: 25.0%" in bars and bars.count('"width: ') == 2
    assert "Reply with one action" not in place.dialogue.prompt.system
    assert "Reflector\nThe passenger" in transcript_text(place.dialogue)
