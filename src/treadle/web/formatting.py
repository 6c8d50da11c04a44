"""How pages show times, durations and numbers. Times are in the reader's zone: there is one `Formatter` per request."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from markupsafe import Markup, escape

from treadle import units
from treadle.job import Count
from treadle.web.charts import NOTHING
from treadle.web.route import Request

ZONE, THEME = "treadle_zone", "treadle_theme"
"""Cookies: choices of one reader, which change nothing for others."""
_UTC = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC")


@cache
def zones() -> tuple[str, ...]:
    """All that this machine knows. UTC is among them, even if the machine has no zone data."""
    return tuple(sorted({*available_timezones(), "UTC"} - {"localtime"}))


class Formatter(NamedTuple):
    """What depends on the reader and on the time."""

    now: datetime
    zone: str = "UTC"
    chosen: str = ""
    """The zone as the reader chose it: a name, `browser` for theirs, or nothing yet."""
    theme: str = ""

    def local(self, moment: datetime) -> datetime:
        return moment.astimezone(ZoneInfo(self.zone))

    def read(self, text: str) -> datetime:
        """An ISO time as the reader writes it: without a zone it is in theirs. Raises ValueError."""
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(self.zone))

    def at(self, moment: datetime) -> Markup:
        return self._time(moment, "abs", f"{self.local(moment):%Y-%m-%d %H:%M:%S}")

    def ago(self, moment: datetime) -> Markup:
        """A moment relative to now. The script keeps it true while the page is open."""
        return self._time(moment, "ago", units.format_relative(moment, self.now))

    def since(self, moment: datetime) -> Markup:
        """How long it has lasted."""
        return self._time(moment, "for", units.format_duration((self.now - moment).total_seconds()))

    def _time(self, moment: datetime, kind: str, text: str) -> Markup:
        iso = self.local(moment).isoformat(timespec="milliseconds")
        return Markup('<time datetime="{}" title="{}" data-{}>{}</time>').format(iso, iso, kind, text)

    def localized(self, text: str) -> Markup:
        """A sentence of the library, with its times in the reader's zone."""
        return Markup(_UTC.sub(lambda found: self._local_time(found[1]), escape(text)))

    def _local_time(self, text: str) -> Markup:
        """An error may contain what looks like a time and is none."""
        try:
            moment = datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
            return self.at(moment) + f" {self.local(moment):%Z}"
        except (ValueError, OverflowError):
            return escape(f"{text} UTC")

    def axis_label(self, moment: datetime, span: timedelta) -> str:
        """As short as the axis allows."""
        form = "%H:%M" if span <= timedelta(hours=36) else "%b %-d" if span > timedelta(days=8) else "%b %-d %H:%M"
        return self.local(moment).strftime(form)


def formatter_for(request: Request) -> Formatter:
    """Zone and theme are in cookies, so that pages are right without a script."""
    cookies = request.raw.cookies
    chosen = cookies.get(ZONE, "")
    zone = chosen.removeprefix("browser:")
    theme = cookies.get(THEME, "")
    return Formatter(
        now=datetime.now(UTC),
        zone=zone if zone in zones() else "UTC",
        chosen="browser" if chosen.startswith("browser:") else chosen if zone in zones() else "",
        theme=theme if theme in ("light", "dark") else "",
    )


def number(value: Any) -> str:
    """1,204; or 10,000+ for a Count that stopped counting."""
    return str(value) if isinstance(value, Count) else f"{value:,}"


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def share(part: float, whole: float) -> str:
    """A percentage that is 100 only if it is all, and 0 only if it is none."""
    if not whole:
        return NOTHING
    percent = part / whole * 100
    if 99.9 < percent < 100:
        return "> 99.9 %"
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f}".removesuffix(".0") + " %"


def money(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 0.1 or not amount else f"{amount:.4f}"


def short(id: str) -> str:
    """A shortened id that still differs from its neighbors: UUIDv7s of one moment differ at their end."""
    return f"{id[:4]}…{id[-6:]}" if len(id) > 14 else id


def sentence(text: str) -> str:
    """The text as a sentence: an error of the library begins with a small letter and has no period."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!", "…")) else ".")
