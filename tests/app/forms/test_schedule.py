"""Times of schedules."""

from __future__ import annotations

import pytest

from app.forms.schedule import next_times
from rl2f_core.errors import ConfigError

NEW_YEAR = 1_893_456_000.0
"""2030-01-01T00:00 UTC, a Tuesday."""


def test_the_next_three_times_of_a_cron_are_in_its_time_zone() -> None:
    assert next_times("cron", "30 2 * * mon", "Europe/Berlin", NEW_YEAR) == [
        "2030-01-07T02:30:00+01:00",
        "2030-01-14T02:30:00+01:00",
        "2030-01-21T02:30:00+01:00",
    ]
    assert next_times("date", "2030-06-01T08:00", "Europe/Berlin", NEW_YEAR) == ["2030-06-01T08:00:00+02:00"]


@pytest.mark.parametrize(
    ("trigger", "when", "zone"),
    [
        ("cron", "0 2 * *", "UTC"),
        ("cron", "61 2 * * *", "UTC"),
        ("cron", "0 0 30 2 *", "UTC"),
        ("date", "2029-12-31T00:00", "UTC"),
        ("date", "tomorrow", "UTC"),
        ("cron", "0 2 * * *", "Mars/Olympus"),
        ("cron", "0 2 * * *", "../../etc/passwd"),
        ("cron", "0 2 * * *", ""),
    ],
)
def test_times_that_never_come_are_refused(trigger: str, when: str, zone: str) -> None:
    with pytest.raises(ConfigError):
        next_times(trigger, when, zone, NEW_YEAR)
