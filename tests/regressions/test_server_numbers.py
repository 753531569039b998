"""Numbers, counts, texts and times in configurations and endpoints; schedules when the clock is changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from export_builders import CONFIG
from json_endpoints import JsonEndpoints
from pydantic.json_schema import models_json_schema

from app.common.context import Context
from app.endpoints.endpoint import operation_of
from app.endpoints.studio import Studio
from app.experiment import queue_experiment
from app.pages import _query
from app.pages.chat.settings import parse_index
from app.pages.run.page import run_number
from jobs import run_kinds
from jobs.db.engine import Database
from jobs.db.models import ScheduledRun
from jobs.db.queries import scheduled_runs
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core import registry
from rl2f_core.common.paths import DATA
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.config.loading import load_config, parse_config, parse_yaml
from rl2f_core.config.overrides import set_nested
from rl2f_core.environments.data_files import column_value
from rl2f_core.errors import ConfigError
from rl2f_core.evaluation.counterfactual.config import nearest_checkpoint


@pytest.fixture
def context(workspace: Workspace, db: Database) -> Context:
    return Context(workspace, db, Queue(db, workspace))


# -- numbers and counts ----------------------------------------------------------------------------------------------
LONG_NUMBERS = {
    "4,000 hexadecimal digits": "0x" + "f" * 4000,
    "4,000 octal digits": "0" + "7" * 4000,
    "20,000 binary digits": "0b" + "1" * 20_000,
    "60,000 sexagesimal parts": "1" + ":1" * 60_000,
    "60,000 sexagesimal parts and a fraction": "1" + ":1" * 60_000 + ".5",
    "4,200 decimal digits": "1" * 4200,
}


@pytest.mark.parametrize("number", LONG_NUMBERS.values(), ids=LONG_NUMBERS)
def test_a_number_of_many_digits_is_refused_with_a_reason(context: Context, number: str) -> None:
    text = f"name: long\nseed: {number}\n"
    with pytest.raises(ConfigError, match="a number has") as refused:
        parse_yaml(text)
    assert len(str(refused.value)) < 2000
    with pytest.raises(ConfigError, match="a number has"):
        load_config("quickstart", [f"seed={number}"])
    checked = JsonEndpoints(Studio(context)).launch.check_config(yaml=text)
    assert not checked["ok"] and "a number has" in json.dumps(checked)


@pytest.mark.parametrize("value", ["yes", "no"])
@pytest.mark.parametrize(
    "key", ["seed", "stages.0.steps", "stages.0.learning_rate", "evaluation.temperature", "alerts.leak_rate_above"]
)
def test_a_boolean_is_no_number_of_a_configuration(context: Context, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=r"Input should be a valid number .got (True|False)") as refused:
        load_config("quickstart", [f"{key}={value}"])
    assert key in str(refused.value) and "function-before" not in str(refused.value)
    launch = JsonEndpoints(Studio(context)).launch
    (error,) = launch.check_config(preset="quickstart", overrides={key: value == "yes"})["errors"]
    assert ".".join(map(str, error["path"])) == key and "must be a number, not " in error["message"]


def test_numbers_of_a_configuration_may_be_texts_and_booleans_stay_booleans() -> None:
    config: Any = load_config("quickstart", ["seed='3'", "evaluation.temperature=1", "alerts.failed=no"])
    assert (config.seed, config.evaluation.temperature, config.alerts.failed) == (3, 1.0, False)


def test_every_recorded_configuration_still_loads() -> None:
    recorded = sorted(DATA.rglob("config.yaml"))
    assert recorded
    for file in recorded:
        assert parse_yaml(file.read_text(encoding="utf-8")), file


@pytest.mark.parametrize("seed", [16**4000, -(10**5000), [10**5000]], ids=["large", "negative", "in a list"])
def test_a_long_number_of_python_is_refused_with_a_reason(seed: object) -> None:
    with pytest.raises(ConfigError, match="seed"):
        parse_config({**CONFIG, "seed": seed})
    assert str(ConfigError("A value is wrong.", value=seed))


def test_numbers_of_usual_notation_are_read() -> None:
    assert load_yaml("[0x1f, 0b11, 0o17, 1:30, 1e3, 1_000, .5, 1:30.5]") == yaml.safe_load(
        "[0x1f, 0b11, 0o17, 1:30, 1e3, 1_000, .5, 1:30.5]"
    )


COUNTS = ("evaluation.num_tasks", "evaluation.samples_per_task", "stages.0.steps", "stages.0.tasks_per_step",
          "stages.0.group_size", "stages.0.minibatches", "stages.0.save_steps", "stages.0.max_group_resamples",
          "preflight.num_tasks", "rollout.max_new_tokens", "rollout.max_concurrent", "lora.alpha",
          "leak_detection.max_resamples", "stages.0.learning_rate.0.step")  # fmt: skip


@pytest.mark.parametrize("count", COUNTS)
def test_a_count_of_the_configuration_has_an_upper_bound(count: str) -> None:
    value: object = 10**12
    if count.endswith(".step"):
        count, value = "stages.0.learning_rate", [{"step": 0, "value": 0.1}, {"step": 10**12, "value": 0.2}]
    with pytest.raises(ConfigError, match=f"{count.split('.')[-1]}.*less than or equal"):
        load_config("quickstart", [f"{count}={json.dumps(value)}"])


def unbounded(schema: Any, path: str = "") -> Iterator[str]:
    if isinstance(schema, dict):
        if schema.get("type") == "integer" and not {"maximum", "exclusiveMaximum", "enum", "const"} & schema.keys():
            yield path
        for key, value in schema.items():
            yield from unbounded(value, f"{path}/{key}")
    elif isinstance(schema, list):
        for item in schema:
            yield from unbounded(item, path)


@pytest.mark.slow
def test_every_whole_number_of_every_configuration_has_an_upper_bound() -> None:
    run_kinds.load()
    classes = [registry.get("run_kind", name).config_class for name in registry.names("run_kind")]
    kinds = [kind for kind in registry.PACKAGES if kind != "run_kind"]
    classes += [registry.get(kind, name).Config for kind in kinds for name in registry.names(kind)]
    _, schema = models_json_schema([(each, "validation") for each in classes])
    assert list(unbounded(schema)) == []


def test_every_whole_number_of_every_endpoint_has_an_upper_bound(context: Context) -> None:
    functions = {name: function for name, _, function in Studio(context).endpoints()}
    schemas = {name: operation_of(function).input_schema() for name, function in functions.items()}
    assert [path for name, schema in schemas.items() for path in unbounded(schema, name)] == []


# -- digits, texts and times that Python cannot convert --------------------------------------------------------------
@pytest.mark.parametrize("index", ["²", "٣", "9" * 5000], ids=["superscript", "Arabic", "long"])
def test_only_a_whole_number_is_an_index_or_a_number_of_an_address(context: Context, index: str) -> None:
    with pytest.raises(ConfigError, match="no valid list index"):
        load_config("quickstart", [f"stages.{index}.steps=3"])
    with pytest.raises(ConfigError, match="no valid list index"):
        set_nested({"stages": [{}]}, f"stages.{index}.steps", 3)
    assert column_value({"a": [1, 2]}, f"a.{index}") is None
    assert run_number({"run": index}) is None
    assert _query._parse(index, []) == [index]
    assert nearest_checkpoint(["base", "rl@2"], f"rl@{index}") == "rl@2"
    with pytest.raises(ConfigError, match="not a whole number"):
        parse_index(index)


def test_half_of_a_surrogate_pair_is_refused_with_a_reason(context: Context) -> None:
    launch, changes = Studio(context).launch, {"preset": "quickstart", "overrides": {"name": "\ud800"}}
    calls: list[Callable[[], object]] = [
        lambda: launch.yaml_of_form({"name": "\ud800"}),
        lambda: launch.yaml_of_form({"\ud800": 1}),
        lambda: launch.check_config(**changes),
        lambda: launch.launch_run(**changes),
        lambda: launch.estimate_run(**changes),
        lambda: queue_experiment("quickstart", {"name": "\ud800"}, workspace=context.workspace.root),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"surrogate|unicode string"):
            call()


@pytest.mark.parametrize("when", ["9999-12-31T23:59-12:00", "9999-12-31T23:59", "0001-01-01T00:00+12:00"])
def test_a_time_without_a_date_in_another_zone_is_refused(context: Context, when: str) -> None:
    launch = Studio(context).launch
    for zone in ("UTC", NEW_YORK, "Asia/Tokyo"):
        assert "not a time" in str(launch.preview_schedule("date", when, zone).error)
        with pytest.raises(ConfigError, match="not a time"):
            launch.schedule_run("date", when, preset="quickstart", timezone=zone)


# -- schedules when the clock is changed -----------------------------------------------------------------------------
BERLIN, NEW_YORK, SANTIAGO = "Europe/Berlin", "America/New_York", "America/Santiago"
TIMES = {
    "daily at a repeated time": (BERLIN, "30 2 * * *", "2027-10-30T12:00", ["31T02:30+02", "01T02:30+01"]),
    "daily at a repeated time in America": (NEW_YORK, "30 1 * * *", "2027-11-06T12:00", ["07T01:30-04", "08T01:30-05"]),
    "weekly at a repeated time": (BERLIN, "30 2 * * sun", "2027-10-30T12:00", ["31T02:30+02", "07T02:30+01"]),
    "added after the first occurrence": (BERLIN, "30 2 * * *", "2027-10-31T02:45", ["01T02:30+01"]),
    "several times in a repeated hour": (
        BERLIN, "*/30 2 * * *", "2027-10-30T12:00", ["31T02:00+02", "31T02:30+02", "01T02:00+01"],
    ),
    "every second hour, one repeated": (BERLIN, "0 */2 * * *", "2027-10-31T00:30", ["31T02:00+02", "31T04:00+01"]),
    "a list of hours, one repeated": (BERLIN, "30 2,3 * * *", "2027-10-31T00:30", ["31T02:30+02", "31T03:30+01"]),
    "hourly in a repeated hour": (
        BERLIN, "0 * * * *", "2027-10-31T01:30", ["31T02:00+02", "31T02:00+01", "31T03:00+01"],
    ),
    "daily at a skipped time": (BERLIN, "30 2 * * *", "2027-03-27T12:00", ["28T03:30+02", "29T02:30+02"]),
    "several times in a skipped hour": (
        BERLIN, "*/30 2 * * *", "2027-03-27T12:00", ["28T03:00+02", "28T03:30+02", "29T02:00+02"],
    ),
    "a skipped hour and the next one": (BERLIN, "30 2,3 * * *", "2027-03-27T12:00", ["28T03:30+02", "29T02:30+02"]),
    "hourly over a skipped hour": (BERLIN, "0 * * * *", "2027-03-28T00:30", ["28T01:00+01", "28T03:00+02"]),
    "a skipped half hour": ("Australia/Lord_Howe", "15 2 * * *", "2027-10-02T12:00", ["03T02:45+11", "04T02:15+11"]),
    "hourly between two due days": (BERLIN, "0 * * * mon", "2027-03-27T12:00", ["29T00:00+02", "29T01:00+02"]),
    "a skipped midnight": (SANTIAGO, "30 0 * * *", "2027-09-04T12:00", ["05T01:30-03", "06T00:30-03"]),
}  # fmt: skip


@pytest.mark.parametrize(("zone", "when", "after", "expected"), TIMES.values(), ids=TIMES)
def test_a_schedule_is_due_once_when_the_clock_is_changed(
    zone: str, when: str, after: str, expected: list[str]
) -> None:
    moment = datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone)).timestamp()
    found = []
    for _ in expected:
        plan = ScheduledRun(name="", trigger="cron", when=when, timezone=zone, created=moment)
        due = scheduled_runs.next_time(plan, moment)
        assert due is not None
        moment = due
        found.append(datetime.fromtimestamp(due, ZoneInfo(zone)).strftime("%dT%H:%M%z")[:-2])
    assert found == expected


STEP = timedelta(minutes=5)
SCHEDULES = {  # cron time → its minutes, hours and ISO weekdays
    "0 * * * *": ({0}, range(24), range(1, 8)),
    "*/20 * * * sun": ({0, 20, 40}, range(24), {7}),
    "15 * * * mon": ({15}, range(24), {1}),
    "45 0-23 * * 6,0": ({45}, range(24), {6, 7}),
    "15,30 2 * * *": ({15, 30}, {2}, range(1, 8)),
    "45 */2 * * sun-mon": ({45}, range(0, 24, 2), {7, 1}),
}


def clock_times(zone: str) -> tuple[dict[datetime, list[datetime]], dict[datetime, datetime]]:
    """Return the moments of each clock time of 2027, and the moment at which each skipped clock time is due."""
    moments: dict[datetime, list[datetime]] = {}
    due: dict[datetime, datetime] = {}
    before = datetime(2027, 1, 1) - STEP
    moment = before.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    while before.year < 2028:
        moment += STEP
        clock = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)
        due |= {before + (i + 1) * STEP: moment + i * STEP for i in range((clock - before) // STEP - 1)}
        moments.setdefault(clock, []).append(moment)
        before = clock
    return moments, due


@pytest.mark.slow
@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, SANTIAGO, "Australia/Lord_Howe"])
def test_all_times_of_a_year_are_due_and_no_others(zone: str) -> None:
    moments, skipped = clock_times(zone)
    assert len(skipped) == (6 if zone == "Australia/Lord_Howe" else 12)
    for when, (minutes, hours, days) in SCHEDULES.items():
        clocks = [
            clock
            for clock in [*moments, *skipped]
            if clock.minute in minutes and clock.hour in hours and clock.isoweekday() in days and clock.year == 2027
        ]
        occurrences = None if len(hours) == 24 else 1
        expected = {moment for clock in clocks for moment in moments.get(clock, [])[:occurrences]}
        expected |= {skipped[clock] for clock in clocks if clock in skipped}
        plan = ScheduledRun(name="", trigger="cron", when=when, timezone=zone, created=0.0)
        found, start = list[datetime](), datetime(2027, 1, 1, tzinfo=ZoneInfo(zone)) - STEP
        while (due := scheduled_runs.next_time(plan, (found or [start])[-1].timestamp())) is not None:
            found.append(datetime.fromtimestamp(due, UTC))
            if found[-1].astimezone(ZoneInfo(zone)).year > 2027:
                break
        assert found[:-1] == sorted(expected), when


@pytest.mark.parametrize(
    "weekday", ["*/0", "mon/0", "1-5/0", "8", "xyz", "", "1,", "mon-", "9-1"], ids=lambda text: text or "empty"
)
def test_an_unknown_weekday_is_one_error_with_the_known_ones(weekday: str) -> None:
    plan = ScheduledRun(name="", trigger="cron", when=f"0 9 * * {weekday or ','}", timezone="UTC", created=0.0)
    with pytest.raises(ConfigError) as caught:
        scheduled_runs.next_time(plan, 0.0)
    assert str(caught.value).count("when: ") == 1 and caught.value.what == "when: unknown weekday."
    assert {"sun", "0-7", "mon-fri", "*/2"} < set(caught.value.known or ())
