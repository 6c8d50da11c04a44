"""Charts: pure functions of numbers."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import clock
from treadle.units import format_duration
from treadle.web import charts
from treadle.web.charts import Scale, Series
from treadle.web.formatting import Formatter
from treadle.web.pages import usage_charts
from treadle.web.render import static_files

COUNT = Scale(lambda value: f"{value:g}", charts.nice)


def heights(svg: str, tone: str) -> list[float]:
    return [
        float(box.get("height", "0")) for box in ElementTree.fromstring(svg).iter("rect") if box.get("class") == tone
    ]


def test_bars_are_as_high_as_their_share_of_the_axis_and_are_stacked() -> None:
    series = (Series("fine", "ok", [8, 0, 4]), Series("failed", "bad", [2, 0, 0]))
    chart = charts.bars(["a", "b", "c"], series, COUNT, "Runs")
    assert chart.ys == ["10", "5", "0"]
    assert heights(chart.svg, "c-ok") == [80, 40]
    [failed] = [box for box in ElementTree.fromstring(chart.svg).iter("rect") if box.get("class") == "c-bad"]
    assert (failed.get("height"), failed.get("y")) == ("20", "0"), "it ends where the axis does"


def test_each_column_shows_its_numbers_and_the_table_has_them_all() -> None:
    series = (Series("fine", "ok", [8, 0, 4]), Series("failed", "bad", [2, 0, 0]))
    chart = charts.bars(["a", "b", "c"], series, COUNT, "Runs")
    titles = [title.text for title in ElementTree.fromstring(chart.svg).iter("title")]
    assert titles == ["a: fine 8, failed 2", "b: fine 0, failed 0", "c: fine 4, failed 0"]
    assert chart.rows == [("c", ["4", "0"]), ("a", ["8", "2"])], "the latest first, without what is empty"


def test_a_value_that_is_not_known_leaves_a_gap() -> None:
    chart = charts.lines(["a", "b", "c", "d"], (Series("mean", "calm", [1, 2, None, 1]),), COUNT, "Wait")
    drawn = [path.get("class") for path in ElementTree.fromstring(chart.svg).iter("path")]
    assert drawn == ["area c-calm", "line c-calm", "line dot c-calm"], "two points are a line, one is a dot"
    assert chart.rows == [("d", ["1"]), ("b", ["2"]), ("a", ["1"])]


def test_a_chart_without_data_says_so() -> None:
    assert not charts.bars(["a"], (Series("runs", "ok", [0]),), COUNT, "Runs").rows
    assert not charts.lines(["a"], (Series("mean", "ok", [None]),), COUNT, "Wait").rows
    assert not charts.bars([], (), COUNT, "Runs").rows


def test_a_small_value_is_never_invisible() -> None:
    chart = charts.bars(["a", "b"], (Series("runs", "ok", [100_000, 1]),), COUNT, "Runs")
    assert min(heights(chart.svg, "c-ok")) >= 1
    assert heights(charts.spark([1000, 1, 0], "Runs"), "c-ok") == [100, 1.5]


def test_names_are_escaped_in_a_chart() -> None:
    evil = '"><script>alert(1)</script>'
    for svg in (
        charts.bars([evil], (Series(evil, "ok", [1]),), COUNT, evil).svg,
        charts.spark([1], evil),
        charts.ribbon([("ok", evil, 1)], evil),
    ):
        ElementTree.fromstring(svg)
        assert "<script" not in svg


def test_a_chart_has_no_inline_style() -> None:
    chart = charts.bars(["a"], (Series("runs", "ok", [1]),), COUNT, "Runs")
    assert not re.search(r"\sstyle=|<style", chart.svg + charts.ribbon([("ok", "a", 1)], "b"))


def test_a_timeline_ribbon_fills_its_width_in_order_and_shows_short_parts() -> None:
    parts = [("none", "waited", 1000.0), ("bad", "ran", 0.001), ("none", "waited", 1000.0)]
    boxes = list(ElementTree.fromstring(charts.ribbon(parts, "Life")).iter("rect"))
    widths = [float(box.get("width", "0")) for box in boxes]
    assert widths[0] == widths[2]
    assert widths[1] > 5
    assert float(boxes[2].get("x", "0")) + widths[2] == pytest.approx(998, abs=1)


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.3, 0.4), (1, 1), (3, 4), (7, 8), (51, 60), (11, 20), (999, 1000), (1001, 2000)]
)
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    assert charts.nice(value) == pytest.approx(top)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.03, "40ms"),
        (0.8, "800ms"),
        (7, "10s"),
        (45, "1m"),
        (100, "2m"),
        (4000, "2h"),
        (90_000, "2d"),
        (800_000, "10d"),
    ],
)
def test_axes_of_durations_end_at_round_durations(value: float, text: str) -> None:
    assert format_duration(charts.nice_seconds(value)) == text


@given(st.floats(min_value=1e-6, max_value=1e12))
def test_an_axis_is_at_least_as_high_as_its_values_and_not_much_higher(value: float) -> None:
    for nice, most in ((charts.nice, 2.6), (charts.nice_seconds, 3.1)):
        assert value * (1 - 1e-6) <= nice(value) <= value * most


@given(st.lists(st.floats(min_value=0, max_value=1e9) | st.none(), max_size=50))
def test_any_numbers_make_a_chart(values: list[float | None]) -> None:
    labels = [str(n) for n in range(len(values))]
    for draw in (charts.bars, charts.lines):
        chart = draw(labels, (Series("a", "ok", values),), COUNT, "A")
        ElementTree.fromstring(chart.svg)
        assert "nan" not in chart.svg
        assert len(chart.xs) <= 5


def test_a_few_labels_are_picked_evenly() -> None:
    assert charts.pick([str(n) for n in range(61)]) == ["0", "15", "30", "45", "60"]
    assert charts.pick(["a", "b"]) == ["a", "b"]


def test_every_tone_of_a_chart_has_a_color() -> None:
    over, fmt = usage_charts.window("1h", clock.now()), Formatter(datetime.now(UTC))
    steps = usage_charts.by_step([], over)
    drawn = [
        usage_charts.throughput_chart(steps, over, fmt),
        *usage_charts.mean_charts(steps, over, fmt),
        usage_charts.backlog_chart([], over, fmt, lambda wanted: ""),
    ]
    tones = {f".c-{one.tone} {{" for chart in drawn for one in chart.series}
    assert {tone for tone in tones if tone not in static_files()["treadle.css"].content.decode()} == set()
