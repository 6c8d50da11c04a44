"""How times, durations and sizes are written and read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from treadle import units
from treadle.cli import output


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("1.5", 1.5),
        ("250ms", 0.25),
        ("5m", 300),
        (" 1h 30m ", 5400),
        ("7D", 604_800),
        ("2w", 1_209_600),
    ],
)
def test_durations_are_read(text, seconds):
    assert pytest.approx(seconds) == units.parse_duration(text)


@pytest.mark.parametrize("text", ["", "-1", "m", "5x", "5m nonsense", "inf", "nan", "1e400"])
def test_an_invalid_duration_is_none(text):
    assert units.parse_duration(text) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0ms"),
        (0.34, "340ms"),
        (0.9999, "1.0s"),
        (1.24, "1.2s"),
        (12, "12s"),
        (59.6, "1m"),
        (542, "9m 2s"),
        (3600, "1h"),
        (93_600, "1d 2h"),
    ],
)
def test_spans_are_written_in_two_units(seconds, text):
    assert text == units.format_duration(seconds)


def test_times_are_relative_to_now():
    now = datetime(2026, 11, 1, tzinfo=UTC)
    assert units.format_relative(now + timedelta(minutes=5), now) == "in 5m"
    assert units.format_relative(now - timedelta(seconds=12), now) == "12s ago"
    assert units.format_relative(now, now) == "now"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (14_000_000, "14 MB"), (85e9, "85 GB"), (5e12, "5000 GB")],
)
def test_sizes_are_written_in_thousands(number, text):
    assert text == units.format_bytes(number)


@pytest.mark.parametrize(("value", "most", "length"), [(0, 10, 0), (1, 10_000, 1), (5, 10, 6), (10, 10, 12), (0, 0, 0)])
def test_a_bar_is_as_long_as_its_share_and_a_small_share_is_never_invisible(value, most, length):
    assert length == len(output.bar(value, most))
